//! A packed ring that a peer drives and we serve.
//!
//! One array of descriptors for both directions: a descriptor is available when its two flags differ as the
//! driver's lap says, and used when they are alike. Chains are consecutive, and given back where they began,
//! in the call that takes them.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};

use super::memory::{Area, Memory, fence};
use super::resume;
use super::ring::{
    Descriptor, Gather, INDIRECT, Incoming, MAX_RING, NEXT, Outgoing, Put, Scatter, Table, Taken,
    WRITE, take_whole,
};
use super::segments::Segments;
use super::split_device::{RingAddresses, RingFeatures};
use super::tracking::{PackedTracking, Region};
use super::turn::{AVAILABLE, Suppression, Turn, USED};

/// The most chains that are given back before the driver sees them; with more, some are shown earlier.
pub(super) const BATCH: usize = 64;

/// A chain that was given back, and that the driver does not see yet.
#[derive(Debug, Clone, Copy, Default)]
struct Given {
    at: u16,
    id: u16,
    len: u32,
    flags: u16,
}

/// The device's side.
#[derive(Debug)]
pub(super) struct PackedDevice {
    memory: Arc<Memory>,
    table: Area,
    ours: Suppression,
    theirs: Suppression,
    features: RingFeatures,
    next: Turn,
    /// Where there was no buffer for a frame, or for the rest of it.
    lacking: Turn,
    given: [Given; BATCH],
    held: usize,
    /// Descriptors given back since the driver was last looked after.
    moved: u16,
    /// Where the next backend finds what is in flight.
    tracking: Option<PackedTracking>,
    broken: bool,
}

impl PackedDevice {
    /// `None` if a part is not within the memory, or `base` (place and lap, as messages have it) is none.
    pub(super) fn new(
        memory: &Arc<Memory>,
        at: RingAddresses,
        size: u16,
        base: u16,
        features: RingFeatures,
    ) -> Option<PackedDevice> {
        if size == 0 || size > MAX_RING {
            return None;
        }
        let next = Turn::from_base(base, size)?;
        Some(PackedDevice {
            table: memory.area(at.table, 16 * usize::from(size), 16)?,
            theirs: Suppression::new(memory.area(at.driver, 4, 4)?),
            ours: Suppression::new(memory.area(at.device, 4, 4)?),
            memory: Arc::clone(memory),
            features,
            next,
            lacking: next,
            given: [Given::default(); BATCH],
            held: 0,
            moved: 0,
            tracking: None,
            broken: false,
        })
    }

    /// From now on what is in flight is noted in `region`. With `recover`, a region that was in use says where to go
    /// on, and what is in flight is available again; `false` if it makes no sense.
    pub(super) fn track(&mut self, region: Region, recover: bool) -> bool {
        if recover && region.is_used() {
            let size = self.next.size();
            let Some((tracking, next)) = PackedTracking::recover(region, &self.table, size) else {
                return false;
            };
            (self.next, self.lacking, self.tracking) = (next, next, Some(tracking));
        } else {
            self.tracking = Some(PackedTracking::begin(region, self.next));
        }
        true
    }

    /// The place where another device would go on, and its lap.
    pub(super) fn base(&self) -> u16 {
        self.next.base()
    }

    /// Goes on where the ring itself says, if it does.
    pub(super) fn resume(&mut self) {
        if let Some(turn) = resume::find(&self.table, self.next.size()) {
            (self.next, self.lacking) = (turn, turn);
        }
    }

    /// Whether it makes no sense, and is not looked at any more.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    #[inline]
    fn flags(&self, at: u16) -> u16 {
        self.table.load16(usize::from(at) * 16 + 14, Acquire)
    }

    #[inline]
    fn available(&self) -> bool {
        !self.broken && self.next.is_available(self.flags(self.next.at()))
    }

    /// Calls `part` with each descriptor of the next chain, until it has enough. The id of its last
    /// descriptor and how many it has; `None` if it has no end.
    ///
    /// A driver makes a chain's first descriptor available last, so all of it is there.
    #[inline]
    fn walk(
        &self,
        mut part: impl FnMut(&Memory, Descriptor) -> Option<()>,
    ) -> Option<(u16, u16, bool)> {
        let (mut turn, mut good) = (self.next, true);
        for count in 1..=turn.size() {
            let it = Descriptor::read(&self.table, turn.at());
            good = good
                && match it.second & INDIRECT {
                    0 => part(&self.memory, it).is_some(),
                    _ => self.walk_table(it, &mut part),
                };
            if it.second & NEXT == 0 {
                return Some((it.first, count, good));
            }
            turn.step(1);
        }
        None
    }

