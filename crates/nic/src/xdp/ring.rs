//! A ring that is shared with the kernel: one side writes entries and moves the producer's index, the
//! other reads them and moves the consumer's.
//!
//! The indices run freely and wrap at 32 bits; entries lie at their remainder. What the other side
//! writes is believed no further than it goes: an index that would mean more entries than there are is
//! taken for none, an entry is read once and given away as a value, and who gets it checks it.

use std::io;
use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::xdp::XdpRingOffset;

/// A value that is any bytes, such as a descriptor.
///
/// # Safety
/// Every pattern of bits is a value of the type, and it has no padding.
pub(super) unsafe trait Entry: Copy {}

// SAFETY: a number.
unsafe impl Entry for u64 {}
// SAFETY: three numbers, of 8, 4 and 4 bytes.
unsafe impl Entry for Descriptor {}

/// A frame in a ring (`struct xdp_desc`).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Descriptor {
    /// Where it begins, in bytes from the beginning of the shared memory.
    pub(super) address: u64,
    pub(super) length: u32,
    pub(super) options: u32,
}

/// What both sides see of a ring.
#[derive(Debug)]
struct Shared<T> {
    memory: NonNull<u8>,
    bytes: usize,
    /// Of a test the memory, in this process; else it is the kernel's, mapped.
    own: Option<Arc<[AtomicU64]>>,
    producer: usize,
    consumer: usize,
    flags: usize,
    entries: usize,
    size: u32,
    kind: PhantomData<T>,
}

// SAFETY: the memory is reached by atomics, and its entries by the one end that this process has.
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

    /// On memory of this process.
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
        // SAFETY: within the memory, whose length and alignment were checked when it was mapped.
        let word = unsafe { self.memory.add(offset).cast::<AtomicU32>() };
        // SAFETY: the memory lives as long as this value, and is written by atomics on both sides.
        unsafe { word.as_ref() }
    }

    fn entry(&self, index: u32) -> NonNull<T> {
        let place = (index & (self.size - 1)) as usize;
        // SAFETY: the remainder by the size, a power of two, is one of the entries that were mapped.
        unsafe { self.memory.add(self.entries + place * size_of::<T>()).cast() }
    }

    /// `XDP_RING_NEED_WAKEUP`: the kernel asks for a call.
    fn needs_wakeup(&self) -> bool {
        self.word(self.flags).load(Relaxed) & 1 != 0
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        if self.own.is_none() {
            // SAFETY: mapped with these bytes, and nothing of it is used after this.
            let _ = unsafe { munmap(self.memory.as_ptr().cast(), self.bytes) };
        }
    }
}

/// A ring in this process' own memory, whose other side is no kernel: for tests. Its words are the producer's
/// index, the consumer's, the flags, and, from the fifth on, two for each entry.
#[derive(Debug)]
pub(super) struct OwnRing {
    pub(super) words: Arc<[AtomicU64]>,
    size: u32,
}

impl OwnRing {
    /// Words before the first entry.
    pub(super) const ENTRIES: usize = 4;

    /// One of `size` entries, a power of two, of any kind.
    pub(super) fn new(size: u32) -> OwnRing {
        let words = OwnRing::ENTRIES + 2 * size as usize;
        OwnRing { words: (0..words).map(|_| AtomicU64::new(0)).collect(), size }
    }
}

/// The writing end: of buffers to fill, and of frames to send.
#[derive(Debug)]
pub(super) struct Producer<T> {
    shared: Shared<T>,
    /// What was written, whether the kernel knows of it yet or not.
    written: u32,
    /// How far the kernel had read when it was looked at last.
    read: u32,
}

impl<T: Entry> Producer<T> {
    /// The end of a ring in this process.
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

    /// Entries that can be written: at least `wanted` if there are so many.
    pub(super) fn room(&mut self, wanted: u32) -> u32 {
        let size = self.shared.size;
        let room = |read: u32| size.saturating_sub(self.written.wrapping_sub(read));
        if room(self.read) < wanted {
            self.read = self.shared.word(self.shared.consumer).load(Acquire);
        }
        room(self.read)
    }

    /// Writes an entry; there has to be room. The kernel sees it with the next [`publish`](Self::publish).
    pub(super) fn push(&mut self, value: T) {
        // SAFETY: one of the entries, which the kernel does not read before it is published.
        unsafe { self.shared.entry(self.written).write_volatile(value) };
        self.written = self.written.wrapping_add(1);
    }

    pub(super) fn publish(&mut self) {
        self.shared.word(self.shared.producer).store(self.written, Release);
    }

    /// Publishes, and looks then whether the kernel asks for a call. Without the fence it could look before, as far as the
    /// kernel sees: one that asks, and then looks at the ring once more, would find nothing, and nobody would call it.
    pub(super) fn publish_and_look(&mut self) -> bool {
        self.publish();
        fence(SeqCst);
        self.needs_wakeup()
    }

    /// Entries that the kernel has not read yet.
    pub(super) fn waiting(&mut self) -> u32 {
        self.read = self.shared.word(self.shared.consumer).load(Acquire);
        self.written.wrapping_sub(self.read).min(self.shared.size)
    }

    pub(super) fn needs_wakeup(&self) -> bool {
        self.shared.needs_wakeup()
    }
}

/// The reading end: of received frames, and of frames that were sent.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    shared: Shared<T>,
    read: u32,
    /// How far the kernel had written when it was looked at last.
    written: u32,
}

impl<T: Entry> Consumer<T> {
    /// The end of a ring in this process.
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

    /// Entries that can be read: at least `wanted` if there are so many.
    pub(super) fn ready(&mut self, wanted: u32) -> u32 {
        if self.written.wrapping_sub(self.read) < wanted {
            let written = self.shared.word(self.shared.producer).load(Acquire);
            // More than fit is nothing that a kernel writes.
            if written.wrapping_sub(self.read) <= self.shared.size {
                self.written = written;
            }
        }
        self.written.wrapping_sub(self.read)
    }

    /// Reads an entry; there has to be one.
    pub(super) fn pop(&mut self) -> T {
        // SAFETY: one of the entries; any bytes are a value.
        let value = unsafe { self.shared.entry(self.read).read_volatile() };
        self.read = self.read.wrapping_add(1);
        value
    }

    /// Gives the places of what was read back to the kernel.
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
