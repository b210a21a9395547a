//! Frames and the pool that owns their memory.
//!
//! A [`Frame`] is one Ethernet frame in a buffer of fixed size that belongs to a [`Pool`]. All buffers are allocated
//! when the pool is made, in one block (which AF_XDP shares with the kernel), and none later. Taking a buffer pops it
//! off a lock-free list (`free_list.rs`), and dropping the frame pushes it back, from any thread. A backlogged application
//! can therefore never make the packet path's memory grow; it can only exhaust the buffers, which devices count.
//!
//! Each operation on that list is an atomic read-modify-write, which also drains the processor's store buffer. Code
//! that handles frames in batches therefore takes buffers and returns them ([`ReturnedFrames`]) in batches, too; and a frame
//! does not count as a reference to its pool's memory. The memory is freed when all of its frames are back and its
//! last handle is gone. That is checked when a pool's last handle is dropped and when a pool is made.
//!
//! A frame is not a reference-counted, sliceable buffer: it has one owner from the ring to the socket, as a claim
//! has.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use napkin_policy::Ns;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::free_list::FreeList;

/// The capacity of a frame, in bytes. Devices drop longer frames and count them
/// ([`rx_oversized`](crate::QueueCounters::rx_oversized)).
///
/// 2048 is the buffer size that drivers use for a 1500-byte MTU; it has room for VLAN tags.
pub const FRAME_CAPACITY: usize = 2048;

/// The most buffers that are taken or returned in one operation.
const BATCH: usize = 32;

/// A pool's buffers, contiguous in one block of memory, and the list of the free ones. Each buffer belongs to
/// exactly one holder at a time: the list, a [`Frame`], or a device that has [lent](Pool::lend) it to the kernel.
///
/// The memory is mapped, so that it is page-aligned as AF_XDP requires. It is not from the heap because a NIC may
/// still write into it by DMA for a while after the socket is closed. The kernel keeps unmapped pages until then;
/// the heap would reuse them for other data.
struct Memory {
    base: NonNull<u8>,
    buffers: usize,
    free: FreeList,
}

// SAFETY: the memory is plain bytes, reached only through the exclusive holder of a buffer.
unsafe impl Send for Memory {}
// SAFETY: as above; the free list is made for concurrent use.
unsafe impl Sync for Memory {}

impl Memory {
    /// The size of the mapping in bytes. A mapping of 0 bytes is invalid; a size that overflows saturates, and
    /// `mmap` fails.
    fn bytes(buffers: usize) -> usize {
        buffers.max(1).saturating_mul(FRAME_CAPACITY)
    }

    fn new(buffers: usize) -> Memory {
        // Buffer numbers fit 32 bits: 2^32 buffers are 8 TiB.
        let (bytes, free) = (Memory::bytes(buffers), FreeList::new(buffers));
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // Populate all pages now, so that no frame pays for a page fault.
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, flags) };
        match base.map(|base| NonNull::new(base.cast())) {
            Ok(Some(base)) => Memory { base, buffers, free },
            Ok(None) => panic!("a pool of {buffers} frames: its memory is at address 0"),
            Err(errno) => panic!("no memory for a pool of {buffers} frames: {errno}"),
        }
    }

    /// The address of a buffer.
    #[inline]
    fn at(&self, buffer: u32) -> NonNull<u8> {
        debug_assert!((buffer as usize) < self.buffers, "a buffer of another pool");
        // SAFETY: buffers are numbered by this memory alone, from 0 to below `buffers`.
        unsafe { self.base.add(buffer as usize * FRAME_CAPACITY) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped with this size, and all buffers are back.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), Memory::bytes(self.buffers)) };
    }
}

/// The address of a pool's memory, which does not move. Frames keep a copy of it.
#[derive(Clone, Copy)]
struct Address(NonNull<Memory>);

// SAFETY: an address of memory that is `Send` and `Sync`.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

/// Memory whose last handle is gone while frames may still be in use.
static ORPHANED: Mutex<Vec<Address>> = Mutex::new(Vec::new());

/// Adds `memory` to the list, then frees all memory on it that has no frame in use.
fn free_orphaned(memory: Option<Address>) {
    let mut orphaned = ORPHANED.lock().unwrap_or_else(PoisonError::into_inner);
    orphaned.extend(memory);
    orphaned.retain(|&Address(at)| {
        // SAFETY: only this function frees it, under the lock.
        let memory = unsafe { at.as_ref() };
        let in_use = memory.free.len() < memory.buffers;
        if !in_use {
            // SAFETY: it was made from a box. No handle is left to take buffers, so all of them are back for good;
            // and a thread that returns a buffer does not touch the memory afterwards.
            drop(unsafe { Box::from_raw(at.as_ptr()) });
        }
        in_use
    });
}

