//! The table of instances, which the programs fill and this process reads as shared memory.
//!
//! A row is found by the instance's name ([`name_of`]): its id, which is unique on the machine, or, without an id,
//! its device. The lower bits of the name give the first row that it may have; it is in one of [`ROWS_PER_NAME`] rows
//! from there on. The first program that meets an instance takes a free row for it by one atomic exchange.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use super::counts::Key;
use napkin_bpf::SharedWords;

/// Offsets in a row, in bytes; fields have 64 bits unless stated. What each poll of a softirq needs is in the first
/// 64 bytes, a cache line.
pub(super) mod row {
    /// The instance's name; 0 in a free row.
    pub(in super::super) const NAME: i16 = 0;
    /// 32 bits each: the namespace and the device of the key.
    pub(in super::super) const NETNS: i16 = 8;
    pub(in super::super) const IFINDEX: i16 = 12;
    /// 32 bits: the CPU of the last poll plus 1; 0 before the first.
    pub(in super::super) const CPU: i16 = 16;
    /// 32 bits: the id of the thread in whose busy-poll session the instance is, or 0.
    pub(in super::super) const SESSION: i16 = 20;
    /// Whether the device keeps the instance's settings ([`KEPT`], [`NOT_KEPT`]); 0 if unknown.
    pub(in super::super) const KEEPS: i16 = 24;
    /// Polls by owner, each a block of four numbers ([`polled`](super::polled)).
    pub(in super::super) const SOFTIRQ: i16 = 32;
    pub(in super::super) const THREAD: i16 = 64;
    pub(in super::super) const APPLICATION: i16 = 96;
    pub(in super::super) const DEFERRALS: i16 = 128;
    pub(in super::super) const SUSPENSIONS: i16 = 136;
    pub(in super::super) const FLUSHES: i16 = 144;
    pub(in super::super) const WATCHDOGS: i16 = 152;
    pub(in super::super) const EXPIRIES: i16 = 160;
    /// Whether a suspension armed the timer last.
    pub(in super::super) const SUSPENDED: i16 = 168;
    /// The size of a row: whole cache lines, so that the instances of two CPUs share none.
    pub(in super::super) const LEN: i16 = 192;

    pub(in super::super) const KEPT: i32 = 1;
    pub(in super::super) const NOT_KEPT: i32 = 2;
}

/// Offsets in a block of polls, in bytes. Each poll adds to one of the first three.
pub(super) mod polled {
    /// Polls that found nothing.
    pub(in super::super) const EMPTY: i16 = 0;
    /// Polls that found something and did not use up their budget.
    pub(in super::super) const PARTIAL: i16 = 8;
    /// Polls that used up their budget.
    pub(in super::super) const FULL: i16 = 16;
    /// Packets found by all of them.
    pub(in super::super) const PACKETS: i16 = 24;
}

/// The number of rows in which an instance may be.
pub(super) const ROWS_PER_NAME: u32 = 3;

/// The name of the CPUs' backlogs, counted together; instance ids are greater.
pub(super) const BACKLOGS: u64 = 1;
/// The position of the namespace's inode in the name of a device whose instances have no id. Inodes are far above 0.
pub(super) const NETNS_SHIFT: i32 = 32;

/// A row's contents, in words.
pub(super) type Row = [u64; ROW];
const ROW: usize = row::LEN as usize / 8;
/// A name that no instance has, for a row that is being emptied.
const NAME_WHILE_FREEING: u64 = u64::MAX;

/// The table: rows, and one more word, which counts events that found no room.
#[derive(Debug)]
pub(super) struct Table {
    words: SharedWords,
    places: u32,
}

/// What the programs have to know of the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) descriptor: i32,
    /// The number of rows over which names are spread: a power of two.
    pub(super) places: u32,
    /// The number of rows that a name may have, from its place on.
    pub(super) rows_per_name: u32,
}

impl Shape {
    /// The number of rows: the last place has as many rows as any other.
    const fn rows(self) -> u32 {
        self.places + self.rows_per_name - 1
    }

    /// The offset of the lost count in bytes.
    pub(super) const fn lost(self) -> i32 {
        (self.rows() * row::LEN as u32).cast_signed()
    }
}

impl Table {
    /// Creates a table for so many instances: from 1 to 65536, rounded up to the next power of two.
    pub(super) fn create(instances: u32) -> io::Result<Table> {
        let places = instances.clamp(1, 65_536).next_power_of_two();
        let rows = Shape { descriptor: -1, places, rows_per_name: ROWS_PER_NAME.min(places) }.rows()
            as usize;
        Ok(Table { words: SharedWords::create(rows * ROW + 1, "napkin_rows")?, places })
    }

