//! A packed ring that we drive and a peer serves. Id *i* always means buffer *i*, and each buffer is one
//! descriptor; the peer returns ids in any order, and each is checked to be with the peer.
//!
//! If it was negotiated that buffers are used in order (`VIRTIO_F_IN_ORDER`), one used descriptor may cover all up
//! to the one that it names. Buffer *i* then stays at position *i*, since the ring has as many positions as there
//! are buffers.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};

use super::driver::{self, Driver};
use super::memory::{Area, Memory, fence};
use super::packed_ring::{Position, Suppression, available_flags, packed_word};
use super::ring::{Gather, Incoming, Outgoing, PutResult, TakeResult, WRITE, take_whole};
use super::setup::{RingAddresses, RingFeatures};
use super::slots::Slots;

/// The driver side of a packed ring.
#[derive(Debug)]
pub(super) struct PackedDriver {
    memory: Arc<Memory>,
    table: Area,
    driver_events: Suppression,
    device_events: Suppression,
    features: RingFeatures,
    slots: Slots,
    /// The next position to make available.
    next: Position,
    /// The next position to take back.
    back: Position,
    /// With order: the number of positions from `back` on that are known to be used, and the length of the last of
    /// them.
    batch: (u16, u32),
    /// The second word of the first descriptor of a batch, held back until all of the batch is to become visible.
    first: Option<(u16, u64)>,
    /// Number of descriptors made available since the last check for notifications.
    moved: u16,
    broken: bool,
}

impl PackedDriver {
    /// Makes a ring on new memory; `None` if it does not fit. For receiving, all buffers are made available.
    pub(super) fn new(
        memory: &Arc<Memory>,
        at: RingAddresses,
        slots: Slots,
        features: RingFeatures,
        receive: bool,
    ) -> Option<PackedDriver> {
        let size = slots.count();
        let slots = if receive { slots } else { slots.into_sending() };
        let mut ring = PackedDriver {
            table: memory.area(at.table, 16 * usize::from(size), 16)?,
            driver_events: Suppression::new(memory.area(at.driver, 4, 4)?),
            device_events: Suppression::new(memory.area(at.device, 4, 4)?),
            memory: Arc::clone(memory),
            features,
            slots,
            next: Position::first(size),
            back: Position::first(size),
            batch: (0, 0),
            first: None,
            moved: 0,
            broken: false,
        };
        ring.driver_events.disable();
        let len = ring.slots.len();
        while receive && let Some(slot) = ring.slots.lend() {
            ring.hand_over(slot, len, WRITE);
        }
        Incoming::publish(&mut ring);
        Some(ring)
    }

    /// The base at which another device would continue: after all used descriptors.
    pub(super) fn base(&self) -> u16 {
        let mut at = self.back;
        at.step(self.waiting(self.slots.out()));
        at.base()
    }

    /// Whether the ring is invalid, and no longer used.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    #[inline]
    fn hand_over(&mut self, slot: u16, len: u32, flags: u16) {
        let at = self.next.at();
        debug_assert!(!self.features.in_order || slot == at, "buffer {slot} at place {at}");
        let place = usize::from(at) * 16;
        self.table.update64(place, self.slots.address(slot));
        let word = packed_word(len, slot, flags | available_flags(self.next));
        if self.first.is_none() {
            self.first = Some((at, word));
        } else {
            self.table.store64(place + 8, word, Release);
        }
        self.next.step(1);
        self.moved = self.moved.saturating_add(1);
    }

    /// Id, length and flags of a descriptor.
    #[inline]
    fn tail(&self, at: u16) -> (u16, u32, u16) {
        let word = self.table.load64(usize::from(at) * 16 + 8, Acquire);
        ((word >> 32) as u16, word as u32, (word >> 48) as u16)
    }

    #[inline]
    fn is_used(&self) -> bool {
        let seen = || self.slots.out() > 0 && self.back.is_used(self.tail(self.back.at()).2);
        !self.broken && (self.batch.0 > 0 || seen())
    }

    /// The number of used descriptors, up to `most`.
    #[inline]
    fn waiting(&self, most: u16) -> u16 {
        if !self.features.in_order {
            return self.back.count(most, |position| position.is_used(self.tail(position.at()).2));
        }
        let (mut at, mut count) = (self.back, self.batch.0);
        at.step(count);
        while count < most
            && let (id, _, flags) = self.tail(at.at())
            && at.is_used(flags)
            && let Some(batch) = self.batch_to(id, at, count)
        {
            at.step(batch);
            count += batch;
        }
        count.min(most)
    }