/// Hands a pool's memory to [`free_orphaned`] when the last handle is dropped.
struct Owner(Address);

impl Drop for Owner {
    fn drop(&mut self) {
        free_orphaned(Some(self.0));
    }
}

/// A fixed number of frame buffers.
///
/// A clone is another handle on the same buffers. The memory stays as long as there are frames, so the handles may
/// be dropped first.
#[derive(Clone)]
pub struct Pool {
    owner: Arc<Owner>,
}

impl Pool {
    /// Allocates `frames` buffers of [`FRAME_CAPACITY`] bytes. A pool of 0 frames is valid and always empty.
    ///
    /// # Panics
    /// If the memory cannot be mapped.
    pub fn new(frames: usize) -> Pool {
        free_orphaned(None);
        let memory = Box::new(Memory::new(frames));
        Pool { owner: Arc::new(Owner(Address(NonNull::from(Box::leak(memory))))) }
    }

    #[inline]
    fn memory(&self) -> &Memory {
        // SAFETY: the memory exists as long as its owner, and is only borrowed as shared.
        unsafe { self.owner.0.0.as_ref() }
    }

    /// Takes a buffer as an empty frame with arrival time 0, or returns `None` when all buffers are in use.
    ///
    /// The buffer still holds the bytes of its previous frame; clearing it would cost more than reading a packet
    /// does.
    pub fn take(&self) -> Option<Frame> {
        Some(self.frame(self.lend()?, 0, 0, 0))
    }

    /// Takes up to `most` buffers (at most a batch) at once for frames to come. Unused buffers return when the
    /// stash is dropped.
    #[inline]
    pub(crate) fn stash(&self, most: usize) -> Stash<'_> {
        let mut buffers = [0; BATCH];
        let end = self.memory().free.take_many(&mut buffers[..most.min(BATCH)]);
        Stash { pool: self, buffers, next: 0, end }
    }

    /// How many buffers are free. Other threads take and return some at the same time, so the value may be stale.
    pub fn available(&self) -> usize {
        self.memory().free.len()
    }

    /// Takes a buffer without a frame, by its number. The caller owns it exclusively, and returns it by
    /// [`frame`](Self::frame) or [`put_back`](Self::put_back).
    pub(crate) fn lend(&self) -> Option<u32> {
        self.memory().free.take()
    }

    /// Copies a frame's bytes into a lent buffer, up to its capacity.
    ///
    /// # Safety
    /// The caller owns the buffer, and the kernel does not hold it.
    pub(crate) unsafe fn write(&self, buffer: u32, bytes: &[u8]) {
        let to = self.memory().at(buffer).as_ptr();
        let length = bytes.len().min(FRAME_CAPACITY);
        // SAFETY: within a buffer of this memory, which the caller owns exclusively.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, length) }
    }

    /// Returns a lent buffer.
    pub(crate) fn put_back(&self, buffer: u32) {
        self.memory().free.put_back(buffer);
    }

    /// Returns several lent buffers.
    pub(crate) fn put_back_many(&self, buffers: &[u32]) {
        self.memory().free.put_back_many(buffers);
    }

    /// Whether a frame is from this pool.
    pub(crate) fn has(&self, frame: &Frame) -> bool {
        self.owner.0.0 == frame.home
    }

    /// Turns a lent buffer into a frame of `len` bytes that begins at `start`.
    #[inline]
    pub(crate) fn frame(&self, buffer: u32, start: usize, len: usize, arrived: Ns) -> Frame {
        let start = start.min(FRAME_CAPACITY);
        let len = len.min(FRAME_CAPACITY - start);
        Frame { home: self.owner.0.0, buffer, start: start as u16, len: len as u16, arrived }
    }

    /// The address and size in bytes of all buffers, to be registered with the kernel. The address is page-aligned.
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

/// Buffers taken in advance for frames to come.
pub(crate) struct Stash<'a> {
    pool: &'a Pool,
    buffers: [u32; BATCH],
    /// The range of unused entries in `buffers`: `next..end`.
    next: usize,
    end: usize,
}

impl Stash<'_> {
    /// The next frame's whole buffer.
    #[inline]
    pub(crate) fn buffer(&mut self) -> Option<&mut [u8]> {
        let buffer = *self.buffers[..self.end].get(self.next)?;
        let at = self.pool.memory().at(buffer).as_ptr();
        // SAFETY: a whole buffer, which the stash owns until it is turned into a frame.
        Some(unsafe { std::slice::from_raw_parts_mut(at, FRAME_CAPACITY) })
    }

    /// Turns the next buffer into a frame of its first `len` bytes; `None` if there is no buffer.
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

