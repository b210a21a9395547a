//! The modelled clients reach the requested rate, even a low one.

use napkin_core::MILLISECOND;

use napkin_machine::profile::Profile;
use napkin_workload::machine::run::Run;
use napkin_workload::memcached::machine::{self as memcached, Rate};

#[test]
fn thousands_of_connections_offer_few_requests_a_second_if_so_asked() {
    let profile = Profile::named(napkin_workload::schema(), "epyc-7662")
        .unwrap_or_else(|error| panic!("{error}"));
    for asked in [1e3, 5e3] {
        let mut run = Run::new(&profile, "base".parse().expect("a policy"));
        // A fraction of the 4.5 s between two requests of a connection, so that a rate which only settles later is
        // noticed.
        (run.warm_up, run.window) = (100 * MILLISECOND, 3_000 * MILLISECOND);
        let setup = memcached::Setup::published(Rate::PerS(asked));
        let served = memcached::run(run, setup).expect("a run").achieved_per_s;
        // At least 3000 requests: five standard deviations are less than a tenth.
        assert!((served / asked - 1.0).abs() < 0.1, "{served}/s of {asked}/s");
    }
}
