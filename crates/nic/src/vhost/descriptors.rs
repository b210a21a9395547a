//! Tests of descriptors written by a driver word by word: chains, tables, packets to be segmented, buffers of any
//! size, and invalid ones.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::control::Peers;
use super::memory::Memory;
use super::packed_device::PackedDevice;
use super::packed_driver::PackedDriver;
use super::port::{Kind, Ring};
use super::ports;
use super::properties::{BUFFERS, START, addresses, memory};
use super::queue::VhostQueue;
use super::ring::{Incoming, MAX_PARTS, Outgoing, PutResult, TakeResult};
use super::setup::RingFeatures;
use super::slots::{STRIDE, Slots};
use super::split_device::SplitDevice;
use super::split_driver::SplitDriver;
use crate::{Frame, PacketQueue, Pool};

/// Writes a chain of descriptors, the first of which is available.
fn chain(memory: &Memory, parts: &[(u64, u32, u16, u16)]) {
    for (place, (address, len, flags, next)) in parts.iter().enumerate() {
        let rest = u64::from(*len) | u64::from(*flags) << 32 | u64::from(*next) << 48;
        memory.write(START + 16 * place as u64, &address.to_le_bytes());
        memory.write(START + 16 * place as u64 + 8, &rest.to_le_bytes());
    }
    memory.write(START + 0x8002, &1u16.to_le_bytes());
}

fn device(features: RingFeatures) -> (Arc<Memory>, SplitDevice) {
    let memory = memory(8);
    let device = SplitDevice::new(&memory, addresses(), 8, features).expect("it fits");
    (memory, device)
}

#[test]
fn a_header_may_be_apart_and_a_frame_in_pieces() {
    let (memory, mut device) = device(RingFeatures::default());
    memory.write(BUFFERS + 100, b"destinationsource");
    let parts =
        [(BUFFERS, 12, 1, 2), (0, 0, 0, 0), (BUFFERS + 100, 11, 1, 3), (BUFFERS + 111, 6, 0, 0)];
    chain(&memory, &parts);
    let mut buffer = [0; 64];
    assert_eq!(device.take(&mut buffer), TakeResult::Frame(17));
    assert_eq!(&buffer[..17], b"destinationsource");
}

#[test]
fn chains_that_are_none_are_given_back_and_counted() {
    let good = (BUFFERS, 100, 0, 0);
    for (parts, why) in [
        (vec![(BUFFERS, 40, 1, 0)], "a circle"),
        (vec![(BUFFERS, 40, 1, 1), (BUFFERS, 40, 1, 0)], "a circle of two"),
        (vec![(BUFFERS, 40, 1, 8)], "out of the table"),
        (vec![(BUFFERS, 40, 2, 0)], "for the device to write"),
        (vec![(BUFFERS, 40, 4, 0)], "indirect"),
        (vec![(0, 40, 0, 0)], "outside"),
        (vec![(u64::MAX - 3, 40, 0, 0)], "around the end"),
        (vec![(BUFFERS, 11, 0, 0)], "less than a header"),
        (vec![(BUFFERS + 8 * STRIDE as u64 - 20, 40, 0, 0)], "past the end"),
    ] {
        let (memory, mut device) = device(RingFeatures::default());
        chain(&memory, &parts);
        let mut buffer = [0; 256];
        assert_eq!(device.take(&mut buffer), TakeResult::Malformed, "{why}");
        assert!(Incoming::publish(&mut device), "{why}");
        chain(&memory, &[good]);
        memory.write(START + 0x8002, &2u16.to_le_bytes());
        assert_eq!(device.take(&mut buffer), TakeResult::Frame(88), "after {why}");
    }
    let (memory, mut device) = device(RingFeatures::default());
    chain(&memory, &[(BUFFERS, 12 + 257, 0, 0)]);
    assert_eq!(device.take(&mut [0; 256]), TakeResult::Oversized);
    chain(&memory, &[(BUFFERS, 12 + 13, 0, 0)]);
    memory.write(START + 0x8002, &2u16.to_le_bytes());
    assert_eq!(device.take(&mut [0; 256]), TakeResult::Truncated);
}

