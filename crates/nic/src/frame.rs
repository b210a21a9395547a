//! Frames and the pool that owns their memory.
//!
//! A [`Frame`] is one Ethernet frame in a buffer of fixed size that belongs to a [`Pool`]. Buffers
//! are allocated when the pool is made, in one piece (which AF_XDP shares with the kernel), and never
//! after: taking one pops it off a list (`free.rs`) on which nobody waits for another, and
//! dropping the frame pushes it back, from whatever thread that happens on. A full application can
//! therefore never make the packet path grow; it can only make it run out of buffers, which devices
//! count.
//!
//! Each exchange with that list is an atomic operation, which also waits for what the processor has still to
//! write. So whoever handles frames by batches takes and returns ([`Spent`]) their buffers by
//! batches, too; and a frame does not count as a reference to its pool's memory. That memory goes when all of its
//! frames are back and no handle on it is left, which is looked at when handles go and pools are made.
//!
//! What this is not: a reference-counted, sliceable buffer. A frame has one owner from the ring to
//! the socket, as a claim has.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use napkin_policy::Ns;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::free::FreeList;

/// Bytes a frame can hold. Devices drop longer frames and count them
/// ([`rx_oversized`](crate::QueueCounters::rx_oversized)).
///
/// Twice a kilobyte is what drivers give a 1500-byte MTU, with a VLAN tag or two to spare.
pub const FRAME_CAPACITY: usize = 2048;

/// Buffers that are taken or returned at a time.
const BATCH: usize = 32;

/// The buffers of a pool, one after the other in one piece of memory, and the list of those that are
/// free. Each buffer belongs to exactly one holder at a time: the list, a [`Frame`], or a device that
/// has [lent](Pool::lend) it to the kernel.
///
/// The memory is mapped, and so begins with a page, as AF_XDP wants it. It is not the heap's: a card that writes into
/// it by itself may do so for a while after the socket was closed. Unmapped pages stay the kernel's until then; the
/// heap would give them to somebody else.
struct Memory {
    base: NonNull<u8>,
    buffers: usize,
    free: FreeList,
}

// SAFETY: the memory is plain bytes, reached only through whoever holds a buffer, by itself.
unsafe impl Send for Memory {}
// SAFETY: as above; the list is made for many threads.
unsafe impl Sync for Memory {}

impl Memory {
    /// Bytes to be mapped. No mapping is of none, nor of as many as there are addresses.
    fn bytes(buffers: usize) -> usize {
        buffers.max(1).saturating_mul(FRAME_CAPACITY)
    }

    fn new(buffers: usize) -> Memory {
        // Their numbers fit 32 bits: 2^32 of them are 8 TiB.
        let (bytes, free) = (Memory::bytes(buffers), FreeList::new(buffers));
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // All pages now, so that no frame is the first in one, and waits for it.
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, flags) };
        match base.map(|base| NonNull::new(base.cast())) {
            Ok(Some(base)) => Memory { base, buffers, free },
            Ok(None) => panic!("a pool of {buffers} frames: its memory is at address 0"),
            Err(errno) => panic!("no memory for a pool of {buffers} frames: {errno}"),
        }
    }

    /// Where a buffer begins; it is there whatever the number.
    #[inline]
    fn at(&self, buffer: u32) -> NonNull<u8> {
        debug_assert!((buffer as usize) < self.buffers, "a buffer of another pool");
        // SAFETY: buffers are numbered by this memory alone, from 0 to below `buffers`.
        unsafe { self.base.add(buffer as usize * FRAME_CAPACITY) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped with these bytes, and nobody holds a buffer any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), Memory::bytes(self.buffers)) };
    }
}

/// Where a pool's memory is. Frames have it, and it does not move.
#[derive(Clone, Copy)]
struct Address(NonNull<Memory>);

// SAFETY: the address of what may be sent and shared.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

/// Memory without a handle that some frame may still be in.
static LEFT: Mutex<Vec<Address>> = Mutex::new(Vec::new());

/// Frees the memory that no frame is in any more, after adding some to it.
fn leave(memory: Option<Address>) {
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    left.extend(memory);
    left.retain(|&Address(at)| {
        // SAFETY: it is freed here alone.
        let memory = unsafe { at.as_ref() };
        let in_use = memory.free.len() < memory.buffers;
        if !in_use {
            // SAFETY: it was made of a box. Nobody takes buffers from it, so all are here for good; and
            // whoever has put one back has not touched the memory since.
            drop(unsafe { Box::from_raw(at.as_ptr()) });
        }
        in_use
    });
}

