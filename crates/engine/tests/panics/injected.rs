//! Panics in one role after the other, and in all at once.

use std::time::Duration;

use napkin_core::CpuId;
use napkin_engine::{Epoll, Role};
use napkin_os::rights::Right;
use napkin_testing::{needs, test};
use napkin_traffic::SplitMix as Rng;

use crate::common::app::App;
use crate::common::{PORT, Setup, alone, eventually, policy, start};

const PANICS: u64 = 25;

/// Injects panics into contexts of `role`, one after the other; returns once all are checked.
fn inject_panics(role: Role, name: &str) {
    let policy = policy(name);
    let setup = Setup { per_second: 20_000.0, ..Setup::default() };
    let (engine, source) = start(&policy, &setup);
    let app = App::start(&engine, PORT, &policy, Some(Duration::from_millis(5)));
    // Another thread that always wants the CPU, so that network softirqs may be left to ksoftirqd.
    let rival = Epoll::new(&engine, CpuId(0), policy.epoll).expect("parameters");
    let mut rng = Rng::new(7);
    let arrives = |what: &str| {
        let before = app.received();
        eventually(&format!("{name}: traffic {what}"), || app.received() >= before + 50);
    };
    arrives("before the first panic");
    for strike in 1..=PANICS {
        engine.inject_panic(role, 1 + rng.below(60));
        eventually(&format!("{name}: panic {strike}"), || !engine.panic_pending(role));
        arrives(&format!("after panic {strike}"));
    }
    let (caught, restarts) = (app.panics(), engine.panics());
    match role {
        Role::Application => assert_eq!((caught, restarts), (PANICS, 0), "{name}"),
        _ => {
            assert_eq!((caught, restarts), (0, PANICS), "{name}");
            let of_role = engine
                .activities()
                .iter()
                .filter(|it| it.role == role)
                .fold(0, |n, it| n + it.restarts());
            assert_eq!(of_role, PANICS, "{name}: restarts in the books");
        }
    }
    // Everything drains, deferral and hold end, and the next frame needs an interrupt that works.
    source.stop();
    let stack = engine.stack("syn0").expect("the device");
    eventually(&format!("{name}: the last datagram"), || {
        app.received() == stack.counters().delivered()
    });
    std::thread::sleep(Duration::from_millis(30));
    source.resume();
    arrives("after a pause");
    app.stop();
    drop(rival);
    engine.stop();
}

#[test]
fn the_interrupt_thread_panics() {
    let _alone = alone();
    for name in ["base", "hold10", "defer20", "suspend20", "feedback", "threaded", "workqueue"] {
        inject_panics(Role::Irq, name);
    }
}

#[test]
fn ksoftirqd_panics() {
    let _alone = alone();
    inject_panics(Role::Ksoftirqd, "ksoftirqd");
    inject_panics(Role::Ksoftirqd, "ksoftirqd,defer-hard-irqs=10,gro-flush-timeout=20us");
}

#[test]
fn the_thread_of_an_instance_panics() {
    let _alone = alone();
    for name in ["threaded", "threaded,hold=100us", "threaded-busy-poll"] {
        inject_panics(Role::Napi, name);
    }
}

#[test]
fn a_worker_panics() {
    let _alone = alone();
    for name in ["workqueue", "workqueue,hold=100us"] {
        inject_panics(Role::Worker, name);
    }
}

#[test]
fn the_application_panics_in_its_wait() {
    let _alone = alone();
    for name in ["base", "napibusy", "fullbusy", "suspend20"] {
        inject_panics(Role::Application, name);
    }
}

#[test]
fn the_application_panics_while_its_socket_busy_polls() {
    needs(Right::NetAdmin.held(), "CAP_NET_ADMIN");
    let _alone = alone();
    inject_panics(Role::Application, "busypoll");
}

#[test]
fn every_context_panics_at_once_again_and_again() {
    let _alone = alone();
    let policy = policy("suspend20");
    let setup = Setup { per_second: 20_000.0, queues: 2, cpus: 2, ..Setup::default() };
    let (engine, source) = start(&policy, &setup);
    let app = App::start(&engine, PORT, &policy, Some(Duration::from_millis(5)));
    let mut rng = Rng::new(11);
    for round in 0..40 {
        for role in Role::ALL {
            engine.inject_panic(role, 1 + rng.below(100));
        }
        let mode = [
            napkin_policy::Threaded::Disabled,
            napkin_policy::Threaded::Enabled,
            napkin_policy::Threaded::Workqueue,
        ][round % 3];
        let mut settings = policy.instance;
        settings.threaded = mode;
        engine.change_device("syn0", &settings.into()).expect("sound settings");
        let before = app.received();
        eventually(&format!("traffic in round {round}"), || app.received() >= before + 50);
    }
    Role::ALL.into_iter().for_each(|role| engine.inject_panic(role, 0));
    assert!(engine.panics() > 0 && app.panics() > 0);
    source.stop();
    let stack = engine.stack("syn0").expect("the device");
    eventually("the last datagram", || app.received() == stack.counters().delivered());
    app.stop();
    engine.stop();
}
