//! Decides whether this kernel can do what a policy asks, and which policy comes nearest.
//!
//! The decision relies on what was probed ([`Kernel`]); versions are named only to say which Linux first has
//! what this one lacks. The core defines what a policy means.

use std::fmt;

use napkin_policy::{
    EpollPolicy, InstancePolicy, MICROSECOND, MILLISECOND, NetSoftirq, Policy, SocketPoller,
    Threaded,
};
use serde::Serialize;
use thiserror::Error;

use napkin_kernel::probe::Kernel;
use napkin_kernel::settings::{Setting, Settings};

/// The part of a policy that is about to be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The device part (`napkin apply`).
    Device,
    /// The program part: epoll descriptors and sockets (`napkin attach`, `napkin run`).
    Program,
    /// Both (`napkin run --dev`).
    Both,
}

impl Scope {
    fn device(self) -> bool {
        self != Scope::Program
    }

    fn program(self) -> bool {
        self != Scope::Device
    }
}

/// Something that the policy contains and that will not be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Warning {
    /// Epoll parameters, which belong to the program and not to the device.
    EpollNotSet,
    /// Socket options, which belong to the program and not to the device.
    SocketsNotSet,
    /// The device part, as no device was named.
    DeviceNotSet,
    /// The program part, which no program can have on this kernel.
    ProgramLacking(Lacking),
    /// The device part, which no device can have on this kernel.
    DeviceLacking(Lacking),
    /// An application that never sleeps: this cannot be set from outside.
    SpinNotSet,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = |lacking: &Lacking| match lacking.since() {
            Some(since) => format!("{lacking}: Linux {since} has it first"),
            None => lacking.to_string(),
        };
        f.write_str(match self {
            Warning::ProgramLacking(lacking) => {
                let since = since(lacking);
                return write!(
                    f,
                    "the rest of the policy is the program's, and cannot be set there: this kernel \
                     lacks {since}"
                );
            }
            Warning::DeviceLacking(lacking) => {
                let since = since(lacking);
                return write!(
                    f,
                    "the policy's device part is not set, and cannot be: this kernel lacks {since}"
                );
            }
            Warning::EpollNotSet => {
                "the policy's epoll parameters are the program's, not the device's: start it with \
                 `napkin run`, or set them from outside with `napkin attach`"
            }
            Warning::SocketsNotSet => {
                "the policy's socket options are the program's, not the device's: start it with \
                 `napkin run`, or set them from outside with `napkin attach`"
            }
            Warning::DeviceNotSet => {
                "the policy's device part is not set: name the device with --dev, or set it with \
                 `napkin apply`"
            }
            Warning::SpinNotSet => {
                "the policy asks for an application that never sleeps: it has to do that itself \
                 (wait with a zero timeout no longer than the epoll's busy poll); without, it is \
                 polled only while it waits"
            }
        })
    }
}

/// What a kernel lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Lacking {
    /// Keeping the interrupt masked for a time without work (2007).
    Hold,
    /// Network softirqs in ksoftirqd (2018).
    Ksoftirqd,
    /// The rule of Linux 4.9 to 6.4 for softirqs while ksoftirqd is runnable.
    OldSoftirqRule,
    /// Polling by a shared pool of workers (2020).
    Workqueue,
    /// Stopping a queue whose receivers are full.
    Feedback,
    /// A separate thread that polls a program's sockets.
    SeparatePoller,
    /// Threaded polling.
    Threaded,
    /// Threads that poll without end.
    ThreadedBusyPoll,
    /// Deferral of interrupts.
    Deferral,
    /// Suspension of interrupts.
    Suspension,
    /// Parameters of an epoll descriptor.
    EpollParameters,
    /// An epoll descriptor that keeps its NAPI ID after a busy poll that found nothing.
    KeepNapiId,
    /// Preferred busy polling of a socket.
    SocketPreference,
    /// A value as large as this.
    Value {
        /// The setting.
        setting: Setting,
        /// The largest value that the kernel accepts.
        largest: u64,
    },
}