/// Leaves a pool's memory when the last handle goes.
struct Owner(Address);

impl Drop for Owner {
    fn drop(&mut self) {
        leave(Some(self.0));
    }
}

/// A fixed number of frame buffers.
///
/// A clone is another handle on the same buffers. Frames keep the memory alive themselves, so the
/// handles may go first.
#[derive(Clone)]
pub struct Pool {
    owner: Arc<Owner>,
}

impl Pool {
    /// Allocates `frames` buffers of [`FRAME_CAPACITY`] bytes. A pool of 0 is empty for ever.
    ///
    /// # Panics
    /// If there is no memory for them.
    pub fn new(frames: usize) -> Pool {
        leave(None);
        let memory = Box::new(Memory::new(frames));
        Pool { owner: Arc::new(Owner(Address(NonNull::from(Box::leak(memory))))) }
    }

    #[inline]
    fn memory(&self) -> &Memory {
        // SAFETY: it is there as long as its owner, and only ever shared.
        unsafe { self.owner.0.0.as_ref() }
    }

    /// Takes a buffer: an empty frame that arrived at 0, or `None` when all buffers are in use.
    ///
    /// The buffer still holds the bytes of the frame before it; clearing it would cost more than
    /// reading a packet does.
    pub fn take(&self) -> Option<Frame> {
        Some(self.frame(self.lend()?, 0, 0, 0))
    }

    /// Takes up to `most` buffers (and no more than a batch) at once, for frames that are about to come. What is not made a frame of goes
    /// back when the stash is dropped.
    #[inline]
    pub(crate) fn stash(&self, most: usize) -> Stash<'_> {
        let mut buffers = [0; BATCH];
        let end = self.memory().free.take_many(&mut buffers[..most.min(BATCH)]);
        Stash { pool: self, buffers, next: 0, end }
    }

    /// How many buffers are free. Other threads take and return them at the same time, so this is a
    /// reading and not a promise.
    pub fn available(&self) -> usize {
        self.memory().free.len()
    }

    /// Takes a buffer without a frame, by its number. Whoever has it is the only one, and gives it
    /// back by [`frame`](Self::frame) or [`put_back`](Self::put_back).
    pub(crate) fn lend(&self) -> Option<u32> {
        self.memory().free.take()
    }

    /// Copies a frame's bytes into a buffer that was lent, as many as it holds.
    ///
    /// # Safety
    /// The caller holds the buffer, and it is not with the kernel.
    pub(crate) unsafe fn write(&self, buffer: u32, bytes: &[u8]) {
        let to = self.memory().at(buffer).as_ptr();
        let length = bytes.len().min(FRAME_CAPACITY);
        // SAFETY: within a buffer of this memory, which is the caller's alone.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, length) }
    }

    /// Gives a buffer back that was lent.
    pub(crate) fn put_back(&self, buffer: u32) {
        self.memory().free.put_back(buffer);
    }

    /// Gives several buffers back that were lent.
    pub(crate) fn put_back_many(&self, buffers: &[u32]) {
        self.memory().free.put_back_many(buffers);
    }

    /// Whether a frame is in this pool's memory.
    pub(crate) fn has(&self, frame: &Frame) -> bool {
        self.owner.0.0 == frame.home
    }

    /// Makes a frame of `len` bytes, from `start` on, of a buffer that was lent.
    #[inline]
    pub(crate) fn frame(&self, buffer: u32, start: usize, len: usize, arrived: Ns) -> Frame {
        let start = start.min(FRAME_CAPACITY);
        let len = len.min(FRAME_CAPACITY - start);
        Frame { home: self.owner.0.0, buffer, start: start as u16, len: len as u16, arrived }
    }

    /// The memory of all its buffers, as the kernel is told of it: where it begins and its bytes. A page's
    /// multiple begins there.
    pub(crate) fn shared(&self) -> (NonNull<u8>, usize) {
        let memory = self.memory();
        (memory.base, memory.buffers * FRAME_CAPACITY)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("available", &self.available()).finish_non_exhaustive()
    }
}

/// Buffers that were taken for frames to come.
pub(crate) struct Stash<'a> {
    pool: &'a Pool,
    buffers: [u32; BATCH],
    /// From the next one to the last, exclusive.
    next: usize,
    end: usize,
}

