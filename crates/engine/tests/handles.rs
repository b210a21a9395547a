//! The handles that an application keeps or drops hold neither devices nor each other.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{HANGS, PORT, Setup, alone, eventually, policy, start};
use napkin_core::CpuId;
use napkin_engine::{ApplicationWait, Blocking, Epoll, WATCHES, WaitError};
use napkin_policy::EpollPolicy;
use napkin_stack::TcpLimits;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("procfs").count()
}

#[test]
fn nothing_of_an_engine_is_left_after_its_stop() {
    let _alone = alone();
    let policy = policy("busypoll");
    let setup = Setup { per_second: 2_000.0, start: 10_000_000, ..Setup::default() };
    let once = || {
        let (engine, _source) = start(&policy, &setup);
        let socket = engine.stack("syn0").expect("the device").bind_udp(PORT, 64).expect("a port");
        let mut options = policy.application;
        options.socket_prefer_busy_poll = false;
        let blocking = Blocking::new(&engine, CpuId(0), &socket, options).expect("options");
        while socket.try_recv().is_none() {
            blocking.wait(Some(Duration::from_millis(10))).expect("a wait");
        }
        drop((socket, blocking));
        engine.stop();
    };
    once();
    let before = descriptors();
    (0..5).for_each(|_| once());
    assert_eq!(descriptors(), before, "descriptors leak");
}

#[test]
fn an_epoll_that_was_told_of_its_socket_leaves_nothing() {
    let _alone = alone();
    let policy = policy("base");
    let setup = Setup { per_second: 10_000.0, start: 0, ..Setup::default() };
    let once = |epoll_first: bool| {
        let (engine, _source) = start(&policy, &setup);
        let socket = engine.stack("syn0").expect("the device").bind_udp(PORT, 64).expect("a port");
        let mut epoll = Epoll::new(&engine, CpuId(0), policy.epoll).expect("parameters");
        epoll.add(&socket, 0).expect("room");
        eventually("a frame", || socket.readable());
        if epoll_first {
            drop(epoll);
            drop(socket);
        } else {
            drop(socket);
            drop(epoll);
        }
        engine.stop();
    };
    once(true);
    let before = descriptors();
    for epoll_first in [true, false] {
        once(epoll_first);
        assert_eq!(descriptors(), before, "epoll first: {epoll_first}");
    }
}

#[test]
fn a_handle_that_outlives_the_engine_keeps_no_device() {
    let _alone = alone();
    let before = descriptors();
    // The source's control would keep its timer.
    let (engine, _) = start(&policy("base"), &Setup::default());
    let epoll = Epoll::new(&engine, CpuId(0), policy("base").epoll).expect("parameters");
    let with = descriptors();
    engine.stop();
    assert!(descriptors() < with, "the queue's descriptor has gone");
    drop(epoll);
    assert_eq!(descriptors(), before);
}

#[test]
fn a_socket_s_last_epoll_keeps_it_when_the_first_one_goes() {
    let _alone = alone();
    let setup = Setup { per_second: 2_000.0, ..Setup::default() };
    let (engine, _source) = start(&policy("base"), &setup);
    let socket = engine.stack("syn0").expect("the device").bind_udp(PORT, 64).expect("a port");
    let new = || Epoll::new(&engine, CpuId(0), policy("base").epoll).expect("parameters");
    let (mut first, mut second) = (new(), new());
    first.add(&socket, 1).expect("room");
    second.add(&socket, 2).expect("room");
    drop(first);
    let mut events = Vec::new();
    eventually("an event at the second epoll", || {
        second.wait(&mut events, 8, Some(Duration::from_millis(50))).expect("a wait");
        events.iter().any(|event| event.token == 2)
    });
    second.remove(&socket);
    second.wait(&mut events, 8, Some(Duration::ZERO)).expect("a wait");
    assert!(events.is_empty(), "it is watched no more");
    engine.stop();
}

/// The tokens that a look of an epoll reports.
fn tokens(epoll: &Epoll) -> Vec<u64> {
    let mut events = Vec::new();
    epoll.wait(&mut events, 8, Some(Duration::ZERO)).expect("a wait");
    events.iter().map(|event| event.token).collect()
}

