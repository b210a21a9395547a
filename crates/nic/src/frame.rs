//! Frames and the pool that owns their memory.
//!
//! A [`Frame`] is one Ethernet frame in a buffer of fixed size that belongs to a [`Pool`]. Buffers
//! are allocated when the pool is made, in one piece (which AF_XDP shares with the kernel), and never
//! after: taking one pops it off a lock-free list and
//! dropping the frame pushes it back, from whatever thread that happens on. A full application can
//! therefore never make the packet path grow; it can only make it run out of buffers, which devices
//! count.
//!
//! What this is not: a reference-counted, sliceable buffer. A frame has one owner from the ring to
//! the socket, as a claim has.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use napkin_policy::Ns;

/// Bytes a frame can hold. Devices drop longer frames and count them
/// ([`rx_oversized`](crate::QueueCounters::rx_oversized)).
///
/// Twice a kilobyte is what drivers give a 1500-byte MTU, with a VLAN tag or two to spare.
pub const FRAME_CAPACITY: usize = 2048;

/// Buffers a pool keeps back. The list underneath waits, spinning, when a pop meets a slot whose
/// buffer is being put back at that moment; a real-time thread that has preempted whoever does so on
/// the same CPU would spin for ever. It can only happen to the last few, so those are not given.
pub const RESERVE: usize = 64;

/// What the memory of a pool is aligned to: a page, so that all of it can be shared with the kernel.
const PAGE: usize = 4096;

/// The buffers of a pool, one after the other in one piece of memory, and the list of those that are
/// free. Each buffer belongs to exactly one holder at a time: the list, a [`Frame`], or a device that
/// has [lent](Pool::lend) it to the kernel.
struct Memory {
    base: NonNull<u8>,
    buffers: usize,
    /// As long as there are buffers, so a push cannot fail.
    free: ArrayQueue<u32>,
}

// SAFETY: the memory is plain bytes, reached only through whoever holds a buffer, by itself.
unsafe impl Send for Memory {}
// SAFETY: as above; the list is made for many threads.
unsafe impl Sync for Memory {}

impl Memory {
    fn layout(buffers: usize) -> Layout {
        // More buffers than there are addresses cannot have been listed.
        Layout::from_size_align(buffers.saturating_mul(FRAME_CAPACITY), PAGE)
            .expect("a pool is smaller than the address space")
    }

    fn new(buffers: usize) -> Memory {
        let layout = Memory::layout(buffers);
        // SAFETY: there are at least `RESERVE` buffers, so the size is not 0.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { handle_alloc_error(layout) };
        let free = ArrayQueue::new(buffers);
        // Their numbers fit 32 bits: 2^32 of them are 8 TiB.
        (0..buffers as u32).for_each(|buffer| {
            let _ = free.push(buffer);
        });
        Memory { base, buffers, free }
    }

    /// Where a buffer begins; it is there whatever the number.
    fn at(&self, buffer: u32) -> NonNull<u8> {
        debug_assert!((buffer as usize) < self.buffers, "a buffer of another pool");
        // SAFETY: buffers are numbered by this memory alone, from 0 to below `buffers`.
        unsafe { self.base.add(buffer as usize * FRAME_CAPACITY) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with the same layout, and nobody holds a buffer without this memory.
        unsafe { dealloc(self.base.as_ptr(), Memory::layout(self.buffers)) }
    }
}

/// A fixed number of frame buffers.
///
/// A clone is another handle on the same buffers. Frames keep the memory alive themselves, so the
/// handles may go first.
#[derive(Clone)]
pub struct Pool {
    memory: Arc<Memory>,
}

impl Pool {
    /// Allocates `frames` buffers of [`FRAME_CAPACITY`] bytes, and [`RESERVE`] that are never given.
    /// A pool of 0 is empty for ever.
    ///
    /// # Panics
    /// If there is no memory for them.
    pub fn new(frames: usize) -> Pool {
        Pool { memory: Arc::new(Memory::new(frames + RESERVE)) }
    }

    /// Takes a buffer: an empty frame that arrived at 0, or `None` when all buffers are in use.
    ///
    /// The buffer still holds the bytes of the frame before it; clearing it would cost more than
    /// reading a packet does.
    pub fn take(&self) -> Option<Frame> {
        let buffer = self.lend()?;
        let home = Arc::clone(&self.memory);
        Some(Frame { home, buffer, start: 0, len: 0, arrived: 0 })
    }

    /// How many buffers are free. Other threads take and return them at the same time, so this is a
    /// reading and not a promise.
    pub fn available(&self) -> usize {
        self.memory.free.len().saturating_sub(RESERVE)
    }

    /// Takes a buffer without a frame, by its number. Whoever has it is the only one, and gives it
    /// back by [`frame`](Self::frame) or [`put_back`](Self::put_back).
    pub(crate) fn lend(&self) -> Option<u32> {
        if self.memory.free.len() <= RESERVE {
            return None;
        }
        self.memory.free.pop()
    }

