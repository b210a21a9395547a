//! Every delivery mode on real threads: frames in at a synthetic queue, echoes out.

mod common;

use std::time::Duration;

use common::{HANGS, POLICIES, PORT, Setup, alone, echo_for, eventually, mode, policy, start};
use napkin_core::CpuId;
use napkin_engine::{Class, Epoll, sched};
use napkin_policy::Threaded;
use napkin_testing::{needs, test};

#[test]
fn every_policy_echoes_every_datagram() {
    let _alone = alone();
    for name in POLICIES {
        let setup = Setup { count: 200, per_second: 4_000.0, ..Setup::default() };
        let outcome = echo_for(&policy(name), &setup, Duration::from_secs(5));
        eprintln!("{name}: {outcome:?}");
        assert_eq!(outcome.echoed, 200, "{name}: {outcome:?}");
        assert_eq!(outcome.panics, 0, "{name}");
    }
}

#[test]
fn a_busy_poll_of_a_queue_that_its_thread_never_lets_go_of_ends_with_the_wait() {
    let _alone = alone();
    let policy = policy("napibusy,threaded=busy-poll");
    let (engine, source) = start(&policy, &Setup::default());
    let socket = engine.stack("syn0").expect("the device").bind_udp(PORT, 64).expect("a port");
    let mut epoll = Epoll::new(&engine, CpuId(0), policy.epoll).expect("parameters");
    epoll.add(&socket, 0).expect("room");
    let mut events = Vec::new();
    // A frame makes the epoll follow its queue.
    epoll.wait(&mut events, 64, Some(HANGS)).expect("a wait");
    assert_eq!(events.len(), 1);
    source.stop();
    let waits = std::thread::spawn(move || {
        // The first wait that finds nothing follows one that found a frame, and so it busy polls.
        while !events.is_empty() {
            while socket.try_recv().is_some() {}
            epoll.wait(&mut events, 64, Some(Duration::from_millis(10))).expect("a wait");
        }
    });
    eventually("the end of a wait", || waits.is_finished());
    waits.join().expect("no panic");
    engine.stop();
}

#[test]
fn a_thread_without_a_place_has_the_engine_s_whoever_changes_the_mode() {
    let _alone = alone();
    let class = sched::class(None).expect("it lives");
    let usable = sched::usable_cpus();
    let (engine, _source) = start(&policy("base"), &Setup::default());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            sched::pin(None, &usable[..1]).expect("it is there");
            // Without the right this thread keeps its class.
            let _ = sched::classify(None, Class::Fifo(1));
            engine.change(1, &mode(Threaded::Enabled).into()).expect("a thread");
        });
    });
    let thread = engine.napi(1).expect("it is there").pid;
    assert!(thread.is_some());
    assert_eq!(sched::affinity(thread).expect("it lives"), usable);
    assert_eq!(sched::class(thread).expect("it lives"), class);
    engine.stop();
}

#[test]
fn a_thread_without_a_class_has_that_of_the_engine_s_start_whoever_changes_the_mode() {
    let _alone = alone();
    let born = sched::class(None).expect("it lives");
    // Changing from these to batch and back takes no right; from idle, or to a lower nice value, it may.
    needs(matches!(born, Class::Fair | Class::Batch), "to be started fair or batch");
    for (starts, changes) in [(born, Class::Batch), (Class::Batch, born)] {
        sched::classify(None, starts).expect("it takes no right");
        let (engine, _source) = start(&policy("base"), &Setup::default());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sched::classify(None, changes).expect("it takes no right");
                engine.change(1, &mode(Threaded::Enabled).into()).expect("a thread");
            });
        });
        let thread = engine.napi(1).expect("it is there").pid;
        assert!(thread.is_some());
        assert_eq!(sched::class(thread).expect("it lives"), starts);
        engine.stop();
    }
    sched::classify(None, born).expect("it takes no right");
}

napkin_testing::main!();
