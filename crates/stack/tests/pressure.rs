//! Full receivers: which queues and sockets are affected, and who is notified when the state ends.

mod lab;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use lab::{Lab, NAPI, RecordingListener, udp};
use napkin_core::Pressure;
use napkin_nic::Pool;
use napkin_stack::input::ACTIVE;
use napkin_stack::{FrameOutcome, Listener, UdpSocket};

fn some(port: u16, count: usize) -> Vec<Vec<u8>> {
    vec![udp(port, b"x"); count]
}

fn take(socket: &UdpSocket, count: usize) {
    for _ in 0..count {
        socket.try_recv().expect("a datagram waits");
    }
}

fn listened(lab: &Lab, port: u16, capacity: usize) -> (UdpSocket, Arc<RecordingListener>) {
    let (socket, listener) =
        (lab.stack.bind_udp(port, capacity).unwrap(), Arc::new(RecordingListener::default()));
    socket.receiver().set_listener(listener.clone());
    (socket, listener)
}

#[test]
fn a_full_socket_drops_for_itself_alone() {
    let mut lab = Lab::new();
    let stalled = lab.stack.bind_udp(7, 4).unwrap();
    let lively = lab.stack.bind_udp(9, 4).unwrap();
    let mut batch = some(7, 6);
    batch.extend(some(9, 2));
    assert_eq!(lab.receive(&batch, 0), Pressure::Room);
    assert_eq!((stalled.receiver().dropped(), lively.receiver().dropped()), (2, 0));
    take(&lively, 2);
    let counters = lab.counters();
    assert_eq!((counters.delivered(), counters.of(FrameOutcome::SocketFull)), (6, 2));
    // The buffers of dropped frames are free again.
    assert_eq!(lab.pool.available(), 256 - 4);
}

#[test]
fn it_is_full_from_75_percent_and_drained_at_25_told_once() {
    let mut lab = Lab::new();
    let (socket, listener) = listened(&lab, 7, 16);
    assert_eq!(lab.receive(&some(7, 11), 0), Pressure::Room);
    assert_eq!(lab.receive(&some(7, 1), 0), Pressure::Full);
    assert!(socket.receiver().is_full());
    take(&socket, 7);
    assert_eq!((socket.receiver().level(), listener.drained().len()), (5, 0));
    // Still full: this is hysteresis.
    assert_eq!(lab.receive(&some(7, 1), 0), Pressure::Full);
    take(&socket, 2);
    assert_eq!((socket.receiver().level(), listener.drained()), (4, vec![NAPI]));
    take(&socket, 4);
    assert!(listener.drained().is_empty());
    assert_eq!(lab.receive(&some(7, 1), 0), Pressure::Room);
}

#[test]
fn the_smallest_buffers_have_both_levels_too() {
    for capacity in 1..=5 {
        let mut lab = Lab::new();
        let (socket, listener) = listened(&lab, 7, capacity);
        assert_eq!(lab.receive(&some(7, 8), 0), Pressure::Full, "of {capacity}");
        take(&socket, capacity);
        assert_eq!(listener.drained(), [NAPI], "of {capacity}");
    }
}

#[test]
fn readable_is_said_once_a_batch_and_only_if_something_was_added() {
    let mut lab = Lab::new();
    let (_seven, at_seven) = listened(&lab, 7, 4);
    let (_nine, at_nine) = listened(&lab, 9, 4);
    let mut batch = some(7, 2);
    batch.extend(some(9, 2));
    batch.extend(some(7, 1));
    lab.receive(&batch, 0);
    assert_eq!((at_seven.readable(), at_nine.readable()), (vec![NAPI], vec![NAPI]));
    lab.receive(&some(7, 1), 0);
    assert_eq!((at_seven.readable(), at_nine.readable()), (vec![NAPI], vec![]));
    // There is no room: nothing is added, and the listener is not called.
    lab.receive(&some(7, 1), 0);
    assert!(at_seven.readable().is_empty());
}

#[test]
fn a_stalled_receiver_holds_up_nobody_while_another_is_active() {
    let mut lab = Lab::new();
    let _stalled = lab.stack.bind_udp(7, 4).unwrap();
    let lively = lab.stack.bind_udp(9, 4).unwrap();
    lab.receive(&some(9, 1), 0);
    assert_eq!(lab.receive(&some(7, 4), ACTIVE), Pressure::Room);
    // Later, nothing has arrived for the other socket, so it is inactive and the queue is full.
    assert_eq!(lab.receive(&some(7, 1), ACTIVE + 1), Pressure::Full);
    // A frame for it makes it active again.
    let mut batch = some(9, 1);
    batch.extend(some(7, 1));
    assert_eq!(lab.receive(&batch, ACTIVE + 2), Pressure::Room);
    drop(lively);
    assert_eq!(lab.receive(&some(7, 1), ACTIVE + 3), Pressure::Full);
}

#[test]
fn a_queue_without_active_receivers_has_room() {
    let mut lab = Lab::new();
    assert_eq!(lab.receive(&some(7, 8), 0), Pressure::Room);
    assert_eq!(lab.receive(&[], 0), Pressure::Room);
}

#[test]
fn everyone_who_fed_it_is_told_and_each_queue_judges_for_itself() {
    let mut lab = Lab::new();
    let (mut second, _wire) = lab.another_queue(514);
    let (_third, _wire) = lab.another_queue(515);
    let (socket, listener) = listened(&lab, 7, 4);
    let _own = lab.stack.bind_udp(9, 4).unwrap();
    second.deliver(&mut vec![lab.frame(&udp(9, b"x")), lab.frame(&udp(7, b"x"))], 0);
    assert_eq!(lab.receive(&some(7, 3), 0), Pressure::Full);
    assert_eq!(second.deliver(&mut vec![lab.frame(&udp(7, b"x"))], 0), Pressure::Room);
    take(&socket, 4);
    assert_eq!(listener.drained(), [NAPI, 514]);
}

