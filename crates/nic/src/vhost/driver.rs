//! What the rings have in common that we drive: how a frame is taken that is not one plain buffer.

use super::header::HEADER;
use super::memory::Memory;
use super::ring::{Gather, Incoming, Taken};
use super::slots::Slots;

/// A ring of ours whose buffers a peer gives back.
pub(super) trait Driver: Incoming {
    /// The memory that is shared, and which of its buffers the peer has.
    fn buffers(&mut self) -> (&Memory, &mut Slots);
    /// Whether something was used; not if the ring makes no sense.
    fn used(&mut self) -> bool;
    /// The next that was used, and how much is in it; it is to be checked that it is out.
    fn next_used(&mut self) -> (u16, u32);
    /// The next that was used, and how much is in it; `None`, and broken, if it was not out.
    fn take_back(&mut self) -> Option<(u16, u32)>;
    /// Makes a buffer available to be written to.
    fn hand_over_empty(&mut self, slot: u16);
    /// Whether the ring makes no sense; it is not looked at again then.
    fn broken(&mut self) -> &mut bool;
}

/// Takes a frame that comes in any way, and reads what was used anew. A packet to be cut stays.
#[cold]
pub(super) fn take_any(ring: &mut impl Driver, buffer: &mut [u8]) -> Taken {
    let ((slot, len), cuts) = (ring.next_used(), ring.features().cuts());
    let (memory, slots) = ring.buffers();
    if cuts && slots.is_large(memory, slot, len) {
        return Taken::Large;
    }
    let mut gather = Gather::new(buffer);
    let taken = ring.take_parts(&mut gather);
    taken.map_or_else(|why| why, |good| gather.end(good))
}

/// Takes the next frame as its parts are, and hands their buffers over again: whether it makes sense, or what there is
/// in place of a frame.
#[cold]
pub(super) fn take_parts(ring: &mut impl Driver, gather: &mut Gather<'_>) -> Result<bool, Taken> {
    let mergeable = ring.features().mergeable;
    let (mut parts, mut good) = (1, true);
    while parts > 0 {
        if !ring.used() {
            let none = gather.is_empty() && !*ring.broken();
            // A frame's parts are shown together.
            *ring.broken() |= !none;
            return Err(if none { Taken::Empty } else { Taken::Broken });
        }
        let (slot, len) = ring.take_back().ok_or(Taken::Broken)?;
        let (memory, slots) = ring.buffers();
        let first = gather.is_empty();
        good &= len <= slots.len() && (!first || len >= HEADER as u32);
        good = good && gather.add(memory, slots.address(slot), len);
        if first && mergeable && good {
            parts = gather.buffers();
            good = (1..=slots.count()).contains(&parts);
            parts = parts.clamp(1, slots.count());
        }
        parts -= 1;
        if slots.lend_again(slot) {
            ring.hand_over_empty(slot);
        }
    }
    Ok(good)
}
