//! One run of an experiment in virtual time: what every scenario is given, and what comes of it.
//!
//! A scenario knows how its experiment was set up and how it was measured, and nothing of what was
//! published: comparing is the reader's.

use std::collections::BTreeMap;

use napkin_core::{MILLISECOND, Ns};
use napkin_machine::{Machine, Snapshot, Trace};
use napkin_policy::Policy;

use napkin_machine::profile::Profile;
use napkin_traffic::Histogram;

/// What every scenario is run with.
#[derive(Debug)]
pub struct Run<'p> {
    /// The host, its NIC, its link and the workload's constants.
    pub profile: &'p Profile,
    /// How the host delivers packets.
    pub policy: Policy,
    /// Where all randomness comes from.
    pub seed: u64,
    /// Virtual time before the window.
    pub warm_up: Ns,
    /// The measured virtual time.
    pub window: Ns,
    /// Threads that poll in vain are skipped in bulk ([`Machine::set_skip`]).
    pub skip: bool,
    /// Who watches, if anybody does: told of the window only.
    pub trace: Option<Box<dyn Trace>>,
}

impl<'p> Run<'p> {
    /// A run of a second after 200 ms of warm-up, with seed 1.
    pub fn new(profile: &'p Profile, policy: Policy) -> Self {
        let (warm_up, window) = (200 * MILLISECOND, 1000 * MILLISECOND);
        Run { profile, policy, seed: 1, warm_up, window, skip: true, trace: None }
    }

    /// A run of that seed whose warm-up and window are given in seconds, and cut to nanoseconds.
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

/// What came of a run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outcome {
    /// The measured virtual time.
    pub window: Ns,
    /// What fell due, a second, as counted; `None` in a closed loop.
    pub offered_per_s: Option<f64>,
    /// Requests that fell due in the window; `None` in a closed loop.
    pub due: Option<u64>,
    /// How many more fell due in the window than were answered in it.
    pub unanswered: Option<u64>,
    /// What was achieved, a second, as the experiment counts it.
    pub achieved_per_s: f64,
    /// Latencies, from the time when a request was meant to be sent.
    pub latency: Histogram,
    /// Figures that the publication's own estimator gives where it is not what its name says, and
    /// whatever else only this scenario has; by name, in the unit that the name ends in.
    pub figures: BTreeMap<String, f64>,
    /// The growth of all counts over the window.
    pub counts: Snapshot,
    /// The CPUs that serve the traffic: what a figure of CPU load is of.
    pub serving: Vec<u16>,
    /// Events and steps of the model, warm-up included.
    pub steps: u64,
}

impl Outcome {
    /// What a machine has come to over a window whose counts have grown so, if each latency that it has
    /// recorded is an answer.
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

    /// The same with how many requests fell due in the window, and how many were answered in it.
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

/// Lets a machine run through its warm-up and its window; the growth of all counts over the
/// window. Latencies recorded during the warm-up are forgotten.
///
/// # Errors
/// The first invariant that did not hold: the figures of such a run would be untrue.
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
