//! The memory in which a backend records in-flight chains, so that the next one can continue where it was killed
//! (`VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD`): made by a backend, kept by the frontend, passed to the next backend.
//! It has a [region](super::tracking) for each ring.
//!
//! The memory that we make is sealed: neither side can truncate it. Memory from a frontend may be truncated, and is
//! watched for that like all shared memory.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, fallocate};

use super::memory::{Memory, MemoryError, RegionAt};
use super::ring::MAX_RING;
use super::tracking::Region;

/// The largest page size of any supported CPU, in bytes.
const LARGEST_PAGE: u64 = 64 * 1_024;

/// The memory's position in its file, and the rings it is for, as in messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InflightAt {
    /// Length in bytes.
    pub(super) len: u64,
    /// Offset in its file, in bytes.
    pub(super) offset: u64,
    /// Number of rings, two for each pair.
    pub(super) rings: u16,
    /// Entries of each ring.
    pub(super) size: u16,
}

/// The in-flight memory of a device: one file, mapped, with a region for each ring.
#[derive(Debug)]
pub(super) struct Inflight {
    at: InflightAt,
    memory: Arc<Memory>,
}

impl Inflight {
    /// Makes new memory, and its file. `None` for no rings, or for an invalid size.
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

    /// Frees the pages of memory that is no longer used. A peer may keep it mapped for ever, but pages that it
    /// touches after this are charged to the peer.
    pub(super) fn empty(file: &OwnedFd, len: u64) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // Of a partial page only the bytes would be cleared, and the page would stay.
        let _ = fallocate(file, flags, 0, len.next_multiple_of(LARGEST_PAGE));
    }

    /// Maps memory that a frontend passes.
    pub(super) fn given(at: InflightAt, file: OwnedFd) -> Result<Inflight, MemoryError> {
        let region = RegionAt { guest: 0, len: at.len, user: 0, offset: at.offset };
        Ok(Inflight { at, memory: Arc::new(Memory::map(&[(region, file)])?) })
    }

    /// Its position in the file made for it.
    pub(super) fn at(&self) -> InflightAt {
        self.at
    }

    /// The region of a ring of `size` entries; `None` if there is none, or only for smaller rings.
    pub(super) fn region(&self, ring: u32, packed: bool, size: u16) -> Option<Region> {
        let entries = self.at.size;
        if ring >= self.at.rings.into() || size > entries || entries > MAX_RING {
            return None;
        }
        let len = Region::bytes(packed, entries);
        let area = self.memory.area(u64::from(ring) * len as u64, len, 8)?;
        Some(Region::new(area, entries))
    }

    /// Whether its file was found truncated.
    pub(super) fn truncated(&self) -> bool {
        self.memory.truncated()
    }
}