#[test]
fn a_queue_that_counts_on_a_full_receiver_is_told_although_another_filled_it() {
    let mut lab = Lab::new();
    let (mut second, _wire) = lab.another_queue(514);
    let (socket, listener) = listened(&lab, 7, 4);
    let _own = lab.stack.bind_udp(9, 4).unwrap();
    second.deliver(&mut vec![lab.frame(&udp(7, b"x"))], 0);
    lab.receive(&some(7, 3), 0);
    take(&socket, 4);
    assert_eq!(listener.drained(), [NAPI, 514]);
    lab.receive(&some(7, 4), 0);
    let mut nines: Vec<_> = (0..4).map(|_| lab.frame(&udp(9, b"x"))).collect();
    assert_eq!(second.deliver(&mut nines, 0), Pressure::Full);
    take(&socket, 4);
    assert_eq!(listener.drained(), [NAPI, 514]);
}

#[test]
fn closing_a_full_socket_tells_its_queues() {
    let mut lab = Lab::new();
    let (socket, listener) = listened(&lab, 7, 4);
    assert_eq!(lab.receive(&some(7, 4), 0), Pressure::Full);
    drop(socket);
    assert_eq!(listener.drained(), [NAPI]);
}

/// Parks the queues of a test as the engine does: not if `drained` was called in the meantime.
#[derive(Default)]
struct ParkedQueues {
    polled: Mutex<[bool; 2]>,
    change: Condvar,
}

impl Listener for ParkedQueues {
    fn readable(&self, _: u32) {}

    fn drained(&self, napi_id: u32) {
        self.polled.lock().unwrap()[(napi_id - NAPI) as usize] = true;
        self.change.notify_all();
    }
}

impl ParkedQueues {
    /// Waits for `drained`. The time limit only turns a lost wake-up into a failure.
    fn park(&self, queue: usize) {
        let polled = self.polled.lock().unwrap();
        let (mut polled, late) = self
            .change
            .wait_timeout_while(polled, Duration::from_secs(20), |polled| !polled[queue])
            .unwrap();
        assert!(!late.timed_out(), "queue {queue} was never told");
        polled[queue] = false;
    }
}

#[test]
fn two_queues_and_an_application_at_full_speed_lose_no_wake_up_and_no_frame() {
    const EACH: u64 = 60_000;
    let lab = Lab::new();
    let socket = lab.stack.bind_udp(7, 8).unwrap();
    let parked = Arc::new(ParkedQueues::default());
    socket.receiver().set_listener(parked.clone());
    let (second, _wire) = lab.another_queue(NAPI + 1);
    let (done, taken) = (AtomicBool::new(false), AtomicU64::new(0));
    let stack = Arc::clone(&lab.stack);
    std::thread::scope(|scope| {
        let queues: Vec<_> = [lab.input, second]
            .into_iter()
            .enumerate()
            .map(|(queue, mut input)| {
                let parked = &parked;
                scope.spawn(move || {
                    let (pool, bytes) = (Pool::new(64), udp(7, b"x"));
                    let mut batch = Vec::with_capacity(4);
                    for burst in 0..EACH / 4 {
                        while batch.len() < 4 {
                            let Some(mut frame) = pool.take() else { continue };
                            frame.buffer()[..bytes.len()].copy_from_slice(&bytes);
                            frame.set_len(bytes.len());
                            batch.push(frame);
                        }
                        if input.deliver(&mut batch, burst) == Pressure::Full {
                            parked.park(queue);
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) || socket.readable() {
                match socket.try_recv() {
                    Some(_) => drop(taken.fetch_add(1, Ordering::SeqCst)),
                    None => std::thread::yield_now(),
                }
            }
        });
        let results: Vec<_> = queues.into_iter().map(|queue| queue.join()).collect();
        done.store(true, Ordering::SeqCst);
        assert!(results.iter().all(Result::is_ok));
    });
    let counters = stack.counters();
    assert_eq!(counters.frames, 2 * EACH);
    assert_eq!(counters.accounted(), counters.frames);
    assert_eq!(counters.delivered(), taken.load(Ordering::SeqCst));
    assert_eq!(counters.of(FrameOutcome::SocketFull), socket.receiver().dropped());
}

#[test]
fn sockets_that_come_and_go_under_traffic_leave_nothing_behind() {
    const EACH: u64 = 20_000;
    let lab = Lab::new();
    let stack = Arc::clone(&lab.stack);
    let pool = Pool::new(64);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (pool, done, mut input) = (&pool, &done, lab.input);
        scope.spawn(move || {
            let bytes = udp(7, b"x");
            for now in 0..EACH {
                let mut frame = pool.take().expect("a closed socket gives its frames back");
                frame.buffer()[..bytes.len()].copy_from_slice(&bytes);
                frame.set_len(bytes.len());
                input.deliver(&mut vec![frame], now);
            }
            done.store(true, Ordering::SeqCst);
        });
        while !done.load(Ordering::SeqCst) {
            let socket = stack.bind_udp(7, 4).unwrap();
            while socket.receiver().level() < 2 && !done.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        }
    });
    let counters = stack.counters();
    assert_eq!((counters.frames, counters.accounted()), (EACH, EACH));
    assert_eq!(pool.available(), 64);
}