    /// A table of descriptors, which are taken one after the other; whether it is one.
    #[cold]
    fn walk_table(
        &self,
        of: Descriptor,
        mut part: impl FnMut(&Memory, Descriptor) -> Option<()>,
    ) -> bool {
        let allowed = self.features.indirect && of.second & NEXT == 0;
        let Some(table) = Table::new(of.address, of.len).filter(|_| allowed) else { return false };
        (0..table.count()).all(|index| {
            let it = table.read(&self.memory, index);
            it.is_some_and(|it| part(&self.memory, it).is_some())
        })
    }

    #[inline]
    fn give_back(&mut self, id: u16, count: u16, len: u32, flags: u16) {
        if self.held == BATCH {
            self.show_early();
        }
        let (at, flags) = (self.next.at(), self.next.used() | flags);
        // Written later: until the driver is to see it, the descriptor may have to be as it was.
        self.given[self.held] = Given { at, id, len, flags };
        self.held += 1;
        self.next.step(count);
        self.moved = self.moved.saturating_add(count);
    }

    /// There is no place for more. Out of the way, so that giving back is not.
    #[cold]
    fn show_early(&mut self) {
        self.show();
    }

    /// The driver sees what was given back: the first last, so that it finds all at once.
    #[inline]
    fn show(&mut self) {
        if self.held > 0 {
            match &self.tracking {
                Some(tracking) => self.show_tracked(tracking),
                None => self.show_given(),
            }
        }
        self.held = 0;
    }

    #[inline]
    fn show_tracked(&self, tracking: &PackedTracking) {
        let given = &self.given[..self.held];
        let Some(first) = given.first() else { return };
        let (from, to) = (self.next.before(first.at), self.next);
        let count = tracking.giving_back(&self.table, from, to, given.iter().map(|it| it.at));
        self.show_given();
        tracking.given_back(count, to);
    }

    #[inline]
    fn show_given(&self) {
        for Given { at, id, len, flags } in self.given[..self.held].iter().rev() {
            let word = packed_word(*len, *id, *flags);
            self.table.store64(usize::from(*at) * 16 + 8, word, Release);
        }
    }

    /// Takes a frame that comes in any way, and reads its descriptors anew.
    #[cold]
    fn take_chain(&mut self, buffer: &mut [u8]) -> Taken {
        let mut gather = Gather::new(buffer);
        let Some((id, count, good)) = self.gather(&mut gather) else { return Taken::Broken };
        if good && self.features.cuts() && gather.is_large() {
            return Taken::Large;
        }
        let taken = if good { gather.end() } else { Taken::Malformed };
        self.give_back(id, count, 0, 0);
        taken
    }

    /// As [`walk`](PackedDevice::walk); a chain without an end breaks the ring.
    fn gather(&mut self, gather: &mut Gather<'_>) -> Option<(u16, u16, bool)> {
        let chain = self.walk(|memory, it| {
            let readable = it.second & (WRITE | INDIRECT) == 0;
            (readable && gather.add(memory, it.address, it.len)).then_some(())
        });
        self.broken |= chain.is_none();
        chain
    }
}

impl Incoming for PackedDevice {
    #[inline]
    fn ready(&mut self, most: u16) -> Option<u16> {
        let available = |turn: Turn| turn.is_available(self.flags(turn.at()));
        (!self.broken).then(|| self.next.count(most, available))
    }

    #[inline]
    fn take(&mut self, buffer: &mut [u8]) -> Taken {
        if !self.available() {
            return if self.broken { Taken::Broken } else { Taken::Empty };
        }
        let first = Descriptor::read(&self.table, self.next.at());
        if first.second & (WRITE | INDIRECT | NEXT) == 0
            && let part = (first.address, first.len)
            && let Some(len) = take_whole(&self.memory, part, self.features.checksums, buffer)
        {
            self.give_back(first.first, 1, 0, 0);
            return Taken::Frame(len);
        }
        self.take_chain(buffer)
    }