#[test]
fn a_socket_is_reported_by_whoever_watched_it_last_and_by_nobody_else() {
    let _alone = alone();
    let setup = Setup { count: 1, per_second: 10_000.0, ..Setup::default() };
    let (engine, _source) = start(&policy("base"), &setup);
    let socket = engine.stack("syn0").expect("the device").bind_udp(PORT, 64).expect("a port");
    let new = || Epoll::new(&engine, CpuId(0), policy("base").epoll).expect("parameters");
    let (mut first, mut second) = (new(), new());
    first.add(&socket, 1).expect("room");
    eventually("a frame that nobody takes", || tokens(&first) == [1]);
    // Again in the same epoll: once, under the new token.
    first.add(&socket, 2).expect("room");
    assert_eq!(tokens(&first), [2]);
    second.add(&socket, 3).expect("room");
    assert_eq!(tokens(&first), [0; 0]);
    assert_eq!(tokens(&second), [3]);
    let options = policy("base").application;
    let blocking = Blocking::new(&engine, CpuId(0), &socket, options).expect("options");
    assert_eq!(tokens(&second), [0; 0]);
    assert_eq!(blocking.wait(Some(Duration::ZERO)), Ok(true));
    second.add(&socket, 4).expect("room");
    assert_eq!(tokens(&second), [4]);
    engine.stop();
}

#[test]
fn a_socket_that_is_added_over_and_over_takes_one_place() {
    let _alone = alone();
    let setup = Setup { count: 1, per_second: 10_000.0, ..Setup::default() };
    let (engine, _source) = start(&policy("base"), &setup);
    let socket = engine.stack("syn0").expect("the device").bind_udp(PORT, 64).expect("a port");
    let mut epoll = Epoll::new(&engine, CpuId(0), policy("base").epoll).expect("parameters");
    eventually("a frame that nobody takes", || socket.readable());
    for token in 0..20_000 {
        epoll.add(&socket, token).expect("room");
    }
    assert_eq!(tokens(&epoll), [19_999]);
    engine.stop();
}

#[test]
fn sockets_may_come_and_go_without_a_wait_between() {
    let _alone = alone();
    let setup = Setup { count: 8, per_second: 10_000.0, ..Setup::default() };
    let (engine, source) = start(&policy("base"), &setup);
    let socket = engine.stack("syn0").expect("the device").bind_udp(PORT, 64).expect("a port");
    eventually("frames in the socket", || source.offered() == 8 && socket.readable());
    let mut epoll = Epoll::new(&engine, CpuId(0), policy("base").epoll).expect("parameters");
    for token in 0..20_000 {
        epoll.add(&socket, token).expect("room");
        epoll.remove(&socket);
    }
    epoll.add(&socket, 7).expect("room");
    let mut events = Vec::new();
    epoll.wait(&mut events, 8, Some(Duration::from_secs(1))).expect("a wait");
    assert_eq!(events.len(), 1);
    engine.stop();
}

#[test]
fn sockets_that_close_without_a_word_do_not_fill_an_epoll() {
    let _alone = alone();
    let (engine, _source) = start(&policy("base"), &Setup::default());
    let stack = engine.stack("syn0").expect("the device");
    let mut epoll = Epoll::new(&engine, CpuId(0), policy("base").epoll).expect("parameters");
    let mut events = Vec::new();
    for token in 0..=WATCHES as u64 {
        let socket = stack.bind_udp(PORT, 4).expect("a port");
        epoll.add(&socket, token).expect("room");
        drop(socket);
        epoll.wait(&mut events, 8, Some(Duration::ZERO)).expect("a wait");
        assert!(events.iter().any(|event| event.token == token), "{token} has closed");
    }
    engine.stop();
}

#[test]
fn a_wait_ends_when_its_socket_closes_and_one_that_has_closed_is_reported() {
    let _alone = alone();
    let policy = policy("base");
    let (engine, _source) = start(&policy, &Setup::default());
    let stack = engine.stack("syn0").expect("the device");
    let worker = stack.open_tcp::<()>(None, TcpLimits::default()).expect("a worker");
    let segments = worker.segments();
    let options = policy.application;
    let blocking = Blocking::new(&engine, CpuId(0), &segments, options).expect("options");
    let waits = std::thread::spawn(move || blocking.wait(None));
    // Usually it sleeps by then.
    std::thread::sleep(Duration::from_millis(20));
    drop(worker);
    eventually("the end of a wait", || waits.is_finished());
    assert_eq!(waits.join().expect("no panic"), Ok(true));
    let mut epoll = Epoll::new(&engine, CpuId(0), policy.epoll).expect("parameters");
    epoll.add(&segments, 1).expect("room");
    assert_eq!(tokens(&epoll), [1]);
    engine.stop();
}

