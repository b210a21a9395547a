//! A split ring that a peer drives and we serve.
//!
//! Every chain is returned in the call that takes it, in order, so that one index counts both.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use super::memory::{Area, Memory, fence};
use super::ring::{
    Descriptor, Gather, INDIRECT, Incoming, MAX_RING, NEXT, Outgoing, PutResult, Scatter, Table,
    TakeResult, WRITE, need_event, take_whole,
};
use super::setup::{RingAddresses, RingFeatures};
use super::tracking::{Region, SplitTracking};

/// The device side of a split ring.
#[derive(Debug)]
pub(super) struct SplitDevice {
    memory: Arc<Memory>,
    table: Area,
    available: Area,
    used: Area,
    size: u16,
    features: RingFeatures,
    /// Index of the next chain to take and return.
    next: u16,
    /// The driver's index when it was last read.
    seen: u16,
    /// Our index as published to the driver.
    published: u16,
    /// The record of in-flight chains for the next backend.
    tracking: Option<SplitTracking>,
    broken: bool,
}

impl SplitDevice {
    /// Opens a ring; `None` if a part is not within the memory, or the size is not a power of two.
    ///
    /// Continues at the used ring's index: the last device may have been killed, and the chains that it has not
    /// returned are taken again.
    pub(super) fn new(
        memory: &Arc<Memory>,
        at: RingAddresses,
        size: u16,
        features: RingFeatures,
    ) -> Option<SplitDevice> {
        if !size.is_power_of_two() || size > MAX_RING {
            return None;
        }
        let n = usize::from(size);
        let table = memory.area(at.table, 16 * n, 16)?;
        let available = memory.area(at.driver, 6 + 2 * n, 2)?;
        let used = memory.area(at.device, 6 + 8 * n, 4)?;
        let next = used.load16(2, Relaxed);
        let memory = Arc::clone(memory);
        let (seen, published, broken) = (next, next, false);
        Some(SplitDevice {
            memory,
            table,
            available,
            used,
            size,
            features,
            next,
            seen,
            published,
            tracking: None,
            broken,
        })
    }

    /// Records in-flight chains in `region` from now on. With `recover`, returns the chains that a region in use
    /// records as in flight: they were taken, perhaps out of order, and their places in the available ring may have
    /// been overwritten. `false` if the region is invalid.
    pub(super) fn track(&mut self, region: Region, recover: bool) -> bool {
        if !recover || !region.is_used() {
            self.tracking = Some(SplitTracking::begin(region, self.next));
            return true;
        }
        let Some((tracking, heads)) = SplitTracking::recover(region, self.next) else {
            return false;
        };
        let taken = heads.len();
        if taken > self.waiting().into() || heads.iter().any(|head| *head >= self.size) {
            return false;
        }
        tracking.giving_back(&heads);
        heads.iter().for_each(|head| self.give_back(*head, 0));
        self.used.store16(2, self.next, Release);
        self.published = self.next;
        tracking.given_back(&heads, self.next);
        self.tracking = Some(tracking);
        true
    }

    /// The index at which another device would continue.
    pub(super) fn base(&self) -> u16 {
        self.published
    }

    /// Whether the ring is invalid, and no longer used.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// The number of waiting chains. Reads the driver's index only when the known ones are used up.
    #[inline]
    fn waiting(&mut self) -> u16 {
        if self.next == self.seen && !self.broken {
            let index = self.available.load16(2, Acquire);
            if index.wrapping_sub(self.next) > self.size {
                self.broken = true;
            } else {
                self.seen = index;
            }
        }
        self.seen.wrapping_sub(self.next)
    }

    #[inline]
    fn place(&self) -> usize {
        usize::from(self.next & (self.size - 1))
    }

    /// The head of the next chain. `None` if it is invalid; the ring is then broken, since its place cannot be
    /// returned.
    #[inline]
    fn head(&mut self) -> Option<u16> {
        let head = self.available.load16(4 + 2 * self.place(), Relaxed);
        let good = head < self.size;
        if !good {
            self.fail();
        }
        good.then_some(head)
    }

    fn fail(&mut self) {
        self.broken = true;
        self.seen = self.next;
    }

    /// Abandons a frame that began at `start` in a ring that is found broken: nothing of it is published.
    #[cold]
    fn fail_at(&mut self, start: u16) -> PutResult {
        self.next = start;
        self.fail();
        PutResult::Broken
    }

    #[inline]
    fn give_back(&mut self, head: u16, len: u32) {
        let at = 4 + 8 * self.place();
        self.used.store32(at, head.into(), Relaxed);
        self.used.store32(at + 4, len, Relaxed);
        self.next = self.next.wrapping_add(1);
    }

    /// Calls `part` with each descriptor of a chain until it returns that it has enough; `false` if the chain is
    /// invalid: it leaves the table, loops, or `part` refuses a descriptor.
    #[inline]
    fn walk(&self, head: u16, mut part: impl FnMut(&Memory, Descriptor) -> Option<bool>) -> bool {
        let mut index = head;
        for _ in 0..self.size {
            let descriptor = Descriptor::read(&self.table, index);
            if descriptor.first & INDIRECT != 0 {
                return self.walk_table(descriptor, part);
            }
            match part(&self.memory, descriptor) {
                None => return false,
                Some(true) => return true,
                Some(false) if descriptor.first & NEXT == 0 => return true,
                Some(false) => index = descriptor.second,
            }
            if index >= self.size {
                return false;
            }
        }
        false
    }

