//! Skipping the fruitless polls of a spinning thread yields the same results as stepping them, also under memcached
//! and a block service (`machine/tests/skip.rs` has the sink).

use napkin_core::MILLISECOND;
use napkin_machine::profile::Profile;
use napkin_workload::machine::run::{Outcome, Run};
use napkin_workload::memcached::machine::{self as memcached, Rate};
use napkin_workload::ssd::machine as ssd;

/// A workload's short run on a host, without its number of steps.
fn ran(
    profile: &str,
    policy: &str,
    skip: bool,
    workload: impl FnOnce(Run<'_>) -> Result<Outcome, String>,
) -> Outcome {
    let profile = Profile::named(napkin_workload::schema(), profile)
        .unwrap_or_else(|error| panic!("{error}"));
    let mut run = Run::new(&profile, policy.parse().expect("a policy"));
    (run.warm_up, run.window, run.skip) = (5 * MILLISECOND, 10 * MILLISECOND, skip);
    Outcome { steps: 0, ..workload(run).expect("a run") }
}

#[test]
fn memcached_is_the_same_whether_its_pollers_are_skipped_or_stepped() {
    for policy in ["fullbusy", "napibusy"] {
        for rate in [Rate::PerS(100e3), Rate::PerS(900e3), Rate::Max] {
            let served = |skip| {
                ran("epyc-7662", policy, skip, |run| {
                    memcached::run(run, memcached::Setup::published(rate))
                })
            };
            assert_eq!(served(false), served(true), "{policy} at {rate:?}");
        }
    }
}

/// A disk finishes while a thread polls its empty queue: no frame announces that.
#[test]
fn a_block_service_is_the_same_whether_its_pollers_are_skipped_or_stepped() {
    for policy in ["fullbusy", "napibusy"] {
        for rate in [20e3, 200e3] {
            let served = |skip| {
                ran("xeon-56", policy, skip, |run| {
                    ssd::run(run, ssd::Setup::published(4 << 10, rate))
                })
            };
            let stepped = served(false);
            assert!(stepped.latency.count() > 100, "{policy}: {}", stepped.latency.count());
            assert_eq!(stepped, served(true), "{policy} at {rate}");
        }
    }
}
