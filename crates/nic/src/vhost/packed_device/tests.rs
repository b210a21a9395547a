//! Tests of devices that are killed, and of their successors.

use super::super::packed_driver::PackedDriver;
use super::super::packed_ring::{AVAILABLE, USED};
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

/// Kills the device while it publishes returned chains: after it has recorded them, and with the last `written` of
/// them written; if all are written, before or after the record is closed.
fn dies(mut device: PackedDevice, written: usize, closed: bool) {
    let tracking = device.tracking.take().expect("it tracks");
    let (from, to) = (device.next.before(device.returned[0].at), device.next);
    let returned = device.returned[..device.unpublished].to_vec();
    let places = returned.iter().map(|it| it.at);
    let count = tracking.giving_back(&device.table, from, to, places);
    device.returned.copy_within(device.unpublished - written..device.unpublished, 0);
    device.write_used(written);
    if closed {
        tracking.given_back(count, to);
    }
}

/// Between a driver with its buffers and a device that continues where the ring's descriptors tell.
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
            TakeResult::Frame(20) => Some(buffer[0]),
            TakeResult::Empty => None,
            // A buffer that was returned empty.
            TakeResult::Malformed if !to_device => Some(u8::MAX),
            other => panic!("{other:?}"),
        };
        for life in 0..60u8 {
            let mut device = next();
            // Of five frames none, some or all are published when the device is killed.
            let dies = |mut device: PackedDevice| {
                device.returned.copy_within(5 - written..5, 0);
                device.write_used(written);
            };
            let what = format!("{to_device}, {written} of five, life {life}");
            let lost = if (1..5).contains(&written) { 5 - written } else { 0 };
            let count = 5 + life % 9;
            let sent: Vec<u8> = (0..count).map(|it| number.wrapping_add(it) % 0xff).collect();
            number = number.wrapping_add(count) % 0xff;
            if to_device {
                sent.iter()
                    .for_each(|it| assert_eq!(driver.put(&[*it; 20]), PutResult::Sent, "{what}"));
                Outgoing::publish(&mut driver);
                (0..5).for_each(|at| assert_eq!(take(&mut device), Some(sent[at])));
                dies(device);
                let mut device = next();
                let rest = if written == 0 { &sent[..] } else { &sent[5..] };
                rest.iter().for_each(|it| assert_eq!(take(&mut device), Some(*it), "{what}"));
                assert_eq!(take(&mut device), None, "{what}");
                Incoming::publish(&mut device);
            } else {
                (0..5).for_each(|at| assert_eq!(device.put(&[sent[at]; 20]), PutResult::Sent));
                dies(device);
                let mut device = next();
                sent[5..].iter().for_each(|it| assert_eq!(device.put(&[*it; 20]), PutResult::Sent));
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
        resume::find(&table, 8).map(|position| position.base())
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
    for (to_device, in_order) in [(true, false), (false, false), (true, true), (false, true)] {
        let features = RingFeatures { in_order, ..RingFeatures::default() };
        for (written, closed) in (0..5).map(|it| (it, false)).chain([(5, false), (5, true)]) {
            // If order was negotiated, sent frames are marked as used by one descriptor.
            if to_device && in_order && (1..5).contains(&written) {
                continue;
            }
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
                let what = format!("{to_device} {in_order}, {written} of five, life {life}");
                let mut buffer_is = |ring: &mut dyn Incoming, at: u8| {
                    assert_eq!(ring.take(&mut buffer), TakeResult::Frame(20), "{what}");
                    assert_eq!(buffer[..20], frame(at), "{what}");
                };
                if to_device {
                    (0..SIZE as u8)
                        .for_each(|at| assert_eq!(driver.put(&frame(at)), PutResult::Sent));
                    assert_eq!(driver.put(&frame(0)), PutResult::Full, "all are back: {what}");
                    Outgoing::publish(&mut driver);
                    (0..5).for_each(|at| buffer_is(&mut device, at));
                    dies(device, written, closed);
                    let mut device = next();
                    let first = if written == 5 { 5 } else { 0 };
                    (first..SIZE as u8).for_each(|at| buffer_is(&mut device, at));
                    assert_eq!(device.take(&mut [0; 64]), TakeResult::Empty, "{what}");
                    Incoming::publish(&mut device);
                } else {
                    (0..5).for_each(|at| assert_eq!(device.put(&frame(at)), PutResult::Sent));
                    dies(device, written, closed);
                    let mut device = next();
                    if written == 5 {
                        (0..5).for_each(|at| buffer_is(&mut driver, at));
                    }
                    assert_eq!(driver.take(&mut [0; 64]), TakeResult::Empty, "{what}");
                    Incoming::publish(&mut driver);
                    for at in 0..SIZE as u8 {
                        assert_eq!(device.put(&frame(at)), PutResult::Sent, "{what}");
                    }
                    assert_eq!(device.put(&frame(0)), PutResult::Full, "{what}");
                    Outgoing::publish(&mut device);
                    (0..SIZE as u8).for_each(|at| buffer_is(&mut driver, at));
                    Incoming::publish(&mut driver);
                }
            }
        }
    }
}

