//! The buffers of a ring that we drive: one for each entry, and which of them the device has.

use std::collections::VecDeque;

use super::header::{self, HEADER};
use super::memory::Memory;
use super::ring::AHEAD;
use crate::FRAME_CAPACITY;

/// Bytes from one buffer to the next: a header, a frame, and an odd number of cache lines in all, so that buffers
/// do not all map to the same few sets of a cache.
pub(super) const STRIDE: usize = 33 * 64;
/// Bytes before the header, with which the frame begins at a cache line.
const LEAD: usize = 64 - HEADER;
const _: () = assert!(LEAD + HEADER + FRAME_CAPACITY <= STRIDE);

/// Buffers, by number.
#[derive(Debug)]
pub(super) struct Slots {
    first: u64,
    /// Offset of the header in each buffer, in bytes.
    lead: u64,
    /// In the order in which they were returned: if a device uses buffers in order, their order and thus the ring's
    /// arrays stay the same.
    free: VecDeque<u16>,
    /// Whether the device has the buffer.
    out: Box<[bool]>,
}

impl Slots {
    /// `count` buffers from the address `first` on, all free.
    pub(super) fn new(first: u64, count: u16) -> Slots {
        let free = (0..count).collect();
        Slots { first, lead: 0, free, out: vec![false; count.into()].into_boxed_slice() }
    }

    /// The buffers of a transmit ring: frames begin at a cache line, so that a small one takes one line. Its
    /// header, which a device need not read, is in the line before, which stays in this CPU's cache.
    pub(super) fn into_sending(self) -> Slots {
        Slots { lead: LEAD as u64, ..self }
    }

    pub(super) fn count(&self) -> u16 {
        self.out.len() as u16
    }

    /// The size of each, in bytes.
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

    /// The number of buffers that the device has.
    #[inline]
    pub(super) fn out(&self) -> u16 {
        (self.out.len() - self.free.len()) as u16
    }

    /// Whether a packet to be segmented begins in a buffer in which the device has written `len` bytes.
    pub(super) fn is_large(&self, memory: &Memory, slot: u16, len: u32) -> bool {
        let mut header = [0; HEADER];
        self.is_out(slot)
            && (HEADER as u32..=self.len()).contains(&len)
            && memory.read(self.address(slot), &mut header)
            && header::is_large(&header)
    }

    /// Takes a free buffer for the device.
    #[inline]
    pub(super) fn lend(&mut self) -> Option<u16> {
        let slot = self.free.pop_front()?;
        self.out[usize::from(slot)] = true;
        Some(slot)
    }

    /// Whether the device has the buffer.
    #[inline]
    pub(super) fn is_out(&self, slot: u16) -> bool {
        self.out.get(usize::from(slot)).is_some_and(|out| *out)
    }

    /// Takes back a buffer from the device; `false` if the device does not have it.
    #[inline]
    pub(super) fn back(&mut self, slot: u16) -> bool {
        let was = self.out.get_mut(usize::from(slot)).is_some_and(std::mem::take);
        if was {
            self.free.push_back(slot);
        }
        was
    }

    /// Lends the buffer that was returned last to the device again.
    #[inline]
    pub(super) fn lend_again(&mut self, slot: u16) -> bool {
        let last = self.free.back() == Some(&slot) && self.free.pop_back().is_some();
        self.out[usize::from(slot)] |= last;
        last
    }

    /// Writes a frame with its header into a lent buffer, and returns the number of bytes. `None` if it does not
    /// fit; the buffer is then free again.
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
            // Make it the next one again, so that buffers keep their places in the ring.
            self.free.rotate_right(1);
        }
        fits.then_some((HEADER + frame.len()) as u32)
    }
}
