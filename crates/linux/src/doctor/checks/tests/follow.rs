//! Tests that following the fixes leads to a state without fixes, from any state.
//!
//! A simulated host applies each fix as a kernel would, and knows nothing of the checks. From random broken
//! states all fixes of a report are applied, one after the other, and the host is examined again.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::super::super::fix::Fix;
use super::*;

mod broken;
mod machine;

use broken::breaks;
use machine::Machine;

/// Rounds of examining and fixing.
const ROUNDS: usize = 10;

/// The fixes of a report, with their checks.
fn fixes(facts: &Facts) -> Vec<(&'static str, Vec<Fix>)> {
    let findings = examine(facts).findings.into_iter();
    findings.filter(|it| !it.fix.is_empty()).map(|it| (it.check, it.fix)).collect()
}

/// Applies all fixes, round by round; returns the checks that had some.
fn followed(mut machine: Machine) -> Result<BTreeSet<&'static str>, String> {
    let mut checks = BTreeSet::new();
    let mut steps = Vec::new();
    machine.settle();
    for round in 0..=ROUNDS {
        let all = fixes(&machine.facts);
        if all.is_empty() {
            return Ok(checks);
        }
        for (check, fixes) in all {
            checks.insert(check);
            for fix in fixes {
                steps.push(format!("{round}: {check}: {fix}"));
                machine.fix(&fix);
            }
        }
        machine.pass();
    }
    Err(format!("it goes on for ever:\n{}\n{:#?}", steps.join("\n"), machine.facts))
}

/// Applies the fixes of the first finding of each report, and examines again.
fn followed_singly(mut machine: Machine) -> Result<(), String> {
    /// As many steps as ten rounds with a few fixes each.
    const STEPS: usize = 100;
    let mut steps = Vec::new();
    machine.settle();
    for _ in 0..STEPS {
        let Some((check, fixes)) = fixes(&machine.facts).into_iter().next() else { return Ok(()) };
        for fix in fixes {
            steps.push(format!("{check}: {fix}"));
            machine.fix(&fix);
        }
        machine.pass();
    }
    Err(format!("it goes on for ever:\n{}", steps.join("\n")))
}

/// Initial policies, sound and unsound.
const POLICIES: &[&str] = &[
    "base",
    "interrupts",
    "defer20",
    "defer200",
    "napibusy",
    "fullbusy",
    "suspend20",
    "suspend200",
    "threaded",
    "busypoll",
    "busypoll-separate",
    "threaded-busy-poll",
    "ksoftirqd",
    "hold",
    "workqueue",
    "suspend20,threaded=enabled",
    "suspend20,defer-hard-irqs=0",
    "suspend20,gro-flush-timeout=0",
    "suspend20,irq-suspend-timeout=1us",
    "suspend20,irq-suspend-timeout=500ms",
    "suspend20,gro-flush-timeout=50ms",
    "suspend20,gro-flush-timeout=1us",
    "suspend20,threaded=busy-poll",
    "fullbusy,irq-suspend-timeout=20ms",
    "napibusy,threaded=busy-poll",
    "defer20,gro-flush-timeout=2ms",
    "defer-hard-irqs=100",
];

/// A policy, whether it was requested, and what is broken, by indices into the tables.
#[derive(Debug, Clone)]
struct State {
    policy: usize,
    asked: bool,
    broken: Vec<(usize, u32)>,
}

fn states() -> impl Strategy<Value = State> {
    let broken = prop::collection::vec((0..breaks().len(), any::<u32>()), 0..14);
    let all = (0..POLICIES.len(), any::<bool>(), broken);
    all.prop_map(|(policy, asked, broken)| State { policy, asked, broken })
}

impl State {
    fn machine(&self) -> Machine {
        let mut machine = Machine::new(POLICIES[self.policy]);
        machine.facts.asked = self.asked;
        for (place, number) in &self.broken {
            breaks()[*place].1(&mut machine, *number);
        }
        machine
    }

    /// Describes the state in words.
    fn named(&self) -> String {
        let broken: Vec<&str> = self.broken.iter().map(|(it, _)| breaks()[*it].0).collect();
        format!("{}: {}", POLICIES[self.policy], broken.join(", "))
    }
}

/// Every check that can have a fix.
const MENDABLE: &[&str] = &[
    "kernel-support",
    "napi",
    "settings",
    "threaded",
    "deferral",
    "flush-timeout",
    "suspend-timeout",
    "suspend-program",
    "napi-id",
    "socket-busy-poll",
    "epoll",
    "prefer",
    "prefer-epoll",
    "busy-poll-usecs",
    "busy-poll-in-vain",
    "budget",
    "epoll-instance",
    "epoll-shared",
    "instance-shared",
    "wait-timeout",
    "maxevents",
    "spinning",
    "go-runtime",
    "cpu-match",
    "napi-thread",
    "irq-affinity",
    "irqbalance",
    "rps",
    "rfs",
    "ring",
    "coalescing",
    "smt",
    "timer-migration",
    "rt-runtime",
    "workqueue-cpumask",
    "system-busy-poll",
    "netdev-budget",
    "time-squeeze",
    "softnet-drops",
    "suspend-expiry",
    "shared-interface",
    "starvation",
    "always-ready",
];

/// The property, and that the states are broad: each check that can have a fix had one.
#[test]
fn whoever_follows_all_mends_arrives_within_ten_rounds() {
    let config = Config { cases: 1_000, failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let seen = std::cell::RefCell::new(BTreeSet::new());
    let result = runner.run(&states(), |state| {
        let checks = followed(state.machine());
        let checks = checks.map_err(|why| TestCaseError::fail(format!("{}: {why}", state.named())));
        let checks = checks?;
        seen.borrow_mut().extend(checks);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let seen = seen.into_inner();
    let fixable: BTreeSet<&str> = MENDABLE.iter().copied().collect();
    assert_eq!(seen, fixable, "what had a fix in a thousand states, and what can have");
}

proptest! {
    #![proptest_config(Config { failure_persistence: None, ..Config::default() })]

    /// The same from other states each time, also when only one finding's fixes are applied between two examinations.
    #[test]
    fn whoever_follows_one_finding_at_a_time_arrives(state in states()) {
        let machine = state.machine();
        let both = followed(machine.clone()).map(|_| ()).and_then(|()| followed_singly(machine));
        if let Err(why) = both {
            prop_assert!(false, "{}: {why}", state.named());
        }
    }
}

/// Found by a random state: the fix removed the suspension from the receiving instances, and the one that
/// only transmits, which no fix touches, still implied suspension.
#[test]
fn what_transmits_does_not_say_what_is_meant() {
    let mut machine = Machine::new("base");
    machine.facts.asked = false;
    for (name, number) in [
        ("sockets not seen", 0),
        ("something that is always ready", 808_177_707),
        ("an instance that transmits", 4_251_996_718),
        ("irq-suspend-timeout", 4_222_198_115),
    ] {
        let (_, broken) = breaks().iter().find(|it| it.0 == name).expect(name);
        broken(&mut machine, number);
    }
    assert!(
        machine
            .napis
            .iter()
            .any(|it| it.transmits_only() && it.settings.policy().irq_suspend_timeout != 0)
    );
    followed(machine.clone()).expect("all at once");
    followed_singly(machine).expect("one at a time");
}