#[test]
fn a_burst_is_told_of_by_its_first_place_where_order_was_agreed_on() {
    for (in_order, indirect, tracked, used) in [
        (true, false, false, 1),
        (true, true, true, 1),
        // Only the ring's descriptors would tell the next device where to continue.
        (true, true, false, 5),
        (false, false, false, 5),
    ] {
        let len = 0x1000 + STRIDE as u64 * u64::from(SIZE);
        let memory = Arc::new(Memory::own(START, len).expect("a memfd").0);
        let notes = Arc::new(Memory::own(0, 0x1000).expect("a memfd").0);
        let features = RingFeatures { in_order, indirect, ..RingFeatures::default() };
        let slots = Slots::new(BUFFERS, SIZE);
        let mut driver = PackedDriver::new(&memory, AT, slots, features, false).expect("it fits");
        let mut device = PackedDevice::new(&memory, AT, SIZE, 1 << 15, features).expect("it fits");
        assert!(!tracked || device.track(region(&notes), false));
        (0..6).for_each(|_| assert_eq!(driver.put(&[7; 20]), PutResult::Sent));
        Outgoing::publish(&mut driver);
        (0..5).for_each(|_| assert_eq!(device.take(&mut [0; 64]), TakeResult::Frame(20)));
        Incoming::publish(&mut device);
        let is_used = |at| device.flags(at) == AVAILABLE | USED;
        assert_eq!((0..SIZE).filter(|at| is_used(*at)).count(), used);
        assert_eq!(Descriptor::read(&device.table, 0).first, if used == 1 { 4 } else { 0 });
        assert_eq!((driver.in_flight(), driver.base()), (1, device.base()));
    }
}

/// A driver whose chains are together longer than the ring: the second begins where the first one ended, and ends
/// where that one did. The record has one entry for each descriptor of the ring.
#[test]
fn chains_of_more_than_a_lap_break_the_ring_before_they_are_shown() {
    for tracked in [true, false] {
        let memory = Arc::new(Memory::own(START, 0x2000).expect("a memfd").0);
        let notes = Arc::new(Memory::own(0, 0x1000).expect("a memfd").0);
        let table = memory.area(START, 16 * usize::from(SIZE), 16).expect("within");
        for place in 0..SIZE {
            let next = if place == 9 { 0 } else { NEXT };
            let flags = next | if [0, 10].contains(&place) { AVAILABLE } else { 0 };
            table.store64(usize::from(place) * 16, BUFFERS, Release);
            table.store64(usize::from(place) * 16 + 8, packed_word(4, place, flags), Release);
        }
        let ring = PackedDevice::new(&memory, AT, SIZE, 1 << 15, RingFeatures::default());
        let mut ring = ring.expect("it fits");
        assert!(!tracked || ring.track(region(&notes), false));
        let mut buffer = [0; 64];
        assert_eq!(ring.take(&mut buffer), TakeResult::Frame(28));
        assert_eq!((ring.ready(64), ring.take(&mut buffer)), (Some(1), TakeResult::Broken));
        assert!(Incoming::publish(&mut ring), "the first chain is given back");
        assert_eq!(table.load16(14, Acquire), AVAILABLE | USED);
        assert_eq!((ring.ready(64), ring.put(&[0; 60])), (None, PutResult::Broken));
        assert_eq!(
            (Incoming::publish(&mut ring), ring.unmask(), ring.await_room()),
            (false, false, false)
        );
    }
}

/// A driver that makes descriptors available again before their return is published.
#[test]
fn no_more_than_a_lap_is_taken_before_it_is_shown() {
    let memory = Arc::new(Memory::own(START, 0x2000).expect("a memfd").0);
    let notes = Arc::new(Memory::own(0, 0x1000).expect("a memfd").0);
    let table = memory.area(START, 16 * usize::from(SIZE), 16).expect("within");
    let makes_available = |flags: u16| {
        for place in 0..SIZE {
            table.store64(usize::from(place) * 16, BUFFERS, Release);
            table.store64(usize::from(place) * 16 + 8, packed_word(72, place, flags), Release);
        }
    };
    for sends in [true, false] {
        let ring = PackedDevice::new(&memory, AT, SIZE, 1 << 15, RingFeatures::default());
        let mut ring = ring.expect("it fits");
        assert!(ring.track(region(&notes), false));
        let one = |ring: &mut PackedDevice| match sends {
            true => ring.put(&[7; 60]) == PutResult::Sent,
            false => ring.take(&mut [0; 64]) == TakeResult::Frame(60),
        };
        let writes = if sends { WRITE } else { 0 };
        makes_available(writes | AVAILABLE);
        (0..SIZE).for_each(|_| assert!(one(&mut ring)));
        makes_available(writes | USED);
        assert_eq!(ring.ready(64), Some(0));
        assert!(!one(&mut ring), "not before the first lap is shown");
        Incoming::publish(&mut ring);
        makes_available(writes | USED);
        assert_eq!(ring.ready(64), Some(SIZE));
        assert!(one(&mut ring));
    }
}
