//! A packed ring that a peer drives and we serve.
//!
//! One array of descriptors for both directions: a descriptor is available when its two flags differ as the
//! driver's lap says, and used when they are alike. Chains are consecutive, and given back where they began,
//! in the call that takes them.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};

use super::memory::{Area, Memory, fence};
use super::resume;
use super::ring::{
    Descriptor, Gather, INDIRECT, Incoming, MAX_PARTS, MAX_RING, NEXT, Outgoing, Put, Scatter,
    Table, Taken, WRITE, take_whole,
};
use super::setup::{RingAddresses, RingFeatures};
use super::tracking::{PackedTracking, Region};
use super::turn::{BATCH, Suppression, Turn, packed_word};

/// A chain that was given back, and that the driver does not see yet.
#[derive(Debug, Clone, Copy, Default)]
struct Given {
    at: u16,
    id: u16,
    len: u32,
    flags: u16,
}

/// The device's side.
#[derive(Debug)]
pub(super) struct PackedDevice {
    memory: Arc<Memory>,
    table: Area,
    ours: Suppression,
    theirs: Suppression,
    features: RingFeatures,
    next: Turn,
    /// Where there was no buffer for a frame, or for the rest of it.
    lacking: Turn,
    given: [Given; BATCH],
    held: usize,
    /// Descriptors of those chains.
    span: u16,
    /// How many these may be: as many as the ring has, for the driver gets none of them back before it sees them, and a
    /// batch of more than a lap has no place in the notes of what is in flight. None if the ring makes no sense.
    limit: u16,
    /// Descriptors that the driver sees since it was last looked after.
    moved: u16,
    /// Where the next backend finds what is in flight.
    tracking: Option<PackedTracking>,
}

