//! Every delivery mode on real threads: frames in at a synthetic queue, echoes out.

mod common;

use std::time::Duration;

use common::{POLICIES, Setup, alone, echo_for, policy};

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
