//! A guard over a policy that somebody else puts in force: what the services' requests were like before, and
//! whether they still are.
//!
//! Those of one service, or of all that serve in this network namespace. It changes nothing: whoever put
//! the policy in force puts it back.

use std::time::{Duration, Instant};

use napkin_kernel::count::latency::{Histogram, Options, Part, Probe, Reading};
use napkin_kernel::device;
use napkin_kernel::listening;
use napkin_kernel::netlink::Netdev;
use napkin_linux::apply::NOT_STOPPED;
use napkin_os::signals::Signals;

use crate::error::CompareError;
use crate::guard::{Bound, Condition, Guard, Reference};
use crate::monitor::{ON, SliceMonitor, TICK, off};
use crate::service::{Service, follow, napi_ids, netns, probe};
use crate::silence::Answered;

/// How long it is looked at what is there before the change.
const FIRST: Duration = Duration::from_secs(2);
/// Longest that requests are not timed: what breaks meanwhile is to be put back within a second.
const OFF: Duration = Duration::from_millis(400);
/// What a change itself does to the requests under way is not held against the policy.
const CHANGE: Duration = Duration::from_millis(100);
/// How often the device is looked at for instances that were made anew.
const FOLLOW: Duration = Duration::from_secs(1);

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// Its time was up, and the guard held.
    Held,
    /// Its time was up, and there was never enough to judge the guard by: what was missing, and what to do about it.
    Unjudged(String),
    /// This signal came.
    Signal(i32),
    /// The guard broke: why.
    Broken(String),
}

/// A guard, and what it compares with.
#[derive(Debug)]
pub struct Canary {
    guard: Guard,
    probe: Option<Probe>,
    /// Asks for the device, as long as the kernel answers.
    netdev: Option<Netdev>,
    ifname: String,
    /// The ids of the device's instances, also of those that it had before.
    napi_ids: Vec<u32>,
    /// Whether requests that came through no instance count.
    others: bool,
    reference: Reference,
    not_timed: Option<String>,
}

impl Canary {
    /// Looks at what is there, for two seconds if the guard is a condition. Those are the requests of the
    /// process `pid` and its children, or without one of all that serve in this thread's network namespace,
    /// as far as they come through the device. A command guards by itself, whatever the `pid`.
    ///
    /// # Errors
    /// If requests cannot be timed, or the guard compares with what is not there. A signal that comes
    /// meanwhile is left to [`Canary::watch`].
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
        // A number of answers a second is of all that serve.
        let absolute =
            matches!(canary.guard, Guard::Condition(Condition::Rate(Bound::Absolute(_))));
        if !canary.others && !absolute && !probe.tells_apart() {
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

    /// Requests that were timed before the change, and answers a second; `None` for a guard that is a
    /// command.
    pub fn reference(&self) -> Option<(u64, f64)> {
        let it = &self.reference;
        self.probe.as_ref().map(|_| (it.whole.count(), it.answers_per_s))
    }

    /// How many processes and ports of the service are not timed, in a sentence; `None` if all are.
    pub fn not_timed(&self) -> Option<&str> {
        self.not_timed.as_deref()
    }

    /// Watches what is in force now, `policy` by name, until the time is up, a signal comes, or the guard breaks;
    /// `harm` says what else has been seen of it that breaks it. A command of the guard that is under way when the time
    /// is up is waited for, at most for as long as one may take (10 s). Of `signals`, those of
    /// [`Signals::block_ends_and_stop`], a stop ends nothing: `tell` is told so, once. That it held
    /// is said only where the guard was judged.
    ///
    /// # Errors
    /// If the kernel does not answer, or the guard's command cannot be run.
    pub fn watch(
        &mut self,
        policy: &str,
        signals: &Signals,
        limit: Duration,
        harm: &dyn Fn() -> Option<String>,
        tell: &mut dyn FnMut(&str),
    ) -> Result<End, CompareError> {
        let began = Instant::now();
        let off = off(self.reference.answers_per_s).min(OFF);
        let others = self.others;
        let (mut followed, mut told) = (began, false);
        let reference = &self.reference;
        let mut monitor = SliceMonitor::new(Some(&self.guard), reference, reference, true);
        loop {
            if let Some(probe) = &mut self.probe {
                let is_past_change = began.elapsed() >= CHANGE;
                if is_past_change {
                    monitor.look(probe, &self.napi_ids, off)?;
                }
                let every = if monitor.suspects() { TICK } else { FOLLOW };
                if followed.elapsed() >= every {
                    followed = Instant::now();
                    let (netdev, ids) = (&mut self.netdev, &mut self.napi_ids);
                    let new = follow_now(netdev, &self.ifname, probe, ids);
                    if new && is_past_change {
                        monitor.look(probe, &self.napi_ids, off)?;
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
            // What its command says of the end is not known before that ends.
            if left.is_zero() && !monitor.waits_for_command() {
                let through = format!(" that came through {}", self.ifname);
                let which = if others { "" } else { through.as_str() };
                // That nothing broke it says nothing then.
                return Ok(monitor.unjudged(which).map_or(End::Held, End::Unjudged));
            }
            let tick = if off.is_zero() { TICK } else { ON / 2 };
            match signals.wait(if left.is_zero() { tick } else { left.min(tick) }) {
                Some(came) if came.signal == Signals::STOP && told => {}
                Some(came) if came.signal == Signals::STOP => {
                    told = true;
                    tell(NOT_STOPPED);
                }
                Some(came) => return Ok(End::Signal(came.signal)),
                None => {}
            }
        }
    }
}

/// Looks at the device and follows its instances; whether any is new. That this fails, for want of a descriptor or of
/// memory, or for the device is away, ends no guard: it is tried again.
fn follow_now(
    netdev: &mut Option<Netdev>,
    ifname: &str,
    probe: &mut Probe,
    known: &mut Vec<u32>,
) -> bool {
    let Some(mut asked) = netdev.take().or_else(|| Netdev::open().ok()) else { return false };
    let Ok(device) = device::read(&mut asked, ifname) else { return false };
    *netdev = Some(asked);
    // What fails here is to hand over what is known by then.
    follow(probe, known, &device).unwrap_or(true)
}

fn whole(reading: &Reading, others: bool) -> Histogram {
    let mut all = Histogram::default();
    for (_, parts) in reading.instances.iter().filter(|(id, _)| others || **id != 0) {
        all.add(parts.of(Part::Whole));
    }
    all
}

/// All that serve here.
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
