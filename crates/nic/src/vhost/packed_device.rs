//! A packed ring that a peer drives and we serve.
//!
//! One array of descriptors serves both directions: a descriptor is available when its two flags differ as the
//! driver's lap says, and used when they are equal. Chains are consecutive, and returned at their first descriptor,
//! in the call that takes them.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};

use super::memory::{Area, Memory, fence};
use super::packed_ring::{BATCH, Position, Suppression, packed_word};
use super::resume;
use super::ring::{
    Descriptor, Gather, INDIRECT, Incoming, MAX_PARTS, MAX_RING, NEXT, Outgoing, PutResult,
    Scatter, Table, TakeResult, WRITE, take_whole,
};
use super::setup::{RingAddresses, RingFeatures};
use super::tracking::{PackedTracking, Region};

/// A chain that was returned but is not yet published to the driver.
#[derive(Debug, Clone, Copy, Default)]
struct ReturnedChain {
    at: u16,
    id: u16,
    len: u32,
    flags: u16,
}

/// The device side of a packed ring.
#[derive(Debug)]
pub(super) struct PackedDevice {
    memory: Arc<Memory>,
    table: Area,
    device_events: Suppression,
    driver_events: Suppression,
    features: RingFeatures,
    next: Position,
    /// The position at which there was no buffer for a frame, or for the rest of it.
    no_room_at: Position,
    returned: [ReturnedChain; BATCH],
    unpublished: usize,
    /// Number of descriptors of the unpublished chains.
    span: u16,
    /// The most these may be: the size of the ring, since the driver gets none of them back before they are
    /// published, and a batch of more than a lap does not fit the in-flight record. 0 if the ring is broken.
    limit: u16,
    /// Number of descriptors published since the last check for notifications.
    moved: u16,
    /// The record of in-flight chains for the next backend.
    tracking: Option<PackedTracking>,
}

impl PackedDevice {
    /// `None` if a part is not within the memory, or `base` (position and lap, as in messages) is invalid.
    pub(super) fn new(
        memory: &Arc<Memory>,
        at: RingAddresses,
        size: u16,
        base: u16,
        features: RingFeatures,
    ) -> Option<PackedDevice> {
        if size == 0 || size > MAX_RING {
            return None;
        }
        let next = Position::from_base(base, size)?;
        Some(PackedDevice {
            table: memory.area(at.table, 16 * usize::from(size), 16)?,
            driver_events: Suppression::new(memory.area(at.driver, 4, 4)?),
            device_events: Suppression::new(memory.area(at.device, 4, 4)?),
            memory: Arc::clone(memory),
            features,
            next,
            no_room_at: next,
            returned: [ReturnedChain::default(); BATCH],
            unpublished: 0,
            span: 0,
            limit: size,
            moved: 0,
            tracking: None,
        })
    }

    /// Records in-flight chains in `region` from now on. With `recover`, continues where a region in use says, with
    /// its in-flight chains available again; `false` if the region is invalid.
    pub(super) fn track(&mut self, region: Region, recover: bool) -> bool {
        if recover && region.is_used() {
            let size = self.next.size();
            let Some((tracking, next)) = PackedTracking::recover(region, &self.table, size) else {
                return false;
            };
            (self.next, self.no_room_at, self.tracking) = (next, next, Some(tracking));
        } else {
            self.tracking = Some(PackedTracking::begin(region, self.next));
        }
        true
    }

    /// The base at which another device would continue.
    pub(super) fn base(&self) -> u16 {
        self.next.base()
    }

    /// Continues where the ring's own descriptors tell, if they do.
    pub(super) fn resume(&mut self) {
        if let Some(position) = resume::find(&self.table, self.next.size()) {
            (self.next, self.no_room_at) = (position, position);
        }
    }

    /// Whether the ring is invalid, and no longer used.
    pub(super) fn is_broken(&self) -> bool {
        self.limit == 0
    }

    fn fail(&mut self) {
        self.limit = 0;
    }

    /// The number of descriptors that may still be returned before a publication.
    #[inline]
    fn left(&self) -> u16 {
        self.limit.saturating_sub(self.span)
    }

    #[inline]
    fn flags(&self, at: u16) -> u16 {
        self.table.load16(usize::from(at) * 16 + 14, Acquire)
    }

    #[inline]
    fn available(&self) -> bool {
        self.span < self.limit && self.next.is_available(self.flags(self.next.at()))
    }

