//! Random worlds under random policies and random interference: every invariant of the design holds after every
//! half-step, every frame is accounted for, and the world becomes idle after the last arrival.
//!
//! `PROPTEST_CASES=10000 cargo test -p napkin-core --test core property` runs more cases. A failure prints its last
//! events and its plan; `NAPKIN_PLAN=... cargo test -p napkin-core --test core property::replay` repeats it.

use crate::world;
use crate::world::Plan;
use proptest::prelude::*;

/// That many cases by default, or as many as `PROPTEST_CASES` says.
fn config(cases: u32) -> ProptestConfig {
    let mut config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    config
}

fn holds(plan: Plan) -> Result<(), TestCaseError> {
    world::run(plan).map(drop).map_err(|trace| {
        TestCaseError::fail(format!("{trace}\nreplay with NAPKIN_PLAN={}", plan.spelt()))
    })
}

proptest! {
    #![proptest_config(config(256))]

    #[test]
    fn any_machine_keeps_the_invariants(seed: u64, steps in 500u64..6_000) {
        holds(Plan::random(seed, steps))?;
    }

    #[test]
    fn a_small_machine_keeps_the_invariants(seed: u64, steps in 500u64..4_000) {
        let plan = Plan { cpus: 1, instances: 1, apps: 2, ..Plan::random(seed, steps) };
        holds(plan)?;
    }

    #[test]
    fn contexts_that_are_lost_between_two_steps_strand_nothing(
        seed: u64,
        steps in 500u64..4_000,
    ) {
        holds(Plan { abandons: true, ..Plan::random(seed, steps) })?;
    }

    #[test]
    fn the_same_seed_is_the_same_run(seed: u64) {
        let plan = Plan::random(seed, 1_000);
        let [one, other] = [world::run(plan), world::run(plan)].map(|run| {
            run.map(|outcome| (outcome.events, outcome.counts, outcome.cpus))
        });
        prop_assert!(one == other, "seed {seed} gave two different runs");
    }
}

#[test]
fn a_long_run_delivers_and_delivers_in_every_way() {
    let outcomes: Vec<_> = (0..24u64)
        .map(|seed| {
            let plan = Plan { abandons: false, ..Plan::random(seed, 20_000) };
            world::run(plan).unwrap_or_else(|trace| panic!("{trace}"))
        })
        .collect();
    let mut polls = [0u64; napkin_core::OWNERS];
    let (mut parks, mut deferrals, mut handovers, mut repolls, mut timer_missed) = (0, 0, 0, 0, 0);
    for counts in outcomes.iter().flat_map(|outcome| &outcome.counts) {
        for (all, one) in polls.iter_mut().zip(counts.polls) {
            *all += one;
        }
        parks += counts.parks;
        deferrals += counts.deferrals;
        handovers += counts.handovers;
        repolls += counts.repolls;
        timer_missed += counts.timer_missed;
    }
    let delivered: u64 = outcomes.iter().map(|outcome| outcome.delivered).sum();
    // A run that never reaches a case proves nothing about it.
    assert!(polls.iter().all(|&n| n > 100), "{polls:?}");
    let rare = [parks, deferrals, handovers, repolls, timer_missed];
    assert!(rare.iter().all(|&n| n > 20), "{rare:?}");
    assert!(delivered > 10_000, "{delivered}");
}

#[test]
fn replay() {
    let Ok(text) = std::env::var("NAPKIN_PLAN") else { return };
    let plan = Plan::read(&text).expect("a plan as a failure prints it");
    if let Err(trace) = world::run(plan) {
        panic!("{trace}");
    }
}

#[test]
fn a_plan_is_read_as_it_is_spelt() {
    let plan = Plan { abandons: true, ..Plan::random(7, 123) };
    assert_eq!(Plan::read(&plan.spelt()), Some(plan));
    assert_eq!(Plan::read("1,2,3"), None);
}
