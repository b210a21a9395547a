//! Property tests: a driver against a device, with both kinds of rings, in one thread and in any order; and a
//! device against a driver that writes arbitrary values.

use std::collections::VecDeque;
use std::sync::Arc;

use proptest::prelude::*;

use super::memory::Memory;
use super::packed_device::PackedDevice;
use super::packed_driver::PackedDriver;
use super::port::{Kind, Ring};
use super::ports;
use super::queue::VhostQueue;
use super::ring::{Incoming, Outgoing, PutResult, TakeResult};
use super::setup::{RingAddresses, RingFeatures};
use super::slots::{STRIDE, Slots};
use super::split_device::SplitDevice;
use super::split_driver::SplitDriver;
use super::tracking::Region;
use crate::{FRAME_CAPACITY, PacketQueue, Pool, SendError};

pub(super) const START: u64 = 1 << 32;
pub(super) const BUFFERS: u64 = START + 0x10000;

pub(super) fn memory(size: u16) -> Arc<Memory> {
    let len = 0x10000 + STRIDE as u64 * u64::from(size);
    Arc::new(Memory::own(START, len).expect("a memfd").0)
}

pub(super) fn addresses() -> RingAddresses {
    RingAddresses { table: START, driver: START + 0x8000, device: START + 0xc000 }
}

/// One step of a test.
#[derive(Debug, Clone)]
enum Step {
    /// The producer puts this many frames of this length, and publishes them.
    Put(u8, usize),
    /// The consumer takes up to this many, and publishes their return.
    Take(u8),
    /// The consumer requests notifications.
    Unmask,
    /// The consumer requests none.
    Mask,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (1..40u8, prop_oneof![14..100usize, 14..=FRAME_CAPACITY])
            .prop_map(|(n, len)| Step::Put(n, len)),
        (1..80u8).prop_map(Step::Take),
        Just(Step::Unmask),
        Just(Step::Mask),
    ];
    prop::collection::vec(step, 1..60)
}

/// Checks that frames come out as they went in, and that each requested notification comes.
fn talk(mut producer: impl Outgoing, mut consumer: impl Incoming, steps: Vec<Step>) {
    let (mut sent, mut number) = (VecDeque::new(), 0u32);
    // The ring was empty when the consumer requested a notification, and no frame has come since.
    let mut waits = false;
    // The ring was full, and nothing was returned since.
    let mut awaits = false;
    let mut buffer = vec![0; FRAME_CAPACITY];
    for step in steps.into_iter().chain([Step::Take(u8::MAX), Step::Take(u8::MAX)]) {
        match step {
            Step::Put(count, len) => {
                let (mut any, mut full) = (false, false);
                for _ in 0..count {
                    let mut frame = vec![number as u8; len];
                    frame[..4].copy_from_slice(&number.to_le_bytes());
                    match producer.put(&frame) {
                        PutResult::Sent => sent.push_back(frame),
                        PutResult::Full => {
                            full = true;
                            break;
                        }
                        other => panic!("{other:?}"),
                    }
                    (number, any) = (number + 1, true);
                }
                let notify = producer.publish();
                assert!(any || !notify, "a notification of nothing");
                assert!(notify || !(any && waits), "nobody was told");
                waits &= !any;
                if full {
                    assert!(!producer.await_room(), "nothing has come back");
                } else if awaits {
                    producer.ignore_room();
                }
                awaits = full;
            }
            Step::Take(most) => {
                let before = sent.len();
                assert_eq!(consumer.ready(9) == Some(0), sent.is_empty());
                for _ in 0..most {
                    match consumer.take(&mut buffer) {
                        TakeResult::Frame(len) => {
                            assert_eq!(sent.pop_front().as_deref(), Some(&buffer[..len]));
                        }
                        TakeResult::Empty => {
                            assert!(sent.is_empty());
                            break;
                        }
                        other => panic!("{other:?}"),
                    }
                }
                let (notify, taken) = (consumer.publish(), sent.len() < before);
                assert!(taken || !notify, "a notification of nothing");
                assert!(notify || !(taken && awaits), "nobody was told of the room");
                awaits &= !taken;
            }
            Step::Unmask => {
                let more = consumer.unmask();
                assert_eq!(more, !sent.is_empty(), "{more}");
                waits = !more;
            }
            Step::Mask => {
                consumer.mask();
                waits = false;
            }
        }
    }
    assert!(sent.is_empty());
}