    #[cold]
    fn take_large(&mut self, into: &mut Segments) -> Taken {
        if !self.available() {
            return if self.broken { Taken::Broken } else { Taken::Empty };
        }
        let mut gather = Gather::new(into.room());
        let Some((id, count, good)) = self.gather(&mut gather) else { return Taken::Broken };
        let large = if good { gather.large() } else { Err(Taken::Malformed) };
        self.give_back(id, count, 0, 0);
        large.map_or_else(|why| why, |it| it.begin(into, self.features))
    }

    #[inline]
    fn publish(&mut self) -> bool {
        self.show();
        if self.moved == 0 {
            return false;
        }
        let moved = std::mem::take(&mut self.moved);
        fence(SeqCst);
        self.theirs.wants(self.next, moved)
    }

    fn mask(&mut self) {
        self.ours.disable();
    }

    fn unmask(&mut self) -> bool {
        self.ours.enable(self.features.event.then_some(self.next));
        fence(SeqCst);
        let waits = self.available();
        if waits {
            self.mask();
        }
        waits
    }
}

impl Outgoing for PackedDevice {
    #[inline]
    fn put(&mut self, frame: &[u8]) -> Put {
        let (start, held, moved) = (self.next, self.held, self.moved);
        let mut scatter = Scatter::new(frame);
        let mut buffers = 0;
        while !scatter.done() {
            let back = if self.broken {
                Put::Broken
            } else if buffers > 0 && !self.features.mergeable {
                Put::TooLong
            } else if usize::from(buffers) + held >= BATCH {
                // A frame's buffers are shown together, and room for them has to be kept.
                if held == 0 {
                    Put::TooLong
                } else {
                    self.next = start;
                    (self.held, self.moved) = (held, moved);
                    self.show();
                    return self.put(frame);
                }
            } else if self.available() {
                let mut written = 0;
                let chain = self.walk(|memory, it| {
                    if it.second & (WRITE | INDIRECT) != WRITE {
                        return None;
                    }
                    if !scatter.done() {
                        written += scatter.add(memory, it.address, it.len)?;
                    }
                    Some(())
                });
                if let Some((id, count, true)) = chain {
                    self.give_back(id, count, written, WRITE);
                    buffers += 1;
                    continue;
                }
                self.broken = true;
                Put::Broken
            } else {
                self.lacking = self.next;
                Put::Full
            };
            self.next = start;
            (self.held, self.moved) = (held, moved);
            return back;
        }
        if scatter.end(&self.memory, buffers) { Put::Sent } else { Put::Broken }
    }

    #[inline]
    fn publish(&mut self) -> bool {
        Incoming::publish(self)
    }

    fn await_room(&mut self) -> bool {
        if self.broken {
            return false;
        }
        self.ours.enable(self.features.event.then_some(self.lacking));
        fence(SeqCst);
        let room = self.lacking.is_available(self.flags(self.lacking.at()));
        if room {
            self.mask();
        }
        room
    }

    fn ignore_room(&mut self) {
        self.mask();
    }
}

/// Length, id and flags of a descriptor, which are written at once.
#[inline]
pub(super) fn packed_word(len: u32, id: u16, flags: u16) -> u64 {
    u64::from(len) | u64::from(id) << 32 | u64::from(flags) << 48
}

