//! Memory that another process shares: mapped regions of files, read and written by the peer's addresses.
//!
//! All `unsafe` code of the virtio rings is here. The peer may write to any of the memory at any time, so none of
//! it is ever borrowed as plain Rust data: fields of rings are atomics, and payloads are copied out before they are
//! examined. Every address and length is checked against the regions with each access; a region must lie within its
//! file when it is mapped.
//!
//! A peer may truncate its file afterwards, unless it is sealed (QEMU's `memory-backend-memfd` is by default; ours
//! is). The regions in it are then [empty](super::sigbus).
//!
//! A page of a file that holds nothing yet is allocated by the process that touches it first, and charged to its
//! control group: to ours if we read a hole. Regions that together exceed this host's memory are therefore refused.
//!
//! An access to memory of a file on a disk, or one that another process serves (FUSE), waits for the disk or that
//! process: for ever, if the process is the peer's. The file must therefore be in memory itself, which its seals
//! show without a call to any file system. (Closing a descriptor may also call its file system; only the control
//! thread closes them, and may wait.)

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

/// The fence between a notification request and the check of the ring; here because `tests/loom` replaces this file.
pub(super) use std::sync::atomic::fence;

use rustix::fs::{FileType, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use thiserror::Error;

use super::sigbus::Watched;

/// The position of a region: in descriptors, in the peer's address space, and in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RegionAt {
    /// The address in descriptors.
    pub(super) guest: u64,
    /// Length in bytes, at least 1.
    pub(super) len: u64,
    /// The address that the peer's messages use for rings.
    pub(super) user: u64,
    /// Offset in its file, in bytes.
    pub(super) offset: u64,
}

/// Why a peer's memory is refused.
#[derive(Debug, Error)]
pub(super) enum MemoryError {
    /// The length is 0, or an address range wraps.
    #[error("the region at {guest:#x} of {len:#x} bytes is empty or wraps around")]
    Range { guest: u64, len: u64 },
    /// Two regions share addresses.
    #[error("the region at {guest:#x} overlaps another")]
    Overlap { guest: u64 },
    /// The file ends before the region does: an access would raise SIGBUS.
    #[error("the region ends at byte {end:#x} of a file of {size:#x}")]
    Beyond { end: u64, size: u64 },
    /// The regions together are larger than this host's memory.
    #[error("the regions have {bytes} bytes together, and this host has {limit} of memory")]
    TooMuch { bytes: u64, limit: u64 },
    /// The descriptor does not support seals, so it may not be a file in memory.
    #[error(
        "a region's descriptor is no file in memory: the peer has to share its memory from a memfd, /dev/shm or \
         hugetlbfs (QEMU: memory-backend-memfd)"
    )]
    NoFile,
    /// The operating system refused a call.
    #[error("cannot map a region: {0}")]
    System(#[from] io::Error),
}

impl From<rustix::io::Errno> for MemoryError {
    fn from(errno: rustix::io::Errno) -> MemoryError {
        MemoryError::System(errno.into())
    }
}

/// All memory that a peer shares.
#[derive(Debug)]
pub(super) struct Memory {
    regions: Vec<Region>,
}

#[derive(Debug)]
struct Region {
    at: RegionAt,
    /// Address of its first byte.
    base: NonNull<u8>,
    /// Declared before the mapping, so that it is dropped first.
    watched: Watched,
    /// The mapping of its file.
    _map: Map,
}

/// A mapping, undone when dropped.
#[derive(Debug)]
struct Map {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is not tied to a thread. It is read and written only as memory that any process may change at
// any time: by atomics, and by copies that are not examined before they are complete.
unsafe impl Send for Region {}
// SAFETY: as above; no reference to its plain bytes is ever made.
unsafe impl Sync for Region {}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: made by `mmap` with this length, and no longer used: all users hold the `Memory`.
        let _ = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), self.len) };
    }
}

