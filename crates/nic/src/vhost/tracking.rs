//! The record of a ring's in-flight chains for the next backend: one ring's region in the memory of
//! [`inflight`](super::inflight), in the layout of the vhost-user specification ("Inflight I/O tracking").
//!
//! Our rings return what they take before they release the ring's lock, so chains are in flight only while used
//! descriptors are being published to the driver. A split ring's used index tells at once how far that got, and our
//! backend leaves nothing in flight there. A packed ring has no index: position and lap are recorded here, and the
//! descriptors of a batch are copied here before the first of them is overwritten, so that a backend that finds
//! half of a batch written restores all of it. Chains that another implementation left in flight are taken as the
//! specification says: in the order in which they were taken first.
//!
//! The frontend can write all of this. It is read once, when a ring starts, and checked; if it is invalid, the ring
//! is refused.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};

use super::memory::Area;
use super::packed_ring::{AVAILABLE, Position, USED, available_flags};

/// The version of both layouts; 0 in a region that was never written.
const VERSION: u16 = 1;

/// Offset of the version, which the number of entries follows.
const HEAD: usize = 8;

/// Mask of the in-flight flag: the first byte of an entry in either layout.
const IN_FLIGHT: u16 = 0xff;

/// The region of one ring, and its number of entries.
#[derive(Debug)]
pub(super) struct Region {
    area: Area,
    entries: u16,
}

impl Region {
    pub(super) fn new(area: Area, entries: u16) -> Region {
        Region { area, entries }
    }

    /// Size of a region with `entries` entries, rounded up to a cache line, where the next region begins.
    pub(super) fn bytes(packed: bool, entries: u16) -> usize {
        let (head, entry) = if packed { (PACKED_HEAD, PACKED_ENTRY) } else { (SPLIT_HEAD, 16) };
        (head + entry * usize::from(entries)).next_multiple_of(64)
    }

    /// Whether it was ever written.
    pub(super) fn is_used(&self) -> bool {
        self.area.load16(HEAD, Relaxed) != 0
    }

    fn is_known(&self) -> bool {
        self.area.load16(HEAD, Relaxed) == VERSION
            && self.area.load16(HEAD + 2, Relaxed) == self.entries
    }

    /// Marks it as valid, with two 16-bit words after the number of entries.
    fn begin(&self, then: u32) {
        let words = u64::from(VERSION) | u64::from(self.entries) << 16 | u64::from(then) << 32;
        self.area.store64(HEAD, words, Release);
    }
}

const SPLIT_HEAD: usize = 16;

/// The record of a split ring: the used index up to which everything is settled.
#[derive(Debug)]
pub(super) struct SplitTracking(Region);

impl SplitTracking {
    /// Starts a record with nothing in flight.
    pub(super) fn begin(region: Region, used: u16) -> SplitTracking {
        for entry in 0..region.entries {
            region.area.store16(split(entry), 0, Relaxed);
        }
        region.begin(u32::from(used) << 16);
        SplitTracking(region)
    }

    /// Reads the chains that another backend left in flight, oldest first; `None` if the region is invalid. `used`
    /// is the used ring's index.
    pub(super) fn recover(region: Region, used: u16) -> Option<(SplitTracking, Vec<u16>)> {
        if !region.is_known() {
            return None;
        }
        let area = &region.area;
        // The last batch was returned, though perhaps not all of it is marked as such.
        let settled = area.load16(14, Relaxed);
        let mut at = area.load16(12, Relaxed);
        for _ in 0..used.wrapping_sub(settled).min(region.entries) {
            if at >= region.entries {
                return None;
            }
            area.store16(split(at), 0, Relaxed);
            at = area.load16(split(at) + 6, Relaxed);
        }
        area.store16(14, used, Release);
        let mut heads: Vec<u16> = (0..region.entries)
            .filter(|entry| area.load16(split(*entry), Relaxed) & IN_FLIGHT != 0)
            .collect();
        // Each counter is read once: sorting may panic if the order changes meanwhile.
        heads.sort_by_cached_key(|entry| area.load64(split(*entry) + 8, Relaxed));
        Some((SplitTracking(region), heads))
    }

    /// Records that the chains of `heads` are about to be returned, all at once.
    pub(super) fn giving_back(&self, heads: &[u16]) {
        let area = &self.0.area;
        for head in heads {
            let last = area.load16(12, Relaxed);
            area.store16(split(*head) + 6, last, Release);
            area.store16(12, *head, Release);
        }
    }

