//! What of a ring is in flight, written where the next backend finds it: the region of one ring in the memory of
//! [`inflight`](super::inflight), as the vhost-user specification lays it out ("Inflight I/O tracking").
//!
//! Our rings give back what they take before they let go of it, so something is in flight only while used
//! descriptors are being shown to the driver. A split ring's used index says at once where that ended, and a backend
//! of ours leaves nothing in flight there. A packed ring has no index: place and lap are kept here, and the
//! descriptors of a batch are copied here before the first of them is written over, so that whoever
//! finds half of a batch written puts all of it back. What is in flight by another's hand is taken as
//! the specification says: in the order in which it was taken.
//!
//! The frontend can write all of this. It is read once, when a ring begins, and believed only where it
//! makes sense; where it makes none, the ring is refused.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};

use super::memory::Area;
use super::turn::{AVAILABLE, Turn, USED, available_flags};

/// The version of both layouts; 0 where nobody has written yet.
const VERSION: u16 = 1;

/// Where the version is, and behind it the number of entries.
const HEAD: usize = 8;

/// The first byte of an entry of either layout.
const IN_FLIGHT: u16 = 0xff;

/// The region of one ring: where it is, and its entries.
#[derive(Debug)]
pub(super) struct Region {
    area: Area,
    entries: u16,
}

impl Region {
    pub(super) fn new(area: Area, entries: u16) -> Region {
        Region { area, entries }
    }

    /// Bytes of a region with so many entries; the next region begins at the next cache line.
    pub(super) fn bytes(packed: bool, entries: u16) -> usize {
        let (head, entry) = if packed { (PACKED_HEAD, PACKED_ENTRY) } else { (SPLIT_HEAD, 16) };
        (head + entry * usize::from(entries)).next_multiple_of(64)
    }

    /// Whether somebody has written to it.
    pub(super) fn is_used(&self) -> bool {
        self.area.load16(HEAD, Relaxed) != 0
    }

    fn is_known(&self) -> bool {
        self.area.load16(HEAD, Relaxed) == VERSION
            && self.area.load16(HEAD + 2, Relaxed) == self.entries
    }

    /// Says that it is valid from now on, with two words of 16 bits behind the number of entries.
    fn begin(&self, then: u32) {
        let words = u64::from(VERSION) | u64::from(self.entries) << 16 | u64::from(then) << 32;
        self.area.store64(HEAD, words, Release);
    }
}

const SPLIT_HEAD: usize = 16;

/// Of a split ring: up to which of the used descriptors everything is settled.
#[derive(Debug)]
pub(super) struct SplitTracking(Region);

impl SplitTracking {
    /// From the beginning, with nothing in flight.
    pub(super) fn begin(region: Region, used: u16) -> SplitTracking {
        for entry in 0..region.entries {
            region.area.store16(split(entry), 0, Relaxed);
        }
        region.begin(u32::from(used) << 16);
        SplitTracking(region)
    }

    /// What another has left in flight, oldest first; `None` if the region makes no sense. `used` is the used
    /// ring's index.
    pub(super) fn recover(region: Region, used: u16) -> Option<(SplitTracking, Vec<u16>)> {
        if !region.is_known() {
            return None;
        }
        let area = &region.area;
        // The last batch was given back, and perhaps not all of it marked so.
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
        // Each is read once: sorting panics where an order changes under it.
        heads.sort_by_cached_key(|entry| area.load64(split(*entry) + 8, Relaxed));
        Some((SplitTracking(region), heads))
    }

    /// These are about to be given back all at once.
    pub(super) fn giving_back(&self, heads: &[u16]) {
        let area = &self.0.area;
        for head in heads {
            let last = area.load16(12, Relaxed);
            area.store16(split(*head) + 6, last, Release);
            area.store16(12, *head, Release);
        }
    }

    /// The chains of `heads` are given back, and in flight no more; `used` is the used ring's index now.
    pub(super) fn given_back(&self, heads: &[u16], used: u16) {
        for head in heads {
            self.0.area.store16(split(*head), 0, Release);
        }
        self.settle(used);
    }

    /// Nothing is in flight; this is the used ring's index.
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

/// Where the list of free entries begins now (16 bits), and where it began before the batch.
const FREE: usize = 12;
/// Where the ring goes on: place now and before the batch (16 bits each), laps (8 bits each).
const PLACES: usize = 16;

/// Of a packed ring: where it goes on, and the descriptors of the batch that is being shown.
#[derive(Debug)]
pub(super) struct PackedTracking(Region);

impl PackedTracking {
    /// From a place on, with nothing in flight and all entries free.
    pub(super) fn begin(region: Region, at: Turn) -> PackedTracking {
        for entry in 0..region.entries {
            region.area.store64(packed(entry), free(entry), Relaxed);
            // Chains are noted in their order, so this is the order in which they were taken.
            region.area.store64(packed(entry) + 8, entry.into(), Relaxed);
        }
        region.area.store64(PLACES, places(at, at), Release);
        region.begin(0);
        PackedTracking(region)
    }