    pub(super) fn shape(&self) -> Shape {
        let (descriptor, places) = (self.words.descriptor(), self.places);
        Shape { descriptor, places, rows_per_name: ROWS_PER_NAME.min(places) }
    }

    /// The number of events that found no room.
    pub(super) fn lost(&self) -> u64 {
        self.words.words().last().map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Reads all rows that are taken, one after the other while counting continues.
    pub(super) fn read(&self) -> BTreeMap<Key, Row> {
        let rows = self.words.words().chunks_exact(ROW).map(values);
        let taken = rows.filter(|row| !matches!(row[0], 0 | NAME_WHILE_FREEING));
        taken.map(|row| (key_of(&row), row)).collect()
    }

    /// Reads the row of one instance, if it has one.
    pub(super) fn row(&self, key: &Key) -> Option<Row> {
        self.find(key).map(values)
    }

    /// Frees the row of an instance; returns whether it had one.
    pub(super) fn free(&self, key: &Key) -> bool {
        let Some([name, rest @ ..]) = self.find(key) else { return false };
        // While the row has this name, no program finds it for another poll.
        name.store(NAME_WHILE_FREEING, Ordering::SeqCst);
        rest.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        name.store(0, Ordering::SeqCst);
        true
    }

    fn find(&self, key: &Key) -> Option<&[AtomicU64]> {
        let name = name_of(key);
        let Shape { places, rows_per_name, .. } = self.shape();
        let place = usize::try_from(name & u64::from(places - 1)).ok()?;
        let rows = self.words.words().chunks_exact(ROW).skip(place).take(rows_per_name as usize);
        rows.into_iter()
            .find(|row| row.first().is_some_and(|it| it.load(Ordering::Relaxed) == name))
    }
}

fn values(row: &[AtomicU64]) -> Row {
    let mut values = [0; ROW];
    for (to, word) in values.iter_mut().zip(row) {
        *to = word.load(Ordering::Relaxed);
    }
    values
}

/// Returns the word at an offset of a row, in bytes.
pub(super) fn word(row: &Row, place: i16) -> u64 {
    usize::try_from(place / 8).ok().and_then(|at| row.get(at)).copied().unwrap_or(0)
}

/// Returns the 32 bits at an offset of a row, in bytes.
pub(super) fn half_word(row: &Row, place: i16) -> u32 {
    let [a, b, c, d, e, f, g, h] = word(row, place).to_ne_bytes();
    u32::from_ne_bytes(if place % 8 == 0 { [a, b, c, d] } else { [e, f, g, h] })
}

/// Computes an instance's name as the programs do.
fn name_of(key: &Key) -> u64 {
    match *key {
        Key { napi_id: 0, netns: 0, ifindex: 0 } => BACKLOGS,
        Key { napi_id: 0, netns, ifindex } => u64::from(netns) << NETNS_SHIFT | u64::from(ifindex),
        Key { napi_id, .. } => u64::from(napi_id),
    }
}

fn key_of(values: &Row) -> Key {
    let id = u32::try_from(word(values, row::NAME)).ok();
    let napi_id = id.filter(|id| u64::from(*id) != BACKLOGS).unwrap_or(0);
    Key { netns: half_word(values, row::NETNS), ifindex: half_word(values, row::IFINDEX), napi_id }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row_of(key: &Key) -> Row {
        let mut row = [0; ROW];
        row[0] = name_of(key);
        let [netns, ifindex] = [key.netns, key.ifindex].map(u32::to_ne_bytes);
        row[1] = u64::from_ne_bytes([netns, ifindex].concat().try_into().expect("eight"));
        row
    }

    #[test]
    fn every_kind_of_instance_has_a_name_of_its_own_that_leads_back_to_it() {
        let netns = 4_026_531_840;
        let keys = [
            Key { netns, ifindex: 2, napi_id: 8193 },
            Key { netns, ifindex: 2, napi_id: 0 },
            Key { netns, ifindex: 3, napi_id: 0 },
            Key { netns: 0, ifindex: 0, napi_id: 0 },
        ];
        assert_eq!(keys.map(|key| key_of(&row_of(&key))), keys);
        let names: std::collections::BTreeSet<u64> = keys.iter().map(name_of).collect();
        assert_eq!(names.len(), keys.len());
    }

    #[test]
    fn the_room_is_a_power_of_two_and_each_place_has_its_tries() {
        let shape =
            |places| Shape { descriptor: -1, places, rows_per_name: ROWS_PER_NAME.min(places) };
        assert_eq!([1, 2, 4, 4096].map(|it| shape(it).rows()), [1, 3, 6, 4098]);
        assert_eq!(shape(1).lost(), 192);
    }
}
