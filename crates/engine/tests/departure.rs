//! The application goes away under traffic, in every way it can: its packets are held up no longer than its queue's
//! settings allow, and other applications do not notice.

mod common;

use std::time::{Duration, Instant};

use common::app::App;
use common::{HANGS, PORT, Setup, alone, eventually, policy, start};
use napkin_core::CpuId;
use napkin_engine::{Engine, Epoll, Event, WaitError};
use napkin_policy::Policy;
use napkin_stack::{FrameOutcome, UdpSocket};
use napkin_traffic::SplitMix as Rng;

/// Two sockets' traffic on one queue.
const TWO: Setup = Setup {
    count: u64::MAX,
    per_second: 10_000.0,
    seed: 3,
    queues: 1,
    cpus: 1,
    ports: 2,
    start: 50_000_000,
    delivery_cost: 0,
};

/// Number of times a socket is dropped under each policy.
const ROUNDS: usize = 8;

/// An application that this test drives by hand, on the second port.
struct Hand {
    epoll: Epoll,
    socket: UdpSocket,
    events: Vec<Event>,
}

impl Hand {
    fn new(engine: &Engine, policy: &Policy) -> Hand {
        let socket = engine.stack("syn0").expect("the device").bind_udp(PORT + 1, 512);
        let socket = socket.expect("a port");
        let mut epoll = Epoll::new(engine, CpuId(0), policy.epoll).expect("parameters");
        epoll.add(&socket, 0).expect("room");
        Hand { epoll, socket, events: Vec::new() }
    }

    /// Serves until the last wait has suspended the queue's interrupts.
    fn serve_until_suspended(&mut self, engine: &Engine) {
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < HANGS, "it never suspends");
            self.epoll.wait(&mut self.events, 64, Some(HANGS)).expect("a wait");
            if !self.events.is_empty() && engine.napi(1).expect("the instance").suspending == 1 {
                return;
            }
            while self.socket.try_recv().is_some() {}
        }
    }
}

fn goes_on(app: &App, what: &str) {
    let before = app.received();
    eventually(&format!("traffic to the other socket {what}"), || app.received() >= before + 100);
}

#[test]
fn a_socket_is_dropped() {
    let _alone = alone();
    let mut rng = Rng::new(5);
    for name in common::POLICIES {
        let policy = policy(name);
        let (engine, source) = start(&policy, &TWO);
        let stays = App::start(&engine, PORT, &policy, Some(Duration::from_millis(5)));
        goes_on(&stays, &format!("before anybody leaves ({name})"));
        for round in 0..ROUNDS {
            let leaves = App::start(&engine, PORT + 1, &policy, Some(Duration::from_millis(5)));
            // Before its first frame, at work, or asleep: the seed decides the moment.
            let moment = Duration::from_micros(rng.below(6_000));
            std::thread::sleep(moment);
            leaves.stop();
            goes_on(&stays, &format!("that stays ({name}, round {round}, after {moment:?})"));
        }
        source.stop();
        let stack = engine.stack("syn0").expect("the device");
        eventually("frames for nobody are counted", || {
            stack.counters().of(FrameOutcome::NoPort) > 0
        });
        stays.stop();
        engine.stop();
    }
}

#[test]
fn an_epoll_is_dropped_that_suspends() {
    let _alone = alone();
    // The longest timeout that is allowed: if the suspension did not end with the epoll, it would show.
    let mut policy = policy("suspend20");
    policy.instance.irq_suspend_timeout = 10_000_000_000;
    let (engine, source) = start(&policy, &TWO);
    let other = App::start(&engine, PORT, &common::policy("base"), None);
    for _ in 0..20 {
        let mut hand = Hand::new(&engine, &policy);
        hand.serve_until_suspended(&engine);
        drop(hand);
        assert_eq!(engine.napi(1).expect("the instance").suspending, 0);
        goes_on(&other, "after the epoll is gone");
    }
    source.stop();
    engine.stop();
    assert!(other.join());
}

#[test]
fn an_application_stops_calling_while_it_suspends() {
    let _alone = alone();
    let policy = policy("suspend20");
    let (engine, source) = start(&policy, &TWO);
    let other = App::start(&engine, PORT, &common::policy("base"), None);
    for _ in 0..10 {
        let mut hand = Hand::new(&engine, &policy);
        hand.serve_until_suspended(&engine);
        let before = engine.napi(1).expect("the instance").counts;
        // From here on the application does nothing. The safety timeout ends the suspension, once, and from then on
        // the queue is served without the application.
        eventually("the safety timeout", || engine.napi(1).expect("the instance").suspending == 0);
        goes_on(&other, "while the first application sleeps");
        let counts = engine.napi(1).expect("the instance").counts.since(&before);
        assert!(counts.timer_polls + counts.timer_missed > 0, "a timer ended it: {counts:?}");
        drop(hand);
    }
    source.stop();
    engine.stop();
    assert!(other.join());
}

#[test]
fn an_application_that_stalls_behind_a_full_receiver_delays_no_other() {
    let _alone = alone();
    for name in ["feedback", "feedback,threaded=enabled", "feedback,threaded=workqueue"] {
        let policy = policy(name);
        let (engine, source) = start(&policy, &TWO);
        let hand = Hand::new(&engine, &policy);
        let other = App::start(&engine, PORT, &policy, None);
        goes_on(&other, "before the first is full");
        eventually("the first is full", || hand.socket.receiver().is_full());
        goes_on(&other, "while the first is full");
        source.stop();
        engine.stop();
        assert!(other.join());
    }
}

#[test]
fn an_engine_is_dropped_before_its_epoll() {
    let _alone = alone();
    for name in ["base", "suspend20", "napibusy", "fullbusy"] {
        let policy = policy(name);
        let (engine, _source) = start(&policy, &TWO);
        let mut hand = Hand::new(&engine, &policy);
        hand.epoll.wait(&mut hand.events, 64, Some(HANGS)).expect("a wait");
        drop(engine);
        for timeout in [None, Some(Duration::ZERO), Some(Duration::from_secs(1000))] {
            let wait = hand.epoll.wait(&mut hand.events, 64, timeout);
            assert_eq!(wait, Err(WaitError::Stopped), "{name}, {timeout:?}");
        }
        while hand.socket.try_recv().is_some() {}
    }
}
