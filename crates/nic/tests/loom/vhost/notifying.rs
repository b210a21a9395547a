//! Models of notification: a side that requests a notification and then finds nothing is notified of what comes, on
//! either side of a split or a packed ring; and so is a side that waits for room.

use std::sync::Arc;

use loom::thread::spawn;

use super::memory::{self, FRAMES, Memory, START};
use super::packed_device::PackedDevice;
use super::packed_driver::PackedDriver;
use super::ring::{Incoming, Outgoing, PutResult, TakeResult};
use super::setup::{RingAddresses, RingFeatures};
use super::slots::{STRIDE, Slots};
use super::split_device::SplitDevice;
use super::split_driver::SplitDriver;
use crate::{ETHERNET_HEADER, Event, FRAME_CAPACITY, explore};

/// Entries of a ring.
const SIZE: u16 = 2;

/// The kind of ring, and the direction of its frames.
#[derive(Clone, Copy)]
enum Way {
    ToSplitDevice,
    ToSplitDriver,
    ToPackedDevice,
    ToPackedDriver,
}
use Way::{ToPackedDevice, ToPackedDriver, ToSplitDevice, ToSplitDriver};

/// The part of the protocol that is left out.
#[derive(Clone, Copy, PartialEq)]
enum Without {
    Nothing,
    /// The fence between a side's own write and its read of the other side's word.
    Fences,
    /// The check of the ring after the request.
    Look,
    /// The descriptor is cleared after that check, not before.
    Order,
}

/// A notification for each direction.
#[derive(Default)]
struct Bells {
    frames: Event,
    room: Event,
}

/// Takes frames and sleeps until `count` have come, as a queue's owner does.
fn consume(mut ring: impl Incoming, bells: &Bells, count: u8, without: Without) {
    let mut next = 0;
    let mut buffer = [0; FRAME_CAPACITY];
    loop {
        assert!(ring.ready(1).is_some(), "it makes sense, whenever it is looked at");
        loop {
            match ring.take(&mut buffer) {
                TakeResult::Frame(len) => {
                    assert_eq!(buffer[..len], [next; ETHERNET_HEADER]);
                    next += 1;
                }
                TakeResult::Empty => break,
                other => panic!("{other:?}"),
            }
        }
        if ring.publish() {
            bells.room.ring();
        }
        if next == count {
            return;
        }
        if without != Without::Order {
            bells.frames.clear();
        }
        let more = ring.unmask();
        if without == Without::Order {
            bells.frames.clear();
        }
        if without == Without::Look || !more {
            bells.frames.wait();
        }
        ring.mask();
    }
}

/// Puts frames one by one, and sleeps while there is no room.
fn produce(mut ring: impl Outgoing, bells: &Bells, count: u8) {
    for number in 0..count {
        loop {
            let put = ring.put(&[number; ETHERNET_HEADER]);
            if ring.publish() {
                bells.frames.ring();
            }
            match put {
                PutResult::Sent => break,
                PutResult::Full => {
                    bells.room.clear();
                    if !ring.await_room() {
                        bells.room.wait();
                    }
                    ring.ignore_room();
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

fn scene(way: Way, event: bool, count: u8, without: Without) {
    for in_order in [false, true] {
        ordered(way, (event, in_order), count, without);
    }
}

fn ordered(way: Way, (event, in_order): (bool, bool), count: u8, without: Without) {
    if without == Without::Fences {
        memory::take_fences_away();
    }
    explore(move || {
        let memory = Arc::new(Memory::new(usize::from(SIZE) * STRIDE));
        let at = RingAddresses { table: START, driver: START + 0x20, device: START + 0x40 };
        let features = RingFeatures { event, in_order, ..RingFeatures::default() };
        let slots = Slots::new(FRAMES, SIZE);
        let bells = Arc::new(Bells::default());
        macro_rules! run {
            ($producer:expr, $consumer:expr) => {{
                let (mut producer, mut consumer) = ($producer, $consumer);
                let thread_bells = Arc::clone(&bells);
                // As at the start of a session: neither side requests notifications.
                Incoming::mask(&mut producer);
                Incoming::mask(&mut consumer);
                let thread = spawn(move || produce(producer, &thread_bells, count));
                consume(consumer, &bells, count, without);
                thread.join().expect("it ends");
            }};
        }
        let to_device = matches!(way, ToSplitDevice | ToPackedDevice);
        if matches!(way, ToSplitDevice | ToSplitDriver) {
            let driver =
                SplitDriver::new(&memory, at, slots, features, !to_device).expect("it fits");
            let device = SplitDevice::new(&memory, at, SIZE, features).expect("it fits");
            if to_device { run!(driver, device) } else { run!(device, driver) }
        } else {
            let driver =
                PackedDriver::new(&memory, at, slots, features, !to_device).expect("it fits");
            let device = PackedDevice::new(&memory, at, SIZE, 1 << 15, features).expect("it fits");
            if to_device { run!(driver, device) } else { run!(device, driver) }
        }
    });
}

macro_rules! scenes {
    ($($name:ident: $way:expr, $event:expr;)*) => { $(
        mod $name {
            use super::*;

            #[test]
            fn nobody_sleeps_while_a_frame_or_room_is_there() {
                scene($way, $event, 3, Without::Nothing);
            }

            #[test]
            #[should_panic(expected = "deadlock")]
            fn without_fences_somebody_does() {
                // With event indices the first frame is notified in any case.
                scene($way, $event, 2, Without::Fences);
            }

            #[test]
            #[should_panic(expected = "deadlock")]
            fn without_a_look_after_asking_somebody_does() {
                scene($way, $event, 1, Without::Look);
            }

            #[test]
            #[should_panic(expected = "deadlock")]
            fn with_the_descriptor_cleared_after_the_look_somebody_does() {
                scene($way, $event, 1, Without::Order);
            }
        }
    )* };
}

scenes! {
    split_to_a_device: ToSplitDevice, false;
    split_to_a_device_with_events: ToSplitDevice, true;
    split_to_a_driver: ToSplitDriver, false;
    split_to_a_driver_with_events: ToSplitDriver, true;
    packed_to_a_device: ToPackedDevice, false;
    packed_to_a_device_with_events: ToPackedDevice, true;
    packed_to_a_driver: ToPackedDriver, false;
    packed_to_a_driver_with_events: ToPackedDriver, true;
}