    /// Records that the chains of `heads` were returned and are no longer in flight; `used` is the used ring's
    /// index now.
    pub(super) fn given_back(&self, heads: &[u16], used: u16) {
        for head in heads {
            self.0.area.store16(split(*head), 0, Release);
        }
        self.settle(used);
    }

    /// Records that nothing is in flight; `used` is the used ring's index.
    #[inline]
    pub(super) fn settle(&self, used: u16) {
        self.0.area.store16(14, used, Release);
    }
}

fn split(entry: u16) -> usize {
    SPLIT_HEAD + 16 * usize::from(entry)
}

const PACKED_HEAD: usize = 32;
const PACKED_ENTRY: usize = 32;

/// Offset of the first free entry now, and before the batch (16 bits each).
const FREE: usize = 12;
/// Offset of the ring's positions: index now and before the batch (16 bits each), laps (8 bits each).
const PLACES: usize = 16;

/// The record of a packed ring: its position, and the descriptors of the batch being published.
#[derive(Debug)]
pub(super) struct PackedTracking(Region);

impl PackedTracking {
    /// Starts a record at a position, with nothing in flight and all entries free.
    pub(super) fn begin(region: Region, at: Position) -> PackedTracking {
        for entry in 0..region.entries {
            region.area.store64(packed(entry), free(entry), Relaxed);
            // Chains are recorded in order, so this is also the order in which they were taken.
            region.area.store64(packed(entry) + 8, entry.into(), Relaxed);
        }
        region.area.store64(PLACES, places(at, at), Release);
        region.begin(0);
        PackedTracking(region)
    }

    /// Recovers the ring's position. Writes the in-flight chains back into the ring from there on, as its driver
    /// had made them available. `None` if the region is invalid.
    pub(super) fn recover(
        region: Region,
        table: &Area,
        size: u16,
    ) -> Option<(PackedTracking, Position)> {
        if !region.is_known() {
            return None;
        }
        let area = &region.area;
        let word = area.load64(PLACES, Relaxed);
        let place =
            |at: u32, lap: u32| Position::new((word >> at) as u16, (word >> lap) as u8, size);
        let (now, mut old) = (place(0, 32)?, place(16, 40)?);
        let mut free = area.load16(FREE + 2, Relaxed);
        let flags = table.load16(usize::from(old.at()) * 16 + 14, Relaxed);
        if now != old && !old.is_available(flags) {
            // The first descriptor is written last, so the driver has got the whole batch.
            (old, free) = (now, area.load16(FREE, Relaxed));
        }
        let mut in_flight: Vec<bool> = (0..region.entries)
            .map(|entry| area.load16(packed(entry), Relaxed) & IN_FLIGHT != 0)
            .collect();
        let next = |entry: u16| area.load16(packed(entry) + 2, Relaxed);
        for _ in 0..region.entries {
            let Some(it) = in_flight.get_mut(usize::from(free)) else { break };
            *it = false;
            free = next(free);
        }
        let mut heads: Vec<u16> =
            (0..region.entries).filter(|it| in_flight[usize::from(*it)]).collect();
        // Each counter is read once, as above.
        heads.sort_by_cached_key(|entry| area.load64(packed(*entry) + 8, Relaxed));
        let (mut position, mut left) = (old, size);
        for head in &heads {
            let count = area.load16(packed(*head) + 6, Relaxed);
            left = left.checked_sub(count).filter(|_| count > 0)?;
            let mut entry = *head;
            for _ in 0..count {
                if entry >= region.entries {
                    return None;
                }
                let address = area.load64(packed(entry) + 24, Relaxed);
                let rest = area.load64(packed(entry) + 16, Relaxed).rotate_left(32);
                let flags = (rest >> 48) as u16 & !(AVAILABLE | USED) | available_flags(position);
                let at = usize::from(position.at()) * 16;
                table.store64(at, address, Relaxed);
                table.store64(at + 8, rest << 16 >> 16 | u64::from(flags) << 48, Release);
                position.step(1);
                entry = next(entry);
            }
        }
        // The youngest first: an interruption here leaves those that belong to the first places.
        for head in heads.iter().rev() {
            area.store16(packed(*head), 0, Release);
        }
        Some((PackedTracking::begin(region, old), old))
    }