impl Region {
    fn map(at: RegionAt, file: &OwnedFd) -> Result<Region, MemoryError> {
        let RegionAt { guest, len, user, offset } = at;
        let wraps = [guest, user, offset].iter().any(|it| it.checked_add(len).is_none());
        let end = offset.wrapping_add(len);
        if len == 0 || wraps || isize::try_from(end).is_err() {
            return Err(MemoryError::Range { guest, len });
        }
        // Checked before any call that reaches the file's own file system.
        rustix::fs::fcntl_get_seals(file).map_err(|_| MemoryError::NoFile)?;
        let stat = rustix::fs::fstat(file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(MemoryError::NoFile);
        }
        let size = stat.st_size as u64;
        if end > size {
            return Err(MemoryError::Beyond { end, size });
        }
        // A mapping of huge pages is made and removed in whole pages.
        let page = (stat.st_blksize as u64).max(4096);
        let whole = end.next_multiple_of(page) as usize;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let mapped = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                whole,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                file,
                0,
            )?
        };
        let start = NonNull::new(mapped.cast::<u8>()).ok_or(MemoryError::NoFile)?;
        let map = Map { at: start, len: whole };
        let watched = Watched::new(start, whole)?;
        // SAFETY: `offset` is less than `end`, and so within the mapping.
        let base = unsafe { start.add(offset as usize) };
        Ok(Region { at, base, watched, _map: map })
    }
}

impl Memory {
    /// Maps regions of files, which together may not exceed this host's memory.
    pub(super) fn map(list: &[(RegionAt, OwnedFd)]) -> Result<Memory, MemoryError> {
        Memory::map_within(list, host_memory())
    }

    fn map_within(list: &[(RegionAt, OwnedFd)], limit: u64) -> Result<Memory, MemoryError> {
        let bytes = list.iter().fold(0u64, |sum, (at, _)| sum.saturating_add(at.len));
        if bytes > limit {
            return Err(MemoryError::TooMuch { bytes, limit });
        }
        let mut regions: Vec<Region> = Vec::with_capacity(list.len());
        for (at, file) in list {
            let region = Region::map(*at, file)?;
            let meets = |a: u64, b: u64, len: u64| {
                a < b.saturating_add(len) && b < a.saturating_add(at.len)
            };
            if regions.iter().any(|it| {
                meets(at.guest, it.at.guest, it.at.len) || meets(at.user, it.at.user, it.at.len)
            }) {
                return Err(MemoryError::Overlap { guest: at.guest });
            }
            regions.push(region);
        }
        Ok(Memory { regions })
    }