impl Lacking {
    /// The first Linux version that has it; `None` if none has.
    pub fn since(self) -> Option<&'static str> {
        match self {
            Lacking::Threaded => Some("5.12"),
            Lacking::ThreadedBusyPoll => Some("6.19"),
            Lacking::Deferral => Some("5.8"),
            Lacking::Suspension => Some("6.13"),
            Lacking::EpollParameters => Some("6.9"),
            Lacking::SocketPreference => Some("5.11"),
            Lacking::Hold
            | Lacking::Ksoftirqd
            | Lacking::OldSoftirqRule
            | Lacking::Workqueue
            | Lacking::Feedback
            | Lacking::SeparatePoller
            | Lacking::KeepNapiId
            | Lacking::Value { .. } => None,
        }
    }

    /// Replaces the lacking feature of a policy by the nearest one.
    fn nearest_without(self, policy: &Policy) -> Policy {
        let mut near = *policy;
        match self {
            Lacking::Hold => {
                let hold = near.instance.hold;
                (near.instance.hold, near.instance.hold_tick) = (0, 0);
                if !near.instance.defers() {
                    near.instance = deferral_of(hold, near);
                }
            }
            Lacking::Ksoftirqd => {
                near.cpu = Policy::BASE.cpu;
                if near.instance.threaded == Threaded::Disabled {
                    near.instance.threaded = Threaded::Enabled;
                }
            }
            Lacking::OldSoftirqRule => near.cpu.inline_while_ksoftirqd = true,
            Lacking::Workqueue => near.instance.threaded = Threaded::Enabled,
            Lacking::Feedback => {
                near.instance.feedback = false;
                if !near.suspends() {
                    let suspend = Policy::suspend(20 * MICROSECOND);
                    near.instance = InstancePolicy {
                        defer_hard_irqs: suspend.instance.defer_hard_irqs,
                        gro_flush_timeout: suspend.instance.gro_flush_timeout,
                        irq_suspend_timeout: suspend.instance.irq_suspend_timeout,
                        ..near.instance
                    };
                    near.epoll = suspend.epoll;
                }
            }
            Lacking::SeparatePoller => near.application.socket_poller = SocketPoller::Inline,
            Lacking::Threaded => {
                near.instance.threaded = Threaded::Disabled;
            }
            Lacking::ThreadedBusyPoll => {
                // The kernel's documentation configures deferral for the time after the mode is left; a
                // thread that sleeps would be under it all the time.
                near = if *policy == Policy::THREADED_BUSY_POLL { Policy::THREADED } else { near };
                near.instance.threaded = Threaded::Enabled;
            }
            Lacking::Deferral => {
                near.instance.defer_hard_irqs = 0;
                near.instance.gro_flush_timeout = 0;
                near.instance.irq_suspend_timeout = 0;
            }
            Lacking::Suspension => near.instance.irq_suspend_timeout = 0,
            Lacking::EpollParameters => near.epoll = EpollPolicy::default(),
            Lacking::KeepNapiId => near.epoll.keep_napi_id = false,
            Lacking::SocketPreference => near.application.socket_prefer_busy_poll = false,
            Lacking::Value { setting, largest } => {
                let instance = &mut near.instance;
                match setting {
                    Setting::Threaded => instance.threaded = Threaded::Disabled,
                    Setting::DeferHardIrqs => {
                        instance.defer_hard_irqs = u32::try_from(largest).unwrap_or(u32::MAX);
                    }
                    Setting::GroFlushTimeout => instance.gro_flush_timeout = largest,
                    Setting::IrqSuspendTimeout => instance.irq_suspend_timeout = largest,
                }
            }
        }
        near
    }
}

/// Returns a deferral that masks interrupts for about as long as a hold does. Its period is at least the
/// published 20 us, as a timer costs more than the poll that it starts.
fn deferral_of(hold: u64, policy: Policy) -> InstancePolicy {
    const PERIOD: u64 = 20 * MICROSECOND;
    let published = Policy::defer(PERIOD).instance;
    let whole = hold / u64::from(published.defer_hard_irqs);
    let (count, period) = if whole >= PERIOD {
        (published.defer_hard_irqs, whole / MICROSECOND * MICROSECOND)
    } else {
        (u32::try_from(hold.div_ceil(PERIOD)).unwrap_or(u32::MAX).max(1), PERIOD)
    };
    InstancePolicy { defer_hard_irqs: count, gro_flush_timeout: period, ..policy.instance }
}