impl PackedDevice {
    /// `None` if a part is not within the memory, or `base` (place and lap, as messages have it) is none.
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
        let next = Turn::from_base(base, size)?;
        Some(PackedDevice {
            table: memory.area(at.table, 16 * usize::from(size), 16)?,
            theirs: Suppression::new(memory.area(at.driver, 4, 4)?),
            ours: Suppression::new(memory.area(at.device, 4, 4)?),
            memory: Arc::clone(memory),
            features,
            next,
            lacking: next,
            given: [Given::default(); BATCH],
            held: 0,
            span: 0,
            limit: size,
            moved: 0,
            tracking: None,
        })
    }

    /// From now on what is in flight is noted in `region`. With `recover`, a region that was in use says where to go
    /// on, and what is in flight is available again; `false` if it makes no sense.
    pub(super) fn track(&mut self, region: Region, recover: bool) -> bool {
        if recover && region.is_used() {
            let size = self.next.size();
            let Some((tracking, next)) = PackedTracking::recover(region, &self.table, size) else {
                return false;
            };
            (self.next, self.lacking, self.tracking) = (next, next, Some(tracking));
        } else {
            self.tracking = Some(PackedTracking::begin(region, self.next));
        }
        true
    }

    /// The place where another device would go on, and its lap.
    pub(super) fn base(&self) -> u16 {
        self.next.base()
    }

    /// Goes on where the ring itself says, if it does.
    pub(super) fn resume(&mut self) {
        if let Some(turn) = resume::find(&self.table, self.next.size()) {
            (self.next, self.lacking) = (turn, turn);
        }
    }

    /// Whether it makes no sense, and is not looked at any more.
    pub(super) fn is_broken(&self) -> bool {
        self.limit == 0
    }

    fn fail(&mut self) {
        self.limit = 0;
    }

    /// Descriptors that may still be given back before the driver sees them.
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

    /// Calls `part` with each descriptor of the next chain, until it has enough. The id of its last
    /// descriptor and how many it has; `None` if it has no end, or too far away, or leads to what was taken before.
    ///
    /// A driver makes a chain's first descriptor available last, so all of it is there.
    #[inline]
    fn walk(
        &self,
        mut part: impl FnMut(&Memory, Descriptor) -> Option<()>,
    ) -> Option<(u16, u16, bool)> {
        let (mut turn, mut good) = (self.next, true);
        for count in 1..=self.left().min(MAX_PARTS) {
            let it = Descriptor::read(&self.table, turn.at());
            good = good
                && match it.second & INDIRECT {
                    0 => part(&self.memory, it).is_some(),
                    _ => self.walk_table(it, &mut part),
                };
            if it.second & NEXT == 0 {
                return Some((it.first, count, good));
            }
            turn.step(1);
        }
        None
    }

    /// A table of descriptors, which are taken one after the other; whether it is one.
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
        if self.held == BATCH {
            self.show_early();
        }
        let (at, flags) = (self.next.at(), self.next.used() | flags);
        // Written later: until the driver is to see it, the descriptor may have to be as it was.
        self.given[self.held] = Given { at, id, len, flags };
        self.held += 1;
        self.next.step(count);
        self.span += count;
    }

    /// There is no place for more. Out of the way, so that giving back is not.
    #[cold]
    fn show_early(&mut self) {
        self.show();
    }

    /// The driver sees what was given back: the first last, so that it finds all at once.
    #[inline]
    fn show(&mut self) {
        // Forgotten first: whatever comes of showing it, it is not shown again.
        let (held, span) = (std::mem::take(&mut self.held), std::mem::take(&mut self.span));
        self.moved = self.moved.saturating_add(span);
        if held > 0 {
            match &self.tracking {
                Some(tracking) => self.show_tracked(tracking, held),
                None => self.show_given(held),
            }
        }
    }

    #[inline]
    fn show_tracked(&self, tracking: &PackedTracking, held: usize) {
        let given = &self.given[..held];
        let Some(first) = given.first() else { return };
        let (from, to) = (self.next.before(first.at), self.next);
        let count = tracking.giving_back(&self.table, from, to, given.iter().map(|it| it.at));
        self.show_given(held);
        tracking.given_back(count, to);
    }

    #[inline]
    fn show_given(&self, held: usize) {
        let given = &self.given[..held];
        match (given.first(), given.last()) {
            (Some(first), Some(last)) if self.tells_at_once() && first.flags & WRITE == 0 => {
                self.show_one(Given { id: last.id, ..*first });
            }
            _ => given.iter().rev().for_each(|it| self.show_one(*it)),
        }
    }

    /// Whether the first place of a burst tells of all of it, if nothing was written to it whose length is to be told: where
    /// order was agreed on, and the next backend does not have to find its place by what is written in the ring.
    #[inline]
    fn tells_at_once(&self) -> bool {
        self.features.in_order && (self.tracking.is_some() || !self.features.indirect)
    }

    #[inline]
    fn show_one(&self, Given { at, id, len, flags }: Given) {
        self.table.store64(usize::from(at) * 16 + 8, packed_word(len, id, flags), Release);
    }

    /// Takes a frame that comes in any way, and reads its descriptors anew.
    #[cold]
    fn take_chain(&mut self, buffer: &mut [u8]) -> Taken {
        let mut gather = Gather::new(buffer);
        let Some((id, count, good)) = self.gather(&mut gather) else { return Taken::Broken };
        if good && self.features.cuts() && gather.is_large() {
            return Taken::Large;
        }
        self.give_back(id, count, 0, 0);
        gather.end(good)
    }

    /// As [`walk`](PackedDevice::walk); a chain without an end breaks the ring.
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
        let available = |turn: Turn| turn.is_available(self.flags(turn.at()));
        (!self.is_broken()).then(|| self.next.count(most.min(self.left()), available))
    }

    #[inline]
    fn take(&mut self, buffer: &mut [u8]) -> Taken {
        if !self.available() {
            return if self.is_broken() { Taken::Broken } else { Taken::Empty };
        }
        let first = Descriptor::read(&self.table, self.next.at());
        if first.second & (WRITE | INDIRECT | NEXT) == 0
            && let part = (first.address, first.len)
            && let Some(len) = take_whole(&self.memory, part, self.features.checksums, buffer)
        {
            self.give_back(first.first, 1, 0, 0);
            return Taken::Frame(len);
        }
        self.take_chain(buffer)
    }

    fn features(&self) -> RingFeatures {
        self.features
    }

    #[cold]
    fn take_parts(&mut self, gather: &mut Gather<'_>) -> Result<bool, Taken> {
        if !self.available() {
            return Err(if self.is_broken() { Taken::Broken } else { Taken::Empty });
        }
        let (id, count, good) = self.gather(gather).ok_or(Taken::Broken)?;
        self.give_back(id, count, 0, 0);
        Ok(good)
    }

    #[inline]
    fn publish(&mut self) -> bool {
        self.show();
        if self.moved == 0 {
            return false;
        }
        let moved = std::mem::take(&mut self.moved);
        fence(SeqCst);
        self.theirs.wants(self.next, moved)
    }

    fn mask(&mut self) {
        self.ours.disable();
    }

    fn unmask(&mut self) -> bool {
        self.ours.enable(self.features.event.then_some(self.next));
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
    fn put(&mut self, frame: &[u8]) -> Put {
        let (start, held, span) = (self.next, self.held, self.span);
        let mut scatter = Scatter::new(frame);
        let mut buffers = 0;
        while !scatter.done() {
            let back = if self.is_broken() {
                Put::Broken
            } else if buffers > 0 && !self.features.mergeable {
                Put::TooLong
            } else if usize::from(buffers) + held >= BATCH {
                // A frame's buffers are shown together, and room for them has to be kept.
                if held == 0 {
                    Put::TooLong
                } else {
                    self.next = start;
                    (self.held, self.span) = (held, span);
                    self.show();
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
                Put::Broken
            } else {
                self.lacking = self.next;
                Put::Full
            };
            self.next = start;
            (self.held, self.span) = (held, span);
            return back;
        }
        if scatter.end(&self.memory, buffers) {
            return Put::Sent;
        }
        self.next = start;
        (self.held, self.span) = (held, span);
        self.fail();
        Put::Broken
    }

    #[inline]
    fn publish(&mut self) -> bool {
        Incoming::publish(self)
    }

    fn await_room(&mut self) -> bool {
        if self.is_broken() {
            return false;
        }
        self.ours.enable(self.features.event.then_some(self.lacking));
        fence(SeqCst);
        let room = self.lacking.is_available(self.flags(self.lacking.at()));
        if room {
            self.mask();
        }
        room
    }

    fn ignore_room(&mut self) {
        self.mask();
    }
}

// By its path, for loom's models take this file from elsewhere.
#[cfg(all(test, not(loom)))]
#[path = "packed_device/tests.rs"]
mod tests;
