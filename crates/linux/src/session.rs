//! A session: a policy in force on a running program, or on one that is started, and if asked on a device, from the
//! first change until the last restoration.
//!
//! The order is what it is for. The kernel is asked whether it can do all of it, and the program is opened, before
//! anything changes. The device is set before the program, so that no context polls an instance under a policy that
//! the instance does not have. At the end the program is put back first; then the guard stops, since it writes
//! settings of the device; and the device comes last. A session that is dropped half-way ends in the same order.

use std::process::Command;
use std::time::Duration;

use napkin_kernel::device::DeviceError;
use napkin_kernel::probe::Kernel;
use napkin_kernel::process::ProcessError;
use napkin_os::signals::Signals;
use napkin_policy::Policy;
use thiserror::Error;

use crate::apply::{ApplyError, DeviceRestored, Options, Request, Temporary};
use crate::attach::{
    Attachment, Ended, Event, Exit, Plan, PlanError, Restoration, RunError, RunEvent, cpus_by_napi,
    keep, run, set_on,
};
use crate::guard::Guard;
use crate::journal::{JournalError, ProcessJournals, Store};
use crate::support::{self, Refusal, Scope, Warning};

/// What a session sets.
#[derive(Debug)]
pub struct Setup<'a> {
    /// The policy.
    pub policy: &'a Policy,
    /// The device that gets its device part, by name, and how.
    pub device: Option<(&'a str, Options)>,
    /// Whether each thread that waits for the packets of one instance is moved to the CPU that polls it.
    pub pin: bool,
}

/// Why a session could not begin. What it had changed is put back.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SessionError {
    /// This kernel cannot do what the policy asks.
    #[error(transparent)]
    Unsupported(#[from] Refusal),
    /// The policy cannot be set from outside of the program.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The journal cannot be opened.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The program cannot be opened.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The device part cannot be applied.
    #[error(transparent)]
    Device(#[from] ApplyError),
    /// The CPUs of the instances cannot be read, by which threads would be pinned.
    #[error(transparent)]
    Cpus(#[from] DeviceError),
}

/// A policy in force, until [`Session::end`], [`Session::leave`], or a drop.
// The fields are dropped in this order.
#[derive(Debug)]
pub struct Session {
    attachment: Attachment<ProcessJournals>,
    guard: Option<Guard>,
    device: Option<Temporary>,
}

/// What was set once, and left so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// Whether anything was set.
    pub set: bool,
    /// Processes in which not everything could be set.
    pub unset: usize,
    /// Threads that were not pinned, as they ran at each look: thread ids.
    pub always_ran: Vec<i32>,
}

/// How a session ended.
#[derive(Debug)]
pub struct End {
    /// Processes in which not everything could be set.
    pub unset: usize,
    /// What was put back in the program.
    pub program: Restoration,
    /// What was put back on the device; `None` without one.
    pub device: Option<Result<DeviceRestored, ApplyError>>,
}

impl Session {
    /// Sets the device part and opens the program of that id, if one is given; the program's part follows with
    /// [`Session::keep`], [`Session::run`] or [`Session::leave`]. `warn` gets what the policy names and this session does
    /// not set, before anything changes, and whether the policy has a program part at all.
    ///
    /// # Errors
    /// See [`SessionError`].
    pub fn begin(
        setup: &Setup<'_>,
        pid: Option<i32>,
        warn: &mut dyn FnMut(&Warning, bool),
    ) -> Result<Session, SessionError> {
        let policy = setup.policy;
        let scope = if setup.device.is_some() { Scope::Both } else { Scope::Program };
        let kernel = Kernel::probe();
        let warnings = support::check(policy, &kernel, scope)?;
        let plan = Plan::of(policy)?;
        let has_program_part = !plan.sets_nothing();
        if !has_program_part {
            // All of it is the device's: the only question is whether this kernel can do that.
            support::check(policy, &kernel, Scope::Both)?;
        }
        let set_elsewhere = || set_on(policy).is_ok_and(|devices| !devices.is_empty());
        for warning in &warnings {
            if *warning != Warning::DeviceNotSet || !set_elsewhere() {
                warn(warning, has_program_part);
            }
        }
        let mut attachment = Attachment::new(plan, ProcessJournals::new(Store::open()?));
        attachment.raise_open_files();
        if let Some(pid) = pid {
            attachment.add(pid)?;
        }
        let mut session = Session { attachment, guard: None, device: None };
        if let Some((ifname, options)) = &setup.device {
            let request = Request { policy, ifname, options, force: false };
            session.device = Some(Temporary::here(&request)?);
        }
        if setup.pin {
            session.attachment.pin_with(cpus_by_napi()?);
        }
        Ok(session)
    }

    /// The device under the policy.
    pub fn device(&self) -> Option<&Temporary> {
        self.device.as_ref()
    }

    /// Watches for starved queues by this guard until the end.
    pub fn watch(&mut self, guard: Option<Guard>) {
        self.guard = guard;
    }

    /// Keeps the program under the policy; see [`keep`].
    pub fn keep(
        &mut self,
        limit: Option<Duration>,
        signals: &Signals,
        on_event: &mut dyn FnMut(&Event),
        stopped: &mut dyn FnMut(),
    ) -> Ended {
        keep(&mut self.attachment, limit, signals, on_event, stopped)
    }

    /// Runs a program under the policy until it and what it leaves behind have ended; see [`run()`].
    ///
    /// # Errors
    /// As [`run()`].
    pub fn run(
        &mut self,
        command: &mut Command,
        signals: &Signals,
        on_event: &mut dyn FnMut(RunEvent<'_>),
    ) -> Result<Exit, RunError> {
        run(command, &mut self.attachment, signals, on_event)
    }

    /// Sets what there is to be set in the program now, and leaves it so; it stays in the journal. With pinning, it
    /// looks for `pin_for` at most for threads that wait.
    pub fn leave(mut self, pin_for: Option<Duration>, on_event: &mut dyn FnMut(&Event)) -> Left {
        let mut events = self.attachment.scan().events;
        let mut always_ran = Vec::new();
        if let Some(time) = pin_for {
            events.extend(self.attachment.pin_for(time, |it| it.always_ran().is_empty()));
            always_ran = self.attachment.always_ran();
        }
        events.iter().for_each(on_event);
        let unset = self.attachment.unset();
        self.attachment.leave();
        if let Some(device) = self.device {
            device.leave();
        }
        Left { set: events.iter().any(|event| event.kind.sets()), unset, always_ran }
    }

    /// Puts the program back, ends the guard, and puts the device back.
    pub fn end(self, on_event: &mut dyn FnMut(&Event)) -> End {
        let Session { mut attachment, guard, device } = self;
        let unset = attachment.unset();
        let (program, events) = attachment.restore();
        events.iter().for_each(on_event);
        drop((attachment, guard));
        End { unset, program, device: device.map(Temporary::restore) }
    }
}
