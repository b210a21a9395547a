//! A ring shared with the kernel: one side writes entries and advances the producer index, the other reads them and
//! advances the consumer index.
//!
//! The indices run freely and wrap at 32 bits; an entry's place is the index modulo the ring's size. What the other
//! side writes is not trusted: an index that implies more entries than the ring has is ignored, and an entry is
//! read once and returned by value, for the caller to check.

use std::io;
use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::xdp::XdpRingOffset;

/// A type for which any bytes are a valid value, such as a descriptor.
///
/// # Safety
/// Every bit pattern must be a valid value, and the type must have no padding.
pub(super) unsafe trait Entry: Copy {}

// SAFETY: an integer.
unsafe impl Entry for u64 {}
// SAFETY: three integers, of 8, 4 and 4 bytes.
unsafe impl Entry for Descriptor {}

/// A frame in a ring (`struct xdp_desc`).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Descriptor {
    /// Offset of the frame in the shared memory, in bytes.
    pub(super) address: u64,
    pub(super) length: u32,
    pub(super) options: u32,
}

/// The memory of a ring that both sides access.
#[derive(Debug)]
struct Shared<T> {
    memory: NonNull<u8>,
    bytes: usize,
    /// The memory of a test's ring, in this process; `None` if it is the kernel's, mapped.
    own: Option<Arc<[AtomicU64]>>,
    producer: usize,
    consumer: usize,
    flags: usize,
    entries: usize,
    size: u32,
    kind: PhantomData<T>,
}

// SAFETY: the indices are accessed as atomics, and the entries only by the one end that this process has.
unsafe impl<T: Entry> Send for Shared<T> {}

impl<T: Entry> Shared<T> {
    fn map(
        socket: impl AsFd,
        at: u64,
        offsets: &XdpRingOffset,
        size: u32,
    ) -> io::Result<Shared<T>> {
        let number = |offset: u64| usize::try_from(offset).map_err(|_| io::ErrorKind::InvalidData);
        let entries = number(offsets.desc)?;
        let bytes = size_of::<T>()
            .checked_mul(size as usize)
            .and_then(|all| all.checked_add(entries))
            .ok_or(io::ErrorKind::InvalidData)?;
        // Kernels before 5.4 have no flags.
        let flags = number(offsets.flags.ok_or(io::ErrorKind::Unsupported)?)?;
        let (producer, consumer) = (number(offsets.producer)?, number(offsets.consumer)?);
        let inside = |offset: usize| offset.is_multiple_of(4) && offset + 4 <= bytes;
        if ![producer, consumer, flags].into_iter().all(inside)
            || !entries.is_multiple_of(align_of::<T>())
        {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let map = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let memory = unsafe { mmap(std::ptr::null_mut(), bytes, prot, map, socket, at) }?;
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::InvalidData)?;
        let kind = PhantomData;
        Ok(Shared { memory, bytes, own: None, producer, consumer, flags, entries, size, kind })
    }

    /// A ring in memory of this process.
    fn over(memory: &OwnRing) -> Shared<T> {
        let words = Arc::clone(&memory.words);
        Shared {
            memory: NonNull::from(&*words).cast(),
            bytes: words.len() * 8,
            own: Some(words),
            producer: 0,
            consumer: 8,
            flags: 16,
            entries: OwnRing::ENTRIES * 8,
            size: memory.size,
            kind: PhantomData,
        }
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: within the memory; length and alignment were checked when it was mapped.
        let word = unsafe { self.memory.add(offset).cast::<AtomicU32>() };
        // SAFETY: the memory lives as long as this value, and both sides access it atomically.
        unsafe { word.as_ref() }
    }

    fn entry(&self, index: u32) -> NonNull<T> {
        let place = (index & (self.size - 1)) as usize;
        // SAFETY: the index modulo the size, a power of two, is one of the mapped entries.
        unsafe { self.memory.add(self.entries + place * size_of::<T>()).cast() }
    }

    /// Whether the kernel asks for a wakeup call (`XDP_RING_NEED_WAKEUP`).
    fn needs_wakeup(&self) -> bool {
        self.word(self.flags).load(Relaxed) & 1 != 0
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        if self.own.is_none() {
            // SAFETY: mapped with this size, and not used after this.
            let _ = unsafe { munmap(self.memory.as_ptr().cast(), self.bytes) };
        }
    }
}

/// A ring in this process's memory, with no kernel on the other side: for tests. Its words are the producer index,
/// the consumer index, the flags and, from the fifth on, two for each entry.
#[derive(Debug)]
pub(super) struct OwnRing {
    pub(super) words: Arc<[AtomicU64]>,
    size: u32,
}

impl OwnRing {
    /// Words before the first entry.
    pub(super) const ENTRIES: usize = 4;

    /// Makes a ring of `size` entries, a power of two, of any type.
    pub(super) fn new(size: u32) -> OwnRing {
        let words = OwnRing::ENTRIES + 2 * size as usize;
        OwnRing { words: (0..words).map(|_| AtomicU64::new(0)).collect(), size }
    }
}

/// The writing end: for buffers to fill and for frames to send.
#[derive(Debug)]
pub(super) struct Producer<T> {
    shared: Shared<T>,
    /// The producer index, including entries that are not yet published.
    written: u32,
    /// The consumer index when it was last read.
    read: u32,
}

impl<T: Entry> Producer<T> {
    /// The writing end of a ring in this process.
    pub(super) fn over(memory: &OwnRing) -> Producer<T> {
        Producer { shared: Shared::over(memory), written: 0, read: 0 }
    }

