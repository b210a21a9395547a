//! Skipping what a spinning thread repeats equals stepping it, under memcached too (`machine/tests/skip.rs`
//! has the sink).

use napkin_core::MILLISECOND;
use napkin_machine::profile::Profile;
use napkin_workload::machine::run::{Outcome, Run};
use napkin_workload::memcached::machine::{self as memcached, Rate};

fn served(policy: &str, rate: Rate, skip: bool) -> Outcome {
    let profile = Profile::named(napkin_workload::schema(), "epyc-7662")
        .unwrap_or_else(|error| panic!("{error}"));
    let mut run = Run::new(&profile, policy.parse().expect("a policy"));
    (run.warm_up, run.window, run.skip) = (5 * MILLISECOND, 10 * MILLISECOND, skip);
    let outcome = memcached::run(run, memcached::Setup::published(rate)).expect("a run");
    Outcome { steps: 0, ..outcome }
}

#[test]
fn memcached_is_the_same_whether_its_pollers_are_skipped_or_stepped() {
    for policy in ["fullbusy", "napibusy"] {
        for rate in [Rate::PerS(100e3), Rate::PerS(900e3), Rate::Max] {
            let (stepped, skipped) = (served(policy, rate, false), served(policy, rate, true));
            assert_eq!(stepped, skipped, "{policy} at {rate:?}");
        }
    }
}
