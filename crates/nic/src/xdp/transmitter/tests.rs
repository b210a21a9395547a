//! Tests of several senders on one ring, and of the calls to the kernel.

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::super::hostile::Kernel;
use super::super::ring::OwnRing;
use super::*;

const SIZE: u32 = 8;

/// A wire with a full, unpublished ring, and three more frames in the list of senders that found the ring taken.
fn full(frames_a_call: u32) -> Wire {
    let (transmit, complete) = (OwnRing::new(SIZE), OwnRing::new(2 * SIZE));
    // XDP_RING_NEED_WAKEUP: the kernel asks to be called.
    transmit.words[2].store(1, Relaxed);
    let ends = (Producer::over(&transmit), Consumer::over(&complete));
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    let mut socket = XdpSocket::other(socket.expect("a socket of any kind"));
    socket.kernel = Some(Kernel::new(transmit, complete, frames_a_call));
    let wire =
        Wire::new(socket, ends, &Pool::new(32), SIZE as usize, Arc::new(())).expect("a timer");
    (0..SIZE).for_each(|_| wire.post(&[1; 60], 0).expect("there is room"));
    assert_eq!(calls_of(&wire), 0, "they wait for more");
    let taken = wire.try_ring().expect("nobody has it");
    (0..3).for_each(|_| wire.send(&[2; 60], 0).expect("it is left"));
    drop(taken);
    wire
}

fn calls_of(wire: &Wire) -> u32 {
    wire.socket.kernel.as_ref().map_or(0, |it| it.calls.load(Relaxed))
}

fn sent_and_dropped(wire: &Wire) -> (u64, u64) {
    let counts = wire.counters.read();
    (counts.tx_packets, counts.tx_dropped)
}

#[test]
fn what_others_left_at_a_full_ring_goes_out_once_the_kernel_was_called() {
    let wire = full(SIZE);
    wire.flush();
    assert_eq!(sent_and_dropped(&wire), (u64::from(SIZE) + 3, 0));
    assert_eq!(calls_of(&wire), 2, "one for room, one for those that were left");
    assert_eq!(wire.in_flight(), 0);
    assert_eq!(wire.pool.available(), 32 - SIZE as usize, "their buffers are back");
}

#[test]
fn a_kernel_that_makes_no_room_is_called_once_for_all_that_were_left() {
    let wire = full(0);
    wire.flush();
    assert_eq!(sent_and_dropped(&wire), (SIZE.into(), 3));
    assert_eq!(calls_of(&wire), 1);
    assert!(wire.retry.stuck(), "the ring waits for the next call");
    assert_eq!(wire.in_flight(), SIZE as usize);
    assert_eq!(wire.pool.available(), 32 - SIZE as usize, "the dropped ones' buffers are back");
}

#[test]
fn a_kernel_that_has_not_taken_all_and_asks_for_no_call_is_looked_at_again() {
    let looks: [fn(&Wire); 2] = [|wire| wire.flush_and_recheck(), |wire| _ = wire.poll()];
    for look in looks {
        let wire = full(SIZE);
        let kernel = wire.socket.kernel.as_ref().expect("it was put there");
        let asks = &kernel.transmit.words[2];
        asks.store(0, Relaxed);
        wire.flush();
        look(&wire);
        assert_eq!((calls_of(&wire), wire.retry.stuck()), (0, false), "it takes them, perhaps");
        asks.store(1, Relaxed);
        look(&wire);
        assert_eq!((calls_of(&wire), wire.in_flight()), (1, 0), "it has fallen asleep");
        look(&wire);
        assert_eq!(calls_of(&wire), 1);
    }
}

#[test]
fn a_sender_that_was_preempted_before_its_frame_was_there_stops_nobody() {
    let wire = full(SIZE);
    let place = wire.queued.reserve_slot();
    let taken = wire.try_ring().expect("nobody has it");
    wire.send(&[3; 60], 0).expect("it is left");
    drop(taken);
    wire.flush();
    wire.poll();
    assert_eq!(sent_and_dropped(&wire), (u64::from(SIZE) + 3, 0), "those before it went");
    wire.send(&[4; 60], 0).expect("it is left, too");
    assert_eq!(sent_and_dropped(&wire), (u64::from(SIZE) + 3, 0), "it overtakes nobody");

    let mut late = wire.pool.take().expect("a buffer");
    late.set_len(60);
    wire.queued.fill_slot(place, late);
    wire.poll();
    assert_eq!(sent_and_dropped(&wire), (u64::from(SIZE) + 6, 0));
    assert_eq!(wire.in_flight(), 0);
}

#[test]
fn buffers_go_back_later_where_the_card_may_still_write_into_them() {
    let pool = Pool::new(2);
    for (zero_copy, at_once) in [(false, 2), (true, 0)] {
        let lent: Vec<u32> = std::iter::from_fn(|| pool.lend()).collect();
        drop(RetiredBuffers { pool: pool.clone(), zero_copy, buffers: Mutex::new(lent) });
        assert_eq!(pool.available(), at_once);
    }
    napkin_testing::until("they are back", || pool.available() == 2);
}