impl fmt::Display for Lacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lacking::Hold => f.write_str("hold"),
            Lacking::Ksoftirqd => f.write_str("network softirqs in ksoftirqd"),
            Lacking::OldSoftirqRule => {
                f.write_str("the rule that no softirq runs inline while ksoftirqd is runnable")
            }
            Lacking::Workqueue => f.write_str("polling by a workqueue"),
            Lacking::Feedback => f.write_str("feedback"),
            Lacking::SeparatePoller => {
                f.write_str("a thread that polls a program's sockets for it")
            }
            Lacking::Threaded => f.write_str("threaded polling"),
            Lacking::ThreadedBusyPoll => f.write_str("threaded busy poll"),
            Lacking::Deferral => f.write_str("deferral of interrupts"),
            Lacking::Suspension => f.write_str("suspension of interrupts"),
            Lacking::EpollParameters => f.write_str("busy-poll parameters of epoll"),
            Lacking::KeepNapiId => {
                f.write_str("an epoll that keeps its NAPI id after a busy poll that found nothing")
            }
            Lacking::SocketPreference => f.write_str("SO_PREFER_BUSY_POLL"),
            Lacking::Value { setting, largest } => {
                write!(f, "a {setting} above {}", setting.show(*largest))
            }
        }
    }
}

/// A policy that this kernel cannot do.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize)]
#[error("{}", refusal_text(self))]
#[serde(rename_all = "kebab-case")]
pub struct Refusal {
    /// The policy as text, in the form that `Policy` parses.
    pub policy: String,
    /// The feature that is lacking.
    pub lacking: Lacking,
    /// The first Linux version that has it.
    pub since: Option<&'static str>,
    /// The running kernel.
    pub release: String,
    /// The nearest policy that this kernel can do, as text.
    pub nearest: String,
}

fn refusal_text(refusal: &Refusal) -> String {
    let Refusal { policy, lacking, since, release, nearest } = refusal;
    let reason = match (lacking, since) {
        (_, Some(since)) => {
            format!("this kernel ({release}) lacks {lacking}: Linux {since} has it first")
        }
        (Lacking::OldSoftirqRule, None) => {
            format!("{lacking} went with Linux 6.5, and cannot be switched on in this kernel")
        }
        (Lacking::SeparatePoller, None) => {
            format!("{lacking} cannot be had from outside: the program has to start one itself")
        }
        (Lacking::Value { .. }, None) => {
            format!("this kernel ({release}) takes no {lacking}").replace("no a ", "no ")
        }
        (_, None) => format!("no Linux has {lacking}"),
    };
    format!("{policy}: {reason}; the nearest that this kernel can do is {nearest}")
}

/// Checks whether a kernel can do the part of a policy that is about to be set, and returns warnings about the rest.
///
/// # Errors
/// A [`Refusal`] names the first feature that is lacking, and the nearest policy that is not refused. A
/// feature that could not be probed is not refused: setting it will fail if it is missing.
pub fn check(policy: &Policy, kernel: &Kernel, scope: Scope) -> Result<Vec<Warning>, Refusal> {
    let Some(lacking) = first_lacking(policy, kernel, scope) else {
        return Ok(warnings(policy, kernel, scope));
    };
    let mut nearest = *policy;
    // Each step removes what was lacking, so this ends; the bound is for inconsistent probe results.
    for _ in 0..32 {
        match first_lacking(&nearest, kernel, scope) {
            Some(lacking) => nearest = lacking.nearest_without(&nearest),
            None => break,
        }
    }
    // On a kernel without threads, the application can busy poll instead of a thread.
    let spins = policy.instance.threaded == Threaded::BusyPoll;
    if spins && nearest.instance.threaded == Threaded::Disabled {
        let busy = Policy::NAPIBUSY;
        nearest = if first_lacking(&busy, kernel, scope).is_none() { busy } else { nearest };
    }
    Err(Refusal {
        policy: policy.to_string(),
        lacking,
        since: lacking.since(),
        release: kernel.release.clone(),
        nearest: nearest.to_string(),
    })
}