    /// Allocates memory to share with a peer: a sealed memfd of `len` bytes, at `guest` in both address spaces.
    pub(super) fn own(guest: u64, len: u64) -> Result<(Memory, OwnedFd), MemoryError> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("napkin-virtio", flags)?;
        rustix::fs::ftruncate(&file, len)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let at = RegionAt { guest, len, user: guest, offset: 0 };
        let region = Region::map(at, &file)?;
        Ok((Memory { regions: vec![region] }, file))
    }

    /// Whether a file was found truncated.
    pub(super) fn truncated(&self) -> bool {
        self.regions.iter().any(|it| it.watched.truncated())
    }

    /// The byte at a descriptor's address, and the number of bytes from it to the end of its region.
    #[inline]
    fn find(&self, guest: u64) -> Option<(NonNull<u8>, u64)> {
        for region in &self.regions {
            let offset = guest.wrapping_sub(region.at.guest);
            if offset < region.at.len {
                // SAFETY: within the region, which is within its mapping.
                let at = unsafe { region.base.add(offset as usize) };
                return Some((at, region.at.len - offset));
            }
        }
        None
    }

    /// Copies from a descriptor's address; `false` if a part is in no region. The range may continue in the next
    /// region.
    #[inline]
    pub(super) fn read(&self, guest: u64, into: &mut [u8]) -> bool {
        let (mut guest, mut rest) = (guest, into);
        // Each iteration moves to another region, so there are at most as many as regions.
        while !rest.is_empty() {
            let Some((at, available)) = self.find(guest) else { return false };
            let n = rest.len().min(available as usize);
            let (now, later) = rest.split_at_mut(n);
            // SAFETY: `n` bytes are there and in `now`, which is ours alone. If the peer writes at the same time,
            // the copy has old or new bytes, which nothing has examined yet.
            unsafe { std::ptr::copy_nonoverlapping(at.as_ptr(), now.as_mut_ptr(), n) };
            (rest, guest) = (later, guest.wrapping_add(n as u64));
        }
        true
    }

    /// Copies to a descriptor's address; `false` if a part is in no region, with the part before it written.
    #[inline]
    pub(super) fn write(&self, guest: u64, from: &[u8]) -> bool {
        let (mut guest, mut rest) = (guest, from);
        while !rest.is_empty() {
            let Some((at, available)) = self.find(guest) else { return false };
            let (now, later) = rest.split_at(rest.len().min(available as usize));
            // SAFETY: that many bytes are there, and `now` is not in a shared region.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), at.as_ptr(), now.len()) };
            (rest, guest) = (later, guest.wrapping_add(now.len() as u64));
        }
        true
    }

    /// Copies from a descriptor's address into `first` and then `then`, with one lookup of the region and a first
    /// copy of constant length.
    #[inline]
    pub(super) fn read_parts<const N: usize>(
        &self,
        guest: u64,
        first: &mut [u8; N],
        then: &mut [u8],
    ) -> bool {
        match self.find(guest) {
            Some((at, available)) if available >= (N + then.len()) as u64 => {
                // SAFETY: as many bytes are there as in both together; see `read`.
                unsafe { std::ptr::copy_nonoverlapping(at.as_ptr(), first.as_mut_ptr(), N) };
                // SAFETY: within the same bytes.
                let at = unsafe { at.add(N) };
                // SAFETY: the remaining bytes are as many as are copied.
                unsafe {
                    std::ptr::copy_nonoverlapping(at.as_ptr(), then.as_mut_ptr(), then.len());
                }
                true
            }
            _ => self.read(guest, first) && self.read(guest.wrapping_add(N as u64), then),
        }
    }

    /// Prefetches the cache lines of a small frame for writing.
    #[inline]
    pub(super) fn prefetch(&self, guest: u64) {
        #[cfg(target_arch = "x86_64")]
        if let Some((at, available)) = self.find(guest)
            && available > 64
        {
            use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
            for line in [0, 64] {
                // SAFETY: both lines are within the region.
                let at = unsafe { at.add(line) }.as_ptr().cast();
                // SAFETY: a hint without side effects.
                unsafe { _mm_prefetch::<_MM_HINT_ET0>(at) };
            }
        }
    }

    /// A part of a ring, by its address in messages; `None` if it is not within one region, or not aligned.
    pub(super) fn area(self: &Arc<Memory>, user: u64, len: usize, align: usize) -> Option<Area> {
        let region = self.regions.iter().find(|it| user.wrapping_sub(it.at.user) < it.at.len)?;
        let offset = user.wrapping_sub(region.at.user);
        if region.at.len - offset < len as u64 {
            return None;
        }
        // SAFETY: within the region.
        let base = unsafe { region.base.add(offset as usize) };
        let aligned = base.as_ptr().addr().is_multiple_of(align);
        aligned.then(|| Area { base, len, _memory: Arc::clone(self) })
    }
}

