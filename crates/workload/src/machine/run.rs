//! One run of an experiment in virtual time: its parameters and its outcome.
//!
//! A scenario knows how its experiment was set up and measured, but not the published results: comparing them is up
//! to the reader.

use std::collections::BTreeMap;

use napkin_core::{MILLISECOND, Ns};
use napkin_machine::{Machine, Snapshot, Trace};
use napkin_policy::Policy;

use napkin_machine::profile::Profile;
use napkin_traffic::Histogram;

/// The parameters of a run, common to every scenario.
#[derive(Debug)]
pub struct Run<'p> {
    /// The host, its NIC, its link and the workload's constants.
    pub profile: &'p Profile,
    /// How the host delivers packets.
    pub policy: Policy,
    /// The seed of all randomness.
    pub seed: u64,
    /// Virtual time before the window.
    pub warm_up: Ns,
    /// The measured virtual time.
    pub window: Ns,
    /// Whether fruitless polls of a spinning thread are skipped in bulk ([`Machine::set_skip`]).
    pub skip: bool,
    /// The trace, if any; it covers only the window.
    pub trace: Option<Box<dyn Trace>>,
}

impl<'p> Run<'p> {
    /// Returns a run of one second after a warm-up of 200 ms, with seed 1.
    pub fn new(profile: &'p Profile, policy: Policy) -> Self {
        let (warm_up, window) = (200 * MILLISECOND, 1000 * MILLISECOND);
        Run { profile, policy, seed: 1, warm_up, window, skip: true, trace: None }
    }

    /// Returns a run with that seed, whose warm-up and window are in seconds and truncated to nanoseconds.
    pub fn for_seconds(
        profile: &'p Profile,
        policy: Policy,
        seed: u64,
        warm_up_s: f64,
        window_s: f64,
    ) -> Self {
        let ns = |s: f64| (s * 1e9) as Ns;
        let (warm_up, window) = (ns(warm_up_s), ns(window_s));
        Run { seed, warm_up, window, ..Run::new(profile, policy) }
    }
}

/// The outcome of a run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outcome {
    /// The measured virtual time.
    pub window: Ns,
    /// The rate of due requests per second, as counted; `None` in a closed loop.
    pub offered_per_s: Option<f64>,
    /// Requests that were due in the window; `None` in a closed loop.
    pub due: Option<u64>,
    /// How many more were due in the window than were answered in it.
    pub unanswered: Option<u64>,
    /// The achieved rate per second, by the experiment's own count.
    pub achieved_per_s: f64,
    /// Latencies, from the intended sending time of a request.
    pub latency: Histogram,
    /// Results of the publication's own estimators, where these differ from what their names say, and results that
    /// only this scenario has; by name, in the unit at the end of the name.
    pub figures: BTreeMap<String, f64>,
    /// The growth of all counters over the window.
    pub counts: Snapshot,
    /// The CPUs that serve the traffic, to which CPU load refers.
    pub serving: Vec<u16>,
    /// Events and steps of the model, including the warm-up.
    pub steps: u64,
}

impl Outcome {
    /// Returns the outcome of a machine after a window with this growth of the counters, if each recorded latency
    /// is an answer.
    pub(crate) fn of(machine: &Machine<'_>, counts: Snapshot, serving: Vec<u16>) -> Outcome {
        let latency = machine.latency().clone();
        Outcome {
            window: counts.at,
            achieved_per_s: latency.count() as f64 * 1e9 / counts.at as f64,
            latency,
            counts,
            serving,
            steps: machine.steps(),
            ..Outcome::default()
        }
    }

    /// Adds the numbers of requests due and answered in the window.
    #[must_use]
    pub fn offered(self, due: u64, answered: u64) -> Outcome {
        let offered_per_s = Some(due as f64 * 1e9 / self.window as f64);
        let unanswered = Some(due.saturating_sub(answered));
        Outcome { offered_per_s, due: Some(due), unanswered, ..self }
    }

    /// The share of the serving CPUs' time that was not idle, in percent.
    pub fn cpu_percent(&self) -> f64 {
        let mut busy = 0u64;
        let mut all = 0u64;
        for cpu in &self.serving {
            let used = &self.counts.cpus[usize::from(*cpu)].used;
            all += used.iter().sum::<u64>();
            busy += used[1..].iter().sum::<u64>();
        }
        if all == 0 { 0.0 } else { busy as f64 * 100.0 / all as f64 }
    }
}

/// Runs a machine through its warm-up and its window, and returns the growth of all counters over the window.
/// Latencies recorded during the warm-up are discarded.
///
/// # Errors
/// The first invariant that was broken: the results of such a run would be wrong.
pub fn measure(machine: &mut Machine<'_>, run: &mut Run<'_>) -> Result<Snapshot, String> {
    machine.set_skip(run.skip);
    machine.run(run.warm_up);
    machine.restart_latency();
    if let Some(trace) = run.trace.take() {
        machine.set_trace(trace);
    }
    let before = machine.snapshot();
    machine.run(run.warm_up + run.window);
    machine.end_client();
    match machine.broken() {
        Some(what) => Err(what.to_owned()),
        None => Ok(machine.snapshot().since(&before)),
    }
}
