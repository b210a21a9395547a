//! Measurement of the costs of this host's own kernel, as a profile for the machine.
//!
//! It runs rounds of a bounded local load. Each round times every step once more, so that other activity of this
//! machine affects all steps alike: system calls in one thread (`calls`), switches and wake-ups (`threads`), and,
//! with the rights to create a veth and to load BPF programs, polls, softirqs and timers by the kernel's trace
//! points (`polls`). `derive` turns these into keys, `facts` reads what need not be timed, and `estimate` has the
//! statistics.
//!
//! Costs that this load does not exercise are not measured (a network card's own driver, an instance's thread, a
//! workqueue). They keep the values of the base profile, and are listed with the reason.
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.

mod calls;
mod connections;
pub mod derive;
pub mod estimate;
mod facts;
pub mod polls;
mod program;
pub mod round;
mod threads;
mod timing;

use std::num::NonZeroU32;
use std::thread;
use std::time::{Duration, Instant};

use napkin_kernel::count::stopwatch::KernelTypes;
use napkin_machine::profile::{Draft, Profile, ProfileError};
use napkin_os::rights::Right;
use napkin_os::sched;

use connections::Connections;
use derive::{Constant, Missing};
use napkin_measure::Host;
use napkin_workload::Options as Placed;
use napkin_workload::error::BenchError;
use napkin_workload::interrupt::Interrupt;
use napkin_workload::linux::failed;
use napkin_workload::linux::pair::Pair;
use napkin_workload::options::Placement;
use polls::Deferring;
use round::{Round, Samples};
use timing::{Budget, clock_cost};

/// The shortest and the longest measurement, in seconds.
pub const SECONDS: std::ops::RangeInclusive<u64> = 2..=3_600;

/// Minimum and maximum number of rounds: a spread needs some, and more add nothing.
const ROUNDS: (u64, u64) = (3, 12);

/// The options of a measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Approximate duration in seconds, within [`SECONDS`].
    pub seconds: u64,
    /// The CPUs: the first for the server, the second for the client. If empty, the last two usable ones.
    pub cpus: Vec<usize>,
    /// The base profile, for what is not measured; `None` for the nearest one that can run memcached.
    pub based_on: Option<String>,
    /// The device whose queues, ring and coalescing are read; `None` for napkin's own veth.
    pub device: Option<String>,
    /// The name of the profile.
    pub name: String,
}

