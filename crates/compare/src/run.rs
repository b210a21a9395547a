//! The rounds of a comparison: each policy in turn, in a new order each round, monitored while it is in force.

use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use napkin_kernel::count::latency::{Part, Probe, Reading};
use napkin_kernel::device::{self, Device};
use napkin_kernel::netlink::Netdev;
use napkin_kernel::probe::Kernel;
use napkin_linux::apply::NOT_STOPPED;
use napkin_linux::attach::Plan as ProgramPlan;
use napkin_linux::support::{self, Scope};
use napkin_measure::Plan;
use napkin_os::signals::Signals;

use crate::applied::{AppliedPolicy, watch_starvation};
use crate::command::{Measure, Running, number};
use crate::error::CompareError;
use crate::guard::Reference;
use crate::monitor::{SliceMonitor, TICK, TURN_LENGTH, pause_after_turn};
use crate::options::Options;
use crate::report::{Guarded, Report, Row};
use crate::service::{Service, follow};
use crate::window::{Slice, Window};

/// Interval between checks that the device is present.
const PRESENT: Duration = Duration::from_millis(500);
/// Requests in this time after the change are ignored: the change itself disturbs them, whatever the policy.
const CHANGE: Duration = Duration::from_millis(100);

/// Progress of a comparison.
#[derive(Debug)]
pub enum CompareEvent<'a> {
    /// A slice begins, with this policy.
    Slice(&'a str),
    /// A policy is excluded from the rest.
    Excluded {
        /// The policy, by the name that was given.
        name: &'a str,
        /// What went wrong under it, or which guard it broke, in a sentence.
        why: &'a str,
    },
    /// A note to the user.
    Note(&'a str),
}

/// Runs a comparison and puts everything back. If it ends early after something was changed, the report says why
/// and holds the slices so far. `signals` are those of [`Signals::block_termination_and_stop`], blocked by the caller; a
/// stop signal ends nothing and is reported once.
///
/// # Errors
/// If nothing can be compared. Either nothing was changed, or everything was put back.
pub fn compare(
    service: &Service,
    options: &Options,
    signals: &Signals,
    on_event: &mut dyn FnMut(CompareEvent<'_>),
) -> Result<Report, CompareError> {
    options.check()?;
    let kernel = Kernel::probe();
    for (_, policy) in &options.policies {
        support::check(policy, &kernel, Scope::Both)?;
        ProgramPlan::of(policy)?;
    }
    if let Some(guard) = &options.guard {
        service.may_guard(guard)?;
    }
    let (probe, unnoticed) = match service.probe() {
        Ok(probe) => (Some(probe), None),
        Err(error) if options.needs_timing() => return Err(error),
        // A measure of the user's own works without timing.
        Err(error) => (None, Some(error.unnoticed())),
    };
    let rows = options.policies.iter().map(|(name, policy)| Row::new(name, policy)).collect();
    let mut report = Report::new(service, options, rows);
    if let Some(probe) = &probe {
        report.notes.extend(service.not_timed());
        report.notes.extend(probe.notes().to_vec());
    }
    report.notes.extend(unnoticed);
    let mut run = Run {
        service,
        options,
        signals,
        on_event,
        probe,
        napi_ids: service.napi_ids(),
        reference: Reference::default(),
        last: Reference::default(),
        // The load that a measure brings is unknown before it has run; where its number alone counts, requests are
        // timed as rarely as possible.
        pause: if options.needs_timing() {
            Duration::ZERO
        } else {
            pause_after_turn(f64::INFINITY)
        },
        seconds: [0.0; 2],
        stop_noted: false,
        unjudged: None,
        unnoticed: None,
    };
    (run.on_event)(CompareEvent::Slice(&format!("{}, to begin with", options.policies[0].0)));
    match run.first(&mut report)? {
        None => {}
        Some(End::Signal(signal)) => {
            report.signal = Some(signal);
            return Ok(report);
        }
        Some(End::Broken(why)) => {
            let name = &options.policies[0].0;
            report.failed = Some(format!("{name}, the reference, breaks the guard itself: {why}"));
            return Ok(report);
        }
    }
    let plan = Plan {
        subjects: options.policies.len(),
        groups: 1,
        repetitions: options.rounds,
        seed: options.seed,
    };
    let (mut round, mut guarded) = (0, Guarded::new(options.policies.len()));
    for (place, step) in plan.steps().enumerate() {
        if std::mem::replace(&mut round, step.repetition) != step.repetition {
            // By the reference's rate in the round before, the same for all policies.
            run.pause = pause_after_turn(run.last.answers_per_s);
        }
        if report.rows[step.subject].out.is_some() {
            continue;
        }
        let name = &options.policies[step.subject].0;
        (run.on_event)(CompareEvent::Slice(name));
        let ran = run.slice(step.subject, step.repetition, options.slice, true, &mut report);
        match ran {
            Ok(SliceOutcome::Done(slice, as_reference)) => {
                if step.subject == 0 {
                    run.last = as_reference;
                }
                guarded.record(step.subject, run.unjudged.take());
                let slice = Slice { round: step.repetition, step: place, ..slice };
                report.rows[step.subject].slices.push(slice);
            }
            Ok(SliceOutcome::Ended(End::Signal(signal))) => {
                report.signal = Some(signal);
                break;
            }
            Ok(SliceOutcome::Ended(End::Broken(why))) => {
                (run.on_event)(CompareEvent::Excluded { name, why: &why });
                report.rows[step.subject].out = Some(why.clone());
                let broken = Slice {
                    round: step.repetition,
                    step: place,
                    broken: Some(why.clone()),
                    ..Slice::default()
                };
                report.rows[step.subject].slices.push(broken);
                if step.subject == 0 {
                    report.failed = Some(format!("{name}, the reference, broke the guard: {why}"));
                    break;
                }
                if report.rows.iter().filter(|row| row.out.is_none()).count() < 2 {
                    break;
                }
            }
            Err(error) => {
                report.failed = Some(error.to_string());
                break;
            }
        }
    }
    report.timed_share = run.timed_share();
    guarded.note(&mut report);
    Ok(report)
}

/// Why a slice ended before its time.
#[derive(Debug)]
enum End {
    Signal(i32),
    Broken(String),
}

#[derive(Debug)]
enum SliceOutcome {
    /// The slice ran to its end. The second value is what later slices are compared with, if it is the reference's.
    Done(Slice, Reference),
    Ended(End),
}

struct Run<'a> {
    service: &'a Service,
    options: &'a Options,
    signals: &'a Signals,
    on_event: &'a mut dyn FnMut(CompareEvent<'_>),
    probe: Option<Probe>,
    /// The ids of the device's instances, including those it had before.
    napi_ids: Vec<u32>,
    /// The figures that guards compare with: the reference before the rounds.
    reference: Reference,
    /// The figures of the reference when it last ran.
    last: Reference,
    /// Pause between two turns in which requests are timed.
    pause: Duration,
    /// Total measured time in the rounds, and how much of it requests were timed, both in seconds.
    seconds: [f64; 2],
    stop_noted: bool,
    /// What was missing to judge the guard in the last slice.
    unjudged: Option<String>,
    /// Why requests are no longer timed, although they were.
    unnoticed: Option<String>,
}