    /// Records that the chains that begin at these places are about to be returned, all at once; `to` is the place
    /// after the last of them. Returns their number of descriptors.
    #[inline]
    pub(super) fn giving_back(
        &self,
        table: &Area,
        from: Position,
        to: Position,
        chains: impl ExactSizeIterator<Item = u16>,
    ) -> u16 {
        // Never 0 chains, so equal places mean a whole lap.
        let count = distance(from.at(), to.at(), from.size());
        if chains.len() == usize::from(count) {
            self.note_single(table, from, count);
        } else {
            self.note_chains(table, to, chains);
        }
        self.0.area.store32(FREE, u32::from(count) << 16, Release);
        self.0.area.store64(PLACES, places(to, from), Release);
        count
    }

    /// Records `count` chains of one descriptor each, the common case.
    #[inline]
    fn note_single(&self, table: &Area, from: Position, count: u16) {
        let mut entries = self.entries(count).iter();
        let before_end = count.min(from.size() - from.at());
        let mut head = 1 | free(0) | 1 << 48;
        for (at, count) in [(from.at(), before_end), (0, count - before_end)] {
            let slots = table.words(usize::from(at) * 16, usize::from(count) * 2);
            for ([address, rest], entry) in slots.as_chunks::<2>().0.iter().zip(&mut entries) {
                entry[0].store(u64::to_le(head), Relaxed);
                let rest = u64::from_le(rest.load(Relaxed)).rotate_left(32);
                entry[2].store(rest.to_le(), Relaxed);
                entry[3].store(address.load(Relaxed), Relaxed);
                // The next one's free entry and last descriptor.
                head += 1 << 16 | 1 << 32;
            }
        }
    }

    #[cold]
    fn note_chains(&self, table: &Area, to: Position, chains: impl ExactSizeIterator<Item = u16>) {
        let (area, size) = (&self.0.area, to.size());
        let (mut entry, mut chains) = (0, chains.peekable());
        while let Some(at) = chains.next() {
            let count = distance(at, chains.peek().copied().unwrap_or(to.at()), size);
            let mut head = 1 | u64::from(entry + count - 1) << 32 | u64::from(count) << 48;
            for place in at..at + count {
                let slot = usize::from(if place < size { place } else { place - size }) * 16;
                let to = packed(entry);
                area.store64(to, head | free(entry), Relaxed);
                let rest = table.load64(slot + 8, Relaxed);
                area.store64(to + 16, rest.rotate_left(32), Relaxed);
                area.store64(to + 24, table.load64(slot, Relaxed), Relaxed);
                (head, entry) = (0, entry + 1);
            }
        }
    }

    /// Records that the driver has got the batch, of `count` descriptors.
    #[inline]
    pub(super) fn given_back(&self, count: u16, at: Position) {
        let mut head = free(0);
        for entry in self.entries(count) {
            entry[0].store(head.to_le(), Release);
            head += 1 << 16;
        }
        self.0.area.store32(FREE, 0, Release);
        self.0.area.store64(PLACES, places(at, at), Release);
    }

    /// The first `count` entries, as words.
    #[inline]
    fn entries(&self, count: u16) -> &[[AtomicU64; PACKED_ENTRY / 8]] {
        self.0.area.words(PACKED_HEAD, usize::from(count) * (PACKED_ENTRY / 8)).as_chunks().0
    }
}

/// The distance from one place to another; a whole lap if they are equal.
#[inline]
fn distance(from: u16, to: u16, size: u16) -> u16 {
    if to > from { to - from } else { to + (size - from) }
}

#[inline]
fn packed(entry: u16) -> usize {
    PACKED_HEAD + PACKED_ENTRY * usize::from(entry)
}

/// The first word of a free entry: the number of the next free one.
#[inline]
fn free(entry: u16) -> u64 {
    u64::from(entry + 1) << 16
}