/// Writes a table of descriptors at `at`.
fn table(memory: &Memory, at: u64, parts: &[(u64, u32, u16, u16)]) {
    for (place, (address, len, first, second)) in parts.iter().enumerate() {
        let rest = u64::from(*len) | u64::from(*first) << 32 | u64::from(*second) << 48;
        memory.write(at + 16 * place as u64, &[address.to_le_bytes(), rest.to_le_bytes()].concat());
    }
}

const TABLE: u64 = BUFFERS + 0x400;
const INDIRECT: RingFeatures = RingFeatures {
    event: false,
    mergeable: false,
    checksums: false,
    indirect: true,
    tso4: false,
    tso6: false,
    in_order: false,
};

#[test]
fn a_table_of_descriptors_is_a_chain() {
    let bytes = b"destinationsource";
    // A split ring: to receive from, with links, after another descriptor; to send into, as far as needed.
    let (memory, mut device) = device(INDIRECT);
    memory.write(BUFFERS + 100, bytes);
    table(&memory, TABLE, &[(BUFFERS + 100, 11, 1, 2), (0, 0, 0, 0), (BUFFERS + 111, 6, 0, 0)]);
    chain(&memory, &[(BUFFERS, 12, 1, 1), (TABLE, 48, 4, 0), (TABLE + 0x100, 32, 4 | 2, 0)]);
    let mut buffer = [0; 64];
    assert_eq!(device.take(&mut buffer), TakeResult::Frame(17));
    assert_eq!(&buffer[..17], bytes);
    memory.write(START + 0x8002, &[2, 0, 0, 0, 2, 0]);
    table(&memory, TABLE + 0x100, &[(BUFFERS + 200, 20, 3, 1), (BUFFERS + 300, 40, 2, 0)]);
    assert_eq!(device.put(bytes), PutResult::Sent);
    let (mut first, mut then) = ([0; 8], [0; 9]);
    assert!(memory.read(BUFFERS + 212, &mut first) && memory.read(BUFFERS + 300, &mut then));
    assert_eq!([&first[..], &then[..]].concat(), bytes);

    // A packed ring, where the descriptors of a table are consecutive.
    let memory = self::memory(8);
    let ring = PackedDevice::new(&memory, addresses(), 8, 1 << 15, INDIRECT);
    let mut device = ring.expect("it fits");
    memory.write(BUFFERS + 100, bytes);
    table(
        &memory,
        TABLE,
        &[(BUFFERS, 12, 0, 0), (BUFFERS + 100, 11, 0, 1), (BUFFERS + 111, 6, 0, 0)],
    );
    table(&memory, TABLE + 0x100, &[(BUFFERS + 200, 20, 0, 2), (BUFFERS + 300, 40, 0, 2)]);
    table(&memory, START, &[(TABLE, 48, 5, 4 | 1 << 7), (TABLE + 0x100, 32, 6, 4 | 1 << 7)]);
    assert_eq!(device.take(&mut buffer), TakeResult::Frame(17));
    assert_eq!(&buffer[..17], bytes);
    assert_eq!(device.put(bytes), PutResult::Sent);
    Outgoing::publish(&mut device);
    let mut used = [0; 32];
    memory.read(START, &mut used);
    assert_eq!(used[8..16], [0, 0, 0, 0, 5, 0, 0x80, 0x80]);
    assert_eq!(used[24..], [29, 0, 0, 0, 6, 0, 0x82, 0x80]);
}