    /// Calls `part` with each descriptor of the next chain, until it refuses one. Returns the id of the chain's
    /// last descriptor, its length, and whether it is valid; `None` if it has no end, is too long, or leads to
    /// descriptors taken before.
    ///
    /// A driver makes a chain's first descriptor available last, so the whole chain is there.
    #[inline]
    fn walk(
        &self,
        mut part: impl FnMut(&Memory, Descriptor) -> Option<()>,
    ) -> Option<(u16, u16, bool)> {
        let (mut position, mut good) = (self.next, true);
        for count in 1..=self.left().min(MAX_PARTS) {
            let it = Descriptor::read(&self.table, position.at());
            good = good
                && match it.second & INDIRECT {
                    0 => part(&self.memory, it).is_some(),
                    _ => self.walk_table(it, &mut part),
                };
            if it.second & NEXT == 0 {
                return Some((it.first, count, good));
            }
            position.step(1);
        }
        None
    }

    /// Walks a table of descriptors, which are consecutive; `false` if it is invalid.
    #[cold]
    fn walk_table(
        &self,
        of: Descriptor,
        mut part: impl FnMut(&Memory, Descriptor) -> Option<()>,
    ) -> bool {
        let allowed = self.features.indirect && of.second & NEXT == 0;
        let Some(table) = Table::new(of.address, of.len).filter(|_| allowed) else { return false };
        (0..table.count()).all(|index| {
            let it = table.read(&self.memory, index);
            it.is_some_and(|it| part(&self.memory, it).is_some())
        })
    }

    #[inline]
    fn give_back(&mut self, id: u16, count: u16, len: u32, flags: u16) {
        if self.unpublished == BATCH {
            self.publish_early();
        }
        let (at, flags) = (self.next.at(), self.next.used() | flags);
        // Written at the publication: until then the descriptor may have to be restored.
        self.returned[self.unpublished] = ReturnedChain { at, id, len, flags };
        self.unpublished += 1;
        self.next.step(count);
        self.span += count;
    }

    /// Publishes because the batch is full. Outlined, so that the caller can be inlined.
    #[cold]
    fn publish_early(&mut self) {
        self.publish_batch();
    }

    /// Publishes the returned chains to the driver: the first last, so that it sees all at once.
    #[inline]
    fn publish_batch(&mut self) {
        // Reset first, so that nothing is published twice, whatever happens below.
        let (unpublished, span) =
            (std::mem::take(&mut self.unpublished), std::mem::take(&mut self.span));
        self.moved = self.moved.saturating_add(span);
        if unpublished > 0 {
            match &self.tracking {
                Some(tracking) => self.publish_tracked(tracking, unpublished),
                None => self.write_used(unpublished),
            }
        }
    }

    #[inline]
    fn publish_tracked(&self, tracking: &PackedTracking, unpublished: usize) {
        let returned = &self.returned[..unpublished];
        let Some(first) = returned.first() else { return };
        let (from, to) = (self.next.before(first.at), self.next);
        let count = tracking.giving_back(&self.table, from, to, returned.iter().map(|it| it.at));
        self.write_used(unpublished);
        tracking.given_back(count, to);
    }

    #[inline]
    fn write_used(&self, unpublished: usize) {
        let returned = &self.returned[..unpublished];
        match (returned.first(), returned.last()) {
            (Some(first), Some(last)) if self.marks_at_once() && first.flags & WRITE == 0 => {
                self.write_one_used(ReturnedChain { id: last.id, ..*first });
            }
            _ => returned.iter().rev().for_each(|it| self.write_one_used(*it)),
        }
    }

    /// Whether the first descriptor of a burst may mark all of it as used: if order was negotiated, and the next
    /// backend does not have to find its position by the ring's descriptors. Only for chains without written bytes,
    /// whose lengths would be lost.
    #[inline]
    fn marks_at_once(&self) -> bool {
        self.features.in_order && (self.tracking.is_some() || !self.features.indirect)
    }

    #[inline]
    fn write_one_used(&self, ReturnedChain { at, id, len, flags }: ReturnedChain) {
        self.table.store64(usize::from(at) * 16 + 8, packed_word(len, id, flags), Release);
    }

    /// Takes a frame in any form, reading its descriptors again.
    #[cold]
    fn take_chain(&mut self, buffer: &mut [u8]) -> TakeResult {
        let mut gather = Gather::new(buffer);
        let Some((id, count, good)) = self.gather(&mut gather) else { return TakeResult::Broken };
        if good && self.features.cuts() && gather.is_large() {
            return TakeResult::Large;
        }
        self.give_back(id, count, 0, 0);
        gather.end(good)
    }

