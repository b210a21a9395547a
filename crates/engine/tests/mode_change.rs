//! Who polls a saturated queue is changed: the old owner polls at most twice more (the poll under
//! way, and one), and the new owner goes on, for every ordered pair of owners.
#![cfg(debug_assertions)]

mod common;

use common::{PORT, Setup, alone, eventually, mode, policy, start};
use napkin_core::policy::{InstancePolicy, Threaded};
use napkin_core::{Counts, MICROSECOND, MILLISECOND, Owner};

const MODES: [Threaded; 4] =
    [Threaded::Disabled, Threaded::Enabled, Threaded::BusyPoll, Threaded::Workqueue];

fn owners(mode: Threaded) -> &'static [Owner] {
    match mode {
        Threaded::Disabled => &[Owner::Softirq, Owner::Ksoftirqd],
        Threaded::Enabled | Threaded::BusyPoll => &[Owner::Thread],
        Threaded::Workqueue => &[Owner::Worker],
    }
}

fn polls(counts: &Counts, mode: Threaded) -> u64 {
    let of = |owner: &Owner| counts.polls[*owner as usize] + counts.empty_polls[*owner as usize];
    owners(mode).iter().map(of).sum()
}

/// Changes every mode into every other one; `more` polls of each owner are awaited.
fn changes(what: &str, with: impl Fn(InstancePolicy) -> InstancePolicy, more: u64) {
    let setup = Setup { per_second: 1e8, ..Setup::default() };
    let (engine, _source) = start(&policy("base"), &setup);
    // Nobody receives: for feedback the receiver is full, for the others its frames are dropped.
    let _socket = engine.stack("syn0").expect("the device").bind_udp(PORT, 512).expect("a port");
    let counts = || engine.napi(1).expect("the instance").counts;
    for old in MODES {
        for new in MODES.into_iter().filter(|new| *new != old) {
            engine.set(1, &with(mode(old))).expect("sound settings");
            let settled = polls(&counts(), old);
            eventually(&format!("{what}: {old:?} polls"), || {
                polls(&counts(), old) >= settled + more
            });
            let before = engine.set_counting(1, &with(mode(new))).expect("sound settings");
            let target = polls(&before, new) + more + 2;
            eventually(&format!("{what}: {old:?} -> {new:?}"), || polls(&counts(), new) >= target);
            if owners(old) != owners(new) {
                let late = polls(&counts(), old) - polls(&before, old);
                assert!(late <= 2, "{what}: {old:?} -> {new:?}: {late} polls by the old owner");
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