    /// Where the ring goes on. What is in flight was put back into it from there on, as its driver had made
    /// it available. `None` if the region makes no sense.
    pub(super) fn recover(
        region: Region,
        table: &Area,
        size: u16,
    ) -> Option<(PackedTracking, Turn)> {
        if !region.is_known() {
            return None;
        }
        let area = &region.area;
        let word = area.load64(PLACES, Relaxed);
        let place = |at: u32, lap: u32| Turn::new((word >> at) as u16, (word >> lap) as u8, size);
        let (now, mut old) = (place(0, 32)?, place(16, 40)?);
        let mut free = area.load16(FREE + 2, Relaxed);
        let flags = table.load16(usize::from(old.at()) * 16 + 14, Relaxed);
        if now != old && !old.is_available(flags) {
            // The first is written last, so the driver has got the whole batch.
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
        // Each is read once, as above.
        heads.sort_by_cached_key(|entry| area.load64(packed(*entry) + 8, Relaxed));
        let (mut turn, mut left) = (old, size);
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
                let flags = (rest >> 48) as u16 & !(AVAILABLE | USED) | available_flags(turn);
                let at = usize::from(turn.at()) * 16;
                table.store64(at, address, Relaxed);
                table.store64(at + 8, rest << 16 >> 16 | u64::from(flags) << 48, Release);
                turn.step(1);
                entry = next(entry);
            }
        }
        // The youngest first: whoever is interrupted here leaves what belongs to the first places.
        for head in heads.iter().rev() {
            area.store16(packed(*head), 0, Release);
        }
        Some((PackedTracking::begin(region, old), old))
    }

    /// The chains that begin at these places are about to be given back, all at once; `to` is the place behind
    /// the last of them. How many descriptors that is.
    #[inline]
    pub(super) fn giving_back(
        &self,
        table: &Area,
        from: Turn,
        to: Turn,
        chains: impl ExactSizeIterator<Item = u16>,
    ) -> u16 {
        // Never none, so that as far as one place means a whole lap.
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

    /// Notes so many chains of one descriptor, which is how frames nearly always come.
    #[inline]
    fn note_single(&self, table: &Area, from: Turn, count: u16) {
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
    fn note_chains(&self, table: &Area, to: Turn, chains: impl ExactSizeIterator<Item = u16>) {
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

    /// The driver sees them, `count` descriptors.
    #[inline]
    pub(super) fn given_back(&self, count: u16, at: Turn) {
        let mut head = free(0);
        for entry in self.entries(count) {
            entry[0].store(head.to_le(), Release);
            head += 1 << 16;
        }
        self.0.area.store32(FREE, 0, Release);
        self.0.area.store64(PLACES, places(at, at), Release);
    }

    /// The first so many entries, as words.
    #[inline]
    fn entries(&self, count: u16) -> &[[AtomicU64; PACKED_ENTRY / 8]] {
        self.0.area.words(PACKED_HEAD, usize::from(count) * (PACKED_ENTRY / 8)).as_chunks().0
    }
}

/// From one place to another, and a whole lap if they are one.
#[inline]
fn distance(from: u16, to: u16, size: u16) -> u16 {
    if to > from { to - from } else { to + (size - from) }
}

#[inline]
fn packed(entry: u16) -> usize {
    PACKED_HEAD + PACKED_ENTRY * usize::from(entry)
}

/// The first word of a free entry: which one is free behind it.
#[inline]
fn free(entry: u16) -> u64 {
    u64::from(entry + 1) << 16
}

#[inline]
fn places(now: Turn, old: Turn) -> u64 {
    u64::from(now.at())
        | u64::from(old.at()) << 16
        | u64::from(now.lap()) << 32
        | u64::from(old.lap()) << 40
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::super::memory::Memory;
    use super::super::ring::{Incoming, Taken};
    use super::super::setup::RingAddresses;
    use super::super::split_device::SplitDevice;
    use super::*;

    /// A ring of eight descriptors whose driver has made five available, of which another backend took four, gave
    /// back the third, and died while it gave back the first.
    fn half_done() -> (Arc<Memory>, SplitDevice, impl Fn() -> Region) {
        let memory = Arc::new(Memory::own(0, 0x2000).expect("a memfd").0);
        let at = RingAddresses { table: 0, driver: 0x800, device: 0xc00 };
        for slot in 0..8u64 {
            let rest = 32u64.to_le_bytes();
            let address = 0x1000 + 0x100 * slot;
            memory.write(16 * slot, &[address.to_le_bytes(), rest].concat());
            memory.write(address + 12, &[slot as u8; 20]);
        }
        // The first four places may have been written over.
        memory.write(0x800, &[0, 0, 5, 0, 6, 0, 6, 0, 6, 0, 6, 0, 4, 0]);
        memory.write(0xc00, &[0, 0, 2, 0, 2, 0, 0, 0]);
        let entry = |slot: u64, in_flight: u8, next: u8, counter: u8| {
            let bytes = [in_flight, 0, 0, 0, 0, 0, next, 0, counter, 0, 0, 0, 0, 0, 0, 0];
            memory.write(0x1800 + 16 + 16 * slot, &bytes);
        };
        entry(0, 1, 7, 1);
        entry(1, 1, 0, 9);
        entry(3, 1, 0, 4);
        // The second of the used was the first of the batch that is not settled.
        memory.write(0x1800 + 8, &[1, 0, 8, 0, 0, 0, 1, 0]);
        let device = SplitDevice::new(&memory, at, 8, Default::default()).expect("it fits");
        let ours = Arc::clone(&memory);
        (memory, device, move || Region::new(ours.area(0x1800, 0x100, 8).expect("within"), 8))
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
        assert_eq!(device.take(&mut buffer), Taken::Frame(20));
        assert_eq!(buffer[..20], [4; 20], "the fifth is the next");
        assert_eq!(device.take(&mut buffer), Taken::Empty);
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
            // One is in flight, of one descriptor; the others are free, one behind the other.
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
        // A chain of two descriptors, the second of which leads nowhere.
        good(&memory);
        memory.write(0x1820 + 2, &[77, 0, 0, 0, 2]);
        assert!(recover().is_none());
        good(&memory);
        assert!(recover().is_some_and(|(_, turn)| turn.base() == 1 << 15));
    }
}