fn first_lacking(policy: &Policy, kernel: &Kernel, scope: Scope) -> Option<Lacking> {
    let Policy { instance, cpu, epoll, application } = policy;
    let mut lacking = Vec::new();
    let mut need = |is_lacking: bool, what| {
        if is_lacking {
            lacking.push(what);
        }
    };
    if scope.device() {
        need(cpu.net_softirq != NetSoftirq::Inline, Lacking::Ksoftirqd);
        need(!cpu.inline_while_ksoftirqd, Lacking::OldSoftirqRule);
        need(instance.feedback, Lacking::Feedback);
        need(instance.hold != 0 || instance.hold_tick != 0, Lacking::Hold);
        need(instance.threaded == Threaded::Workqueue, Lacking::Workqueue);
        let wanted = Settings::of(instance);
        for setting in Setting::ALL {
            let value = wanted.get(setting).unwrap_or(0);
            if kernel.takes(setting, value) {
                continue;
            }
            let what = match (setting, kernel.way(setting)) {
                (Setting::Threaded, _) if value > 1 => Lacking::ThreadedBusyPoll,
                (Setting::Threaded, _) => Lacking::Threaded,
                (_, Some(way)) => Lacking::Value { setting, largest: way.largest() },
                (Setting::IrqSuspendTimeout, None) => Lacking::Suspension,
                (Setting::DeferHardIrqs | Setting::GroFlushTimeout, None) => Lacking::Deferral,
            };
            need(true, what);
        }
    }
    // Checked for a device alone, too: the warning that a program sets the rest would be wrong, as no program can.
    need(epoll.keep_napi_id, Lacking::KeepNapiId);
    if scope.program() {
        let separate = application.socket_poller == SocketPoller::Separate;
        need(separate && application.socket_busy_polls(), Lacking::SeparatePoller);
        need(
            *epoll != EpollPolicy::default() && kernel.epoll_params.lacks(),
            Lacking::EpollParameters,
        );
        let prefers = application.socket_prefer_busy_poll;
        need(prefers && kernel.socket_prefer_busy_poll.lacks(), Lacking::SocketPreference);
    }
    lacking.first().copied()
}

fn warnings(policy: &Policy, kernel: &Kernel, scope: Scope) -> Vec<Warning> {
    let Policy { instance, epoll, application, .. } = policy;
    let mut warnings = Vec::new();
    let mut warn = |applies: bool, warning| {
        if applies {
            warnings.push(warning);
        }
    };
    // Do not recommend a command that would refuse as well.
    if !scope.program() {
        let by_program = *epoll != EpollPolicy::default() || application.socket_busy_polls();
        match first_lacking(policy, kernel, Scope::Program) {
            Some(lacking) => warn(by_program, Warning::ProgramLacking(lacking)),
            None => {
                warn(*epoll != EpollPolicy::default(), Warning::EpollNotSet);
                warn(application.socket_busy_polls(), Warning::SocketsNotSet);
            }
        }
    }
    if !scope.device() {
        let by_device = *instance != Policy::BASE.instance;
        match first_lacking(policy, kernel, Scope::Device) {
            Some(lacking) => warn(by_device, Warning::DeviceLacking(lacking)),
            None => warn(by_device, Warning::DeviceNotSet),
        }
    }
    warn(application.spin, Warning::SpinNotSet);
    warnings
}

/// The longest time in nanoseconds that other traffic on the same queue may have to wait under a policy, if
/// that is noticeable: at least 1 ms.
pub fn others_wait(policy: &Policy) -> Option<u64> {
    let instance = &policy.instance;
    let span = if instance.suspends() {
        instance.irq_suspend_timeout
    } else if instance.defers() {
        instance.deferral_span()
    } else {
        0
    };
    (span >= MILLISECOND && instance.threaded != Threaded::BusyPoll).then_some(span)
}

#[cfg(test)]
pub(crate) mod tests;