    /// Continues in a table, which ends the chain; its descriptors are linked like those of the ring.
    #[cold]
    fn walk_table(
        &self,
        of: Descriptor,
        mut part: impl FnMut(&Memory, Descriptor) -> Option<bool>,
    ) -> bool {
        let allowed = self.features.indirect && of.first & NEXT == 0;
        let Some(table) = Table::new(of.address, of.len).filter(|_| allowed) else { return false };
        let mut index = 0;
        for _ in 0..table.count() {
            let Some(it) = table.read(&self.memory, index) else { return false };
            match part(&self.memory, it) {
                None => return false,
                Some(true) => return true,
                Some(false) if it.first & NEXT == 0 => return true,
                Some(false) => index = it.second,
            }
        }
        false
    }

    /// Takes a frame in any form, reading its descriptors again.
    #[cold]
    fn take_chain(&mut self, head: u16, buffer: &mut [u8]) -> TakeResult {
        let mut gather = Gather::new(buffer);
        let whole = self.gather(head, &mut gather);
        if whole && self.features.cuts() && gather.is_large() {
            return TakeResult::Large;
        }
        self.give_back(head, 0);
        gather.end(whole)
    }

    /// Gathers the parts of a chain; `false` if it is invalid.
    fn gather(&self, head: u16, gather: &mut Gather<'_>) -> bool {
        self.walk(head, |memory, it| {
            let readable = it.first & (WRITE | INDIRECT) == 0;
            (readable && gather.add(memory, it.address, it.len)).then_some(false)
        })
    }
}

impl Incoming for SplitDevice {
    #[inline]
    fn ready(&mut self, most: u16) -> Option<u16> {
        let waiting = self.waiting();
        (!self.broken).then_some(waiting.min(most))
    }

    #[inline]
    fn take(&mut self, buffer: &mut [u8]) -> TakeResult {
        if self.waiting() == 0 {
            return if self.broken { TakeResult::Broken } else { TakeResult::Empty };
        }
        let Some(head) = self.head() else { return TakeResult::Broken };
        let first = Descriptor::read(&self.table, head);
        if first.first & (WRITE | INDIRECT | NEXT) == 0
            && let part = (first.address, first.len)
            && let Some(len) = take_whole(&self.memory, part, self.features.checksums, buffer)
        {
            self.give_back(head, 0);
            return TakeResult::Frame(len);
        }
        self.take_chain(head, buffer)
    }

    fn features(&self) -> RingFeatures {
        self.features
    }

    #[cold]
    fn take_parts(&mut self, gather: &mut Gather<'_>) -> Result<bool, TakeResult> {
        if self.waiting() == 0 {
            return Err(if self.broken { TakeResult::Broken } else { TakeResult::Empty });
        }
        let head = self.head().ok_or(TakeResult::Broken)?;
        let whole = self.gather(head, gather);
        self.give_back(head, 0);
        Ok(whole)
    }

    #[inline]
    fn publish(&mut self) -> bool {
        if self.published == self.next {
            return false;
        }
        let (old, new) = (self.published, self.next);
        self.published = new;
        self.used.store16(2, new, Release);
        if let Some(tracking) = &self.tracking {
            tracking.settle(new);
        }
        fence(SeqCst);
        if self.features.event {
            need_event(self.available.load16(4 + 2 * usize::from(self.size), Relaxed), new, old)
        } else {
            self.available.load16(0, Relaxed) & 1 == 0
        }
    }

    fn mask(&mut self) {
        // With event indices there is nothing to do: the requested index is in the past, and recurs only after
        // 65536 frames.
        if !self.features.event {
            self.used.store16(0, 1, Relaxed);
        }
    }

    fn unmask(&mut self) -> bool {
        if self.features.event {
            self.used.store16(4 + 8 * usize::from(self.size), self.next, Relaxed);
        } else {
            self.used.store16(0, 0, Relaxed);
        }
        fence(SeqCst);
        let waits = self.waiting() > 0;
        if waits {
            self.mask();
        }
        waits
    }
}

impl Outgoing for SplitDevice {
    #[inline]
    fn put(&mut self, frame: &[u8]) -> PutResult {
        let start = self.next;
        let mut scatter = Scatter::new(frame);
        let mut buffers = 0;
        while !scatter.done() {
            let back = if self.broken {
                PutResult::Broken
            } else if buffers > 0 && !self.features.mergeable {
                PutResult::TooLong
            } else if self.waiting() > 0 {
                let Some(head) = self.head() else { return self.fail_at(start) };
                let mut written = 0;
                let whole = self.walk(head, |memory, it| {
                    if it.first & (WRITE | INDIRECT) != WRITE {
                        return None;
                    }
                    written += scatter.add(memory, it.address, it.len)?;
                    Some(scatter.done())
                });
                if !whole {
                    return self.fail_at(start);
                }
                self.give_back(head, written);
                buffers += 1;
                continue;
            } else {
                // A frame that the whole ring cannot hold will never fit.
                if buffers >= self.size { PutResult::TooLong } else { PutResult::Full }
            };
            // Nothing was published, so the taken chains are available again.
            self.next = start;
            return back;
        }
        if scatter.end(&self.memory, buffers) { PutResult::Sent } else { self.fail_at(start) }
    }

    #[inline]
    fn publish(&mut self) -> bool {
        Incoming::publish(self)
    }
    /// The known chains were too few, so this waits for those after them.
    fn await_room(&mut self) -> bool {
        if self.broken {
            return false;
        }
        if self.features.event {
            self.used.store16(4 + 8 * usize::from(self.size), self.seen, Relaxed);
        } else {
            self.used.store16(0, 0, Relaxed);
        }
        fence(SeqCst);
        let room = self.available.load16(2, Acquire) != self.seen;
        if room {
            self.mask();
        }
        room
    }

    fn ignore_room(&mut self) {
        self.mask();
    }
}