/// Frames that are no longer needed: returns their buffers in batches, which costs less than dropping each.
///
/// Returns the rest when dropped.
#[derive(Default)]
pub struct ReturnedFrames {
    /// The memory that the collected buffers belong to.
    home: Option<NonNull<Memory>>,
    buffers: [u32; BATCH],
    count: usize,
}

// SAFETY: it owns buffers as frames do.
unsafe impl Send for ReturnedFrames {}
// SAFETY: a shared reference gives no access to the buffers.
unsafe impl Sync for ReturnedFrames {}

impl ReturnedFrames {
    /// Adds a frame's buffer.
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

    /// Returns all collected buffers to their pool.
    #[inline]
    pub fn give_back(&mut self) {
        if let Some(home) = self.home
            && self.count > 0
        {
            // SAFETY: the memory exists as long as a buffer of it is not back.
            let memory = unsafe { home.as_ref() };
            memory.free.put_back_many(&self.buffers[..self.count]);
        }
        self.count = 0;
    }
}

impl Extend<Frame> for ReturnedFrames {
    #[inline]
    fn extend<I: IntoIterator<Item = Frame>>(&mut self, frames: I) {
        frames.into_iter().for_each(|frame| self.add(frame));
    }
}

impl Drop for ReturnedFrames {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl fmt::Debug for ReturnedFrames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spent").field("count", &self.count).finish_non_exhaustive()
    }
}

/// One Ethernet frame, from the destination address to the end of the payload, without the FCS.
///
/// Dereferences to its bytes. Dropping it returns the buffer to its pool, also after the last
/// [`Pool`] handle has gone; neither allocates.
pub struct Frame {
    /// The pool's memory, which exists at least until the buffer is back.
    home: NonNull<Memory>,
    /// Number of the buffer that this frame owns.
    buffer: u32,
    /// Offset of the frame in the buffer, and its length, in bytes: together at most [`FRAME_CAPACITY`].
    start: u16,
    len: u16,
    arrived: Ns,
}

// SAFETY: a frame owns its buffer exclusively; the free list is made for concurrent use.
unsafe impl Send for Frame {}
// SAFETY: a shared reference only reads the bytes.
unsafe impl Sync for Frame {}

impl Frame {
    /// The capacity of a frame in bytes: [`FRAME_CAPACITY`].
    pub const fn capacity() -> usize {
        FRAME_CAPACITY
    }

    /// Sets the length in bytes, limited to that of the [buffer](Self::buffer). Bytes that this adds keep what the
    /// buffer held before.
    pub fn set_len(&mut self, len: usize) {
        self.len = len.min(FRAME_CAPACITY - usize::from(self.start)) as u16;
    }

    /// The whole buffer from the start of the frame, regardless of its length: [`FRAME_CAPACITY`] bytes, or fewer
    /// where the device leaves headroom in front of a received frame.
    pub fn buffer(&mut self) -> &mut [u8] {
        let room = FRAME_CAPACITY - usize::from(self.start);
        // SAFETY: `start` and `room` lie within the buffer, which this frame owns.
        unsafe { std::slice::from_raw_parts_mut(self.begin().as_ptr(), room) }
    }

    /// The arrival time. For a synthetic queue, the time at which the frame was meant to arrive, so that latency
    /// counted from it is free of coordinated omission; for a device, the time of the poll that found it.
    pub fn arrived(&self) -> Ns {
        self.arrived
    }

    /// Sets the arrival time.
    pub fn set_arrived(&mut self, arrived: Ns) {
        self.arrived = arrived;
    }

    #[inline]
    /// Gives up the frame and returns its buffer, as one that was [lent](Pool::lend), with the frame's offset and
    /// length in it.
    pub(crate) fn into_buffer(self) -> (u32, usize, usize) {
        let frame = std::mem::ManuallyDrop::new(self);
        (frame.buffer, frame.start.into(), frame.len.into())
    }

    fn begin(&self) -> NonNull<u8> {
        // SAFETY: the buffer is not back, so the memory exists.
        let memory = unsafe { self.home.as_ref() };
        // SAFETY: `start` is at most the buffer's length.
        unsafe { memory.at(self.buffer).add(usize::from(self.start)) }
    }
}

impl Deref for Frame {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` and `len` lie within the buffer, which this frame owns.
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
        // SAFETY: the buffer is not back yet, and the memory is not touched once it is.
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
