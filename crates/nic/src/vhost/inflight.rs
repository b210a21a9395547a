//! The memory in which a backend notes what is in flight, so that the next one can go on where it was killed
//! (`VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD`): made by a backend, kept by the frontend, given to the next backend. It
//! has a [region](super::tracking) for each ring.
//!
//! The one that we make is sealed: neither side can cut it short. One that a frontend gives may be, and is watched as
//! all that is shared is.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, fallocate};

use super::memory::{Memory, MemoryError, RegionAt};
use super::ring::MAX_RING;
use super::tracking::Region;

/// Bytes of a page at most, on any kind of CPU.
const LARGEST_PAGE: u64 = 64 * 1_024;

/// Where it is in its file, and what it is for, as messages say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InflightAt {
    /// Bytes.
    pub(super) len: u64,
    /// Where it begins in its file.
    pub(super) offset: u64,
    /// Rings, two for each pair.
    pub(super) rings: u16,
    /// Entries of each.
    pub(super) size: u16,
}

/// The notes of all rings of a device: one file, mapped here, with a region for each ring.
#[derive(Debug)]
pub(super) struct Inflight {
    at: InflightAt,
    memory: Arc<Memory>,
}

impl Inflight {
    /// New memory, and its file. `None` if it would be for no ring, or for none that can be.
    pub(super) fn make(
        packed: bool,
        rings: u16,
        size: u16,
    ) -> Option<Result<(Inflight, OwnedFd), MemoryError>> {
        if rings == 0 || !(1..=MAX_RING).contains(&size) {
            return None;
        }
        let len = u64::from(rings) * Region::bytes(packed, size) as u64;
        let at = InflightAt { len, offset: 0, rings, size };
        let made = Memory::own(0, len);
        Some(made.map(|(memory, file)| (Inflight { at, memory: Arc::new(memory) }, file)))
    }

    /// Gives back the pages of what was made and is not used any more. A peer may have it mapped for ever, and what it
    /// touches there after this is its own memory.
    pub(super) fn empty(file: &OwnedFd, len: u64) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // Whole pages: of a part of one the bytes are cleared, and the page stays.
        let _ = fallocate(file, flags, 0, len.next_multiple_of(LARGEST_PAGE));
    }

    /// What a frontend gives.
    pub(super) fn given(at: InflightAt, file: OwnedFd) -> Result<Inflight, MemoryError> {
        let region = RegionAt { guest: 0, len: at.len, user: 0, offset: at.offset };
        Ok(Inflight { at, memory: Arc::new(Memory::map(&[(region, file)])?) })
    }

    /// Where it is in the file that was made for it.
    pub(super) fn at(&self) -> InflightAt {
        self.at
    }

    /// The region of a ring of `size` entries; `None` if it has none, or not of so many.
    pub(super) fn region(&self, ring: u32, packed: bool, size: u16) -> Option<Region> {
        let entries = self.at.size;
        if ring >= self.at.rings.into() || size > entries || entries > MAX_RING {
            return None;
        }
        let len = Region::bytes(packed, entries);
        let area = self.memory.area(u64::from(ring) * len as u64, len, 8)?;
        Some(Region::new(area, entries))
    }

    /// Whether its file was found cut short.
    pub(super) fn cut(&self) -> bool {
        self.memory.cut()
    }
}
