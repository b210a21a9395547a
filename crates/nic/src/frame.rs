//! Frames and the pool that owns their memory.
//!
//! A [`Frame`] is one Ethernet frame in a buffer of fixed size that belongs to a [`Pool`]. Buffers
//! are allocated when the pool is made and never after: taking one pops it off a lock-free list and
//! dropping the frame pushes it back, from whatever thread that happens on. A full application can
//! therefore never make the packet path grow; it can only make it run out of buffers, which devices
//! count.
//!
//! What this is not: a reference-counted, sliceable buffer. A frame has one owner from the ring to
//! the socket, as a claim has.

use std::fmt;
use std::ops::{Deref, DerefMut};
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

/// The list of free buffers. It is as long as the pool has buffers, so a push cannot fail.
type Free = ArrayQueue<Box<[u8]>>;

/// A fixed number of frame buffers.
///
/// A clone is another handle on the same buffers. Frames keep the memory alive themselves, so the
/// handles may go first.
#[derive(Clone)]
pub struct Pool {
    free: Arc<Free>,
}

impl Pool {
    /// Allocates `frames` buffers of [`FRAME_CAPACITY`] bytes, and [`RESERVE`] that are never given.
    /// A pool of 0 is empty for ever.
    pub fn new(frames: usize) -> Pool {
        let free = ArrayQueue::new(frames + RESERVE);
        for _ in 0..frames + RESERVE {
            // Never fails: the list has room for every one of them.
            let _ = free.push(vec![0; FRAME_CAPACITY].into_boxed_slice());
        }
        Pool { free: Arc::new(free) }
    }

    /// Takes a buffer: an empty frame that arrived at 0, or `None` when all buffers are in use.
    ///
    /// The buffer still holds the bytes of the frame before it; clearing it would cost more than
    /// reading a packet does.
    pub fn take(&self) -> Option<Frame> {
        if self.free.len() <= RESERVE {
            return None;
        }
        let bytes = self.free.pop()?;
        Some(Frame { bytes, len: 0, arrived: 0, home: Arc::clone(&self.free) })
    }

    /// How many buffers are free. Other threads take and return them at the same time, so this is a
    /// reading and not a promise.
    pub fn available(&self) -> usize {
        self.free.len().saturating_sub(RESERVE)
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
    bytes: Box<[u8]>,
    len: usize,
    arrived: Ns,
    home: Arc<Free>,
}

impl Frame {
    /// Bytes a frame can hold: [`FRAME_CAPACITY`].
    pub const fn capacity() -> usize {
        FRAME_CAPACITY
    }

    /// Sets the length in bytes. A length above the capacity means the capacity; bytes that come
    /// into view are whatever the buffer held.
    pub fn set_len(&mut self, len: usize) {
        self.len = len.min(self.bytes.len());
    }

    /// The whole buffer, whatever the frame's length.
    pub fn buffer(&mut self) -> &mut [u8] {
        &mut self.bytes
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
}

impl Deref for Frame {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // `len` never exceeds the buffer (`set_len`); an empty slice is better than a panic here.
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

impl DerefMut for Frame {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(..self.len).unwrap_or_default()
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        // An empty boxed slice has no memory of its own, so nothing is allocated to take its place.
        // The list was made as long as the pool has buffers, so it has room for this one.
        let _ = self.home.push(std::mem::take(&mut self.bytes));
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
