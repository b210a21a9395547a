//! The interleaved run of a workload under several policies.

use std::time::Duration;

use napkin_measure::report::{Progress, Repetition, Report, Row, ties};
use napkin_measure::{Host, Plan, conclusion};
use napkin_os::procfs::CpuTimes;
use serde_json::{Map, Value, json};

use crate::error::{BenchError, Stopped};
use crate::interrupt::Interrupt;
use crate::list::rule;
use crate::live::{Live, Trial};
use crate::options::{Options, Placement};
use crate::partial::Partial;
use crate::server::Subject;

/// A failure that is followed by an interrupt within this time counts as interrupted.
const GRACE: Duration = Duration::from_millis(100);

/// Runs a workload: every policy under every load in turn, with repetitions. A policy that needs a missing
/// privilege gets rows without values, with the reason.
///
/// # Errors
/// Invalid options, before anything runs; otherwise the first measurement that failed, with the measurements up to
/// then.
pub fn run(workload: &dyn Live, options: &Options) -> Result<Report, Stopped> {
    resumable(workload, options, &Interrupt::default(), &mut Partial::default())
}

/// Refuses an invalid run before anything starts: bad options, and two loads with equal values, however they were
/// written, because their rows could not be distinguished.
///
/// # Errors
/// [`BenchError::Usage`] for the first problem.
pub fn check(workload: &dyn Live, options: &Options) -> Result<(), BenchError> {
    options.check()?;
    let loads: Vec<_> = (0..workload.loads()).map(|it| workload.load(it)).collect();
    match loads.iter().enumerate().find(|(place, load)| loads[..*place].contains(load)) {
        Some((_, load)) => {
            Err(BenchError::Usage(format!("a load stands twice: {}", describe(load))))
        }
        None => Ok(()),
    }
}

/// Returns the order of a run's measurements.
fn order(workload: &dyn Live, options: &Options) -> Plan {
    Plan {
        subjects: workload.subjects(&options.policies).len(),
        groups: workload.loads(),
        repetitions: options.repetitions,
        seed: options.seed,
    }
}

/// Returns the number of measurements of a run, and their approximate total time.
pub fn size(workload: &dyn Live, options: &Options) -> (u64, Duration) {
    let steps = order(workload, options).len() as u64;
    let one = options.warm_up + options.window + workload.overhead();
    (steps, one.saturating_mul(u32::try_from(steps).unwrap_or(u32::MAX)))
}

/// Returns everything that the results of a run depend on. A resumed run must have the same plan.
pub fn plan(workload: &dyn Live, options: &Options) -> Value {
    let Placement { queue, other, poller } = options.placement();
    let subjects = workload.subjects(&options.policies);
    let policies = subjects.iter().map(|it| &it.policy);
    json!({
        "workload": workload.name(),
        "world": workload.world(),
        "settings": workload.settings(),
        "loads": (0..workload.loads()).map(|it| workload.load(it)).collect::<Vec<_>>(),
        "policies": policies
            .map(|it| json!({ "name": it.name, "policy": it.policy.to_string() }))
            .collect::<Vec<_>>(),
        "repetitions": options.repetitions,
        "window_ns": options.window.as_nanos() as u64,
        "warm_up_ns": options.warm_up.as_nanos() as u64,
        "seed": options.seed,
        "cpus": [queue, other, poller],
        "serving": options.serving(),
        "queues": options.queues,
        "host": Host::known(),
    })
}