#[inline]
fn places(now: Position, old: Position) -> u64 {
    u64::from(now.at())
        | u64::from(old.at()) << 16
        | u64::from(now.lap()) << 32
        | u64::from(old.lap()) << 40
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::super::memory::Memory;
    use super::super::ring::{Incoming, TakeResult};
    use super::super::setup::RingAddresses;
    use super::super::split_device::SplitDevice;
    use super::*;

    /// A ring of eight descriptors of which the driver has made five available. Another backend took four, returned
    /// the third, and died while it returned the first.
    fn half_done() -> (Arc<Memory>, SplitDevice, impl Fn() -> Region) {
        let memory = Arc::new(Memory::own(0, 0x2000).expect("a memfd").0);
        let at = RingAddresses { table: 0, driver: 0x800, device: 0xc00 };
        for slot in 0..8u64 {
            let rest = 32u64.to_le_bytes();
            let address = 0x1000 + 0x100 * slot;
            memory.write(16 * slot, &[address.to_le_bytes(), rest].concat());
            memory.write(address + 12, &[slot as u8; 20]);
        }
        // The first four places may have been overwritten.
        memory.write(0x800, &[0, 0, 5, 0, 6, 0, 6, 0, 6, 0, 6, 0, 4, 0]);
        memory.write(0xc00, &[0, 0, 2, 0, 2, 0, 0, 0]);
        let entry = |slot: u64, in_flight: u8, next: u8, counter: u8| {
            let bytes = [in_flight, 0, 0, 0, 0, 0, next, 0, counter, 0, 0, 0, 0, 0, 0, 0];
            memory.write(0x1800 + 16 + 16 * slot, &bytes);
        };
        entry(0, 1, 7, 1);
        entry(1, 1, 0, 9);
        entry(3, 1, 0, 4);
        // The second used entry was the first of the batch that is not settled.
        memory.write(0x1800 + 8, &[1, 0, 8, 0, 0, 0, 1, 0]);
        let device = SplitDevice::new(&memory, at, 8, Default::default()).expect("it fits");
        let shared = Arc::clone(&memory);
        (memory, device, move || Region::new(shared.area(0x1800, 0x100, 8).expect("within"), 8))
    }

    #[test]
    fn what_another_left_in_flight_is_given_back_once_and_oldest_first() {
        let (memory, mut device, region) = half_done();
        assert!(device.track(region(), true));
        let mut used = [0; 20];
        memory.read(0xc00, &mut used);
        assert_eq!(used[2..4], [4, 0], "both are back");
        let mut heads = [0; 16];
        memory.read(0xc00 + 4 + 16, &mut heads);
        assert_eq!((heads[0], heads[8]), (3, 1));
        let mut buffer = [0; 64];
        assert_eq!(device.take(&mut buffer), TakeResult::Frame(20));
        assert_eq!(buffer[..20], [4; 20], "the fifth is the next");
        assert_eq!(device.take(&mut buffer), TakeResult::Empty);
        Incoming::publish(&mut device);
        let (_, none) = SplitTracking::recover(region(), 5).expect("it makes sense");
        assert_eq!(none, [0u16; 0]);
    }

    #[test]
    fn notes_that_make_no_sense_are_refused() {
        for (at, byte) in [(8, 2), (10, 9), (12, 200), (16 + 16 * 4, 1), (16 + 16 * 6, 1)] {
            let (memory, mut device, region) = half_done();
            memory.write(0x1800 + at, &[byte]);
            let more = at > 16 && {
                memory.write(0x1800 + 16 + 16 * 7, &[1]);
                memory.write(0x1800 + 16 + 16 * 5, &[1])
            };
            assert!(!device.track(region(), true), "{at} {more}");
        }
        let (memory, _, _) = half_done();
        let table = memory.area(0, 128, 16).expect("within");
        let good = |memory: &Memory| {
            memory.write(0x1800, &[0; 0x100]);
            memory.write(0x1808, &[1, 0, 4, 0, 1, 0, 1, 0, 0, 0, 0, 0, 1, 1]);
            // One descriptor is in flight; the other entries are free, each linked to the next.
            for (entry, bytes) in [[1, 0, 1, 0, 0, 0, 1], [0, 0, 2, 0, 0, 0, 0]].iter().enumerate()
            {
                memory.write(0x1820 + 32 * entry as u64, bytes);
            }
            memory.write(0x1820 + 64 + 2, &[3]);
            memory.write(0x1820 + 96 + 2, &[4]);
        };
        let recover = || {
            let area = memory.area(0x1800, 0x100, 8).expect("within");
            PackedTracking::recover(Region::new(area, 4), &table, 4)
        };
        for (at, byte) in [(8, 2), (10, 5), (16, 4), (18, 4), (20, 2), (21, 7), (38, 0), (38, 5)] {
            good(&memory);
            memory.write(0x1800 + at, &[byte]);
            assert!(recover().is_none(), "{at}");
        }
        // A chain of two descriptors, the second of which is out of range.
        good(&memory);
        memory.write(0x1820 + 2, &[77, 0, 0, 0, 2]);
        assert!(recover().is_none());
        good(&memory);
        assert!(recover().is_some_and(|(_, position)| position.base() == 1 << 15));
    }
}