/// The size of this host's memory, in bytes.
fn host_memory() -> u64 {
    let info = rustix::system::sysinfo();
    let bytes = u128::from(info.totalram) * u128::from(info.mem_unit);
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// A part of a ring: little-endian fields at offsets, accessed as atomics.
#[derive(Debug)]
pub(super) struct Area {
    base: NonNull<u8>,
    len: usize,
    _memory: Arc<Memory>,
}

// SAFETY: as for `Region`: fields are atomics, and the mapping lives as long as the area.
unsafe impl Send for Area {}

macro_rules! fields {
    ($($load:ident $store:ident $update:ident $int:ty, $atomic:ty;)*) => { $(
        /// Writes the field only if it changes, so that a cache line which both sides have read stays in both caches.
        #[inline]
        pub(super) fn $update(&self, offset: usize, value: $int) {
            let field = self.field::<$atomic>(offset);
            if field.load(Ordering::Relaxed) != value.to_le() {
                field.store(value.to_le(), Ordering::Relaxed);
            }
        }

        #[inline]
        pub(super) fn $load(&self, offset: usize, order: Ordering) -> $int {
            <$int>::from_le(self.field::<$atomic>(offset).load(order))
        }

        #[inline]
        pub(super) fn $store(&self, offset: usize, value: $int, order: Ordering) {
            self.field::<$atomic>(offset).store(value.to_le(), order);
        }
    )* };
}

/// Atomic integers, for which all bit patterns are valid.
trait Atomic {}
impl Atomic for AtomicU16 {}
impl Atomic for AtomicU32 {}
impl Atomic for AtomicU64 {}

impl Area {
    /// Returns a field. Offsets are computed by the rings (a masked index times a size), and checked nevertheless.
    #[inline]
    fn field<T: Atomic>(&self, offset: usize) -> &T {
        assert!(offset + size_of::<T>() <= self.len && offset.is_multiple_of(align_of::<T>()));
        // SAFETY: within the area.
        let field = unsafe { self.base.add(offset) }.cast::<T>();
        // SAFETY: it lives as long as `self`; it is aligned, since both the area and the offset were checked for
        // that; any bits are a valid atomic integer, and all of our accesses are atomic.
        unsafe { field.as_ref() }
    }

    /// Returns `count` consecutive 64-bit little-endian fields, with one check.
    ///
    /// # Panics
    /// If they are not all within the area, or not aligned.
    #[inline]
    pub(super) fn words(&self, offset: usize, count: usize) -> &[AtomicU64] {
        let bytes = count * size_of::<AtomicU64>();
        assert!(offset + bytes <= self.len && offset.is_multiple_of(align_of::<AtomicU64>()));
        // SAFETY: within the area.
        let first = unsafe { self.base.add(offset) }.cast::<AtomicU64>();
        // SAFETY: all of them are within the area, and each is as in `field`.
        unsafe { NonNull::slice_from_raw_parts(first, count).as_ref() }
    }

    fields! {
        load16 store16 update16 u16, AtomicU16;
        load32 store32 update32 u32, AtomicU32;
        load64 store64 update64 u64, AtomicU64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(len: u64) -> OwnedFd {
        let file = rustix::fs::memfd_create("napkin-test", MemfdFlags::CLOEXEC).expect("a memfd");
        rustix::fs::ftruncate(&file, len).expect("it grows");
        file
    }

    fn at(guest: u64, len: u64, offset: u64) -> RegionAt {
        RegionAt { guest, len, user: guest + 0x10_0000, offset }
    }

    #[test]
    fn what_is_written_is_read_also_across_two_regions_and_nowhere_else() {
        let list = [(at(0x1000, 0x1000, 0), file(0x1000)), (at(0x2000, 0x1000, 8), file(0x2000))];
        let memory = Memory::map(&list).expect("both are whole");
        assert!(memory.write(0x1ffe, b"abcd"));
        let mut read = [0; 4];
        assert!(memory.read(0x1ffe, &mut read));
        assert_eq!(&read, b"abcd");
        for (guest, len) in [(0xfff, 1), (0x2fff, 2), (u64::MAX, 2), (0, 1), (0x3000, 1)] {
            assert!(!memory.read(guest, &mut vec![0; len]), "{guest:#x}");
            assert!(!memory.write(guest, &vec![0; len]), "{guest:#x}");
        }
        assert!(memory.read(u64::MAX, &mut []));
    }

    #[test]
    fn regions_beyond_their_file_or_over_each_other_are_refused() {
        let map = |at: RegionAt, len| Memory::map(&[(at, file(len))]);
        assert!(matches!(map(at(0, 0x1001, 0), 0x1000), Err(MemoryError::Beyond { .. })));
        assert!(matches!(map(at(0, 0x1000, 1), 0x1000), Err(MemoryError::Beyond { .. })));
        assert!(matches!(map(at(0, 0, 0), 0x1000), Err(MemoryError::Range { .. })));
        assert!(matches!(
            map(at(u64::MAX - 0x10_0000, 2, u64::MAX), 9),
            Err(MemoryError::Range { .. })
        ));
        let two = [(at(0, 0x1000, 0), file(0x1000)), (at(0xfff, 0x1000, 0), file(0x1000))];
        assert!(matches!(Memory::map(&two), Err(MemoryError::Overlap { .. })));
        let (pipe, _other) = rustix::pipe::pipe().expect("a pipe");
        assert!(matches!(Memory::map(&[(at(0, 1, 0), pipe)]), Err(MemoryError::NoFile)));
        // A file of a file system that is not in memory.
        let other = std::fs::File::open("/proc/self/maps").expect("it is there");
        let refused = Memory::map(&[(at(0, 1, 0), other.into())]).expect_err("it has no seals");
        assert!(refused.to_string().contains("memfd, /dev/shm or hugetlbfs"), "{refused}");
    }

    #[test]
    fn regions_of_more_bytes_together_than_the_host_has_are_refused() {
        let two = [(at(0, 0x1000, 0), file(0x1000)), (at(0x1000, 0x1000, 0), file(0x1000))];
        Memory::map_within(&two, 0x2000).expect("as many as there are");
        let refused = Memory::map_within(&two, 0x1fff).expect_err("one more");
        assert!(refused.to_string().contains("8192 bytes together"), "{refused}");
        // A file of holes, larger than any host's memory.
        let refused = Memory::map(&[(at(0, 1 << 50, 0), file(1 << 50))]).expect_err("a petabyte");
        assert!(matches!(refused, MemoryError::TooMuch { .. }), "{refused}");
    }

    #[test]
    fn a_file_that_is_cut_short_reads_as_zeros_and_is_told_of() {
        let cut = file(0x3000);
        let duplicate = rustix::io::dup(&cut).expect("a descriptor");
        let list = [(at(0x1000, 0x2000, 0x1000), cut), (at(0x8000, 0x1000, 0), file(0x1000))];
        let memory = Arc::new(Memory::map(&list).expect("both are whole"));
        let area = memory.area(0x10_2000, 0x100, 16).expect("within");
        assert!(memory.write(0x1000, b"first") && memory.write(0x8000, b"other"));
        area.store16(0, 7, Ordering::Relaxed);
        assert!(!memory.truncated());

        rustix::fs::ftruncate(&duplicate, 0).expect("nobody has sealed it");
        let mut read = [1; 5];
        assert!(memory.read(0x1000, &mut read), "the addresses are still the peer's");
        assert_eq!((&read, area.load16(0, Ordering::Relaxed)), (&[0; 5], 0));
        assert!(memory.truncated());
        area.store16(0, 8, Ordering::Relaxed);
        assert!(memory.write(0x2fff, b"x") && memory.read(0x8000, &mut read));
        assert_eq!(&read, b"other", "another file's is as it was");
    }

    #[test]
    fn our_own_is_sealed_and_its_areas_are_within_it() {
        let (memory, file) = Memory::own(1 << 32, 0x1000).expect("a memfd");
        let memory = Arc::new(memory);
        assert!(rustix::fs::ftruncate(&file, 0).is_err());
        let area = memory.area((1 << 32) + 16, 0x100, 16).expect("within");
        area.store32(4, 0x0102_0304, Ordering::Relaxed);
        let mut bytes = [0; 4];
        assert!(memory.read((1 << 32) + 20, &mut bytes));
        assert_eq!(bytes, [4, 3, 2, 1]);
        assert!(memory.area((1 << 32) + 8, 0x10, 16).is_none());
        assert!(memory.area((1 << 32) + 0xff0, 0x11, 16).is_none());
        assert!(memory.area(0, 1, 1).is_none());
    }
}