/// The result of a measurement.
#[derive(Debug, Clone)]
pub struct Measured {
    /// The profile as TOML.
    pub toml: String,
    /// The profile: the base profile with the measured values.
    pub profile: Profile,
    /// The constants that the profile states itself.
    pub constants: Vec<Constant>,
    /// The keys that could not be measured here, with reasons.
    pub missing: Vec<Missing>,
    /// The built-in profiles with the distances of their costs from the measured ones, the nearest first.
    pub nearest: Vec<(&'static str, f64)>,
    /// Wake-up latency in nanoseconds, by how long the CPU had been idle, in microseconds.
    pub idle: Vec<(u64, f64)>,
    /// Number of rounds.
    pub rounds: usize,
}

/// Runs a measurement. `say` is called with progress messages.
///
/// # Errors
/// [`BenchError::Usage`] for invalid options; [`BenchError::Interrupted`]; and if an operation fails that needs no
/// privilege. A missing right is no error, nor is a kernel without veth: both are reported in
/// [`Measured::missing`].
pub fn measure(
    options: &Options,
    interrupt: &Interrupt,
    say: &mut (dyn FnMut(&str) + Send),
) -> Result<Measured, BenchError> {
    if !SECONDS.contains(&options.seconds) {
        let (least, most) = (SECONDS.start(), SECONDS.end());
        let seconds = options.seconds;
        return Err(BenchError::Usage(format!(
            "{seconds} seconds: give {least} to {most}; a minute is enough on a quiet machine"
        )));
    }
    if let Some(base) = &options.based_on {
        Profile::named(napkin_workload::schema(), base).map_err(|error| option(&error))?;
    }
    let of_device = options.device.as_deref().map(facts::device).transpose()?;
    let cpus = Placed { cpus: options.cpus.clone(), ..Placed::default() };
    let placement = cpus.placement();
    // In a thread of its own, with which its CPU affinity ends.
    let began = Instant::now();
    let mut findings = thread::scope(|scope| {
        let thread = scope.spawn(|| Findings::measure(options, placement, interrupt, &mut *say));
        thread.join().map_err(|_| BenchError::Panicked)?
    })?;
    let mut work = None;
    if findings.veth && !placement.shared() {
        let left = Duration::from_secs(options.seconds).saturating_sub(began.elapsed());
        say("memcached's own work");
        match program::work(placement, left, interrupt) {
            Ok(found) => work = Some(found),
            Err(BenchError::Interrupted(by)) => return Err(by.into()),
            Err(error) => findings.note_missing("memcached.work", error.to_string()),
        }
    } else {
        findings.note_missing("memcached.work", "needs the veth, and two CPUs");
    }
    finish(options, findings, work, of_device)
}

fn option(error: &ProfileError) -> BenchError {
    BenchError::Usage(error.to_string())
}

/// The rounds, and what could not be measured.
#[derive(Debug, Default)]
struct Findings {
    rounds: Vec<Round>,
    missing: Vec<Missing>,
    veth: bool,
}

/// Names the missing rights, if any are.
fn lacking(rights: &[Right]) -> Option<String> {
    let names: Vec<&str> = rights.iter().filter(|it| !it.held()).map(|it| it.name()).collect();
    (!names.is_empty()).then(|| format!("needs {}: run as root", names.join(" and ")))
}

const TRACED: &str = "cost.interrupt-entry, cost.interrupt-exit, cost.tick, cost.timer-expiry, \
                      cost.softirq-entry, cost.softirq-exit, cost.vector, cost.poll, cost.poll-frame, \
                      cost.deliver, cost.deliver-frame, memcached.client-delay";

impl Findings {
    fn measure(
        options: &Options,
        placement: Placement,
        interrupt: &Interrupt,
        say: &mut (dyn FnMut(&str) + Send),
    ) -> Result<Findings, BenchError> {
        let mut findings = Findings::default();
        let pair = findings.pair(lacking(&[Right::SysAdmin, Right::NetAdmin]), Pair::new);
        findings.veth = pair.is_some();
        let connections = Connections::new(pair.as_ref())?;
        let tracing = match (&pair, lacking(&[Right::Bpf, Right::Perfmon])) {
            (Some(pair), None) => match KernelTypes::new(cpus()) {
                Ok(maker) => Some((maker, pair)),
                Err(error) => {
                    findings.note_missing(TRACED, error.to_string());
                    None
                }
            },
            (_, Some(why)) => {
                findings.note_missing(TRACED, why);
                None
            }
            (None, None) => {
                findings.note_missing(TRACED, "needs the veth");
                None
            }
        };
        if placement.shared() {
            findings.note_missing(
                "cost.ipi, processor.idle-exit, processor.idle-exit-deep, processor.idle-deep-after, \
                 locality.cross-cpu",
                "needs two CPUs, and this process may use one",
            );
        }
        let began = Instant::now();
        // memcached's own work is measured at the end, in its share of the time.
        let with_program = pair.is_some() && !placement.shared();
        let whole = Duration::from_secs(options.seconds);
        let timed = if with_program { whole * 5 / 6 } else { whole };
        let rounds = (options.seconds / 4).clamp(ROUNDS.0, ROUNDS.1);
        let clock = clock_cost();
        for number in 1..=rounds {
            say(&format!("round {number} of {rounds}"));
            let left = timed.saturating_sub(began.elapsed());
            let time = left / u32::try_from(rounds + 1 - number).unwrap_or(1);
            let tracing = tracing.as_ref().map(|(maker, pair)| (maker, *pair));
            findings.rounds.push(measure_round(
                &connections,
                tracing,
                placement,
                clock,
                time,
                interrupt,
            )?);
        }
        Ok(findings)
    }

