//! A workload, and the interleaved run of it under several policies.

use std::time::Duration;

use napkin_core::Policy;
use serde_json::{Map, Value};

use crate::error::{BenchError, Stopped};
use crate::measure::{Host, Plan, ProcStat};
use crate::policy::NamedPolicy;
use crate::report::{Column, Figures, Progress, Repetition, Report, Row};

/// What is common to the runs of all workloads.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The policies to compare.
    pub policies: Vec<NamedPolicy>,
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

    /// The world in which it runs: `engine`, or `linux`. (The machine's runs are planned elsewhere.)
    fn world(&self) -> &'static str {
        "engine"
    }

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
    fn columns(&self) -> Vec<&'static Column>;

    /// What follows from all rows together.
    fn conclude(&self, _report: &mut Report) {}

    /// What a reader should know about its figures on this machine.
    fn notes(&self, _options: &Options) -> Vec<String> {
        Vec::new()
    }
}

/// Runs a workload: every policy under every load, in turn, and that several times. A policy that
/// asks for what this process has no right to gets rows without figures, with the reason.
///
/// # Errors
/// Options that make no sense, before anything runs; or the first run that failed, with what was
/// measured until then.
pub fn run(workload: &dyn Workload, options: &Options) -> Result<Report, Stopped> {
    check(options)?;
    let (policies, loads) = (options.policies.len(), workload.loads());
    let plan = Plan { subjects: policies * loads, repetitions: options.repetitions };
    let steps = plan.len() as u64;
    let mut progress =
        if options.progress { Progress::new(steps) } else { Progress::hidden(steps) };
    let mut host = Host::gather();
    let Placement { queue, other, poller } = options.placement();
    let cpus = [queue, other, poller].map(|cpu| cpu as u32);
    let mut stat = ProcStat::open().map_err(BenchError::Proc)?;
    let times = stat.read(&cpus).map_err(BenchError::Proc)?;
    let mut repetitions: Vec<Vec<Repetition>> = vec![Vec::new(); plan.subjects];
    // By policy: what it may not do here, it may not do under any load.
    let mut refused: Vec<Option<String>> = vec![None; policies];
    let mut failed = None;
    for (number, step) in plan.steps().enumerate() {
        // Loads outside, policies inside: those that are compared run next to each other.
        let (load, place) = (step.subject / policies, step.subject % policies);
        let policy = &options.policies[place];
        progress.step(&format!("{} {policy} {}", workload.name(), describe(&workload.load(load))));
        if refused[place].is_some() {
            continue;
        }
        let seed = options.seed.wrapping_mul(1_000_003).wrapping_add(step.repetition as u64);
        match workload.run(load, Trial { policy: &policy.policy, options, seed }) {
            Ok(figures) => {
                repetitions[step.subject].push(Repetition { step: number as u64, figures });
            }
            Err(error) if error.is_refusal() => {
                progress.say(&format!("not measured ({policy}): {error}"));
                refused[place] = Some(error.to_string());
            }
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    drop(progress);
    // What was measured is not given up for this.
    if let Ok(now) = stat.read(&cpus) {
        host.note_steal(now.since(times));
    }
    let mut notes = workload.notes(options);
    if options.placement().shared() {
        notes
            .push("only one CPU is usable: what should run beside the queue shares its CPU".into());
    }
    let interrupts = napkin_engine::Contexts::default().irq;
    let realtime = napkin_engine::sched::may(interrupts);
    host.realtime_priority = Some(realtime);
    if !realtime && workload.world() == "engine" {
        notes.push(
            "no right to real-time priority: interrupts do not preempt the application here, so \
             base cannot show livelock"
                .into(),
        );
    }
    if let Some(error) = &failed {
        notes.push(format!("the run ended early: {error}"));
    }
    let rows = repetitions.into_iter().enumerate().filter_map(|(subject, repetitions)| {
        let (load, place) = (subject / policies, subject % policies);
        let why = refused[place].iter().filter(|_| repetitions.is_empty()).cloned().collect();
        let policy = &options.policies[place];
        let row = Row::of(policy, workload.load(load), repetitions, why);
        // After a failure: what there is.
        (!row.repetitions.is_empty() || !row.notes.is_empty()).then_some(row)
    });
    let mut report = Report {
        workload: workload.name().into(),
        world: workload.world().into(),
        host,
        rows: rows.collect(),
        notes,
        extra: Map::from_iter([
            ("seed".to_owned(), Value::from(options.seed)),
            ("window_ns".to_owned(), Value::from(options.window.as_nanos() as u64)),
        ]),
    };
    workload.conclude(&mut report);
    match failed {
        None => Ok(report),
        Some(error) => {
            let report = (!report.rows.is_empty()).then(|| Box::new(report));
            Err(Stopped { error, report })
        }
    }
}

/// Refuses what makes no sense, before anything runs.
fn check(options: &Options) -> Result<(), BenchError> {
    if options.policies.is_empty() || options.repetitions == 0 || options.window.is_zero() {
        return Err(BenchError::Option(
            "nothing to run: give at least one policy, one repetition and a window".into(),
        ));
    }
    NamedPolicy::distinct(&options.policies).map_err(BenchError::Option)?;
    let usable = napkin_engine::sched::usable_cpus();
    if let Some(cpu) = options.cpus.iter().find(|cpu| !usable.contains(cpu)) {
        let usable = usable.iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
        return Err(BenchError::Option(format!(
            "CPU {cpu} cannot be used: this process may use {usable}"
        )));
    }
    Ok(())
}

fn describe(load: &Map<String, Value>) -> String {
    load.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use napkin_engine::SocketError;

    use super::*;
    use crate::report::column;

    /// A workload of one load, whose runs do as they are told in turn.
    struct Told {
        outcomes: Vec<fn() -> Result<Figures, BenchError>>,
        runs: Cell<usize>,
    }

    impl Told {
        fn new(outcomes: &[fn() -> Result<Figures, BenchError>]) -> Told {
            Told { outcomes: outcomes.to_vec(), runs: Cell::new(0) }
        }
    }

    impl Workload for Told {
        fn name(&self) -> &'static str {
            "told"
        }

        fn loads(&self) -> usize {
            1
        }

        fn load(&self, _: usize) -> Map<String, Value> {
            Map::new()
        }

        fn run(&self, _: usize, _: Trial<'_>) -> Result<Figures, BenchError> {
            let run = self.runs.replace(self.runs.get() + 1);
            self.outcomes[run]()
        }

        fn columns(&self) -> Vec<&'static Column> {
            vec![column::POLICY, column::PACKETS]
        }
    }

    fn fine() -> Result<Figures, BenchError> {
        Ok(Figures { packets: Some(1), ..Figures::default() })
    }

    fn refused() -> Result<Figures, BenchError> {
        Err(SocketError::Prefer.into())
    }

    fn broken() -> Result<Figures, BenchError> {
        Err(BenchError::Panicked)
    }

    fn two_policies() -> Options {
        Options {
            policies: NamedPolicy::all([Policy::BUSYPOLL, Policy::BASE]),
            repetitions: 2,
            progress: false,
            ..Options::default()
        }
    }

    #[test]
    fn a_policy_that_may_not_be_used_is_a_row_without_figures_and_the_run_goes_on() {
        let told = Told::new(&[refused, fine, fine]);
        let report = run(&told, &two_policies()).expect("the run takes place");
        assert_eq!(told.runs.get(), 3, "it is not tried again");
        let [busypoll, base] = &report.rows[..] else { panic!("two rows") };
        assert_eq!(busypoll.figures, Figures::default(), "nothing is filled in");
        assert!(busypoll.notes[0].contains("CAP_NET_ADMIN"), "{:?}", busypoll.notes);
        assert_eq!((base.repetitions.len(), base.notes.len()), (2, 0));
        let table = crate::report::table::render(&report.rows, &told.columns(), 80);
        assert!(table.contains("not measured (busypoll): SO_PREFER_BUSY_POLL"), "{table}");
    }

    #[test]
    fn a_failure_keeps_what_was_measured_before_it() {
        let told = Told::new(&[fine, fine, fine, broken]);
        let stopped = run(&told, &two_policies()).expect_err("the last run failed");
        assert!(matches!(stopped.error, BenchError::Panicked));
        let report = stopped.report.expect("there are rows");
        let measured: Vec<_> = report.rows.iter().map(|row| row.repetitions.len()).collect();
        assert_eq!(measured, [2, 1]);
        assert!(report.notes.iter().any(|note| note.contains("ended early")));
        let told = Told::new(&[broken]);
        assert!(run(&told, &two_policies()).expect_err("the first failed").report.is_none());
    }

    #[test]
    fn a_cpu_that_may_not_be_used_is_refused_before_anything_runs() {
        let told = Told::new(&[]);
        let options = Options { cpus: vec![1_023], ..two_policies() };
        let stopped = run(&told, &options).expect_err("no machine of ours has it");
        assert!(stopped.to_string().starts_with("CPU 1023 cannot be used"), "{stopped}");
        assert!(run(&told, &Options::default()).is_err(), "no policy");
        assert_eq!(told.runs.get(), 0);
    }
}