    /// Walks the next chain to gather a frame; a chain without an end breaks the ring.
    fn gather(&mut self, gather: &mut Gather<'_>) -> Option<(u16, u16, bool)> {
        let chain = self.walk(|memory, it| {
            let readable = it.second & (WRITE | INDIRECT) == 0;
            (readable && gather.add(memory, it.address, it.len)).then_some(())
        });
        if chain.is_none() {
            self.fail();
        }
        chain
    }
}

impl Incoming for PackedDevice {
    #[inline]
    fn ready(&mut self, most: u16) -> Option<u16> {
        let available = |position: Position| position.is_available(self.flags(position.at()));
        (!self.is_broken()).then(|| self.next.count(most.min(self.left()), available))
    }

    #[inline]
    fn take(&mut self, buffer: &mut [u8]) -> TakeResult {
        if !self.available() {
            return if self.is_broken() { TakeResult::Broken } else { TakeResult::Empty };
        }
        let first = Descriptor::read(&self.table, self.next.at());
        if first.second & (WRITE | INDIRECT | NEXT) == 0
            && let part = (first.address, first.len)
            && let Some(len) = take_whole(&self.memory, part, self.features.checksums, buffer)
        {
            self.give_back(first.first, 1, 0, 0);
            return TakeResult::Frame(len);
        }
        self.take_chain(buffer)
    }

    fn features(&self) -> RingFeatures {
        self.features
    }

    #[cold]
    fn take_parts(&mut self, gather: &mut Gather<'_>) -> Result<bool, TakeResult> {
        if !self.available() {
            return Err(if self.is_broken() { TakeResult::Broken } else { TakeResult::Empty });
        }
        let (id, count, good) = self.gather(gather).ok_or(TakeResult::Broken)?;
        self.give_back(id, count, 0, 0);
        Ok(good)
    }

    #[inline]
    fn publish(&mut self) -> bool {
        self.publish_batch();
        if self.moved == 0 {
            return false;
        }
        let moved = std::mem::take(&mut self.moved);
        fence(SeqCst);
        self.driver_events.wants(self.next, moved)
    }

    fn mask(&mut self) {
        self.device_events.disable();
    }

    fn unmask(&mut self) -> bool {
        self.device_events.enable(self.features.event.then_some(self.next));
        fence(SeqCst);
        let waits = self.available();
        if waits {
            self.mask();
        }
        waits
    }
}

impl Outgoing for PackedDevice {
    #[inline]
    fn put(&mut self, frame: &[u8]) -> PutResult {
        let (start, unpublished, span) = (self.next, self.unpublished, self.span);
        let mut scatter = Scatter::new(frame);
        let mut buffers = 0;
        while !scatter.done() {
            let back = if self.is_broken() {
                PutResult::Broken
            } else if buffers > 0 && !self.features.mergeable {
                PutResult::TooLong
            } else if usize::from(buffers) + unpublished >= BATCH {
                // A frame's buffers are published together, so the batch must have room for all of them.
                if unpublished == 0 {
                    PutResult::TooLong
                } else {
                    self.next = start;
                    (self.unpublished, self.span) = (unpublished, span);
                    self.publish_batch();
                    return self.put(frame);
                }
            } else if self.available() {
                let mut written = 0;
                let chain = self.walk(|memory, it| {
                    if it.second & (WRITE | INDIRECT) != WRITE {
                        return None;
                    }
                    if !scatter.done() {
                        written += scatter.add(memory, it.address, it.len)?;
                    }
                    Some(())
                });
                if let Some((id, count, true)) = chain {
                    self.give_back(id, count, written, WRITE);
                    buffers += 1;
                    continue;
                }
                self.fail();
                PutResult::Broken
            } else {
                self.no_room_at = self.next;
                PutResult::Full
            };
            self.next = start;
            (self.unpublished, self.span) = (unpublished, span);
            return back;
        }
        if scatter.end(&self.memory, buffers) {
            return PutResult::Sent;
        }
        self.next = start;
        (self.unpublished, self.span) = (unpublished, span);
        self.fail();
        PutResult::Broken
    }

    #[inline]
    fn publish(&mut self) -> bool {
        Incoming::publish(self)
    }

    fn await_room(&mut self) -> bool {
        if self.is_broken() {
            return false;
        }
        self.device_events.enable(self.features.event.then_some(self.no_room_at));
        fence(SeqCst);
        let room = self.no_room_at.is_available(self.flags(self.no_room_at.at()));
        if room {
            self.mask();
        }
        room
    }

    fn ignore_room(&mut self) {
        self.mask();
    }
}

// With a path, because the loom models include this file from elsewhere.
#[cfg(all(test, not(loom)))]
#[path = "packed_device/tests.rs"]
mod tests;