    /// Copies a frame's bytes into a buffer that was lent, as many as it holds.
    ///
    /// # Safety
    /// The caller holds the buffer, and it is not with the kernel.
    pub(crate) unsafe fn write(&self, buffer: u32, bytes: &[u8]) {
        let to = self.memory.at(buffer).as_ptr();
        let length = bytes.len().min(FRAME_CAPACITY);
        // SAFETY: within a buffer of this memory, which is the caller's alone.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, length) }
    }

    /// Gives a buffer back that was lent.
    pub(crate) fn put_back(&self, buffer: u32) {
        // The list has room for every buffer.
        let _ = self.memory.free.push(buffer);
    }

    /// Makes a frame of `len` bytes, from `start` on, of a buffer that was lent.
    pub(crate) fn frame(&self, buffer: u32, start: usize, len: usize, arrived: Ns) -> Frame {
        let start = start.min(FRAME_CAPACITY);
        let len = len.min(FRAME_CAPACITY - start);
        let home = Arc::clone(&self.memory);
        Frame { home, buffer, start: start as u16, len: len as u16, arrived }
    }

    /// The memory of all its buffers, those in reserve too, as the kernel is told of it: where it
    /// begins and its bytes. A page's multiple begins there.
    pub(crate) fn memory(&self) -> (NonNull<u8>, usize) {
        (self.memory.base, self.memory.buffers * FRAME_CAPACITY)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("available", &self.available()).finish_non_exhaustive()
    }
}

/// One Ethernet frame, from the destination address on and without the check sequence.
///
/// Dereferences to its bytes. Dropping it returns the buffer to its pool, also after the last
/// [`Pool`] handle has gone; neither allocates.
pub struct Frame {
    home: Arc<Memory>,
    /// Which of its buffers is ours alone.
    buffer: u32,
    /// Where the frame begins in it, and its length: together at most [`FRAME_CAPACITY`].
    start: u16,
    len: u16,
    arrived: Ns,
}

impl Frame {
    /// Bytes a frame can hold: [`FRAME_CAPACITY`].
    pub const fn capacity() -> usize {
        FRAME_CAPACITY
    }

    /// Sets the length in bytes. A length above that of the [buffer](Self::buffer) means all of it;
    /// bytes that come into view are whatever the buffer held.
    pub fn set_len(&mut self, len: usize) {
        self.len = len.min(FRAME_CAPACITY - usize::from(self.start)) as u16;
    }

    /// The whole buffer from the frame's beginning on, whatever its length: [`FRAME_CAPACITY`] bytes,
    /// or fewer where the device leaves room before a frame that it received.
    pub fn buffer(&mut self) -> &mut [u8] {
        let room = FRAME_CAPACITY - usize::from(self.start);
        // SAFETY: `start` and `room` lie within the buffer, which is ours alone.
        unsafe { std::slice::from_raw_parts_mut(self.begin().as_ptr(), room) }
    }

    /// When the frame arrived: for a synthetic queue the time it was meant to arrive, so that
    /// latency counted from here is free of coordinated omission; for a device the time of the poll
    /// that found it.
    pub fn arrived(&self) -> Ns {
        self.arrived
    }

    /// Sets the time of arrival.
    pub fn set_arrived(&mut self, arrived: Ns) {
        self.arrived = arrived;
    }

    fn begin(&self) -> NonNull<u8> {
        // SAFETY: `start` is at most the buffer's length.
        unsafe { self.home.at(self.buffer).add(usize::from(self.start)) }
    }
}

impl Deref for Frame {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` and `len` lie within the buffer, which is ours alone.
        unsafe { std::slice::from_raw_parts(self.begin().as_ptr(), usize::from(self.len)) }
    }
}

impl DerefMut for Frame {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.begin().as_ptr(), usize::from(self.len)) }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        // The list was made as long as the pool has buffers, so it has room for this one.
        let _ = self.home.free.push(self.buffer);
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame")
            .field("len", &self.len)
            .field("arrived", &self.arrived)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_gives_as_many_frames_as_it_has_and_takes_them_back() {
        let pool = Pool::new(2);
        let first = pool.take().expect("two are free");
        let second = pool.take().expect("one is free");
        assert!(pool.take().is_none());
        drop(first);
        assert_eq!(pool.available(), 1);
        assert!(pool.take().is_some());
        drop(second);
        assert_eq!(pool.available(), 2);
    }

    #[test]
    fn a_frame_survives_its_pool_on_another_thread() {
        let pool = Pool::new(1);
        let mut frame = pool.take().expect("one is free");
        drop(pool);
        frame.buffer()[..3].copy_from_slice(b"abc");
        frame.set_len(3);
        let read = std::thread::spawn(move || frame.to_vec()).join().expect("the thread ends");
        assert_eq!(read, b"abc");
    }

    #[test]
    fn a_length_beyond_the_buffer_is_the_buffer() {
        let mut frame = Pool::new(1).take().expect("one is free");
        assert!(frame.is_empty());
        frame.set_len(usize::MAX);
        assert_eq!(frame.len(), FRAME_CAPACITY);
    }

    #[test]
    fn an_empty_pool_is_empty() {
        assert!(Pool::new(0).take().is_none());
    }
}
