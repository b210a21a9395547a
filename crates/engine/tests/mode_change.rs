//! Changes the owner of a saturated queue: the old owner polls at most twice more (the poll under way, and one),
//! and the new owner goes on, for every ordered pair of owners. And an application that busy polls can claim the
//! queue from every owner but a thread that never releases it.
#![cfg(debug_assertions)]

mod common;

use common::{HANGS, PORT, Setup, alone, eventually, mode, policy, start};
use napkin_core::{Counts, CpuId, MICROSECOND, MILLISECOND, Owner};
use napkin_engine::{Engine, Epoll};
use napkin_policy::{EpollPolicy, InstancePolicy, Policy, Threaded};

/// The owners that a mode, and the CPU's policy, can give an instance to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Delivery {
    /// Inline after the interrupt, and in ksoftirqd where the limits end.
    Softirq,
    /// In ksoftirqd alone: the CPU's policy says so, and another thread wants the CPU.
    Ksoftirqd,
    Thread,
    BusyThread,
    Worker,
}

const DELIVERIES: [Delivery; 5] = [
    Delivery::Softirq,
    Delivery::Ksoftirqd,
    Delivery::Thread,
    Delivery::BusyThread,
    Delivery::Worker,
];

impl Delivery {
    fn mode(self) -> Threaded {
        match self {
            Delivery::Softirq | Delivery::Ksoftirqd => Threaded::Disabled,
            Delivery::Thread => Threaded::Enabled,
            Delivery::BusyThread => Threaded::BusyPoll,
            Delivery::Worker => Threaded::Workqueue,
        }
    }

    /// The owners under which its polls are counted. A saturated queue soon goes to ksoftirqd, whichever context
    /// began.
    fn owners(self) -> &'static [Owner] {
        match self {
            Delivery::Softirq => &[Owner::Softirq, Owner::Ksoftirqd],
            Delivery::Ksoftirqd => &[Owner::Ksoftirqd],
            Delivery::Thread | Delivery::BusyThread => &[Owner::Thread],
            Delivery::Worker => &[Owner::Worker],
        }
    }
}

fn of(counts: &Counts, owner: Owner) -> u64 {
    counts.polls[owner as usize] + counts.empty_polls[owner as usize]
}

fn polls(counts: &Counts, delivery: Delivery) -> u64 {
    delivery.owners().iter().map(|owner| of(counts, *owner)).sum()
}

/// Sets the CPU's policy under which this owner polls.
fn rules(engine: &Engine, delivery: Delivery) {
    let rules = if delivery == Delivery::Ksoftirqd { "ksoftirqd" } else { "base" };
    common::set_cpu_policy(engine, policy(rules).cpu);
}

/// Checks what a change took: `change` makes it and counts the old owner's polls.
///
/// The polls are counted from just before the new mode is stored, since counting at the same moment is not
/// possible: if the operating system takes the CPU away in between, the count is too high. Hence several tries. An
/// owner that does not look at its mode polls a saturated queue for ever, in each of them.
fn at_most_two(case: &str, mut change: impl FnMut() -> u64) {
    let mut late = Vec::new();
    while late.last().is_none_or(|late| *late > 2) {
        assert!(late.len() < 5, "{case}: {late:?} polls by the old owner");
        late.push(change());
    }
}

/// Changes every mode into every other one, and waits for `more` polls of each owner.
fn changes(what: &str, with: impl Fn(InstancePolicy) -> InstancePolicy, more: u64) {
    let setup = Setup { per_second: 1e8, ..Setup::default() };
    let (engine, _source) = start(&policy("base"), &setup);
    // The socket is not read: for feedback the receiver is full, for the others its frames are dropped.
    let _socket = engine.stack("syn0").expect("the device").bind_udp(PORT, 512).expect("a port");
    // This thread never sleeps in the engine, and so wants the CPU all the time.
    let _rival = Epoll::new(&engine, CpuId(0), EpollPolicy::default()).expect("parameters");
    let counts = || engine.napi(1).expect("the instance").counts;
    let change = |case: &str, old: Delivery, new: Delivery| {
        // Only one of the two depends on the CPU's policy.
        rules(&engine, if old.mode() == Threaded::Disabled { old } else { new });
        engine.change(1, &with(mode(old.mode())).into()).expect("sound settings");
        let settled = counts();
        eventually(&format!("{case}: the old owner polls"), || {
            polls(&counts(), old) >= polls(&settled, old) + more
        });
        let before = engine.set_counting(1, &with(mode(new.mode()))).expect("sound settings");
        // Once the new owner polls, the old one has finished.
        eventually(case, || polls(&counts(), new) >= polls(&before, new) + more + 2);
        let after = counts().since(&before);
        if new == Delivery::Ksoftirqd {
            assert_eq!(of(&after, Owner::Softirq), 0, "{case}: {after:?}");
        }
        polls(&after, old)
    };
    for old in DELIVERIES {
        for new in DELIVERIES.into_iter().filter(|new| new.mode() != old.mode()) {
            let case = format!("{what}: {old:?} -> {new:?}");
            if old.owners() == new.owners() {
                change(&case, old, new);
            } else {
                at_most_two(&case, || change(&case, old, new));
            }
        }
    }
    engine.stop();
}

