//! Tests with devices that use buffers in order, and mark several as used at once.

use std::sync::Arc;
use std::sync::atomic::Ordering::Release;

use proptest::prelude::*;

use super::memory::{Area, Memory};
use super::packed_driver::PackedDriver;
use super::packed_ring::{Position, packed_word};
use super::properties::{BUFFERS, addresses, memory};
use super::ring::{Incoming, Outgoing, PutResult, TakeResult};
use super::segments::Segments;
use super::setup::RingFeatures;
use super::slots::{STRIDE, Slots};
use super::split_driver::SplitDriver;
use crate::FRAME_CAPACITY;

const SIZE: u16 = 16;

fn features() -> RingFeatures {
    RingFeatures { in_order: true, tso4: true, mergeable: true, ..RingFeatures::default() }
}

/// A driver of either kind of ring.
trait Driver: Incoming + Outgoing {
    fn new(memory: &Arc<Memory>, receive: bool, features: RingFeatures) -> Self;
    /// The area in which the device marks buffers as used.
    fn area(memory: &Arc<Memory>) -> Area;
    /// The device marks `count` buffers as used, after `back` others, with `len` bytes in the last.
    fn uses(area: &Area, back: u16, count: u16, len: u32);
    /// Whether another device would continue after `back` used buffers.
    fn goes_on(&self, back: u16) -> bool;
    fn broken(&self) -> bool;
}

fn position(back: u16) -> Position {
    Position::new(back % SIZE, u8::from((back / SIZE).is_multiple_of(2)), SIZE).expect("within")
}

impl Driver for PackedDriver {
    fn new(memory: &Arc<Memory>, receive: bool, features: RingFeatures) -> PackedDriver {
        let slots = Slots::new(BUFFERS, SIZE);
        PackedDriver::new(memory, addresses(), slots, features, receive).expect("it fits")
    }

    fn area(memory: &Arc<Memory>) -> Area {
        memory.area(addresses().table, 16 * usize::from(SIZE), 16).expect("within")
    }

    fn uses(area: &Area, back: u16, count: u16, len: u32) {
        let at = position(back);
        let last = position(back.wrapping_add(count.wrapping_sub(1))).at();
        let last = if count > SIZE { count } else { last };
        area.store64(usize::from(at.at()) * 16 + 8, packed_word(len, last, at.used()), Release);
    }

    fn goes_on(&self, back: u16) -> bool {
        self.base() == position(back).base()
    }

    fn broken(&self) -> bool {
        self.is_broken()
    }
}

impl Driver for SplitDriver {
    fn new(memory: &Arc<Memory>, receive: bool, features: RingFeatures) -> SplitDriver {
        let slots = Slots::new(BUFFERS, SIZE);
        SplitDriver::new(memory, addresses(), slots, features, receive).expect("it fits")
    }

    fn area(memory: &Arc<Memory>) -> Area {
        memory.area(addresses().device, 6 + 8 * usize::from(SIZE), 4).expect("within")
    }

    fn uses(area: &Area, back: u16, count: u16, len: u32) {
        let at = 4 + 8 * usize::from(back % SIZE);
        let last = back.wrapping_add(count.wrapping_sub(1)) % SIZE;
        let last = if count > SIZE { count } else { last };
        area.store32(at, last.into(), Release);
        area.store32(at + 4, len, Release);
        area.store16(2, back.wrapping_add(count), Release);
    }

    fn goes_on(&self, back: u16) -> bool {
        self.base() == back
    }

    fn broken(&self) -> bool {
        self.is_broken()
    }
}

#[test]
fn a_device_tells_at_once_of_all_that_were_sent_up_to_one() {
    fn of<D: Driver>() {
        let memory = memory(SIZE);
        let (mut ring, area) = (D::new(&memory, false, features()), D::area(&memory));
        let mut back = 0;
        for (sent, reported) in [(8, 8), (16, 5), (16, 16), (1, 1), (16, 16), (15, 15)] {
            while ring.in_flight() < sent {
                assert_eq!(ring.put(&[1; 60]), PutResult::Sent);
            }
            assert_eq!(
                ring.put(&[0; FRAME_CAPACITY + 1]),
                if sent == SIZE { PutResult::Full } else { PutResult::TooLong }
            );
            Outgoing::publish(&mut ring);
            D::uses(&area, back, reported, 0);
            back += reported;
            assert!(ring.goes_on(back), "another device would go on behind them");
            assert_eq!(ring.in_flight(), sent - reported);
            assert!(!ring.broken());
        }
    }
    of::<PackedDriver>();
    of::<SplitDriver>();
}