impl Stash<'_> {
    /// The next frame's buffer, all of it.
    #[inline]
    pub(crate) fn buffer(&mut self) -> Option<&mut [u8]> {
        let buffer = *self.buffers[..self.end].get(self.next)?;
        let at = self.pool.memory().at(buffer).as_ptr();
        // SAFETY: a whole buffer, which is ours alone until it is made a frame of.
        Some(unsafe { std::slice::from_raw_parts_mut(at, FRAME_CAPACITY) })
    }

    /// Makes a frame of its first `len` bytes; `None` if there was no buffer.
    #[inline]
    pub(crate) fn frame(&mut self, len: usize, arrived: Ns) -> Option<Frame> {
        let buffer = *self.buffers[..self.end].get(self.next)?;
        self.next += 1;
        Some(self.pool.frame(buffer, 0, len, arrived))
    }

    /// The next buffer without a frame, as [`Pool::lend`] gives it.
    #[inline]
    pub(crate) fn lend(&mut self) -> Option<u32> {
        let buffer = *self.buffers[..self.end].get(self.next)?;
        self.next += 1;
        Some(buffer)
    }
}

impl Drop for Stash<'_> {
    #[inline]
    fn drop(&mut self) {
        self.pool.memory().free.put_back_many(&self.buffers[self.next..self.end]);
    }
}

/// Frames that are done with: their buffers go back many at a time, which costs less than dropping each.
///
/// Those that it still has go back when it is dropped.
#[derive(Default)]
pub struct Spent {
    /// Whose they are, while there are any.
    home: Option<NonNull<Memory>>,
    buffers: [u32; BATCH],
    count: usize,
}

// SAFETY: it holds buffers as frames do.
unsafe impl Send for Spent {}
// SAFETY: a shared one does nothing.
unsafe impl Sync for Spent {}

impl Spent {
    /// Takes a frame's buffer.
    #[inline]
    pub fn add(&mut self, frame: Frame) {
        let frame = std::mem::ManuallyDrop::new(frame);
        if self.count == BATCH || self.home != Some(frame.home) {
            self.give_back();
            self.home = Some(frame.home);
        }
        self.buffers[self.count] = frame.buffer;
        self.count += 1;
    }

    /// Gives all buffers back.
    #[inline]
    pub fn give_back(&mut self) {
        if let Some(home) = self.home
            && self.count > 0
        {
            // SAFETY: memory is there while a buffer of it is not back.
            let memory = unsafe { home.as_ref() };
            memory.free.put_back_many(&self.buffers[..self.count]);
        }
        self.count = 0;
    }
}

impl Extend<Frame> for Spent {
    #[inline]
    fn extend<I: IntoIterator<Item = Frame>>(&mut self, frames: I) {
        frames.into_iter().for_each(|frame| self.add(frame));
    }
}

impl Drop for Spent {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl fmt::Debug for Spent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spent").field("count", &self.count).finish_non_exhaustive()
    }
}

/// One Ethernet frame, from the destination address on and without the check sequence.
///
/// Dereferences to its bytes. Dropping it returns the buffer to its pool, also after the last
/// [`Pool`] handle has gone; neither allocates.
pub struct Frame {
    /// It is there at least until the buffer is back.
    home: NonNull<Memory>,
    /// Which of its buffers is ours alone.
    buffer: u32,
    /// Where the frame begins in it, and its length: together at most [`FRAME_CAPACITY`].
    start: u16,
    len: u16,
    arrived: Ns,
}

// SAFETY: whoever has the frame has its buffer alone; the list of the rest is made for many threads.
unsafe impl Send for Frame {}
// SAFETY: a shared frame can only be read.
unsafe impl Sync for Frame {}

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

    #[inline]
    /// The buffer, which is the caller's now as one that was [lent](Pool::lend), where the frame begins in it, and
    /// its length.
    pub(crate) fn into_buffer(self) -> (u32, usize, usize) {
        let frame = std::mem::ManuallyDrop::new(self);
        (frame.buffer, frame.start.into(), frame.len.into())
    }

    fn begin(&self) -> NonNull<u8> {
        // SAFETY: the buffer is not back.
        let memory = unsafe { self.home.as_ref() };
        // SAFETY: `start` is at most the buffer's length.
        unsafe { memory.at(self.buffer).add(usize::from(self.start)) }
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
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the buffer is not back, and nothing of the memory is touched once it is.
        unsafe { self.home.as_ref() }.free.put_back(self.buffer);
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
mod tests;