impl Run<'_> {
    /// Measures the reference before the rounds: the load, and the figures that guards compare with.
    fn first(&mut self, report: &mut Report) -> Result<Option<End>, CompareError> {
        let options = self.options;
        if !options.needs_timing() {
            return Ok(None);
        }
        match self.slice(0, 0, options.first(), false, report)? {
            SliceOutcome::Ended(end) => Ok(Some(end)),
            SliceOutcome::Done(slice, as_reference) => {
                let (service, seconds) = (self.service, slice.seconds);
                if as_reference.whole.count() == 0 && options.measure.is_none() {
                    return Err(CompareError::Usage(format!(
                        "{service} answered nothing in {seconds:.1} s: what it is asked now is what is compared, so it \
                         must have its load (or give --measure CMD, which brings its own)"
                    )));
                }
                // The load that `--measure` brings is not there yet.
                if let Some(guard) = &options.guard
                    && guard.lacks(&as_reference)
                {
                    return Err(CompareError::Usage(format!(
                        "{guard}: {service} answered nothing in {seconds:.1} s before --measure, so there is nothing \
                         to compare with: give a time, as in 'p99<500us', or a command; or let it have a load before"
                    )));
                }
                if let Some(guard) = &options.guard
                    && let Some(why) = guard.too_few(&as_reference)
                {
                    let longer = if options.looks_short() { "a longer --slice, " } else { "" };
                    return Err(CompareError::Usage(format!(
                        "{guard}: {why}: give {longer}a lower percentile, or a time, as in 'p99<500us'"
                    )));
                }
                self.pause = pause_after_turn(as_reference.answers_per_s);
                (self.reference, self.last) = (as_reference.clone(), as_reference);
                self.seconds = [0.0; 2];
                Ok(None)
            }
        }
    }

    /// The share of the measured time in which requests were timed.
    fn timed_share(&self) -> Option<f64> {
        let [all, timed] = self.seconds;
        (self.probe.is_some() && all > 0.0).then(|| (timed / all).min(1.0))
    }

    /// Runs one policy for one slice and puts it back. `measured` tells whether the user's command, if any, is run.
    fn slice(
        &mut self,
        subject: usize,
        round: usize,
        length: Duration,
        measured: bool,
        report: &mut Report,
    ) -> Result<SliceOutcome, CompareError> {
        let (name, policy) = &self.options.policies[subject];
        let mut applied =
            AppliedPolicy::apply(policy, self.service).map_err(|error| self.why(error))?;
        let (name, policy) = (name.clone(), *policy);
        let ifindex = self.service.device.ifindex;
        let starving = policy.suspends().then(|| watch_starvation(ifindex, report)).flatten();
        let measure = self.options.measure.as_ref().filter(|_| measured);
        let ran = self.watch(
            &mut applied,
            &name,
            round,
            length,
            measure,
            starving.as_ref().map(|it| &it.1),
        );
        drop(starving);
        for note in applied.failures().into_iter().chain(self.unnoticed.take()) {
            report.note(note);
        }
        let restored = applied.restore();
        // The slice's own error comes first, combined with what could not be put back.
        match (ran.map_err(|error| self.why(error)), restored) {
            (Ok(_), Err(left)) => Err(left),
            (Err(ended), Err(left)) => Err(ended.and_left(left)),
            (ran, Ok(())) => ran,
        }
    }

    /// Replaces an error by its cause if the device or the program is gone.
    fn why(&self, error: CompareError) -> CompareError {
        let ifname = &self.service.device.ifname;
        let process = napkin_kernel::process::Process::open(self.service.pid);
        if self.device().is_err() {
            return CompareError::DeviceGone { ifname: ifname.clone() };
        }
        match process {
            Err(gone) if gone.is_gone() => crate::applied::service_ended(self.service),
            _ => error,
        }
    }

    fn device(&self) -> Result<Device, CompareError> {
        let gone = || CompareError::DeviceGone { ifname: self.service.device.ifname.clone() };
        let device = device::read(&mut Netdev::open()?, &self.service.device.ifname);
        let device = device.map_err(|_| gone())?;
        if device.ifindex == self.service.device.ifindex { Ok(device) } else { Err(gone()) }
    }

    /// Adds the ids of the device's new instances; returns whether there were any.
    fn follow(&mut self, device: &Device) -> Result<bool, CompareError> {
        let Some(probe) = &mut self.probe else { return Ok(false) };
        let new = follow(probe, &mut self.napi_ids, device);
        self.or_without_timing(new, false)
    }

    /// Reads the service's requests since the last look.
    fn look(&mut self, monitor: &mut SliceMonitor<'_>, settled: bool) -> Result<(), CompareError> {
        let Some(probe) = &mut self.probe else { return Ok(()) };
        // While the service settles, all requests are timed, so that a guard reacts quickly; afterwards in turns.
        let pause = if settled { self.pause } else { Duration::ZERO };
        let looked = monitor.look(probe, &self.napi_ids, pause);
        self.or_without_timing(looked.map_err(CompareError::from), ())
    }

    /// The counts of the service's requests so far, if they are timed.
    fn reading(&mut self) -> Result<Option<Reading>, CompareError> {
        let Some(probe) = &self.probe else { return Ok(None) };
        let read = probe.read(&self.napi_ids).map(Some).map_err(CompareError::from);
        self.or_without_timing(read, None)
    }

    /// With a measure of the user's own, a failure of the timing ends only the timing; returns `otherwise` then.
    fn or_without_timing<T>(
        &mut self,
        timed: Result<T, CompareError>,
        otherwise: T,
    ) -> Result<T, CompareError> {
        match timed {
            Err(error) if !self.options.needs_timing() => {
                self.probe = None;
                self.unnoticed = Some(error.unnoticed());
                Ok(otherwise)
            }
            timed => timed,
        }
    }

    /// Waits for a signal that ends the comparison; a stop signal does not.
    fn signal(&mut self, wait: Duration) -> Option<i32> {
        let received = self.signals.wait(wait)?;
        if received.signal != Signals::STOP {
            return Some(received.signal);
        }
        if !std::mem::replace(&mut self.stop_noted, true) {
            (self.on_event)(CompareEvent::Note(NOT_STOPPED));
        }
        None
    }

    /// Ends a window and returns its figures.
    fn figures(
        &mut self,
        window: Window,
        device: &Device,
        monitor: &SliceMonitor<'_>,
        measured: bool,
    ) -> Result<(Slice, Reference), CompareError> {
        let (reading, timed) = (self.reading()?, monitor.timed());
        let (slice, mut as_reference) = window.end(self.service, device, reading, timed)?;
        self.seconds[0] += slice.seconds;
        self.seconds[1] += timed;
        if measured {
            // The command may send nothing while it starts and after it has its number. Silence is not observed
            // while the programs are detached, so that pause is added.
            as_reference.patience = 2 * (monitor.longest_silence() + self.pause);
        }
        Ok((slice, as_reference))
    }

    /// Monitors a policy from the moment that it is in force to the end of its slice, and until a running guard
    /// command has ended.
    fn watch(
        &mut self,
        applied: &mut AppliedPolicy,
        name: &str,
        round: usize,
        length: Duration,
        measure: Option<&Measure>,
        starving: Option<&Receiver<String>>,
    ) -> Result<SliceOutcome, CompareError> {
        let (service, options, signals) = (self.service, self.options, self.signals);
        let device = self.device()?;
        self.follow(&device)?;
        let began = Instant::now();
        let mut seen = began;
        if let Some(probe) = &mut self.probe {
            let resumed = probe.resume().map_err(CompareError::from);
            self.or_without_timing(resumed, ())?;
        }
        let (reference, last) = (self.reference.clone(), self.last.clone());
        // Before and after the measure's command there is no load.
        let loaded = measure.is_none();
        let mut monitor = SliceMonitor::new(options.guard.as_ref(), &reference, &last, loaded);
        let mut window: Option<Window> = None;
        let mut measuring: Option<Running> = None;
        let mut done: Option<(Slice, Reference)> = None;
        let fail = |error| CompareError::System { what: "a command cannot be run", error };
        loop {
            applied.refresh(service)?;
            let now = Instant::now();
            let (timed, settled) = (now - began >= CHANGE, window.is_some() || done.is_some());
            if timed {
                self.look(&mut monitor, settled)?;
            }
            let suspects = self.probe.is_some() && monitor.suspects();
            let every = if suspects { TICK } else { PRESENT };
            if now - seen >= every {
                seen = now;
                let device = self.device()?;
                if self.follow(&device)? && timed {
                    self.look(&mut monitor, settled)?;
                }
            }
            if let Some(why) = starving.and_then(|it| it.try_recv().ok()) {
                return Ok(SliceOutcome::Ended(End::Broken(why)));
            }
            let whole = |reading: &Reading| reading.all().of(Part::Whole).clone();
            if let Some(why) = monitor.broken(name, round, signals, whole).map_err(fail)? {
                return Ok(SliceOutcome::Ended(End::Broken(why)));
            }
            match (&mut measuring, measure) {
                _ if done.is_some() => {}
                (Some(running), Some(measure)) => {
                    if let Some(outcome) = running.look().map_err(fail)? {
                        let measured = number(&outcome, measure.limit).map_err(|what| {
                            CompareError::Measure { command: measure.command.clone(), what }
                        })?;
                        let window = window.take().ok_or_else(unsettled)?;
                        let (slice, as_reference) =
                            self.figures(window, &device, &monitor, true)?;
                        monitor.set_loaded(false);
                        done = Some((Slice { measured: Some(measured), ..slice }, as_reference));
                    }
                }
                _ if window.is_none() && began.elapsed() >= options.settle => {
                    // The request counts are read last, because they are divided by the time since.
                    let begun = Window::begin(service, &device)?;
                    window = Some(begun.counting(self.reading()?));
                    monitor.restart();
                    if let Some(Measure { command, limit, .. }) = measure {
                        let start = Running::start(command, name, round, *limit, signals);
                        measuring = Some(start.map_err(fail)?);
                        monitor.set_loaded(true);
                    }
                }
                (None, None) if began.elapsed() >= length => {
                    let window = window.take().ok_or_else(unsettled)?;
                    done = Some(self.figures(window, &device, &monitor, false)?);
                }
                _ => {}
            }
            if let Some((slice, as_reference)) = done.take() {
                // A running guard command may still break the guard.
                if !monitor.waits_for_command() {
                    self.unjudged = monitor.unjudged("");
                    return Ok(SliceOutcome::Done(slice, as_reference));
                }
                done = Some((slice, as_reference));
            }
            let mut wait = TICK.min(applied.due());
            if self.probe.is_some() && !self.pause.is_zero() && window.is_some() {
                wait = wait.min(TURN_LENGTH / 2);
            }
            if done.is_none() && window.is_none() {
                wait = wait.min(options.settle.saturating_sub(began.elapsed()));
            } else if done.is_none() && measure.is_none() {
                wait = wait.min(length.saturating_sub(began.elapsed()));
            }
            if let Some(signal) = self.signal(wait) {
                return Ok(SliceOutcome::Ended(End::Signal(signal)));
            }
        }
    }
}

fn unsettled() -> CompareError {
    CompareError::Usage("a slice ended before it had settled".into())
}