#[test]
fn who_receives_leaves_the_polling_to_a_separate_poller() {
    let _alone = alone();
    let mut policy = policy("busypoll-separate");
    policy.application.socket_prefer_busy_poll = false;
    let (engine, _source) = start(&policy, &Setup::default());
    let socket = engine.stack("syn0").expect("the device").bind_udp(PORT, 64).expect("a port");
    let mut waits = ApplicationWait::new(&engine, CpuId(0), &socket, &policy).expect("options");
    let claims = || engine.napi(1).expect("its instance").counts.busy_claims;
    for _ in 0..10 {
        assert_eq!(waits.wait(Some(HANGS)), Ok(true));
        while socket.try_recv().is_some() {}
    }
    assert_eq!(claims(), 0);
    let poller = waits.poller(CpuId(0)).expect("the policy asks for one");
    eventually("a poll by it", || {
        poller.poll().expect("a poll");
        claims() > 0
    });
    engine.stop();
}

#[test]
fn an_epoll_that_moves_through_many_threads_leaves_no_trail() {
    let _alone = alone();
    let (engine, _source) = start(&policy("base"), &Setup::default());
    let fixed = engine.activities().len();
    let epoll = Epoll::new(&engine, CpuId(0), EpollPolicy::default()).expect("parameters");
    for _ in 0..1_000 {
        let look = || epoll.wait(&mut Vec::new(), 1, Some(Duration::ZERO)).expect("a wait");
        std::thread::scope(|scope| scope.spawn(look).join().expect("no panic"));
    }
    assert_eq!(engine.activities().len(), fixed + 1, "the last thread's, and no other's");
    drop(epoll);
    engine.stop();
}

#[test]
fn an_epoll_s_parameters_are_read_as_they_were_set() {
    let _alone = alone();
    let (engine, _source) = start(&policy("base"), &Setup::default());
    let epoll = Epoll::new(&engine, CpuId(0), EpollPolicy::default()).expect("parameters");
    let params = EpollPolicy {
        busy_poll_usecs: 50,
        busy_poll_budget: 64,
        prefer_busy_poll: true,
        keep_napi_id: true,
    };
    epoll.set_params(params).expect("within the limits");
    assert_eq!(epoll.params(), params);
    let longer = EpollPolicy { busy_poll_usecs: 1 << 31, ..params };
    assert_eq!(epoll.set_params(longer), Err(WaitError::Usecs(1 << 31)));
    assert_eq!(epoll.params(), params, "what is refused changes nothing");
    engine.stop();
}

#[test]
fn a_socket_s_budget_takes_the_right_that_the_kernel_asks_for() {
    let _alone = alone();
    let (engine, _source) = start(&policy("base"), &Setup::default());
    let refused = |text: &str| {
        let socket = engine.stack("syn0").expect("the device").bind_udp(PORT, 64).expect("a port");
        Blocking::new(&engine, CpuId(0), &socket, policy(text).application).err()
    };
    let unprivileged = || {
        let mut sets = capabilities(None).expect("its own");
        sets.effective.remove(CapabilitySet::NET_ADMIN);
        set_capabilities(None, sets).expect("giving up is allowed");
        assert_eq!(refused("socket-busy-poll-usecs=1"), None);
        // A new socket's budget is 0, and raising it takes the right.
        for budget in [1, 64, 65] {
            let asked = format!("socket-busy-poll-usecs=1,socket-busy-poll-budget={budget}");
            assert_eq!(refused(&asked), Some(WaitError::SocketBudget(budget)));
        }
    };
    std::thread::scope(|scope| scope.spawn(unprivileged).join().expect("no panic"));
    engine.stop();
}

#[test]
fn a_waker_ends_one_wait_whether_it_has_begun_or_not() {
    let _alone = alone();
    for name in ["base", "suspend20", "napibusy", "busypoll"] {
        let mut policy = policy(name);
        policy.application.socket_prefer_busy_poll = false;
        let (engine, _source) = start(&policy, &Setup::default());
        // No frame is sent there.
        let socket = engine.stack("syn0").expect("the device").bind_udp(9, 64).expect("a port");
        let mut waits = ApplicationWait::new(&engine, CpuId(0), &socket, &policy).expect("options");
        let (waker, ended) = (waits.waker(), Arc::<AtomicU64>::default());
        waker.wake();
        let count = Arc::clone(&ended);
        let thread = std::thread::spawn(move || {
            while waits.wait(None).is_ok() {
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        for wakes in 1..=200 {
            eventually("the end of a wait", || ended.load(Ordering::Relaxed) >= wakes);
            assert_eq!(ended.load(Ordering::Relaxed), wakes, "{name}: a wait ended for nothing");
            if wakes < 200 {
                waker.wake();
            }
        }
        engine.stop();
        thread.join().expect("no panic");
        waker.wake();
    }
}