#[test]
fn tables_that_are_none_are_given_back_and_counted() {
    let part = (BUFFERS, 40, 0, 0);
    let end = BUFFERS + 8 * STRIDE as u64;
    let linked = |next| (BUFFERS, 40, 1, next);
    for (indirect, of, parts, why) in [
        (false, (TABLE, 16, 4), vec![part], "not agreed on"),
        (true, (TABLE, 16, 4 | 1), vec![part], "a table and a next one"),
        (true, (TABLE, 0, 4), vec![part], "of none"),
        (true, (TABLE, 24, 4), vec![part, part], "of one and a half"),
        (true, (TABLE, 16 * 1025, 4), vec![part], "too many"),
        (true, (TABLE, u32::MAX, 4), vec![part], "far too many"),
        (true, (0, 16, 4), vec![part], "outside"),
        (true, (end - 8, 16, 4), vec![], "half outside"),
        (true, (u64::MAX - 7, 16, 4), vec![], "around the end"),
        (true, (TABLE, 16, 4), vec![(TABLE, 16, 4, 0)], "a table in a table"),
        (true, (TABLE, 16, 4), vec![(BUFFERS, 40, 2, 2)], "for the device to write"),
        (true, (TABLE, 32, 4), vec![linked(1), linked(0)], "a circle"),
        (true, (TABLE, 32, 4), vec![linked(2), part], "out of the table"),
        (true, (TABLE, 32, 4), vec![linked(1), (0, 40, 0, 0)], "leads outside"),
    ] {
        let (memory, mut split) = device(RingFeatures { indirect, ..INDIRECT });
        table(&memory, TABLE, &parts);
        let (address, len, flags) = of;
        chain(&memory, &[(address, len, flags, 0)]);
        assert_eq!(split.take(&mut [0; 256]), TakeResult::Malformed, "{why}");
        chain(&memory, &[(BUFFERS, 100, 0, 0)]);
        memory.write(START + 0x8002, &2u16.to_le_bytes());
        assert_eq!(split.take(&mut [0; 256]), TakeResult::Frame(88), "after {why}");

        // Packed rings ignore links in tables; NEXT in the ring's own descriptor counts.
        if parts.len() > 1 && len == 32 && !why.contains("outside") {
            continue;
        }
        let memory = self::memory(8);
        let features = RingFeatures { indirect, ..INDIRECT };
        let ring = PackedDevice::new(&memory, addresses(), 8, 1 << 15, features);
        let mut packed = ring.expect("it fits");
        let turned: Vec<_> = parts.iter().map(|it| (it.0, it.1, 0, it.2)).collect();
        table(&memory, TABLE, &turned);
        let good = (BUFFERS, 100, 1, 1 << 7);
        table(&memory, START, &[(address, len, 0, flags | 1 << 7), good, good]);
        assert_eq!(packed.take(&mut [0; 256]), TakeResult::Malformed, "packed: {why}");
        assert_eq!(packed.take(&mut [0; 256]), TakeResult::Frame(88), "packed: after {why}");
    }
}

/// A TCP packet over IPv4 with a payload of `payload` bytes, after a virtio header that requests segments of `size`.
fn large(payload: usize, size: u16) -> Vec<u8> {
    let mut bytes = vec![1, 1, 54, 0, size as u8, (size >> 8) as u8, 34, 0, 16, 0, 0, 0];
    bytes.extend([[2; 12].as_slice(), &[8, 0, 0x45, 0, 0, 0, 0, 9, 0x40, 0, 64, 6, 0, 0]].concat());
    bytes
        .extend([10, 0, 0, 1, 10, 0, 0, 2, 0, 80, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0]);
    bytes.extend([0; 4]);
    bytes.extend((0..payload).map(|it| (it % 251) as u8));
    bytes
}