/// Runs a workload as [`run`] does, but takes the measurements that `partial` already has from there, stores all
/// others in it, and ends when interrupted. It then abandons the current measurement and returns
/// [`BenchError::Interrupted`].
///
/// # Errors
/// Those of [`run`], and the interruption.
pub fn resumable(
    workload: &dyn Live,
    options: &Options,
    interrupt: &Interrupt,
    partial: &mut Partial,
) -> Result<Report, Stopped> {
    check(workload, options)?;
    let subjects = workload.subjects(&options.policies);
    let policies = subjects.len();
    let plan = order(workload, options);
    let steps = plan.len() as u64;
    let mut progress =
        if options.progress { Progress::new(steps) } else { Progress::hidden(steps) };
    let mut host = Host::gather();
    let Placement { queue, other, poller } = options.placement();
    let mut cpus = vec![queue, other, poller];
    cpus.extend(options.serving());
    let times = CpuTimes::of(&cpus).map_err(BenchError::Proc)?;
    let mut repetitions: Vec<Vec<Repetition>> = vec![Vec::new(); plan.subjects * plan.groups];
    // By policy: one that is refused here is refused under every load.
    let mut refused: Vec<Option<String>> = vec![None; policies];
    let mut failed = None;
    for (number, step) in plan.steps().enumerate() {
        // Loads in the outer loop, policies in the inner one: policies that are compared run next to each other.
        let (load, place) = (step.subject / policies, step.subject % policies);
        let Subject { server, policy } = &subjects[place];
        let number = number as u64;
        if let Some(figures) = partial.found(workload.name(), number) {
            progress.skip();
            repetitions[step.subject].push(Repetition { step: number, figures });
            continue;
        }
        if refused[place].is_some() {
            progress.skip();
            partial.pass();
            continue;
        }
        progress.step(&format!("{} {policy} {}", workload.name(), describe(&workload.load(load))));
        let seed = options.seed.wrapping_mul(1_000_003).wrapping_add(step.repetition as u64);
        let trial = Trial { server: *server, policy: &policy.policy, options, seed, interrupt };
        let asked = interrupt.check().map_err(BenchError::from);
        match asked.and_then(|()| workload.run(load, trial)) {
            Ok(figures) => {
                partial.keep(workload.name(), number, &figures);
                repetitions[step.subject].push(Repetition { step: number, figures });
            }
            Err(error) if error.is_refusal() => {
                progress.print(&format!("not measured ({policy}): {error}"));
                refused[place] = Some(error.to_string());
                partial.pass();
            }
            Err(error) => {
                // Ctrl-C in a terminal also signals the programs of a workload: their exit is then not a failure.
                let asked = interrupt.sleep(GRACE);
                failed = Some(asked.err().map_or(error, BenchError::from));
                break;
            }
        }
    }
    drop(progress);
    // An error here must not discard the measurements.
    if let Ok(now) = CpuTimes::of(&cpus) {
        host.note_steal(now.since(times));
    }
    let mut notes = workload.notes(options);
    notes.extend(subjects.iter().filter_map(|it| it.policy.note()));
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
        let done: usize = repetitions.iter().map(Vec::len).sum();
        notes.push(format!("the run ended early, with {done} of {steps} measurements: {error}"));
    }
    let rows = repetitions.into_iter().enumerate().filter_map(|(subject, repetitions)| {
        let (load, place) = (subject / policies, subject % policies);
        let why = refused[place].iter().filter(|_| repetitions.is_empty()).cloned().collect();
        let Subject { server, policy } = &subjects[place];
        let mut row = Row::of(policy, workload.load(load), repetitions, why);
        row.server = server.map(|it| it.name().to_owned());
        // After a failure, omit the rows without any measurement.
        (!row.repetitions.is_empty() || !row.notes.is_empty()).then_some(row)
    });
    let mut report = Report {
        workload: workload.name().into(),
        world: workload.world().into(),
        host,
        conclusion: None,
        rows: rows.collect(),
        notes,
        extra: Map::from_iter([
            ("seed".to_owned(), Value::from(options.seed)),
            ("window_ns".to_owned(), Value::from(options.window.as_nanos() as u64)),
            // Each repetition's `step` is its place in this order.
            ("order".to_owned(), Value::from("shuffled under each load by the seed")),
        ]),
    };
    workload.conclude(&mut report);
    ties::mark(&mut report.rows);
    report.conclusion = conclusion::conclude(&report, rule(&report.workload));
    match failed {
        None => Ok(report),
        Some(error) => {
            let report = (!report.rows.is_empty()).then(|| Box::new(report));
            Err(Stopped { error, report })
        }
    }
}