#[test]
fn of_a_saturated_queue_takes_effect_within_two_polls() {
    let _alone = alone();
    changes("plain", |settings| settings, 100);
}

#[test]
fn of_a_saturated_queue_that_holds() {
    let _alone = alone();
    changes("hold", |settings| InstancePolicy { hold: MILLISECOND, ..settings }, 100);
}

#[test]
fn of_a_saturated_queue_that_defers() {
    let _alone = alone();
    let defer = |settings| InstancePolicy {
        defer_hard_irqs: 100,
        gro_flush_timeout: 20 * MICROSECOND,
        ..settings
    };
    changes("defer", defer, 100);
}

#[test]
fn of_a_saturated_queue_whose_receiver_is_full() {
    let _alone = alone();
    let feedback =
        |settings| InstancePolicy { feedback: true, irq_suspend_timeout: MILLISECOND, ..settings };
    changes("feedback", feedback, 5);
}

/// An application busy polls a saturated queue of mode `old` without receiving anything, when the mode becomes
/// `new`; then it gets an event, and its session stops. Returns its polls after the change, if the change was to
/// end them.
fn under_a_session(case: &str, old: Delivery, new: Delivery) -> u64 {
    let fullbusy = Policy::FULLBUSY;
    let settings =
        |delivery: Delivery| InstancePolicy { threaded: delivery.mode(), ..fullbusy.instance };
    let setup = Setup { per_second: 1e8, ..Setup::default() };
    let (engine, _source) = start(&fullbusy, &setup);
    rules(&engine, if old.mode() == Threaded::Disabled { old } else { new });
    let _rival = Epoll::new(&engine, CpuId(0), EpollPolicy::default()).expect("parameters");
    let stack = engine.stack("syn0").expect("the device");
    let [busy, quiet] = [PORT, PORT + 1].map(|port| stack.bind_udp(port, 512).expect("a port"));
    let params = EpollPolicy { busy_poll_usecs: i32::MAX as u32, ..fullbusy.epoll };
    let mut epoll = Epoll::new(&engine, CpuId(0), params).expect("parameters");
    epoll.set_spin(true);
    let mut events = Vec::new();
    // A frame makes the epoll follow its queue. From then on no frame comes for it: the frames that the session
    // takes are for a port that has gone.
    epoll.add(&busy, 0).expect("room");
    while events.is_empty() {
        epoll.wait(&mut events, 64, Some(HANGS)).expect("a wait");
    }
    epoll.remove(&busy);
    drop(busy);
    epoll.add(&quiet, 1).expect("room");
    engine.change(1, &settings(old).into()).expect("sound settings");
    let counts = || engine.napi(1).expect("the instance").counts;
    let app = std::thread::spawn(move || {
        epoll.wait(&mut events, 64, None).expect("a wait");
        events.len()
    });
    let session = |counts: &Counts| of(counts, Owner::Application);
    let begun = session(&counts());
    eventually(&format!("{case}: it polls"), || session(&counts()) >= begun + 200);
    let before = engine.set_counting(1, &settings(new)).expect("sound settings");
    let late = if new == Delivery::BusyThread {
        eventually(case, || polls(&counts(), new) >= polls(&before, new) + 200);
        session(&counts().since(&before))
    } else {
        eventually(&format!("{case}: a guest"), || session(&counts()) >= session(&before) + 200);
        let after = counts().since(&before);
        let others = after.all_polls() - session(&after);
        assert_eq!(others, 0, "{case}: while it owns the queue, nobody else polls: {after:?}");
        0
    };
    drop(quiet);
    assert!(app.join().expect("it waits") <= 1, "{case}");
    let before = counts();
    eventually(&format!("{case}: afterwards"), || {
        polls(&counts(), new) >= polls(&before, new) + 100
    });
    let after = counts().since(&before);
    assert_eq!(session(&after), 0, "{case}: it has gone: {after:?}");
    let strangers = after.all_polls() - polls(&after, new);
    assert_eq!(strangers, 0, "{case}: the queue is its mode's: {after:?}");
    engine.stop();
    late
}

#[test]
fn of_a_saturated_queue_that_an_application_busy_polls() {
    let _alone = alone();
    for old in DELIVERIES.into_iter().filter(|old| *old != Delivery::BusyThread) {
        for new in DELIVERIES.into_iter().filter(|new| new.mode() != old.mode()) {
            let case = format!("a session on {old:?} -> {new:?}");
            at_most_two(&case, || under_a_session(&case, old, new));
        }
    }
}