#[test]
fn a_packet_to_be_cut_comes_as_frames_in_as_many_polls_as_it_takes() {
    let features = RingFeatures { checksums: true, tso4: true, ..INDIRECT };
    for packed in [false, true] {
        let memory = memory(32);
        let len = large(20_000, 1_448).len() as u32;
        memory.write(BUFFERS, &large(20_000, 1_448));
        memory.write(BUFFERS + 0x8000, &large(100, 1));
        let parts = [(BUFFERS, 7, 0), (BUFFERS + 7, 9_000, 0), (BUFFERS + 9_007, len - 9_007, 0)];
        let (linked, bad) = ([1, 1, 0], (BUFFERS + 0x8000, 166));
        let kind = if packed {
            let part = |at: usize| (parts[at].0, parts[at].1, 7, linked[at] | 1 << 7);
            table(&memory, START, &[part(0), part(1), part(2), (bad.0, bad.1, 3, 1 << 7)]);
            let ring = PackedDevice::new(&memory, addresses(), 8, 1 << 15, features);
            Kind::PackedDevice(Box::new(ring.expect("it fits")))
        } else {
            let part = |at: usize| (parts[at].0, parts[at].1, linked[at], at as u16 + 1);
            chain(&memory, &[part(0), part(1), part(2), (bad.0, bad.1, 0, 0)]);
            memory.write(START + 0x8002, &[2, 0, 0, 0, 3, 0]);
            let ring = SplitDevice::new(&memory, addresses(), 8, features);
            Kind::SplitDevice(ring.expect("it fits"))
        };
        let pool = Pool::new(13);
        let ports = ports(1, &pool).expect("a port");
        ports[0].incoming.enter(|ring| *ring = Some(Ring::new(kind, None)));
        let mut queue = VhostQueue::new(&ports, 0, &Arc::default(), None);
        let mut frames = Vec::new();
        for (rx, more) in [(4, true), (4, true), (4, true), (3, false), (0, false)] {
            assert_eq!(queue.poll(4, 9, &mut frames).rx, rx);
            assert_eq!(queue.unmask(0), more, "segments are work as frames are");
        }
        let counts = queue.counters().read();
        assert_eq!((counts.rx_packets, counts.rx_no_buffer, counts.rx_malformed), (13, 1, 1));
        let payload: Vec<u8> = frames.iter().flat_map(|frame| frame[54..].to_vec()).collect();
        assert_eq!(payload, large(20_000, 0)[66..66 + 13 * 1_448]);
        assert_eq!(pool.available(), 0);
    }
}

/// A backend's packet, in as many of our buffers as it fills.
#[test]
fn a_packet_that_a_backend_leaves_to_be_cut_comes_as_frames() {
    let features = RingFeatures { tso4: true, mergeable: true, ..RingFeatures::default() };
    for (packed, in_order) in [(false, false), (false, true), (true, false), (true, true)] {
        let (memory, at, slots) = (memory(32), addresses(), Slots::new(BUFFERS, 32));
        let features = RingFeatures { in_order, ..features };
        let packet = large(20_000, 1_448);
        let send = |device: &mut dyn Outgoing| {
            for begins in [0, STRIDE as u64 * 10] {
                assert_eq!(device.put(&packet[12..]), PutResult::Sent);
                // The buffer count after these bytes stays.
                memory.write(BUFFERS + begins, &packet[..10]);
            }
            device.put(&[3; 60]);
            device.publish();
        };
        let kind = if packed {
            let ring = PackedDriver::new(&memory, at, slots, features, true).expect("it fits");
            let device = PackedDevice::new(&memory, at, 32, 1 << 15, features);
            send(&mut device.expect("it fits"));
            Kind::PackedDriver(ring)
        } else {
            let ring = SplitDriver::new(&memory, at, slots, features, true).expect("it fits");
            send(&mut SplitDevice::new(&memory, at, 32, features).expect("it fits"));
            Kind::SplitDriver(ring)
        };
        let ports = ports(1, &Pool::new(64)).expect("a port");
        ports[0].incoming.enter(|ring| *ring = Some(Ring::new(kind, None)));
        let mut queue = VhostQueue::new(&ports, 0, &Arc::default(), None);
        let mut frames = Vec::new();
        for (rx, more) in [(8, true), (8, true), (8, true), (5, false), (0, false)] {
            assert_eq!(queue.poll(8, 9, &mut frames).rx, rx, "packed {packed}");
            assert_eq!(queue.unmask(0), more);
        }
        let counts = queue.counters().read();
        assert_eq!((counts.rx_packets, counts.rx_malformed), (29, 0));
        let payload = |frames: &[Frame]| frames.iter().flat_map(|it| it[54..].to_vec()).collect();
        let [first, second]: [Vec<u8>; 2] = [payload(&frames[..14]), payload(&frames[14..28])];
        assert!(first == packet[66..] && second == first);
        assert_eq!(frames[28][..], [3; 60]);
    }
}