#[test]
fn what_a_device_skips_it_has_filled() {
    fn of<D: Driver>() {
        let memory = memory(SIZE);
        let (mut ring, area) = (D::new(&memory, true, features()), D::area(&memory));
        let mut buffer = vec![0; FRAME_CAPACITY];
        let mut back = 0;
        for batch in [3, 1, 16, 7, 12] {
            for it in back..back + batch {
                // A header of one buffer.
                let at = BUFFERS + u64::from(it % SIZE) * STRIDE as u64;
                memory.write(at, &[[0; 10].as_slice(), &[1, 0], &[0; 52]].concat());
            }
            D::uses(&area, back, batch, 72);
            assert_eq!(ring.ready(2), Some(batch.min(2)));
            assert_eq!(ring.ready(64), Some(batch));
            for left in (0..batch).rev() {
                let len = if left > 0 { FRAME_CAPACITY } else { 60 };
                assert_eq!(ring.take(&mut buffer), TakeResult::Frame(len));
                assert_eq!(ring.ready(64), Some(left));
            }
            assert_eq!(ring.take(&mut buffer), TakeResult::Empty);
            Incoming::publish(&mut ring);
            back += batch;
            assert!(ring.goes_on(back));
        }
    }
    of::<PackedDriver>();
    of::<SplitDriver>();
}

#[test]
fn more_than_are_out_cannot_have_been_used() {
    fn of<D: Driver>(count: u16) {
        let memory = memory(SIZE);
        let (mut ring, area) = (D::new(&memory, false, features()), D::area(&memory));
        (0..3).for_each(|_| assert_eq!(ring.put(&[1; 60]), PutResult::Sent));
        Outgoing::publish(&mut ring);
        D::uses(&area, 0, count, 0);
        ring.in_flight();
        assert!(ring.broken(), "{count}");
        assert_eq!(ring.put(&[1; 60]), PutResult::Broken);
    }
    for count in [4, 10, SIZE, SIZE + 1, u16::MAX] {
        of::<PackedDriver>(count);
        of::<SplitDriver>(count);
    }
}

#[test]
fn an_entry_that_tells_of_more_than_the_index_does_breaks_a_split_ring() {
    for last in [5, SIZE, u16::MAX] {
        let memory = memory(SIZE);
        let (mut ring, area) =
            (<SplitDriver as Driver>::new(&memory, true, features()), SplitDriver::area(&memory));
        area.store32(4, last.into(), Release);
        area.store16(2, 5, Release);
        assert_eq!(ring.take(&mut [0; 64]), TakeResult::Broken, "{last}");
        assert!(ring.broken());
    }
}

proptest! {
    #[test]
    fn whatever_a_device_writes_ends_without_harm(
        packed: bool,
        receive: bool,
        in_order: bool,
        event: bool,
        steps in prop::collection::vec((0..7u8, 0..2 * SIZE, prop_oneof![0..SIZE + 2, any::<u16>()], 0..4u8), 0..200),
    ) {
        fn of<D: Driver>((receive, features): (bool, RingFeatures), steps: Vec<(u8, u16, u16, u8)>) {
            let memory = memory(SIZE);
            let (mut ring, area) = (D::new(&memory, receive, features), D::area(&memory));
            let mut buffer = vec![0; FRAME_CAPACITY];
            let mut large = Segments::new();
            for (step, back, count, kind) in steps {
                match step {
                    0 | 1 => D::uses(&area, back, count, count.into()),
                    2 if receive => {
                        let broken = ring.broken();
                        let taken = ring.take(&mut buffer);
                        assert!(!broken || taken == TakeResult::Broken);
                        if taken == TakeResult::Large {
                            assert_ne!(ring.take_large(&mut large), TakeResult::Empty);
                        }
                    }
                    2 => drop(ring.put(&buffer[..60])),
                    3 => drop(Incoming::publish(&mut ring)),
                    4 if receive => {
                        let waits = ring.unmask();
                        let ready = ring.ready(64);
                        assert!(ready.is_none_or(|it| it <= SIZE && (it > 0) == waits));
                    }
                    4 => assert!(ring.in_flight() <= SIZE || ring.broken()),
                    5 => {
                        // A header: the type of packet, and the number of buffers.
                        let at = BUFFERS + u64::from(back % SIZE) * STRIDE as u64;
                        memory.write(at, &[0, kind]);
                        memory.write(at + 10, &count.to_le_bytes());
                    }
                    _ => {
                        ring.goes_on(0);
                        ring.unmask();
                    }
                }
            }
        }
        let how = (receive, RingFeatures { in_order, event, ..features() });
        if packed { of::<PackedDriver>(how, steps) } else { of::<SplitDriver>(how, steps) }
    }
}