fn both(
    (packed, to_device, tracks): (bool, bool, bool),
    size: u16,
    features: RingFeatures,
    steps: Vec<Step>,
) {
    let notes = Arc::new(Memory::own(0, Region::bytes(packed, size) as u64).expect("a memfd").0);
    let area = notes.area(0, Region::bytes(packed, size), 8).expect("it fits");
    let region = Region::new(area, size);
    let (memory, at, slots) = (memory(size), addresses(), Slots::new(BUFFERS, size));
    let receive = !to_device;
    if packed {
        let driver = PackedDriver::new(&memory, at, slots, features, receive).expect("it fits");
        let device = PackedDevice::new(&memory, at, size, 1 << 15, features);
        let mut device = device.expect("it fits");
        assert!(!tracks || device.track(region, false));
        if to_device { talk(driver, device, steps) } else { talk(device, driver, steps) }
    } else {
        let driver = SplitDriver::new(&memory, at, slots, features, receive).expect("it fits");
        let mut device = SplitDevice::new(&memory, at, size, features).expect("it fits");
        assert!(!tracks || device.track(region, false));
        if to_device { talk(driver, device, steps) } else { talk(device, driver, steps) }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_driver_and_a_device_understand_each_other(
        packed: bool,
        to_device: bool,
        event: bool,
        mergeable: bool,
        checksums: bool,
        tracks: bool,
        in_order: bool,
        size in prop_oneof![Just(16u16), Just(32), Just(256)],
        steps in steps(),
    ) {
        let features = RingFeatures { event, mergeable, checksums, in_order, ..RingFeatures::default() };
        both((packed, to_device, tracks), size, features, steps);
    }

    #[test]
    fn whatever_stands_in_a_ring_ends_without_harm(
        packed: bool,
        size in prop_oneof![Just(1u16), Just(2), Just(8), Just(64)],
        features in any::<(bool, bool, bool, bool)>(),
        base: u16,
        // Mostly small numbers, as indices, flags and lengths are.
        words in prop::collection::vec((0..0x400u64, prop_oneof![0..8u64, any::<u64>(),
            (0..0x10000u64).prop_map(|it| START + it)]), 0..120),
        index in 0..80u16,
        tracks: bool,
    ) {
        let (memory, at) = (memory(1), addresses());
        // An in-flight record with a valid version and number of entries.
        let notes = START + 0x4000;
        for (place, word) in words {
            let area = [at.table, at.driver, at.device, notes][place as usize % 4];
            memory.write(area + place / 4 * 8, &word.to_le_bytes());
        }
        memory.write(notes + 8, &[1, 0, 64, 0]);
        let region = || {
            let area = memory.area(notes, Region::bytes(packed, 64), 8).expect("it fits");
            Region::new(area, 64)
        };
        if !packed {
            memory.write(at.driver + 2, &index.to_le_bytes());
        }
        let (event, mergeable, checksums, indirect) = features;
        let features = RingFeatures { event, mergeable, checksums, indirect, tso4: indirect, tso6: event, in_order: event };
        fn harmless<R: Incoming + Outgoing>(mut ring: R) {
            let mut buffer = vec![0; FRAME_CAPACITY];
            for round in 0..200 {
                if round % 3 == 0 {
                    let _ = ring.put(&[round; 60]);
                } else if matches!(ring.take(&mut buffer), TakeResult::Broken) {
                    assert_eq!(ring.take(&mut buffer), TakeResult::Broken, "it is not looked at again");
                }
                let _ = Incoming::publish(&mut ring);
                let _ = ring.unmask();
            }
        }
        if packed {
            if let Some(mut ring) = PackedDevice::new(&memory, at, size, base, features)
                && (!tracks || ring.track(region(), true))
            {
                harmless(ring);
            }
        } else if let Some(mut ring) = SplitDevice::new(&memory, at, size, features)
            && (!tracks || ring.track(region(), true))
        {
            harmless(ring);
        }
    }
}

/// Frames that another sender left, and that were reported as sent, are sent once there is room, by the first
/// thread that comes: none is lost or overtaken, and the peer is asked to notify of the room.
#[test]
fn frames_that_another_left_stay_until_there_is_room_and_none_overtakes_them() {
    fn one(kind: Kind, mut peer: impl Incoming, size: usize) {
        let ports = ports(1, &Pool::new(256)).expect("a port");
        ports[0].outgoing.enter(|ring| *ring = Some(Ring::new(kind, None)));
        let mut queue = VhostQueue::new(&ports, 0, &Arc::default(), None);
        let wire = queue.transmitter();
        let mut number = 0;
        let mut send = || {
            let sent = wire.send(&[number; 60], 0);
            number += u8::from(sent.is_ok());
            sent
        };
        (0..size).for_each(|_| send().expect("room"));
        assert_eq!(send(), Err(SendError::RingFull));
        // A thread is at the ring: others leave their frames, as long as there is space.
        let entered = ports[0].outgoing.try_enter().expect("nobody is there");
        (0..64).for_each(|_| send().expect("it is left"));
        assert_eq!(send(), Err(SendError::RingFull), "the places are bounded");
        drop(entered);
        queue.poll(0, 0, &mut Vec::new());
        assert_eq!(send(), Err(SendError::RingFull), "it would overtake");
        let mut received = 0;
        for _ in 0..=(size + 64) / 3 {
            for _ in 0..3 {
                let mut buffer = [0; 64];
                if peer.take(&mut buffer) == TakeResult::Frame(60) {
                    assert_eq!(buffer[..60], [received as u8; 60]);
                    received += 1;
                }
            }
            let (published, waits) = (peer.publish(), ports[0].waiting.ready());
            assert!(published || !waits, "nobody says that there is room after {received}");
            queue.poll(0, 0, &mut Vec::new());
        }
        assert_eq!(received, size + 64);
        send().expect("room");
        let counts = queue.counters().read();
        assert_eq!((counts.tx_packets, counts.tx_dropped), (size as u64 + 65, 3));
    }
    for event in [false, true] {
        let features = RingFeatures { event, ..RingFeatures::default() };
        let (at, slots) = (addresses(), || Slots::new(BUFFERS, 16));
        let shared = memory(16);
        let driver = SplitDriver::new(&shared, at, slots(), features, false).expect("it fits");
        let device = SplitDevice::new(&shared, at, 16, features).expect("it fits");
        one(Kind::SplitDriver(driver), device, 16);
        let shared = memory(16);
        let driver = SplitDriver::new(&shared, at, slots(), features, true).expect("it fits");
        let device = SplitDevice::new(&shared, at, 16, features).expect("it fits");
        one(Kind::SplitDevice(device), driver, 16);
        let shared = memory(16);
        let driver = PackedDriver::new(&shared, at, slots(), features, false).expect("it fits");
        let device = PackedDevice::new(&shared, at, 16, 1 << 15, features).expect("it fits");
        one(Kind::PackedDriver(driver), device, 16);
        let shared = memory(16);
        let driver = PackedDriver::new(&shared, at, slots(), features, true).expect("it fits");
        let device = PackedDevice::new(&shared, at, 16, 1 << 15, features).expect("it fits");
        one(Kind::PackedDevice(Box::new(device)), driver, 16);
    }
}