fn describe(load: &Map<String, Value>) -> String {
    load.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use napkin_engine::WaitError;

    use super::*;
    use crate::interrupt::Interrupted;
    use napkin_measure::report::{Column, Measurement, column};
    use napkin_policy::{NamedPolicy, Policy};

    /// The result of a run under a policy.
    type Outcome = fn(&Policy) -> Result<Measurement, BenchError>;

    /// A workload with one load, whose runs return the scripted outcomes in turn.
    struct Scripted {
        outcomes: Vec<Outcome>,
        runs: Cell<usize>,
    }

    impl Scripted {
        fn new(outcomes: &[Outcome]) -> Scripted {
            Scripted { outcomes: outcomes.to_vec(), runs: Cell::new(0) }
        }
    }

    impl Live for Scripted {
        fn name(&self) -> &'static str {
            "told"
        }

        fn loads(&self) -> usize {
            1
        }

        fn load(&self, _: usize) -> Map<String, Value> {
            Map::new()
        }

        fn run(&self, _: usize, trial: Trial<'_>) -> Result<Measurement, BenchError> {
            let run = self.runs.replace(self.runs.get() + 1);
            self.outcomes[run](trial.policy)
        }

        fn columns(&self) -> Vec<&'static Column> {
            vec![column::POLICY, column::PACKETS]
        }
    }

    fn fine(_: &Policy) -> Result<Measurement, BenchError> {
        Ok(Measurement { packets: Some(1), ..Measurement::default() })
    }

    /// The seed determines the order of the policies, so the outcome depends on the policy.
    fn without_the_right(policy: &Policy) -> Result<Measurement, BenchError> {
        if *policy == Policy::BUSYPOLL { Err(WaitError::SocketPrefer.into()) } else { fine(policy) }
    }

    fn broken(_: &Policy) -> Result<Measurement, BenchError> {
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
        let scripted = Scripted::new(&[without_the_right as Outcome; 3]);
        let report = run(&scripted, &two_policies()).expect("the run takes place");
        assert_eq!(scripted.runs.get(), 3, "it is not tried again");
        let [busypoll, base] = &report.rows[..] else { panic!("two rows") };
        assert_eq!(busypoll.figures, Measurement::default(), "nothing is filled in");
        assert!(busypoll.notes[0].contains("CAP_NET_ADMIN"), "{:?}", busypoll.notes);
        assert_eq!((base.repetitions.len(), base.notes.len()), (2, 0));
        let table = napkin_measure::report::table::render(&report.rows, &scripted.columns(), 80);
        assert!(table.contains("not measured (busypoll): SO_PREFER_BUSY_POLL"), "{table}");
    }

    #[test]
    fn a_load_that_stands_twice_is_refused_however_it_was_written() {
        let sizes = |loads: &[&str]| {
            let loads: Vec<String> = loads.iter().map(|it| (*it).to_owned()).collect();
            let tcp_rr = crate::find("tcp-rr").expect("it is one");
            let live = tcp_rr.engine(&loads, &crate::Given::default()).expect("sizes");
            check(&*live, &two_policies()).map_err(|error| error.to_string())
        };
        assert_eq!(sizes(&["5K", "5000"]), Ok(()), "K is 1024 here");
        assert_eq!(sizes(&["5K", "1", "5120"]), Err("a load stands twice: bytes=5120".into()));
    }

    #[test]
    fn a_run_that_goes_on_has_the_same_connections_and_wire() {
        use crate::server::Wire;
        let options = two_policies();
        let of = |workload: &dyn Live| plan(workload, &options);
        let some = crate::tcp_rr::engine::TcpRr::default();
        let fewer = crate::tcp_rr::engine::TcpRr { flows: 10, ..some.clone() };
        let mut over_tap = some.clone();
        over_tap.servers.wire = Wire::Tap;
        assert_eq!(of(&some), of(&some.clone()));
        assert_ne!(of(&some), of(&fewer));
        assert_ne!(of(&some), of(&over_tap));
    }

    #[test]
    fn a_failure_keeps_what_was_measured_before_it() {
        let scripted = Scripted::new(&[fine, fine, fine, broken]);
        let stopped = run(&scripted, &two_policies()).expect_err("the last run failed");
        assert!(matches!(stopped.error, BenchError::Panicked));
        let report = stopped.report.expect("there are rows");
        let measured = report.rows.iter().map(|row| row.repetitions.len());
        assert_eq!(measured.sum::<usize>(), 3);
        assert!(report.notes.iter().any(|note| note.contains("ended early")));
        let scripted = Scripted::new(&[broken]);
        assert!(run(&scripted, &two_policies()).expect_err("the first failed").report.is_none());
    }

    fn interrupted(_: &Policy) -> Result<Measurement, BenchError> {
        Err(Interrupted { signal: 2 }.into())
    }

    #[test]
    fn a_run_that_was_interrupted_goes_on_where_it_was() {
        let folder = std::env::temp_dir().join(format!("napkin-resumable-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let options = Options { repetitions: 3, ..two_policies() };
        // The second measurement of `base` is interrupted; the resumed run tries the refused policy again.
        let scripted = Scripted::new(&[without_the_right, without_the_right, interrupted]);
        let begin = || Partial::begin(&folder, "napkin 1.0", "bench", plan(&scripted, &options));
        let mut partial = begin();
        let on = Interrupt::default();
        let stopped = resumable(&scripted, &options, &on, &mut partial).expect_err("interrupted");
        assert!(matches!(stopped.error, BenchError::Interrupted(it) if it.exit_code() == 130));
        let report = stopped.report.expect("there is one measurement");
        assert!(
            report.notes.iter().any(|note| note.ends_with("with 1 of 6 measurements: interrupted")),
            "{:?}",
            report.notes
        );
        assert!((2..=3).contains(&partial.done()), "the refused policy is done with");
        let path = partial.kept().unwrap().unwrap().to_owned();
        drop(partial);

        let second = Scripted::new(&[without_the_right as Outcome; 3]);
        let mut partial = begin().resume(&path).unwrap();
        let report = resumable(&second, &options, &on, &mut partial).expect("the rest of it");
        assert_eq!((second.runs.get(), partial.done()), (3, 6));
        let [busypoll, base] = &report.rows[..] else { panic!("two rows") };
        assert_eq!((busypoll.repetitions.len(), busypoll.notes.len()), (0, 1));
        let steps: Vec<u64> = base.repetitions.iter().map(|it| it.step).collect();
        assert_eq!(steps.iter().map(|step| step / 2).collect::<Vec<_>>(), [0, 1, 2], "{steps:?}");
        assert_eq!(base.figures.packets, Some(1));
        partial.end();

        // An interrupt before the start: nothing runs.
        on.note(15);
        let idle = Scripted::new(&[]);
        let stopped = resumable(&idle, &options, &on, &mut begin()).expect_err("interrupted");
        assert!(matches!(stopped.error, BenchError::Interrupted(it) if it.exit_code() == 143));
        std::fs::remove_dir(&folder).expect("nothing is left in it");
    }

    #[test]
    fn a_run_s_size_is_its_steps_and_their_time() {
        let scripted = Scripted::new(&[]);
        let options = Options { repetitions: 5, ..two_policies() };
        assert_eq!(size(&scripted, &options), (10, Duration::from_millis(10 * 750)));
    }

    #[test]
    fn a_cpu_that_may_not_be_used_is_refused_before_anything_runs() {
        let scripted = Scripted::new(&[]);
        let options = Options { cpus: vec![1_023], ..two_policies() };
        let stopped = run(&scripted, &options).expect_err("no machine of ours has it");
        assert!(stopped.to_string().starts_with("CPU 1023 is not available"), "{stopped}");
        assert!(run(&scripted, &Options::default()).is_err(), "no policy");
        assert_eq!(scripted.runs.get(), 0);
    }
}