    pub(super) fn map(
        socket: impl AsFd,
        at: u64,
        offsets: &XdpRingOffset,
        size: u32,
    ) -> io::Result<Producer<T>> {
        let shared = Shared::map(socket, at, offsets, size)?;
        let written = shared.word(shared.producer).load(Relaxed);
        Ok(Producer { shared, written, read: written })
    }

    /// The number of entries that can be written; at least `wanted` if there are that many.
    pub(super) fn room(&mut self, wanted: u32) -> u32 {
        let size = self.shared.size;
        let room = |read: u32| size.saturating_sub(self.written.wrapping_sub(read));
        if room(self.read) < wanted {
            self.read = self.shared.word(self.shared.consumer).load(Acquire);
        }
        room(self.read)
    }

    /// Writes an entry; there must be room. The kernel sees it after the next [`publish`](Self::publish).
    pub(super) fn push(&mut self, value: T) {
        // SAFETY: one of the entries, which the kernel does not read before it is published.
        unsafe { self.shared.entry(self.written).write_volatile(value) };
        self.written = self.written.wrapping_add(1);
    }

    pub(super) fn publish(&mut self) {
        self.shared.word(self.shared.producer).store(self.written, Release);
    }

    /// Publishes, then returns whether the kernel asks for a wakeup call. The fence keeps the read of the flag
    /// behind the store of the index. Without it, the kernel could set the flag and find the ring still empty while
    /// this side has read the flag as clear, and no wakeup would follow.
    pub(super) fn publish_and_check_wakeup(&mut self) -> bool {
        self.publish();
        fence(SeqCst);
        self.needs_wakeup()
    }

    /// The number of entries that the kernel has not read yet.
    pub(super) fn waiting(&mut self) -> u32 {
        self.read = self.shared.word(self.shared.consumer).load(Acquire);
        self.written.wrapping_sub(self.read).min(self.shared.size)
    }

    pub(super) fn needs_wakeup(&self) -> bool {
        self.shared.needs_wakeup()
    }
}

/// The reading end: for received frames and for the buffers of sent ones.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    shared: Shared<T>,
    read: u32,
    /// The producer index when it was last read.
    written: u32,
}

impl<T: Entry> Consumer<T> {
    /// The reading end of a ring in this process.
    pub(super) fn over(memory: &OwnRing) -> Consumer<T> {
        Consumer { shared: Shared::over(memory), read: 0, written: 0 }
    }

    pub(super) fn map(
        socket: impl AsFd,
        at: u64,
        offsets: &XdpRingOffset,
        size: u32,
    ) -> io::Result<Consumer<T>> {
        let shared = Shared::map(socket, at, offsets, size)?;
        let read = shared.word(shared.consumer).load(Relaxed);
        Ok(Consumer { shared, read, written: read })
    }

    /// The number of entries that can be read; at least `wanted` if there are that many.
    pub(super) fn ready(&mut self, wanted: u32) -> u32 {
        if self.written.wrapping_sub(self.read) < wanted {
            let written = self.shared.word(self.shared.producer).load(Acquire);
            // A correct kernel never writes more entries than fit.
            if written.wrapping_sub(self.read) <= self.shared.size {
                self.written = written;
            }
        }
        self.written.wrapping_sub(self.read)
    }

    /// Reads an entry; there must be one.
    pub(super) fn pop(&mut self) -> T {
        // SAFETY: one of the entries; any bytes are a valid value.
        let value = unsafe { self.shared.entry(self.read).read_volatile() };
        self.read = self.read.wrapping_add(1);
        value
    }

    /// Returns the places of the entries read so far to the kernel.
    pub(super) fn release(&mut self) {
        self.shared.word(self.shared.consumer).store(self.read, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u32 = 8;

    #[test]
    fn what_one_end_writes_the_other_reads_also_where_the_numbers_wrap() {
        let memory = OwnRing::new(SIZE);
        let start = u32::MAX - 3;
        let shared = Shared::<u64>::over(&memory);
        shared.word(0).store(start, Relaxed);
        shared.word(8).store(start, Relaxed);
        let mut writer = Producer { shared, written: start, read: start };
        let shared = Shared::<u64>::over(&memory);
        let mut reader = Consumer { shared, read: start, written: start };
        for round in 0..10 {
            assert_eq!(writer.room(SIZE), SIZE);
            (0..5).for_each(|it| writer.push(round * 10 + it));
            assert_eq!(reader.ready(1), 0, "not before it is published");
            writer.publish();
            assert_eq!(reader.ready(1), 5);
            (0..5).for_each(|it| assert_eq!(reader.pop(), round * 10 + it));
            assert_eq!(writer.waiting(), 5);
            reader.release();
            assert_eq!(writer.waiting(), 0);
        }
    }

    #[test]
    fn indices_that_no_kernel_writes_mean_nothing() {
        let memory = OwnRing::new(SIZE);
        let mut reader = Consumer::<Descriptor>::over(&memory);
        for written in [SIZE + 1, 1 << 31, u32::MAX] {
            reader.shared.word(0).store(written, Relaxed);
            assert_eq!(reader.ready(4), 0, "{written}");
        }
        let mut writer = Producer::<u64>::over(&memory);
        for read in [1, SIZE, u32::MAX - SIZE] {
            writer.shared.word(8).store(read, Relaxed);
            writer.read = read;
            assert!(writer.room(SIZE + 1) <= SIZE && writer.waiting() <= SIZE);
        }
    }
}