#[test]
fn an_index_that_leaps_and_a_head_that_is_none_break_the_ring() {
    for (index, head) in [(9u16, 0u16), (40_000, 0), (1, 8)] {
        let (memory, mut device) = device(RingFeatures::default());
        chain(&memory, &[(BUFFERS, 100, 0, 0)]);
        memory.write(START + 0x8002, &index.to_le_bytes());
        memory.write(START + 0x8004, &head.to_le_bytes());
        assert_eq!(device.take(&mut [0; 256]), TakeResult::Broken);
        assert_eq!((device.put(&[0; 60]), device.unmask()), (PutResult::Broken, false));
    }
}

#[test]
fn a_frame_whose_header_has_no_place_breaks_the_ring_and_nothing_is_given_back() {
    let (memory, mut split) = device(RingFeatures::default());
    let other = self::memory(8);
    let packed = PackedDevice::new(&other, addresses(), 8, 1 << 15, RingFeatures::default());
    let mut packed = packed.expect("it fits");
    // Its bytes have a place behind the header.
    for (at, what) in [(START - 4, "the first"), (BUFFERS, "one that would be good")] {
        chain(&memory, &[(at, 100, 2, 0)]);
        table(&other, START, &[(at, 100, 0, 2 | 1 << 7)]);
        assert_eq!(
            (split.put(&[1; 60]), Outgoing::publish(&mut split)),
            (PutResult::Broken, false),
            "{what}"
        );
        assert_eq!(
            (packed.put(&[1; 60]), Outgoing::publish(&mut packed)),
            (PutResult::Broken, false),
            "{what}"
        );
    }
}

#[test]
fn a_ring_that_was_found_broken_is_told_of_once() {
    let (memory, device) = device(RingFeatures::default());
    chain(&memory, &[(BUFFERS, 100, 0, 0)]);
    memory.write(START + 0x8002, &40_000u16.to_le_bytes());
    let ports = ports(1, &Pool::new(4)).expect("a port");
    let peers = Arc::<Peers>::default();
    ports[0].incoming.enter(|ring| {
        *ring = Some(Ring::new(Kind::SplitDevice(device), None));
    });
    let mut queue = VhostQueue::new(&ports, 0, &peers, None);
    for _ in 0..3 {
        assert_eq!(queue.poll(8, 0, &mut Vec::new()).rx, 0);
    }
    assert_eq!(peers.refused.load(Relaxed), 1);
    assert!(peers.take_problem().expect("once").contains("queue 0"));
    assert_eq!(peers.take_problem(), None);
}

#[test]
fn a_frame_is_spread_over_small_buffers_if_that_was_agreed() {
    for mergeable in [true, false] {
        let (memory, mut device) =
            device(RingFeatures { mergeable, checksums: true, ..RingFeatures::default() });
        let part = |place: u64| (BUFFERS + 100 * place, 40, 2, 0);
        chain(&memory, &[part(0), part(1), part(2), part(3)]);
        memory.write(START + 0x8004, &[0, 0, 1, 0, 2, 0, 3, 0]);
        memory.write(START + 0x8002, &4u16.to_le_bytes());
        let frame: Vec<u8> = (0..100).collect();
        if !mergeable {
            assert_eq!(device.put(&frame), PutResult::TooLong);
            assert_eq!(device.put(&frame[..28]), PutResult::Sent);
            continue;
        }
        assert_eq!(device.put(&frame), PutResult::Sent);
        let (mut read, mut header) = ([0; 100], [0; 12]);
        assert!(memory.read(BUFFERS, &mut header) && memory.read(BUFFERS + 12, &mut read[..28]));
        assert!(memory.read(BUFFERS + 100, &mut read[28..68]));
        assert!(memory.read(BUFFERS + 200, &mut read[68..]));
        assert_eq!((&read[..], header[10]), (&frame[..], 3));
        // One buffer is left, too few for the frame; it stays for a smaller one.
        assert_eq!(device.put(&frame), PutResult::Full);
        assert_eq!(device.put(&frame[..20]), PutResult::Sent);
    }
}

