//! The table of instances, which the programs fill and this process reads as memory.
//!
//! A row is found by the instance's name ([`name_of`]): its id, which no other instance of the machine has, or, where it
//! has none, its device. The lower bits of the name are a row's place, and where that is another's, one of the next
//! [`TRIES`] is it. Whoever meets an instance first takes a free row for it by one exchange.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use super::counts::Key;
use napkin_bpf::SharedWords;

/// Places in a row, in bytes; 64 bits each unless it is said. What each poll of a softirq needs is in the first 64
/// bytes, a cache line.
pub(super) mod row {
    /// The instance's name; 0 of a free row.
    pub(in super::super) const NAME: i16 = 0;
    /// 32 bits each: the key.
    pub(in super::super) const NETNS: i16 = 8;
    pub(in super::super) const IFINDEX: i16 = 12;
    /// 32 bits: the CPU of the last poll, and 1; 0 before the first.
    pub(in super::super) const CPU: i16 = 16;
    /// 32 bits: the thread in whose busy-poll session the instance is, or 0.
    pub(in super::super) const SESSION: i16 = 20;
    /// Whether the device keeps the instance's settings ([`KEPT`], [`NOT_KEPT`]), or 0.
    pub(in super::super) const KEEPS: i16 = 24;
    /// Polls by who polled, each a block of four numbers.
    pub(in super::super) const SOFTIRQ: i16 = 32;
    pub(in super::super) const THREAD: i16 = 64;
    pub(in super::super) const APPLICATION: i16 = 96;
    pub(in super::super) const DEFERRALS: i16 = 128;
    pub(in super::super) const SUSPENSIONS: i16 = 136;
    pub(in super::super) const FLUSHES: i16 = 144;
    pub(in super::super) const WATCHDOGS: i16 = 152;
    pub(in super::super) const EXPIRIES: i16 = 160;
    /// Whether the timer was last armed by a suspension.
    pub(in super::super) const SUSPENDED: i16 = 168;
    /// Bytes of a row: cache lines, so that instances on two CPUs share none.
    pub(in super::super) const LEN: i16 = 192;

    pub(in super::super) const KEPT: i32 = 1;
    pub(in super::super) const NOT_KEPT: i32 = 2;
}

/// Places in a block of polls, in bytes. Each poll adds to one of the first three.
pub(super) mod polled {
    /// Polls that found nothing.
    pub(in super::super) const EMPTY: i16 = 0;
    /// Polls that found something and did not use their budget.
    pub(in super::super) const PARTIAL: i16 = 8;
    /// Polls that used it.
    pub(in super::super) const FULL: i16 = 16;
    /// What all of them found.
    pub(in super::super) const PACKETS: i16 = 24;
}

/// How many rows may be an instance's.
pub(super) const TRIES: u32 = 3;

/// The name of the CPUs' backlogs, together: no id is as small.
pub(super) const BACKLOGS: u64 = 1;
/// In a name: the namespace of a device whose instances have no id. Their inodes begin far above 0.
pub(super) const NETNS_SHIFT: i32 = 32;

/// What a row holds, in words.
pub(super) type Row = [u64; ROW];
const ROW: usize = row::LEN as usize / 8;
/// A name that nobody has: of a row that is being emptied.
const NOBODY: u64 = u64::MAX;

/// The table: rows, and one word more, which counts what found no room.
#[derive(Debug)]
pub(super) struct Table {
    words: SharedWords,
    places: u32,
}

/// What the programs have to know of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) descriptor: i32,
    /// A power of two: how many rows names are spread over.
    pub(super) places: u32,
    /// How many rows one has, from its place on.
    pub(super) tries: u32,
}

impl Shape {
    /// Rows: the last place has as many as any other.
    const fn rows(self) -> u32 {
        self.places + self.tries - 1
    }

    /// Where what found no room is counted, in bytes.
    pub(super) const fn lost(self) -> i32 {
        (self.rows() * row::LEN as u32).cast_signed()
    }
}

impl Table {
    /// With room for so many instances, up to the next power of two and 65536.
    pub(super) fn create(instances: u32) -> io::Result<Table> {
        let places = instances.clamp(1, 65_536).next_power_of_two();
        let rows = Shape { descriptor: -1, places, tries: TRIES.min(places) }.rows() as usize;
        Ok(Table { words: SharedWords::create(rows * ROW + 1, "napkin_rows")?, places })
    }

    pub(super) fn shape(&self) -> Shape {
        let (descriptor, places) = (self.words.descriptor(), self.places);
        Shape { descriptor, places, tries: TRIES.min(places) }
    }

    /// What found no room.
    pub(super) fn lost(&self) -> u64 {
        self.words.words().last().map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// All rows that are taken. They are read one after the other while counting goes on.
    pub(super) fn read(&self) -> BTreeMap<Key, Row> {
        let rows = self.words.words().chunks_exact(ROW).map(values);
        let taken = rows.filter(|row| !matches!(row[0], 0 | NOBODY));
        taken.map(|row| (key_of(&row), row)).collect()
    }

    /// The row of one instance, if it has one.
    pub(super) fn row(&self, key: &Key) -> Option<Row> {
        self.find(key).map(values)
    }

    /// Frees the row of an instance; whether it had one.
    pub(super) fn free(&self, key: &Key) -> bool {
        let Some([name, rest @ ..]) = self.find(key) else { return false };
        // While it has no name that anybody has, no other poll comes to it.
        name.store(NOBODY, Ordering::SeqCst);
        rest.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        name.store(0, Ordering::SeqCst);
        true
    }

    fn find(&self, key: &Key) -> Option<&[AtomicU64]> {
        let name = name_of(key);
        let Shape { places, tries, .. } = self.shape();
        let place = usize::try_from(name & u64::from(places - 1)).ok()?;
        let rows = self.words.words().chunks_exact(ROW).skip(place).take(tries as usize);
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

/// The word at a place in a row, in bytes.
pub(super) fn word(row: &Row, place: i16) -> u64 {
    usize::try_from(place / 8).ok().and_then(|at| row.get(at)).copied().unwrap_or(0)
}

/// The 32 bits at a place in a row, in bytes.
pub(super) fn half(row: &Row, place: i16) -> u32 {
    let [a, b, c, d, e, f, g, h] = word(row, place).to_ne_bytes();
    u32::from_ne_bytes(if place % 8 == 0 { [a, b, c, d] } else { [e, f, g, h] })
}

/// As the programs find it.
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
    Key { netns: half(values, row::NETNS), ifindex: half(values, row::IFINDEX), napi_id }
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
        let shape = |places| Shape { descriptor: -1, places, tries: TRIES.min(places) };
        assert_eq!([1, 2, 4, 4096].map(|it| shape(it).rows()), [1, 3, 6, 4098]);
        assert_eq!(shape(1).lost(), 192);
    }
}
