//! A workload, and the interleaved run of it under several policies.

use std::time::Duration;

use napkin_core::Policy;
use serde_json::{Map, Value};

use crate::error::BenchError;
use crate::measure::{Host, Plan};
use crate::report::{Column, Figures, Progress, Repetition, Report, Row};

/// What is common to the runs of all workloads.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The policies to compare.
    pub policies: Vec<Policy>,
    /// How often each policy runs under each load.
    pub repetitions: usize,
    /// The measured part of one run.
    pub window: Duration,
    /// The part before it that is not measured.
    pub warm_up: Duration,
    /// Where all randomness comes from.
    pub seed: u64,
    /// The operating system's CPUs to use; the first serves the queue. Empty: all that are usable.
    pub cpus: Vec<usize>,
    /// Whether to show progress on standard error.
    pub progress: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            policies: Vec::new(),
            repetitions: 3,
            window: Duration::from_secs(1),
            warm_up: Duration::from_millis(300),
            seed: 1,
            cpus: Vec::new(),
            progress: true,
        }
    }
}

impl Options {
    /// The CPUs: of the queue, and of whoever should be elsewhere, if there is such a place.
    pub fn placement(&self) -> Placement {
        let usable = napkin_engine::sched::usable_cpus();
        let cpus = if self.cpus.is_empty() { &usable } else { &self.cpus };
        // The last CPUs are the least likely to take this machine's own interrupts.
        let (queue, other, poller) = match (cpus.as_slice(), self.cpus.is_empty()) {
            ([], _) => (0, 0, 0),
            ([one], _) => (*one, *one, *one),
            ([.., poller, other, queue], true) => (*queue, *other, *poller),
            ([.., other, queue], true) => (*queue, *other, *queue),
            ([queue, other, poller, ..], false) => (*queue, *other, *poller),
            ([queue, other, ..], false) => (*queue, *other, *queue),
        };
        Placement { queue, other, poller }
    }
}

/// Which CPU does what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Serves the queue: its interrupts, its softirqs, its threads.
    pub queue: usize,
    /// An application, or a client, that has a CPU of its own.
    pub other: usize,
    /// A thread of the application that only polls: where there is no third CPU, the queue's.
    pub poller: usize,
}

impl Placement {
    /// Whether there is only one CPU for everything.
    pub fn shared(self) -> bool {
        self.queue == self.other
    }
}

/// One run: a policy under a load, once.
#[derive(Debug, Clone, Copy)]
pub struct Trial<'a> {
    /// The policy.
    pub policy: &'a Policy,
    /// What is common to all runs.
    pub options: &'a Options,
    /// The run's own seed.
    pub seed: u64,
}

/// A workload: some loads, and how to run a policy under one of them.
pub trait Workload {
    /// Its name, as on the command line.
    fn name(&self) -> &'static str;

    /// How many loads it has.
    fn loads(&self) -> usize;

    /// A load in the workload's own terms, for the report.
    fn load(&self, index: usize) -> Map<String, Value>;

    /// Runs a policy under a load.
    ///
    /// # Errors
    /// Whatever keeps it from running.
    fn run(&self, index: usize, trial: Trial<'_>) -> Result<Figures, BenchError>;

    /// The columns of its table.
    fn columns(&self) -> Vec<Column>;

    /// What follows from all rows together.
    fn conclude(&self, _report: &mut Report) {}

    /// What a reader should know about its figures on this machine.
    fn notes(&self, _options: &Options) -> Vec<String> {
        Vec::new()
    }
}

/// Runs a workload: every policy under every load, in turn, and that several times.
///
/// # Errors
/// The first run that could not take place.
pub fn run(workload: &dyn Workload, options: &Options) -> Result<Report, BenchError> {
    if options.policies.is_empty() || options.repetitions == 0 || options.window.is_zero() {
        return Err(BenchError::Option(
            "nothing to run: give at least one policy, one repetition and a window".into(),
        ));
    }
    let (policies, loads) = (options.policies.len(), workload.loads());
    let plan = Plan { subjects: policies * loads, repetitions: options.repetitions };
    let steps = plan.len() as u64;
    let mut progress =
        if options.progress { Progress::new(steps) } else { Progress::hidden(steps) };
    let mut host = Host::gather();
    let mut repetitions: Vec<Vec<Repetition>> = vec![Vec::new(); plan.subjects];
    for (number, step) in plan.steps().enumerate() {
        // Loads outside, policies inside: those that are compared run next to each other.
        let (load, policy) = (step.subject / policies, &options.policies[step.subject % policies]);
        progress.step(&format!("{} {policy} {}", workload.name(), describe(&workload.load(load))));
        let seed = options.seed.wrapping_mul(1_000_003).wrapping_add(step.repetition as u64);
        let figures = workload.run(load, Trial { policy, options, seed })?;
        repetitions[step.subject].push(Repetition { step: number as u64, figures });
    }
    drop(progress);
    let mut notes = workload.notes(options);
    if options.placement().shared() {
        notes
            .push("only one CPU is usable: what should run beside the queue shares its CPU".into());
    }
    let interrupts = napkin_engine::Contexts::default().irq;
    let realtime = napkin_engine::sched::may(interrupts);
    host.realtime_priority = Some(realtime);
    if !realtime {
        notes.push(
            "no right to real-time priority: interrupts do not preempt the application here, so \
             base cannot show livelock"
                .into(),
        );
    }
    let rows = repetitions.into_iter().enumerate().map(|(subject, repetitions)| {
        let (load, policy) = (subject / policies, &options.policies[subject % policies]);
        Row::from_repetitions(policy.to_string(), workload.load(load), repetitions, Vec::new())
    });
    let mut report = Report {
        workload: workload.name().into(),
        world: "engine".into(),
        host,
        rows: rows.collect(),
        notes,
        extra: Map::from_iter([
            ("seed".to_owned(), Value::from(options.seed)),
            ("window_ns".to_owned(), Value::from(options.window.as_nanos() as u64)),
        ]),
    };
    workload.conclude(&mut report);
    Ok(report)
}

fn describe(load: &Map<String, Value>) -> String {
    load.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}
