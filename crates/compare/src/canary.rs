//! A guard over a policy that another part of napkin puts in force: compares the services' requests with those
//! before the change.
//!
//! It covers one service, or all services that listen in this network namespace. It changes nothing: the caller
//! puts the policy in force and puts it back.

use std::time::{Duration, Instant};

use napkin_kernel::count::latency::{Histogram, Options, Part, Probe, Reading};
use napkin_kernel::device;
use napkin_kernel::listening;
use napkin_kernel::netlink::Netdev;
use napkin_linux::apply::NOT_STOPPED;
use napkin_os::signals::Signals;

use crate::error::CompareError;
use crate::guard::{Bound, Condition, Guard, Reference};
use crate::monitor::{SliceMonitor, TICK, TURN_LENGTH, pause_after_turn};
use crate::service::{Service, follow, napi_ids, netns, probe};
use crate::silence::Answered;

/// How long requests are measured before the change.
const FIRST: Duration = Duration::from_secs(2);
/// Longest pause in the timing of requests: a policy that breaks its guard must be put back within a second.
const LONGEST_PAUSE: Duration = Duration::from_millis(400);
/// Requests in this time after the change are ignored: the change itself disturbs them, whatever the policy.
const CHANGE: Duration = Duration::from_millis(100);
/// Interval between checks of the device for instances with new ids.
const FOLLOW: Duration = Duration::from_secs(1);

/// How a canary ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The time was up, and the guard held.
    Held,
    /// The time was up, and the guard was never judged: what was missing, and what to do about it.
    Unjudged(String),
    /// This signal arrived.
    Signal(i32),
    /// The guard broke, for this reason.
    Broken(String),
}

/// A guard and the figures that it compares with.
#[derive(Debug)]
pub struct Canary {
    guard: Guard,
    probe: Option<Probe>,
    /// Netlink socket for the device; `None` after a failure, to be opened again.
    netdev: Option<Netdev>,
    ifname: String,
    /// The ids of the device's instances, including those it had before.
    napi_ids: Vec<u32>,
    /// Whether requests that came through no known instance count.
    others: bool,
    reference: Reference,
    not_timed: Option<String>,
}

impl Canary {
    /// Measures requests for two seconds before the change, if the guard is a condition. They are the requests of
    /// the process `pid` and its children; without `pid`, those of all services in this thread's network namespace
    /// that come through the device. A guard that is a command needs no measurement.
    ///
    /// # Errors
    /// If requests cannot be timed, or the guard is relative and there is too little to compare with. A signal that
    /// arrives meanwhile stays pending for [`Canary::watch`].
    pub fn begin(guard: Guard, ifname: &str, pid: Option<i32>) -> Result<Canary, CompareError> {
        let mut netdev = Netdev::open()?;
        let device = device::read(&mut netdev, ifname)?;
        let mut canary = Canary {
            guard,
            probe: None,
            netdev: Some(netdev),
            ifname: ifname.to_owned(),
            napi_ids: napi_ids(&device),
            others: pid.is_some(),
            reference: Reference::default(),
            not_timed: None,
        };
        if matches!(canary.guard, Guard::Command(_)) {
            return Ok(canary);
        }
        let options = match pid {
            Some(pid) => {
                let service = Service::find(pid, ifname)?;
                service.may_guard(&canary.guard)?;
                canary.not_timed = service.not_timed();
                service.timed()?
            }
            None => timed()?,
        };
        let probe = probe(&options, &device)?;
        // An absolute rate counts the answers of all services, so it need not tell devices apart.
        let absolute =
            matches!(canary.guard, Guard::Condition(Condition::Rate(Bound::Absolute(_))));
        if !canary.others && !absolute && !probe.knows_instances() {
            return Err(CompareError::Usage(format!(
                "{}: name the service by --pid: {}",
                canary.guard,
                probe.notes().join("; ")
            )));
        }
        let (began, before) = (Instant::now(), probe.read(&canary.napi_ids)?);
        std::thread::sleep(FIRST);
        let reading = probe.read(&canary.napi_ids)?.since(&before);
        let seconds = began.elapsed().as_secs_f64();
        let [device_per_s, others_per_s] = Answered::of(&reading).rates(seconds);
        canary.reference = Reference {
            whole: whole(&reading, canary.others),
            answers_per_s: reading.answers().unwrap_or(0.0) / seconds,
            device_per_s,
            others_per_s,
            ..Reference::default()
        };
        canary.probe = Some(probe);
        if canary.guard.lacks(&canary.reference) {
            return Err(CompareError::Usage(format!(
                "{}: no request came through {ifname} and was answered in {} s before the change, so there \
                 is nothing to compare with: give a time, as in 'p99<500us', or a command",
                canary.guard,
                FIRST.as_secs()
            )));
        }
        if let Some(why) = canary.guard.too_few(&canary.reference) {
            return Err(CompareError::Usage(format!(
                "{}: {why}: give a lower percentile, or a time, as in 'p99<500us'",
                canary.guard
            )));
        }
        Ok(canary)
    }

