//! A split ring that we drive and a peer serves.
//!
//! Descriptor *i* always means buffer *i*, in our own shared memory; the peer returns descriptor numbers in any
//! order, and each is checked to be with the peer.
//!
//! If it was negotiated that buffers are used in order (`VIRTIO_F_IN_ORDER`), one used entry, at the place of the
//! first of them, may cover all up to the one that it names. Buffer *i* then stays at place *i* of the available
//! ring.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use super::driver::{self, Driver};
use super::memory::{Area, Memory, fence};
use super::ring::{
    Gather, Incoming, Outgoing, PutResult, TakeResult, WRITE, need_event, take_whole,
};
use super::setup::{RingAddresses, RingFeatures};
use super::slots::Slots;

/// The driver side of a split ring.
#[derive(Debug)]
pub(super) struct SplitDriver {
    memory: Arc<Memory>,
    table: Area,
    available: Area,
    used: Area,
    size: u16,
    features: RingFeatures,
    slots: Slots,
    /// Index of the next buffer to make available.
    next: u16,
    /// Our index as published to the device.
    published: u16,
    /// Index of the next buffer to take back.
    back: u16,
    /// With order: the number of places from `back` on that one used entry covers, and the length of the last of
    /// them.
    batch: (u16, u32),
    /// The device's index when it was last read.
    seen: u16,
    broken: bool,
}

impl SplitDriver {
    /// Makes a ring on new memory; `None` if it does not fit. For receiving, all buffers are made available.
    pub(super) fn new(
        memory: &Arc<Memory>,
        at: RingAddresses,
        slots: Slots,
        features: RingFeatures,
        receive: bool,
    ) -> Option<SplitDriver> {
        let size = slots.count();
        let n = usize::from(size);
        let table = memory.area(at.table, 16 * n, 16)?;
        let available = memory.area(at.driver, 6 + 2 * n, 2)?;
        let used = memory.area(at.device, 6 + 8 * n, 4)?;
        let memory = Arc::clone(memory);
        let slots = if receive { slots } else { slots.into_sending() };
        let mut ring = SplitDriver {
            memory,
            table,
            available,
            used,
            size,
            features,
            slots,
            next: 0,
            published: 0,
            back: 0,
            batch: (0, 0),
            seen: 0,
            broken: false,
        };
        for slot in 0..size {
            let at = usize::from(slot) * 16;
            ring.table.store64(at, ring.slots.address(slot), Relaxed);
            let flags = if receive { WRITE } else { 0 };
            ring.table.store64(
                at + 8,
                u64::from(ring.slots.len()) | u64::from(flags) << 32,
                Relaxed,
            );
        }
        // A transmit ring wants no notifications: buffers are taken back when they are needed.
        ring.available.store16(0, u16::from(!ring.features.event), Relaxed);
        while receive && let Some(slot) = ring.slots.lend() {
            ring.hand_over(slot);
        }
        Incoming::publish(&mut ring);
        Some(ring)
    }

    /// The index at which another device would continue: all used buffers were taken in order.
    pub(super) fn base(&self) -> u16 {
        self.used.load16(2, Relaxed)
    }

    /// Whether the ring is invalid, and no longer used.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    #[inline]
    fn hand_over(&mut self, slot: u16) {
        let place = self.next & (self.size - 1);
        debug_assert!(!self.features.in_order || slot == place, "buffer {slot} at place {place}");
        self.available.update16(4 + 2 * usize::from(place), slot);
        self.next = self.next.wrapping_add(1);
    }

    /// The number of used buffers.
    #[inline]
    fn waiting(&mut self) -> u16 {
        if self.back == self.seen && !self.broken {
            let index = self.used.load16(2, Acquire);
            if index.wrapping_sub(self.back) > self.size {
                self.broken = true;
            } else {
                self.seen = index;
            }
        }
        self.seen.wrapping_sub(self.back)
    }

    #[inline]
    fn step_back(&mut self) {
        self.back = self.back.wrapping_add(1);
        self.batch.0 = self.batch.0.saturating_sub(1);
    }

    /// Takes back a buffer; `false`, and broken, if the device did not have it.
    #[inline]
    fn is_back(&mut self, slot: u16) -> bool {
        self.step_back();
        let good = self.slots.back(slot);
        if !good {
            self.broken = true;
            self.seen = self.back;
        }
        good
    }

