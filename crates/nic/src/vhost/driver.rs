//! The receive path that split and packed drivers share, for frames that are not in one buffer with a plain header.

use super::header::HEADER;
use super::memory::Memory;
use super::ring::{Gather, Incoming, TakeResult};
use super::slots::Slots;

/// A ring that we drive, whose buffers the peer returns.
pub(super) trait Driver: Incoming {
    /// The shared memory, and the state of its buffers.
    fn buffers(&mut self) -> (&Memory, &mut Slots);
    /// Whether a buffer was used; `false` if the ring is broken.
    fn used(&mut self) -> bool;
    /// The next used buffer, and the number of bytes in it; the caller checks that the device had it.
    fn next_used(&mut self) -> (u16, u32);
    /// Takes back the next used buffer, and the number of bytes in it; `None`, and broken, if the device did not
    /// have it.
    fn take_back(&mut self) -> Option<(u16, u32)>;
    /// Makes a buffer available for writing.
    fn hand_over_empty(&mut self, slot: u16);
    /// Whether the ring is broken; it is then no longer used.
    fn broken(&mut self) -> &mut bool;
}

/// Takes a frame in any form, reading the used entries again. Leaves a packet to be segmented in the ring.
#[cold]
pub(super) fn take_any(ring: &mut impl Driver, buffer: &mut [u8]) -> TakeResult {
    let ((slot, len), cuts) = (ring.next_used(), ring.features().cuts());
    let (memory, slots) = ring.buffers();
    if cuts && slots.is_large(memory, slot, len) {
        return TakeResult::Large;
    }
    let mut gather = Gather::new(buffer);
    let taken = ring.take_parts(&mut gather);
    taken.map_or_else(|why| why, |good| gather.end(good))
}

/// Takes the next frame part by part, and makes its buffers available again. Returns whether it is valid, or the
/// reason why there is no frame.
#[cold]
pub(super) fn take_parts(
    ring: &mut impl Driver,
    gather: &mut Gather<'_>,
) -> Result<bool, TakeResult> {
    let mergeable = ring.features().mergeable;
    let (mut parts, mut good) = (1, true);
    while parts > 0 {
        if !ring.used() {
            let none = gather.is_empty() && !*ring.broken();
            // A frame's parts become visible together.
            *ring.broken() |= !none;
            return Err(if none { TakeResult::Empty } else { TakeResult::Broken });
        }
        let (slot, len) = ring.take_back().ok_or(TakeResult::Broken)?;
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