    /// The number of requests timed before the change, and the answers per second; `None` if the guard is a
    /// command.
    pub fn reference(&self) -> Option<(u64, f64)> {
        let it = &self.reference;
        self.probe.as_ref().map(|_| (it.whole.count(), it.answers_per_s))
    }

    /// A sentence on how many processes and ports of the service are not timed; `None` if all are.
    pub fn not_timed(&self) -> Option<&str> {
        self.not_timed.as_deref()
    }

    /// Watches the policy in force, named `policy`, until the time is up, a signal arrives, or the guard breaks.
    /// `harm` returns any other reason to break off. A guard command that is running when the time is up is waited
    /// for, at most for its own limit (10 s). `signals` are those of [`Signals::block_termination_and_stop`]; a stop
    /// signal ends nothing and is reported once through `tell`. [`End::Held`] is returned only if the guard was
    /// judged.
    ///
    /// # Errors
    /// If the kernel does not answer, or the guard's command cannot be run.
    pub fn watch(
        &mut self,
        policy: &str,
        signals: &Signals,
        limit: Duration,
        harm: &dyn Fn() -> Option<String>,
        on_note: &mut dyn FnMut(&str),
    ) -> Result<End, CompareError> {
        let began = Instant::now();
        let pause = pause_after_turn(self.reference.answers_per_s).min(LONGEST_PAUSE);
        let others = self.others;
        let (mut followed, mut noted) = (began, false);
        let reference = &self.reference;
        let mut monitor = SliceMonitor::new(Some(&self.guard), reference, reference, true);
        loop {
            if let Some(probe) = &mut self.probe {
                let is_past_change = began.elapsed() >= CHANGE;
                if is_past_change {
                    monitor.look(probe, &self.napi_ids, pause)?;
                }
                let every = if monitor.suspects() { TICK } else { FOLLOW };
                if followed.elapsed() >= every {
                    followed = Instant::now();
                    let (netdev, ids) = (&mut self.netdev, &mut self.napi_ids);
                    let new = follow_now(netdev, &self.ifname, probe, ids);
                    if new && is_past_change {
                        monitor.look(probe, &self.napi_ids, pause)?;
                    }
                }
            }
            let broken = monitor.broken(policy, 0, signals, |it| whole(it, others));
            let broken = broken.map_err(|error| CompareError::System {
                what: "the guard's command cannot be run",
                error,
            })?;
            if let Some(why) = broken.or_else(harm) {
                return Ok(End::Broken(why));
            }
            let left = limit.saturating_sub(began.elapsed());
            // A running guard command may still break the guard.
            if left.is_zero() && !monitor.waits_for_command() {
                let through = format!(" that came through {}", self.ifname);
                let which = if others { "" } else { through.as_str() };
                // A guard that was never judged has not held.
                return Ok(monitor.unjudged(which).map_or(End::Held, End::Unjudged));
            }
            let tick = if pause.is_zero() { TICK } else { TURN_LENGTH / 2 };
            match signals.wait(if left.is_zero() { tick } else { left.min(tick) }) {
                Some(received) if received.signal == Signals::STOP && noted => {}
                Some(received) if received.signal == Signals::STOP => {
                    noted = true;
                    on_note(NOT_STOPPED);
                }
                Some(received) => return Ok(End::Signal(received.signal)),
                None => {}
            }
        }
    }
}

/// Reads the device and adds the ids of its new instances; returns whether there were any. A failure (no descriptor
/// or memory left, or the device is away) does not end the guard: the next call tries again.
fn follow_now(
    netdev: &mut Option<Netdev>,
    ifname: &str,
    probe: &mut Probe,
    known: &mut Vec<u32>,
) -> bool {
    let Some(mut asked) = netdev.take().or_else(|| Netdev::open().ok()) else { return false };
    let Ok(device) = device::read(&mut asked, ifname) else { return false };
    *netdev = Some(asked);
    // Only the handover to the probe can fail here; the new ids are known by then.
    follow(probe, known, &device).unwrap_or(true)
}

fn whole(reading: &Reading, others: bool) -> Histogram {
    let mut all = Histogram::default();
    for (_, parts) in reading.instances.iter().filter(|(id, _)| others || **id != 0) {
        all.add(parts.of(Part::Whole));
    }
    all
}

/// Options to time all services that listen in this network namespace.
fn timed() -> Result<Options, CompareError> {
    let what = "the listening ports cannot be listed";
    let ports = listening::ports().map_err(|error| CompareError::System { what, error })?;
    if ports.is_empty() {
        return Err(CompareError::Usage(
            "nothing listens in this network namespace, so that no request can be timed: give a command as guard"
                .into(),
        ));
    }
    if ports.len() > Options::MOST {
        return Err(CompareError::Usage(format!(
            "{} ports are served on, and at most {} can be timed: name the service by --pid",
            ports.len(),
            Options::MOST
        )));
    }
    let ports = ports.into_iter().collect();
    Ok(Options { processes: Vec::new(), ports, namespace: Some(netns()?), one_in: 1 })
}
