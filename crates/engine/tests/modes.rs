//! Every delivery mode on real threads: frames in at a synthetic queue, echoes out.

mod common;

use std::time::Duration;

use common::{Setup, echo_for};
use napkin_core::Policy;

fn policy(name: &str) -> Policy {
    name.parse().expect("a preset")
}

#[test]
fn every_policy_echoes_every_datagram() {
    for name in [
        "base",
        "hold",
        "ksoftirqd",
        "threaded",
        "workqueue",
        "defer20",
        "defer200",
        "napibusy",
        "fullbusy",
        "threaded-busy-poll",
        "suspend20",
        "suspend200",
        "feedback",
        "hold1000",
    ] {
        let setup = Setup { count: 200, per_second: 4_000.0, ..Setup::default() };
        let outcome = echo_for(&policy(name), &setup, Duration::from_secs(5));
        eprintln!("{name}: {outcome:?}");
        assert_eq!(outcome.echoed, 200, "{name}: {outcome:?}");
        assert_eq!(outcome.panics, 0, "{name}");
    }
}
