//! The rounds: each policy in turn, in an order of its own each round, watched while it is in force.

use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use napkin_kernel::count::latency::{Histogram, Part, Probe, Reading};
use napkin_kernel::device::{self, Device};
use napkin_kernel::netlink::Netdev;
use napkin_kernel::probe::Kernel;
use napkin_linux::attach::Plan as ProgramPlan;
use napkin_linux::guard as starvation;
use napkin_linux::journal::Store;
use napkin_linux::support::{self, Scope};
use napkin_measure::Plan;
use napkin_os::signals::Signals;

use crate::command::{Measure, Running, number};
use crate::error::CompareError;
use crate::force::Force;
use crate::guard::{Guard, Reference};
use crate::monitor::{ON, SliceMonitor, TICK, off};
use crate::options::Options;
use crate::report::{Report, Row};
use crate::service::Service;
use crate::window::{Slice, Window};

/// How often it is seen to that the device is there.
const PRESENT: Duration = Duration::from_millis(500);
/// What a change itself does to the requests under way is not held against the policy.
const CHANGE: Duration = Duration::from_millis(100);

/// What is told while it lasts.
#[derive(Debug)]
pub enum CompareEvent<'a> {
    /// A slice begins: its policy.
    Slice(&'a str),
    /// A policy is out of the rest.
    Out {
        /// The policy, by the name that was given.
        name: &'a str,
        /// What went wrong under it, or which guard it broke, in a sentence.
        why: &'a str,
    },
    /// Something to know.
    Note(&'a str),
}

/// Compares, and puts everything back. What ends it early once something was changed stands in the
/// report, with what there is by then. `signals` are those of [`Signals::block_ends`], blocked before.
///
/// # Errors
/// If nothing can be compared. Nothing was changed then, or all was put back.
pub fn compare(
    service: &Service,
    options: &Options,
    signals: &Signals,
    tell: &mut dyn FnMut(CompareEvent<'_>),
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
    let needs_probe =
        options.measure.is_none() || matches!(options.guard, Some(Guard::Condition(_)));
    let probe = needs_probe.then(|| service.probe());
    let probe = probe.transpose()?;
    let rows = options.policies.iter().map(|(name, policy)| Row::new(name, policy)).collect();
    let mut report = Report::new(service, options, rows);
    if let Some(probe) = &probe {
        report.notes.extend(service.not_timed());
        report.notes.extend(probe.notes().to_vec());
    }
    let mut run = Run {
        service,
        options,
        signals,
        probe,
        reference: Reference::default(),
        off: Duration::ZERO,
    };
    tell(CompareEvent::Slice(&format!("{}, to begin with", options.policies[0].0)));
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
    for (place, step) in plan.steps().enumerate() {
        if report.rows[step.subject].out.is_some() {
            continue;
        }
        let name = &options.policies[step.subject].0;
        tell(CompareEvent::Slice(name));
        let ran = run.slice(step.subject, step.repetition, options.slice, true, &mut report);
        match ran {
            Ok(Ran::Done(slice, _)) => {
                let slice = Slice { round: step.repetition, step: place, ..slice };
                report.rows[step.subject].slices.push(slice);
            }
            Ok(Ran::Ended(End::Signal(signal))) => {
                report.signal = Some(signal);
                break;
            }
            Ok(Ran::Ended(End::Broken(why))) => {
                tell(CompareEvent::Out { name, why: &why });
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
    Ok(report)
}

/// How a slice ended before its time.
#[derive(Debug)]
enum End {
    Signal(i32),
    Broken(String),
}

#[derive(Debug)]
enum Ran {
    Done(Slice, Histogram),
    Ended(End),
}

struct Run<'a> {
    service: &'a Service,
    options: &'a Options,
    signals: &'a Signals,
    probe: Option<Probe>,
    reference: Reference,
    /// How long the programs rest after each time that requests were timed.
    off: Duration,
}

impl Run<'_> {
    /// The reference before the rounds: how much comes, and what guards compare with.
    fn first(&mut self, report: &mut Report) -> Result<Option<End>, CompareError> {
        if self.probe.is_none() {
            return Ok(None);
        }
        match self.slice(0, 0, self.options.first(), false, report)? {
            Ran::Ended(end) => Ok(Some(end)),
            Ran::Done(slice, whole) => {
                let answers_per_s = slice.answers_per_s.unwrap_or(0.0);
                if whole.count() == 0 && self.options.measure.is_none() {
                    return Err(CompareError::Usage(format!(
                        "{} answered nothing in {:.1} s: what it is asked now is what is compared, so it \
                         must have its load (or give --measure CMD, which brings its own)",
                        self.service, slice.seconds
                    )));
                }
                self.reference = Reference { whole, answers_per_s };
                // A load that --measure brings is not there yet.
                if let Some(guard) = &self.options.guard
                    && guard.lacks(&self.reference)
                {
                    return Err(CompareError::Usage(format!(
                        "{guard}: {} answered nothing in {:.1} s before --measure, so there is nothing to \
                         compare with: give a time or a rate, as in 'p99<500us', or a command; or let it have \
                         a load before",
                        self.service, slice.seconds
                    )));
                }
                self.off = off(answers_per_s);
                report.timed_share = ON.as_secs_f64() / (ON + self.off).as_secs_f64();
                Ok(None)
            }
        }
    }

    /// One policy for one slice, put back at its end. `measured`: by the user's command, if there is one.
    fn slice(
        &mut self,
        subject: usize,
        round: usize,
        length: Duration,
        measured: bool,
        report: &mut Report,
    ) -> Result<Ran, CompareError> {
        let (name, policy) = &self.options.policies[subject];
        let mut force = Force::put(policy, self.service).map_err(|error| self.why(error))?;
        let (name, policy) = (name.clone(), *policy);
        let starving = policy.suspends().then(|| self.watch_starvation(report)).flatten();
        let measure = self.options.measure.as_ref().filter(|_| measured);
        let ran = self.watch(
            &mut force,
            &name,
            round,
            length,
            measure,
            starving.as_ref().map(|it| &it.1),
        );
        drop(starving);
        for failure in force.failures() {
            report.note(failure);
        }
        let restored = force.restore();
        // What ended it comes first, but for what is left behind.
        match (ran.map_err(|error| self.why(error)), restored) {
            (_, Err(left)) => Err(self.why(left)),
            (ran, Ok(())) => ran,
        }
    }

    /// Whatever failed, if the device or the program is gone that is why.
    fn why(&self, error: CompareError) -> CompareError {
        let ifname = &self.service.device.ifname;
        let process = napkin_kernel::process::Process::open(self.service.pid);
        if self.device().is_err() {
            return CompareError::DeviceGone { ifname: ifname.clone() };
        }
        match process {
            Err(gone) if gone.is_gone() => crate::force::ended(self.service),
            _ => error,
        }
    }

    fn device(&self) -> Result<Device, CompareError> {
        let gone = || CompareError::DeviceGone { ifname: self.service.device.ifname.clone() };
        let device = device::read(&mut Netdev::open()?, &self.service.device.ifname);
        let device = device.map_err(|_| gone())?;
        if device.ifindex == self.service.device.ifindex { Ok(device) } else { Err(gone()) }
    }

    /// Watches for queues that the program starves under a policy that suspends.
    fn watch_starvation(
        &self,
        report: &mut Report,
    ) -> Option<(starvation::Guard, Receiver<String>)> {
        let (send, receive) = channel();
        let ifindex = self.service.device.ifindex;
        let options = starvation::Options {
            only: Some(ifindex),
            held: Some(ifindex),
            again: starvation::Again::Never,
        };
        let tell = Box::new(move |event: &starvation::Event| {
            let _ = send.send(event.to_string());
        });
        let started = Store::open().map_err(|error| error.to_string()).and_then(|store| {
            starvation::Guard::start(options, &store, tell).map_err(|error| error.to_string())
        });
        match started {
            Ok(guard) => Some((guard, receive)),
            Err(why) => {
                report.note(format!("nobody watches for starved queues: {why}"));
                None
            }
        }
    }

    /// From the moment that the policy is in force to the end of its slice.
    fn watch(
        &mut self,
        force: &mut Force,
        name: &str,
        round: usize,
        length: Duration,
        measure: Option<&Measure>,
        starving: Option<&Receiver<String>>,
    ) -> Result<Ran, CompareError> {
        let device = self.device()?;
        let began = Instant::now();
        let mut seen = began;
        if let Some(probe) = &mut self.probe {
            probe.resume()?;
        }
        let mut monitor = SliceMonitor::new(self.options.guard.as_ref(), &self.reference);
        let mut window: Option<Window> = None;
        let mut measuring: Option<Running> = None;
        let fail = |error| CompareError::System { what: "a command cannot be run", error };
        loop {
            force.tend(self.service)?;
            let now = Instant::now();
            if now - seen >= PRESENT {
                seen = now;
                self.device()?;
            }
            if let Some(why) = starving.and_then(|it| it.try_recv().ok()) {
                return Ok(Ran::Ended(End::Broken(why)));
            }
            if let Some(probe) = &mut self.probe
                && now - began >= CHANGE
            {
                // While the service settles all is timed, so that a guard is quick; then in turns.
                let off = if window.is_some() { self.off } else { Duration::ZERO };
                monitor.look(probe, &self.service.napi_ids(), off)?;
            }
            let whole = |reading: &Reading| reading.all().of(Part::Whole).clone();
            if let Some(why) = monitor.broken(name, round, self.signals, whole).map_err(fail)? {
                return Ok(Ran::Ended(End::Broken(why)));
            }
            match (&mut measuring, measure) {
                (Some(running), Some(measure)) => {
                    if let Some(outcome) = running.look().map_err(fail)? {
                        let measured = number(&outcome, measure.limit).map_err(|what| {
                            CompareError::Measure { command: measure.command.clone(), what }
                        })?;
                        let Some(window) = window.take() else { break };
                        let probe = self.probe.as_ref();
                        let (slice, whole) =
                            window.end(self.service, &device, probe, monitor.timed())?;
                        return Ok(Ran::Done(Slice { measured: Some(measured), ..slice }, whole));
                    }
                }
                _ if window.is_none() && began.elapsed() >= self.options.settle => {
                    window = Some(Window::begin(self.service, &device, self.probe.as_ref())?);
                    monitor.restart();
                    if let Some(Measure { command, limit, .. }) = measure {
                        let start = Running::start(command, name, round, *limit, self.signals);
                        measuring = Some(start.map_err(fail)?);
                    }
                }
                (None, None) if began.elapsed() >= length => break,
                _ => {}
            }
            let mut wait = TICK.min(force.due());
            if !self.off.is_zero() && window.is_some() {
                wait = wait.min(ON / 2);
            }
            if window.is_none() {
                wait = wait.min(self.options.settle.saturating_sub(began.elapsed()));
            } else if measure.is_none() {
                wait = wait.min(length.saturating_sub(began.elapsed()));
            }
            if let Some(came) = self.signals.wait(wait) {
                return Ok(Ran::Ended(End::Signal(came.signal)));
            }
        }
        let Some(window) = window else {
            return Err(CompareError::Usage("a slice ended before it had settled".into()));
        };
        let probe = self.probe.as_ref();
        let (slice, whole) = window.end(self.service, &device, probe, monitor.timed())?;
        Ok(Ran::Done(slice, whole))
    }
}