    /// With order: the number of buffers that a used descriptor at `position` covers if it names `last`, with
    /// `before` others to be taken back first. `None` if they are more than the device has.
    #[inline]
    fn batch_to(&self, last: u16, position: Position, before: u16) -> Option<u16> {
        let wrapped = if last < position.at() { position.size() } else { 0 };
        let batch = u32::from(last) + u32::from(wrapped) + 1 - u32::from(position.at());
        let out = self.slots.out() - before;
        (last < position.size() && batch <= out.into()).then_some(batch as u16)
    }

    #[inline]
    fn step_back(&mut self) {
        self.back.step(1);
        self.batch.0 = self.batch.0.saturating_sub(1);
    }

    /// Takes back all used buffers of a transmit ring.
    #[inline]
    fn take_all_back(&mut self) {
        if !self.features.in_order {
            while self.is_used() {
                let _ = self.take_back();
            }
            return;
        }
        while !self.broken
            && self.slots.out() > 0
            && let (id, _, flags) = self.tail(self.back.at())
            && self.back.is_used(flags)
        {
            let batch = self.batch_to(id, self.back, 0);
            self.broken = batch.is_none();
            for _ in 0..batch.unwrap_or(0) {
                self.broken |= !self.slots.back(self.back.at());
                self.back.step(1);
            }
        }
    }
}

impl Driver for PackedDriver {
    fn buffers(&mut self) -> (&Memory, &mut Slots) {
        (&self.memory, &mut self.slots)
    }

    #[inline]
    fn used(&mut self) -> bool {
        self.is_used()
    }

    #[inline]
    fn next_used(&mut self) -> (u16, u32) {
        let at = self.back.at();
        if self.batch.0 == 0 {
            let (id, len, _) = self.tail(at);
            if !self.features.in_order || id == at {
                return (id, len);
            }
            let Some(batch) = self.batch_to(id, self.back, 0) else { return (u16::MAX, 0) };
            self.batch = (batch, len);
        }
        // The standard says that skipped buffers were used completely.
        (at, if self.batch.0 == 1 { self.batch.1 } else { self.slots.len() })
    }

    #[inline]
    fn take_back(&mut self) -> Option<(u16, u32)> {
        let (slot, len) = self.next_used();
        self.step_back();
        let good = self.slots.back(slot);
        self.broken |= !good;
        good.then_some((slot, len))
    }

    fn hand_over_empty(&mut self, slot: u16) {
        self.hand_over(slot, self.slots.len(), WRITE);
    }

    fn broken(&mut self) -> &mut bool {
        &mut self.broken
    }
}

impl Incoming for PackedDriver {
    #[inline]
    fn ready(&mut self, most: u16) -> Option<u16> {
        let most = most.min(self.slots.out());
        let waiting = self.waiting(most);
        // A used descriptor with an impossible id breaks the ring. Read again, since it may have been used only
        // just now.
        if waiting == 0 && most > 0 && self.features.in_order && self.is_used() {
            let (id, _, _) = self.tail(self.back.at());
            self.broken = self.batch.0 == 0 && self.batch_to(id, self.back, 0).is_none();
        }
        (!self.broken).then_some(waiting)
    }

    #[inline]
    fn take(&mut self, buffer: &mut [u8]) -> TakeResult {
        if !self.is_used() {
            return if self.broken { TakeResult::Broken } else { TakeResult::Empty };
        }
        let (slot, len) = self.next_used();
        if self.slots.is_out(slot)
            && len <= self.slots.len()
            && let part = (self.slots.address(slot), len)
            && let Some(len) = take_whole(&self.memory, part, true, buffer)
        {
            self.step_back();
            self.hand_over(slot, self.slots.len(), WRITE);
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
        let Some((at, word)) = self.first.take() else { return false };
        self.table.store64(usize::from(at) * 16 + 8, word, Release);
        let moved = std::mem::take(&mut self.moved);
        fence(SeqCst);
        self.device_events.wants(self.next, moved)
    }

    fn mask(&mut self) {
        self.driver_events.disable();
    }

    fn unmask(&mut self) -> bool {
        self.driver_events.enable(self.features.event.then_some(self.back));
        fence(SeqCst);
        let waits = self.is_used();
        if waits {
            self.mask();
        }
        waits
    }
}

impl Outgoing for PackedDriver {
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
        self.hand_over(slot, len, 0);
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