    /// Creates the veth with `make`, unless rights are `lacking`. If a right is missing or the creation fails, for
    /// example on a kernel without veth, loopback is used instead.
    fn pair(
        &mut self,
        lacking: Option<String>,
        make: impl FnOnce() -> Result<Pair, BenchError>,
    ) -> Option<Pair> {
        let made = match lacking {
            None => make().map_err(|error| error.to_string()),
            Some(why) => Err(why),
        };
        match made {
            Ok(pair) => Some(pair),
            Err(why) => {
                self.note_missing("a veth of napkin's own (what is sent goes over loopback)", why);
                None
            }
        }
    }

    fn note_missing(&mut self, keys: &str, why: impl Into<String>) {
        self.missing.push(Missing { keys: keys.into(), why: why.into() });
    }
}

/// Number of CPUs to record, up to the highest usable CPU number.
fn cpus() -> NonZeroU32 {
    let last = sched::usable_cpus().last().copied().unwrap_or(0);
    let count = u32::try_from(last).unwrap_or(0).saturating_add(1);
    NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN)
}

/// Runs one round: every step, each for its share of the time.
fn measure_round(
    connections: &Connections,
    tracing: Option<(&KernelTypes, &Pair)>,
    placement: Placement,
    clock: f64,
    time: Duration,
    interrupt: &Interrupt,
) -> Result<Round, BenchError> {
    let mut samples = Samples::default();
    let mut round = Round::default();
    let part = |hundredths: u32| time * hundredths / 100;
    let budget = |hundredths: u32| Budget::new(part(hundredths), interrupt);
    let serving = placement.queue;
    sched::pin(None, &[serving])?;
    calls::one_thread(connections, clock, budget(15), &mut samples)?;
    threads::switches(serving, clock, budget(6), &mut samples)?;
    threads::wake_same_cpu(serving, clock, budget(10), &mut samples)?;
    if !placement.shared() {
        let both = [serving, placement.other];
        calls::two_cpus(connections, both, clock, budget(12), &mut samples)?;
        threads::wake_other_cpu(both, None, budget(6), &mut samples)?;
        for us in threads::IDLE_US {
            threads::wake_other_cpu(
                both,
                Some(us),
                budget(if us > 1_000 { 8 } else { 3 }),
                &mut samples,
            )?;
        }
        sched::pin(None, &[serving])?;
    }
    if let Some((maker, pair)) = tracing {
        let deferring = Deferring::new(pair)?;
        let of = polls::Place { maker, deferring: &deferring, connections, cpu: serving };
        polls::polls(&of, clock, part(22), interrupt, &mut round)?;
    }
    samples.into_round(&mut round);
    Ok(round)
}

/// The current date (UTC).
fn today() -> String {
    let now = humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string();
    now.split_once('T').map_or(now.clone(), |(date, _)| date.to_owned())
}

/// Keys that this load never measures, with the reason.
const NOT_EXERCISED: [(&str, &str); 4] = [
    ("cost.look, cost.claim", "parts of a call that cannot be timed by themselves"),
    (
        "cost.ksoftirqd-loop, cost.kthread-loop, cost.kthread-sleep, cost.worker-loop, cost.migrate",
        "no thread of an instance, no workqueue and no migration is part of this load",
    ),
    (
        "cost.segment, cost.copy, cost.deliver-ack",
        "small requests only: no merged segments, no bulk",
    ),
    (
        "kernel.sched-latency, kernel.wakeup-granularity, kernel.balance-interval, kernel.migration-cost, \
         kernel.idle-scan, locality.half, locality.sharpness",
        "not looked for",
    ),
];