    /// Takes back all used buffers. With order, the index tells which these are, and the entries' cache lines stay
    /// with the device's CPU.
    #[inline]
    fn take_all_back(&mut self) {
        while self.waiting() > 0 {
            if self.features.in_order {
                self.is_back(self.back & (self.size - 1));
            } else {
                let _ = self.take_back();
            }
        }
    }
}

impl Driver for SplitDriver {
    fn buffers(&mut self) -> (&Memory, &mut Slots) {
        (&self.memory, &mut self.slots)
    }

    #[inline]
    fn used(&mut self) -> bool {
        self.waiting() > 0
    }

    #[inline]
    fn next_used(&mut self) -> (u16, u32) {
        let place = self.back & (self.size - 1);
        if self.batch.0 == 0 {
            let at = 4 + 8 * usize::from(place);
            let (id, len) = (self.used.load32(at, Relaxed), self.used.load32(at + 4, Relaxed));
            let id = u16::try_from(id).unwrap_or(u16::MAX);
            if !self.features.in_order || id == place {
                return (id, len);
            }
            let batch = (id.wrapping_sub(place) & (self.size - 1)) + 1;
            if id >= self.size || batch > self.seen.wrapping_sub(self.back) {
                return (u16::MAX, 0);
            }
            self.batch = (batch, len);
        }
        // The standard says that skipped buffers were used completely.
        (place, if self.batch.0 == 1 { self.batch.1 } else { self.slots.len() })
    }

    #[inline]
    fn take_back(&mut self) -> Option<(u16, u32)> {
        let (slot, len) = self.next_used();
        self.is_back(slot).then_some((slot, len))
    }

    fn hand_over_empty(&mut self, slot: u16) {
        self.hand_over(slot);
    }

    fn broken(&mut self) -> &mut bool {
        &mut self.broken
    }
}

impl Incoming for SplitDriver {
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
        let (slot, len) = self.next_used();
        if self.slots.is_out(slot)
            && len <= self.slots.len()
            && let part = (self.slots.address(slot), len)
            && let Some(len) = take_whole(&self.memory, part, true, buffer)
        {
            self.step_back();
            self.hand_over(slot);
            return TakeResult::Frame(len);
        }
        driver::take_any(self, buffer)
    }

    fn features(&self) -> RingFeatures {
        self.features
    }

    fn take_parts(&mut self, gather: &mut Gather<'_>) -> Result<bool, TakeResult> {
        driver::take_parts(self, gather)
    }

    #[inline]
    fn publish(&mut self) -> bool {
        if self.published == self.next {
            return false;
        }
        let (old, new) = (self.published, self.next);
        self.published = new;
        self.available.store16(2, new, Release);
        fence(SeqCst);
        if self.features.event {
            need_event(self.used.load16(4 + 8 * usize::from(self.size), Relaxed), new, old)
        } else {
            self.used.load16(0, Relaxed) & 1 == 0
        }
    }

    fn mask(&mut self) {
        if !self.features.event {
            self.available.store16(0, 1, Relaxed);
        }
    }

    fn unmask(&mut self) -> bool {
        if self.features.event {
            self.available.store16(4 + 2 * usize::from(self.size), self.back, Relaxed);
        } else {
            self.available.store16(0, 0, Relaxed);
        }
        fence(SeqCst);
        let waits = self.waiting() > 0;
        if waits {
            self.mask();
        }
        waits
    }
}

impl Outgoing for SplitDriver {
    #[inline]
    fn put(&mut self, frame: &[u8]) -> PutResult {
        if self.slots.none_left() {
            self.take_all_back();
        }
        if self.broken {
            return PutResult::Broken;
        }
        let Some(slot) = self.slots.lend() else { return PutResult::Full };
        let Some(len) = self.slots.fill(&self.memory, slot, frame) else {
            return PutResult::TooLong;
        };
        self.table.update32(usize::from(slot) * 16 + 8, len);
        self.hand_over(slot);
        PutResult::Sent
    }

    #[inline]
    fn publish(&mut self) -> bool {
        Incoming::publish(self)
    }
    /// There is no room because the device has all buffers.
    fn await_room(&mut self) -> bool {
        self.unmask()
    }

    fn ignore_room(&mut self) {
        self.mask();
    }

    fn in_flight(&mut self) -> u16 {
        self.take_all_back();
        self.slots.out()
    }
}