#[test]
fn a_device_that_gives_back_what_it_has_not_breaks_the_ring() {
    for (id, len) in [(8u32, 20u32), (u32::MAX, 20), (0, 5_000), (0, 3)] {
        let memory = memory(8);
        let slots = Slots::new(BUFFERS, 8);
        let ring = SplitDriver::new(&memory, addresses(), slots, RingFeatures::default(), true);
        let mut ring = ring.expect("it fits");
        for (place, word) in [(4, id), (8, len), (12, id), (16, len)] {
            memory.write(START + 0xc000 + place, &word.to_le_bytes());
        }
        memory.write(START + 0xc002, &1u16.to_le_bytes());
        let taken = ring.take(&mut [0; 64]);
        assert_eq!(
            taken,
            if id < 8 { TakeResult::Malformed } else { TakeResult::Broken },
            "{id} {len}"
        );
    }
}

/// `parts` descriptors: a header in the first, the frame in the last, and no bytes in the others.
fn long(parts: u16, packed: bool, write: u16) -> Vec<(u64, u32, u16, u16)> {
    let part = |place: u16| {
        let (last, first) = (place + 1 == parts, place == 0);
        let (len, next) = (if first { 12 } else { 60 * u32::from(last) }, u16::from(!last));
        match packed {
            true => (BUFFERS, len, 0, write | next | 1 << 7),
            false => (BUFFERS, len, write | next, place + 1),
        }
    };
    (0..parts).map(part).collect()
}

#[test]
fn a_frame_of_more_descriptors_than_anybody_makes_is_not_followed_to_its_end() {
    let features = RingFeatures { mergeable: true, ..INDIRECT };
    for (parts, good) in [(MAX_PARTS, true), (MAX_PARTS + 1, false)] {
        let memory = self::memory(8);
        let mut split = SplitDevice::new(&memory, addresses(), 2_048, features).expect("it fits");
        chain(&memory, &long(parts, false, 0));
        let taken = split.take(&mut [0; 256]);
        assert_eq!(taken, if good { TakeResult::Frame(60) } else { TakeResult::Malformed });

        for writes in [true, false] {
            let memory = self::memory(8);
            let ring = PackedDevice::new(&memory, addresses(), 2_048, 1 << 15, features);
            let mut packed = ring.expect("it fits");
            table(&memory, START, &long(parts, true, if writes { 2 } else { 0 }));
            if writes {
                assert_eq!(
                    packed.put(&[1; 60]),
                    if good { PutResult::Sent } else { PutResult::Broken }
                );
            } else {
                let taken = packed.take(&mut [0; 256]);
                assert_eq!(taken, if good { TakeResult::Frame(60) } else { TakeResult::Broken });
            }
        }
    }
    // All entries lead to one chain, into which no frame fits: for a ring of 2048, as many steps as its size squared.
    let memory = self::memory(8);
    let mut split = SplitDevice::new(&memory, addresses(), 2_048, features).expect("it fits");
    let mut parts = long(1_000, false, 2);
    parts[999].1 = 0;
    chain(&memory, &parts);
    memory.write(START + 0x8002, &2_048u16.to_le_bytes());
    assert_eq!(split.put(&[1; 60]), PutResult::Broken);
}