/// Both flags as a driver sets them in the lap that `turn` is in.
#[inline]
pub(super) fn available_flags(turn: Turn) -> u16 {
    if turn.lap() { AVAILABLE } else { USED }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::packed_driver::PackedDriver;
    use super::super::slots::{STRIDE, Slots};
    use super::*;
    use crate::FRAME_CAPACITY;

    const START: u64 = 1 << 32;
    const BUFFERS: u64 = START + 0x1000;
    const SIZE: u16 = 16;
    const AT: RingAddresses =
        RingAddresses { table: START, driver: START + 0x800, device: START + 0x900 };

    fn region(memory: &Arc<Memory>) -> Region {
        Region::new(memory.area(0, Region::bytes(true, SIZE), 8).expect("within"), SIZE)
    }

    /// The device dies while it shows what it has given back: after the note of it, and with the last `written` of it
    /// written; with all of it, before or after the note is closed.
    fn dies(mut device: PackedDevice, written: usize, closed: bool) {
        let tracking = device.tracking.take().expect("it tracks");
        let (from, to) = (device.next.before(device.given[0].at), device.next);
        let given = device.given[..device.held].to_vec();
        let places = given.iter().map(|it| it.at);
        let count = tracking.giving_back(&device.table, from, to, places);
        device.given.copy_within(device.held - written..device.held, 0);
        device.held = written;
        device.show_given();
        if closed {
            tracking.given_back(count, to);
        }
    }

    /// Between a driver that has its buffers and a device that begins where the last one ended, as far as the ring
    /// tells.
    #[test]
    fn a_ring_tells_where_its_last_device_was() {
        let features = RingFeatures { indirect: true, ..RingFeatures::default() };
        for (to_device, written) in
            [true, false].into_iter().flat_map(|it| (0..=5).map(move |n| (it, n)))
        {
            let len = 0x1000 + STRIDE as u64 * u64::from(SIZE);
            let memory = Arc::new(Memory::own(START, len).expect("a memfd").0);
            let next = || {
                let ring = PackedDevice::new(&memory, AT, SIZE, 1 << 15, features);
                let mut ring = ring.expect("it fits");
                ring.resume();
                ring
            };
            let slots = Slots::new(BUFFERS, SIZE);
            let driver = PackedDriver::new(&memory, AT, slots, features, !to_device);
            let (mut driver, mut number) = (driver.expect("it fits"), 0u8);
            let mut buffer = vec![0; FRAME_CAPACITY];
            let mut take = |ring: &mut dyn Incoming| match ring.take(&mut buffer) {
                Taken::Frame(20) => Some(buffer[0]),
                Taken::Empty => None,
                // A buffer that came back empty.
                Taken::Malformed if !to_device => Some(u8::MAX),
                other => panic!("{other:?}"),
            };
            for life in 0..60u8 {
                let mut device = next();
                // Of five frames none, some or all are shown when the device dies.
                let dies = |mut device: PackedDevice| {
                    device.given.copy_within(5 - written..5, 0);
                    device.held = written;
                    device.show_given();
                };
                let what = format!("{to_device}, {written} of five, life {life}");
                let lost = if (1..5).contains(&written) { 5 - written } else { 0 };
                let count = 5 + life % 9;
                let sent: Vec<u8> = (0..count).map(|it| number.wrapping_add(it) % 0xff).collect();
                number = number.wrapping_add(count) % 0xff;
                if to_device {
                    sent.iter()
                        .for_each(|it| assert_eq!(driver.put(&[*it; 20]), Put::Sent, "{what}"));
                    Outgoing::publish(&mut driver);
                    (0..5).for_each(|at| assert_eq!(take(&mut device), Some(sent[at])));
                    dies(device);
                    let mut device = next();
                    let rest = if written == 0 { &sent[..] } else { &sent[5..] };
                    rest.iter().for_each(|it| assert_eq!(take(&mut device), Some(*it), "{what}"));
                    assert_eq!(take(&mut device), None, "{what}");
                    Incoming::publish(&mut device);
                } else {
                    (0..5).for_each(|at| assert_eq!(device.put(&[sent[at]; 20]), Put::Sent));
                    dies(device);
                    let mut device = next();
                    sent[5..].iter().for_each(|it| assert_eq!(device.put(&[*it; 20]), Put::Sent));
                    Outgoing::publish(&mut device);
                    let mut due = vec![u8::MAX; lost];
                    due.extend(if written == 0 { &[] } else { &sent[lost..5] });
                    due.extend(&sent[5..]);
                    due.iter().for_each(|it| assert_eq!(take(&mut driver), Some(*it), "{what}"));
                    assert_eq!(take(&mut driver), None, "{what}");
                    Incoming::publish(&mut driver);
                }
            }
        }
    }

    #[test]
    fn a_ring_with_chains_or_of_no_driver_tells_nothing() {
        let memory = Arc::new(Memory::own(START, 0x1000).expect("a memfd").0);
        let table = memory.area(START, 16 * 8, 16).expect("within");
        let found = |flags: [u16; 8]| {
            let at = |place: usize| 16 * place + 14;
            flags.iter().enumerate().for_each(|(it, flags)| table.store16(at(it), *flags, Release));
            resume::find(&table, 8).map(|turn| turn.base())
        };
        let (a, u, n) = (AVAILABLE, USED, NEXT);
        let first = 1 << 15;
        assert_eq!(found([0; 8]), Some(first), "nobody has written");
        assert_eq!(found([a, a, a, 0, 0, 0, 0, 0]), Some(first), "nothing was used");
        assert_eq!(found([a | u, a | u, a, 0, 0, 0, 0, 0]), Some(first | 2));
        assert_eq!(found([u, u, a | u, a, a, a, a, a]), Some(first | 3), "the driver is ahead");
        assert_eq!(found([a | u; 8]), Some(0), "a whole lap");
        assert_eq!(found([a; 8]), Some(first));
        assert_eq!(found([u; 8]), Some(0));
        assert_eq!(found([a | u, a | n, a, 0, 0, 0, 0, 0]), None, "a chain");
        assert_eq!(found([a, 0, a, 0, 0, 0, 0, 0]), None, "no driver writes so");
    }

    #[test]
    fn a_batch_that_a_device_died_in_is_taken_again_or_not_at_all() {
        let features = RingFeatures::default();
        for to_device in [true, false] {
            for (written, closed) in (0..5).map(|it| (it, false)).chain([(5, false), (5, true)]) {
                let len = 0x1000 + STRIDE as u64 * u64::from(SIZE);
                let memory = Arc::new(Memory::own(START, len).expect("a memfd").0);
                let notes = Arc::new(Memory::own(0, 0x1000).expect("a memfd").0);
                let next = || {
                    let ring = PackedDevice::new(&memory, AT, SIZE, 1 << 15, features);
                    let mut ring = ring.expect("it fits");
                    assert!(ring.track(region(&notes), true));
                    ring
                };
                let slots = Slots::new(BUFFERS, SIZE);
                let driver = PackedDriver::new(&memory, AT, slots, features, !to_device);
                let mut driver = driver.expect("it fits");
                let mut buffer = vec![0; FRAME_CAPACITY];
                for life in 0..40 {
                    let mut device = next();
                    let frame = |at: u8| [life ^ at; 20];
                    let what = format!("{to_device}, {written} of five, life {life}");
                    let mut buffer_is = |ring: &mut dyn Incoming, at: u8| {
                        assert_eq!(ring.take(&mut buffer), Taken::Frame(20), "{what}");
                        assert_eq!(buffer[..20], frame(at), "{what}");
                    };
                    if to_device {
                        (0..SIZE as u8)
                            .for_each(|at| assert_eq!(driver.put(&frame(at)), Put::Sent));
                        assert_eq!(driver.put(&frame(0)), Put::Full, "all are back: {what}");
                        Outgoing::publish(&mut driver);
                        (0..5).for_each(|at| buffer_is(&mut device, at));
                        dies(device, written, closed);
                        let mut device = next();
                        let first = if written == 5 { 5 } else { 0 };
                        (first..SIZE as u8).for_each(|at| buffer_is(&mut device, at));
                        assert_eq!(device.take(&mut [0; 64]), Taken::Empty, "{what}");
                        Incoming::publish(&mut device);
                    } else {
                        (0..5).for_each(|at| assert_eq!(device.put(&frame(at)), Put::Sent));
                        dies(device, written, closed);
                        let mut device = next();
                        if written == 5 {
                            (0..5).for_each(|at| buffer_is(&mut driver, at));
                        }
                        assert_eq!(driver.take(&mut [0; 64]), Taken::Empty, "{what}");
                        Incoming::publish(&mut driver);
                        for at in 0..SIZE as u8 {
                            assert_eq!(device.put(&frame(at)), Put::Sent, "{what}");
                        }
                        assert_eq!(device.put(&frame(0)), Put::Full, "{what}");
                        Outgoing::publish(&mut device);
                        (0..SIZE as u8).for_each(|at| buffer_is(&mut driver, at));
                        Incoming::publish(&mut driver);
                    }
                }
            }
        }
    }
}
