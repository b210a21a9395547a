//! The division of a spinning program's CPU time into work and poll.

use napkin_core::MILLISECOND;

use napkin_machine::profile::Profile;
use napkin_workload::machine::run::Run;
use napkin_workload::memcached::machine::{self as memcached, Rate};

/// Returns shares of the serving CPUs' time: the busy time, and the time of rounds that found nothing.
fn shares(policy: &str, per_s: f64) -> (f64, f64) {
    let profile = Profile::named(napkin_workload::schema(), "epyc-7662")
        .unwrap_or_else(|error| panic!("{error}"));
    let mut run = Run::new(&profile, policy.parse().expect("a policy"));
    (run.warm_up, run.window) = (50 * MILLISECOND, 200 * MILLISECOND);
    let setup =
        memcached::Setup { queues: 1, connections: 64, machines: 1, rate: Rate::PerS(per_s) };
    let outcome = memcached::run(run, setup).expect("a run");
    let cpu = &outcome.counts.cpus[0];
    let wall = outcome.window as f64;
    let busy: u64 = cpu.used[1..].iter().sum();
    (busy as f64 / wall, cpu.empty_poll_time as f64 / wall)
}

#[test]
fn work_does_not_fall_as_load_rises() {
    for policy in ["fullbusy", "threaded-busy-poll"] {
        let (mut least, mut first) = (0.0, None);
        for per_s in [1e3, 3e3, 10e3, 30e3, 100e3] {
            let (busy, poll) = shares(policy, per_s);
            let work = busy - poll;
            assert!(poll <= busy, "{policy} at {per_s}: {poll} of {busy}");
            assert!(work >= least, "{policy} at {per_s}: {work} of work, and {least} at less load");
            least = work;
            first = first.or(Some(work));
        }
        let first = first.unwrap_or(0.0);
        assert!(least > 5.0 * first, "{policy}: {first} at 1k/s, and {least} at 100k/s");
    }
}

#[test]
fn a_spinner_without_much_to_do_is_nearly_all_poll() {
    let (busy, poll) = shares("fullbusy", 1e3);
    assert!(busy > 0.99, "it spins: {busy}");
    assert!(poll > 0.95, "{poll} of {busy}");
}
