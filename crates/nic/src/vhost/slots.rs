//! The buffers of a ring that we drive: one for each entry, and which of them the device has.

use std::collections::VecDeque;

use super::header::{self, HEADER};
use super::memory::Memory;
use super::ring::AHEAD;
use crate::FRAME_CAPACITY;

/// Bytes from one buffer to the next: a header, a frame, and an odd number of cache lines, so that buffers
/// do not all begin in the same few sets of a cache.
pub(super) const STRIDE: usize = 33 * 64;
/// What stands before a header whose frame begins with a cache line.
const LEAD: usize = 64 - HEADER;
const _: () = assert!(LEAD + HEADER + FRAME_CAPACITY <= STRIDE);

/// Buffers by number.
#[derive(Debug)]
pub(super) struct Slots {
    first: u64,
    /// Bytes from the beginning of each to its header.
    lead: u64,
    /// In the order in which they came back: where a device keeps the order, so do buffers, and the arrays of a
    /// ring stay as they are.
    free: VecDeque<u16>,
    /// Whether the device has it.
    out: Box<[bool]>,
}

impl Slots {
    /// `count` buffers from an address on, all free.
    pub(super) fn new(first: u64, count: u16) -> Slots {
        let free = (0..count).collect();
        Slots { first, lead: 0, free, out: vec![false; count.into()].into_boxed_slice() }
    }

    /// Of a ring to send: frames begin with a cache line, so that a small one is one, and its header, which a device
    /// has no need to read, in the line before stays with this CPU.
    pub(super) fn into_sending(self) -> Slots {
        Slots { lead: LEAD as u64, ..self }
    }

    pub(super) fn count(&self) -> u16 {
        self.out.len() as u16
    }

    /// Bytes of each.
    pub(super) fn len(&self) -> u32 {
        (HEADER + FRAME_CAPACITY) as u32
    }

    #[inline]
    pub(super) fn address(&self, slot: u16) -> u64 {
        self.first + self.lead + u64::from(slot) * STRIDE as u64
    }

    #[inline]
    pub(super) fn none_left(&self) -> bool {
        self.free.is_empty()
    }

    /// How many the device has.
    #[inline]
    pub(super) fn out(&self) -> u16 {
        (self.out.len() - self.free.len()) as u16
    }

    /// Whether a packet to be cut begins in one that the device says to have written so many bytes to.
    pub(super) fn is_large(&self, memory: &Memory, slot: u16, len: u32) -> bool {
        let mut header = [0; HEADER];
        self.is_out(slot)
            && (HEADER as u32..=self.len()).contains(&len)
            && memory.read(self.address(slot), &mut header)
            && header::is_large(&header)
    }

    /// One for the device.
    #[inline]
    pub(super) fn lend(&mut self) -> Option<u16> {
        let slot = self.free.pop_front()?;
        self.out[usize::from(slot)] = true;
        Some(slot)
    }

    /// Whether the device has one of this number.
    #[inline]
    pub(super) fn is_out(&self, slot: u16) -> bool {
        self.out.get(usize::from(slot)).is_some_and(|out| *out)
    }

    /// The device gives one back; `false` if it has none of this number.
    #[inline]
    pub(super) fn back(&mut self, slot: u16) -> bool {
        let was = self.out.get_mut(usize::from(slot)).is_some_and(std::mem::take);
        if was {
            self.free.push_back(slot);
        }
        was
    }

    /// The one that came back last goes to the device again.
    #[inline]
    pub(super) fn lend_again(&mut self, slot: u16) -> bool {
        let last = self.free.back() == Some(&slot) && self.free.pop_back().is_some();
        self.out[usize::from(slot)] |= last;
        last
    }

    /// Writes a frame with its header into one that is lent; how many bytes that is. `None` if it does not
    /// fit, and the buffer is free again.
    #[inline]
    pub(super) fn fill(&mut self, memory: &Memory, slot: u16, frame: &[u8]) -> Option<u32> {
        let at = self.address(slot);
        if let Some(later) = self.free.get(AHEAD.into()) {
            memory.prefetch(self.address(*later) + HEADER as u64);
        }
        let fits = frame.len() <= FRAME_CAPACITY
            && memory.write(at, &header::plain(0))
            && memory.write(at + HEADER as u64, frame);
        if !fits && self.back(slot) {
            // It is the next again, so that buffers keep their places in a ring.
            self.free.rotate_right(1);
        }
        fits.then_some((HEADER + frame.len()) as u32)
    }
}
