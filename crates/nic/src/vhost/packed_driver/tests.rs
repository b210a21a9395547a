//! Devices that use buffers in order, and tell of several by one descriptor.

use proptest::prelude::*;

use super::super::memory::Area;
use super::super::slots::STRIDE;
use super::*;
use crate::FRAME_CAPACITY;

const START: u64 = 1 << 32;
const BUFFERS: u64 = START + 0x1000;
const SIZE: u16 = 16;
const AT: RingAddresses =
    RingAddresses { table: START, driver: START + 0x800, device: START + 0x900 };
const FEATURES: RingFeatures = RingFeatures {
    in_order: true,
    event: false,
    mergeable: false,
    checksums: false,
    indirect: false,
    tso4: false,
    tso6: false,
};

/// A driver, and its table as the device has it.
fn driver(receive: bool) -> (PackedDriver, Area, Arc<Memory>) {
    let len = 0x1000 + STRIDE as u64 * u64::from(SIZE);
    let memory = Arc::new(Memory::own(START, len).expect("a memfd").0);
    let slots = Slots::new(BUFFERS, SIZE);
    let driver = PackedDriver::new(&memory, AT, slots, FEATURES, receive).expect("it fits");
    let table = memory.area(START, 16 * usize::from(SIZE), 16).expect("within");
    (driver, table, memory)
}

/// The device tells at a place that all up to `last` were used, with so many bytes in that.
fn uses(table: &Area, at: Turn, last: u16, len: u32) {
    let place = usize::from(at.at()) * 16;
    table.store64(place + 8, packed_word(len, last, at.used()), Release);
}

#[test]
fn a_used_descriptor_tells_of_all_that_were_sent_up_to_it() {
    let (mut ring, table, _memory) = driver(false);
    let mut device = Turn::first(SIZE);
    for (sent, told) in [(8, 8), (16, 5), (16, 16), (1, 1), (16, 16), (15, 15)] {
        while ring.under_way() < sent {
            assert_eq!(ring.put(&[1; 60]), Put::Sent);
        }
        assert_eq!(
            ring.put(&[0; FRAME_CAPACITY + 1]),
            if sent == SIZE { Put::Full } else { Put::TooLong }
        );
        Outgoing::publish(&mut ring);
        let mut last = device;
        last.step(told - 1);
        uses(&table, device, last.at(), 0);
        device.step(told);
        assert_eq!(ring.base(), device.base(), "another device would go on behind them");
        assert_eq!(ring.under_way(), sent - told);
        assert!(!ring.is_broken());
    }
}

#[test]
fn what_a_device_skips_it_has_filled() {
    let (mut ring, table, memory) = driver(true);
    let mut buffer = vec![0; FRAME_CAPACITY];
    let whole = ring.slots.len();
    let mut device = Turn::first(SIZE);
    for batch in [3, 1, 16, 7, 12] {
        for back in 0..batch {
            let mut at = device;
            at.step(back);
            memory.write(BUFFERS + u64::from(at.at()) * STRIDE as u64, &[0; 64]);
        }
        let mut last = device;
        last.step(batch - 1);
        uses(&table, device, last.at(), 72);
        assert_eq!((ring.ready(64), ring.ready(2)), (Some(batch), Some(batch.min(2))));
        for left in (0..batch).rev() {
            let len = if left > 0 { whole as usize - HEADER } else { 60 };
            assert_eq!(ring.take(&mut buffer), Taken::Frame(len));
            assert_eq!(ring.ready(64), Some(left));
        }
        assert_eq!(ring.take(&mut buffer), Taken::Empty);
        Incoming::publish(&mut ring);
        device.step(batch);
        assert_eq!(ring.base(), device.base());
    }
}

#[test]
fn more_than_are_out_cannot_have_been_used() {
    for last in [3, 9, SIZE - 1, SIZE, u16::MAX] {
        let (mut ring, table, _memory) = driver(false);
        (0..3).for_each(|_| assert_eq!(ring.put(&[1; 60]), Put::Sent));
        Outgoing::publish(&mut ring);
        uses(&table, Turn::first(SIZE), last, 0);
        ring.under_way();
        assert!(ring.is_broken(), "{last}");
        assert_eq!(ring.put(&[1; 60]), Put::Broken);
    }
}

proptest! {
    #[test]
    fn whatever_a_device_writes_ends_without_harm(
        receive: bool,
        steps in prop::collection::vec((0..6u8, 0..SIZE, prop_oneof![0..SIZE + 2, any::<u16>()], any::<bool>()), 0..200),
    ) {
        let (mut ring, table, _memory) = driver(receive);
        let mut buffer = vec![0; FRAME_CAPACITY];
        for (step, place, last, lap) in steps {
            match step {
                0 | 1 => {
                    let turn = Turn::new(place, lap.into(), SIZE).expect("within");
                    uses(&table, turn, last, last.into());
                }
                2 if receive => {
                    let broken = ring.is_broken();
                    let taken = ring.take(&mut buffer);
                    prop_assert!(!broken || taken == Taken::Broken);
                }
                2 => drop(ring.put(&buffer[..60])),
                3 => drop(Incoming::publish(&mut ring)),
                4 if receive => {
                    let waits = ring.unmask();
                    let ready = ring.ready(64);
                    prop_assert!(ready.is_none_or(|it| it <= SIZE && (it > 0) == waits));
                }
                4 => prop_assert!(ring.under_way() <= SIZE),
                _ => {
                    ring.base();
                    ring.unmask();
                }
            }
        }
    }
}