fn finish(
    options: &Options,
    findings: Findings,
    work: Option<Constant>,
    of_device: Option<facts::Facts>,
) -> Result<Measured, BenchError> {
    let Findings { rounds, mut missing, veth, .. } = findings;
    let reference = Profile::named(napkin_workload::schema(), "epyc-7662").map_err(failed)?;
    let ofs = derive::constants(&rounds, &reference);
    let mut nearest: Vec<(&'static str, f64)> = Profile::names()
        .filter_map(|name| {
            Some((
                name,
                derive::distance(&Profile::named(napkin_workload::schema(), name).ok()?, &ofs),
            ))
        })
        .collect();
    nearest.sort_by(|a, b| a.1.total_cmp(&b.1));
    let runs = |name: &&str| {
        Profile::named(napkin_workload::schema(), name).is_ok_and(|it| it.has("memcached"))
    };
    let based_on = match &options.based_on {
        Some(name) => name.clone(),
        None => nearest.iter().map(|it| it.0).find(runs).unwrap_or("epyc-7662").to_owned(),
    };
    let base =
        Profile::named(napkin_workload::schema(), &based_on).map_err(|error| option(&error))?;
    let periods: Vec<f64> = rounds.iter().filter_map(|it| it.get("trace.tick-period")).collect();
    let host = facts::host(estimate::Estimate::of(&periods).map(|it| it.value));
    let host_name = Host::known();
    let kernel = host_name.kernel.as_deref().unwrap_or("unknown");
    let on = format!(
        "measured on {}, Linux {kernel}, {}",
        host_name.cpu_model.as_deref().unwrap_or("an unknown processor"),
        today()
    );
    let mut constants = derive::constants(&rounds, &base);
    let known: Vec<&str> = missing.iter().flat_map(|it| it.keys.split(", ")).collect();
    let unmeasured = derive::unmeasured(&constants);
    let unmeasured: Vec<&str> = unmeasured.into_iter().filter(|key| !known.contains(key)).collect();
    if !unmeasured.is_empty() {
        let why =
            "no round had enough samples: other programs used these CPUs, or it was too short";
        missing.push(Missing { keys: unmeasured.join(", "), why: why.into() });
    }
    constants.extend(work);
    for constant in constants.iter_mut().filter(|it| it.sourced) {
        constant.how = format!("{on}: {}", constant.how);
    }
    let device =
        of_device.unwrap_or_else(|| if veth { facts::veth() } else { facts::Facts::default() });
    for facts in [host, device] {
        constants.extend(facts.constants);
        missing.extend(facts.missing);
    }
    missing.extend(NOT_EXERCISED.map(|(keys, why)| Missing { keys: keys.into(), why: why.into() }));
    one_queue_a_cpu(&mut constants, &base);
    pairs_of_threads(&mut constants, &base);
    // A section that the base profile does not have cannot be stated in part.
    constants.retain(|it| {
        it.key.split_once('.').is_some_and(|(section, _)| {
            base.has(section) || base.schema().section(section).is_some_and(|it| it.required)
        })
    });
    let comments = comments(&on, &rounds, &missing);
    let draft = Draft {
        name: options.name.clone(),
        about: format!(
            "this host ({}, Linux {kernel}) behind {}",
            host_name.cpu_model.as_deref().unwrap_or("an unknown processor"),
            match &options.device {
                Some(device) => device.clone(),
                None if veth => "a veth of napkin's own".to_owned(),
                None => "whatever the profile below has".to_owned(),
            }
        ),
        based_on,
        comments,
        constants: constants.iter().map(Constant::written).collect(),
    };
    let toml = draft.to_toml(napkin_workload::schema()).map_err(failed)?;
    let profile =
        Profile::parse(napkin_workload::schema(), &toml, &format!("{}.toml", options.name))
            .map_err(failed)?;
    let idle = derive::idle_table(&rounds);
    Ok(Measured { toml, profile, constants, missing, nearest, idle, rounds: rounds.len() })
}

/// Limits the number of queues to that of the CPUs: the machine has at most one queue per CPU.
fn one_queue_a_cpu(constants: &mut Vec<Constant>, base: &Profile) {
    const KEY: &str = "nic.queues";
    let of = |key: &str| constants.iter().find(|it| it.key == key).map(|it| it.value);
    let cpus = of("processor.cpus").unwrap_or(base.get("processor.cpus"));
    let queues = of(KEY).unwrap_or(base.get(KEY));
    if queues > cpus {
        constants.retain(|it| it.key != KEY);
        let why = format!("{queues} queues, of which the machine has at most one a CPU");
        constants.push(Constant::assumed(KEY, cpus, why));
    }
}

/// Limits SMT to what the machine supports: one or two threads per core.
fn pairs_of_threads(constants: &mut Vec<Constant>, base: &Profile) {
    const KEY: &str = "processor.smt";
    let of = |key: &str| constants.iter().find(|it| it.key == key).map(|it| it.value);
    let cpus = of("processor.cpus").unwrap_or(base.get("processor.cpus"));
    let smt = of(KEY).unwrap_or(base.get(KEY));
    let threads = if cpus % 2.0 == 0.0 { smt.min(2.0) } else { 1.0 };
    if threads < smt {
        constants.retain(|it| it.key != KEY);
        let why = format!(
            "{smt} threads a core on {cpus} CPUs, of which the machine has two at most, and one where \
             the CPUs are no pairs"
        );
        constants.push(Constant::assumed(KEY, threads, why));
    }
}

/// The comments at the head of the file: how it was made, and what is not measured.
fn comments(on: &str, rounds: &[Round], missing: &[Missing]) -> Vec<String> {
    let mut lines = vec![
        format!("Written by napkin profile measure: {on}; {} rounds.", rounds.len()),
        "A range is the least and the most of the rounds; --uncertainty draws from it.".to_owned(),
        "Not measured here, and so what the profile below says:".to_owned(),
    ];
    lines.extend(missing.iter().map(|it| format!("- {}: {}", it.keys, it.why)));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_right_or_a_veth_loopback_is_left_and_the_reason_is_told() {
        let mut findings = Findings::default();
        assert!(
            findings.pair(Some("needs a right".into()), || panic!("nothing is made")).is_none()
        );
        assert!(findings.pair(None, || Err(failed("no such kind of link"))).is_none());
        let why: Vec<&str> = findings.missing.iter().map(|it| it.why.as_str()).collect();
        assert!(why[0] == "needs a right" && why[1].contains("no such kind of link"), "{why:?}");
        assert!(findings.missing.iter().all(|it| it.keys.contains("loopback")));
    }

    #[test]
    fn a_host_whose_cores_the_machine_has_not_is_written_as_the_nearest_that_it_has() {
        let base = Profile::named(napkin_workload::schema(), "xeon-56").expect("built in");
        for (cpus, smt, written) in [
            (4.0, Some(1.0), Some(1.0)),
            (4.0, Some(2.0), Some(2.0)),
            (32.0, Some(8.0), Some(2.0)),
            (3.0, Some(2.0), Some(1.0)),
            // Unknown here; the base profile has two.
            (4.0, None, None),
            (3.0, None, Some(1.0)),
        ] {
            let mut constants = vec![Constant::sourced("processor.cpus", cpus, "here")];
            constants.extend(smt.map(|smt| Constant::sourced("processor.smt", smt, "here")));
            pairs_of_threads(&mut constants, &base);
            let found = constants.iter().find(|it| it.key == "processor.smt");
            assert_eq!(found.map(|it| it.value), written, "{cpus} CPUs, {smt:?}");
            assert!(found.is_none_or(|it| it.sourced == (smt == written)), "{found:?}");
        }
    }
}
