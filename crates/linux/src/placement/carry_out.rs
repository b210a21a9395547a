//! Carries out a placement: moves the interrupts and threads of the device, then the program's workers.
//!
//! All moves are journalled, and `restore` puts them back. The policy does not change.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use napkin_kernel::process::ProcessError;
use napkin_policy::Policy;
use thiserror::Error;

use super::{Irqbalance, Placement, Row};
use crate::apply::{Applied, ApplyError, Backend, Options, Plan, Request, Target, Temporary, plan};
use crate::attach::{self, Attachment, Event};
use crate::doctor::Facts;
use crate::journal::{ProcessJournals, Store};
use crate::place::Place;

/// Why a placement was not carried out, or only in part.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// There is nothing to place, or the driver has recreated the instances.
    #[error(
        "{ifname} has no instance that receives, or they were made anew meanwhile, or none of the CPUs is on"
    )]
    Nothing {
        /// The device's name.
        ifname: String,
    },
    /// The instances have different settings, so that no single policy describes them.
    #[error(
        "the instances of {ifname} are not set alike: put all of them under one policy first (napkin \
         apply POLICY --dev {ifname}), or name the CPUs there (--cpus)"
    )]
    Mixed {
        /// The device's name.
        ifname: String,
    },
    /// irqbalance cannot be made to leave the interrupts alone.
    #[error(
        "irqbalance[{pid}] would move the interrupts away again, and cannot be told not to: {source}; \
         nothing was moved: stop it (systemctl stop irqbalance), or start it with --banirq for {irqs:?}"
    )]
    Irqbalance {
        /// Process ID of irqbalance, as this PID namespace has it.
        pid: i32,
        /// The interrupts.
        irqs: Vec<u32>,
        /// Why it did not take the command.
        source: io::Error,
    },
    /// Moving interrupts and threads failed.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The program cannot be opened.
    #[error(transparent)]
    Process(#[from] ProcessError),
}

/// Moves a device's interrupts and threads. A running irqbalance is first told to leave the interrupts alone.
///
/// # Errors
/// If the instances are under several policies or were recreated since the plan was made, if irqbalance does
/// not take the command, or as [`apply`](crate::apply::apply).
pub fn carry_out<B: Backend>(
    backend: &mut B,
    store: &Store,
    facts: &Facts,
    placement: &Placement,
    irqbalance: Option<Irqbalance>,
) -> Result<Applied, PlaceError> {
    let ifname = placement.ifname.clone();
    let first = placement.rows.first().and_then(|row| facts.device.napi(row.napi));
    let Some(first) = first else { return Err(PlaceError::Nothing { ifname }) };
    let policy = Policy { instance: first.settings.policy(), ..Policy::BASE };
    // An instance that polls no queue has no row and is not moved.
    let napis = placement.rows.iter().map(|row| row.napi).collect();
    let mut options = Options { cpus: placement.cpus(), napis, ..Options::default() };
    let at = backend.look(Target::Name(&ifname)).map_err(ApplyError::from)?;
    // Recreated instances would silently not be moved.
    if placement.rows.iter().any(|row| at.device.napi(row.napi).is_none()) {
        return Err(PlaceError::Nothing { ifname });
    }
    let planned = plan(&policy, &at, backend.kernel(), &options).map_err(ApplyError::from)?;
    let placed = |place: &Place| matches!(place, Place::IrqCpus(_) | Place::ThreadCpus(_));
    if !planned.changes.iter().all(|change| placed(&change.place)) {
        return Err(PlaceError::Mixed { ifname });
    }
    // Before the plan is carried out, another policy may come into force, which stays, or the instances may
    // be recreated: then fewer places match these IDs.
    options.placement_only = true;
    let planned = plan(&policy, &at, backend.kernel(), &options).map_err(ApplyError::from)?;
    let places = |plan: &Plan| plan.changes.len() + plan.already;
    let irqs = placement.irqs();
    let banned = match irqbalance.filter(|_| !irqs.is_empty()) {
        Some(it) => match it.ban(&irqs) {
            Ok(before) => Some((it, before)),
            Err(source) => return Err(PlaceError::Irqbalance { pid: it.pid, irqs, source }),
        },
        None => None,
    };
    let request = Request { policy: &policy, ifname: &ifname, options: &options, force: false };
    let held = Temporary::apply(&mut *backend, store, &request).map_err(PlaceError::from);
    let applied = held.and_then(|held| {
        let applied = held.applied().clone();
        if places(&applied.plan) < places(&planned) {
            held.restore()?;
            return Err(PlaceError::Nothing { ifname: ifname.clone() });
        }
        held.leave();
        Ok(applied)
    });
    if let (Err(_), Some((it, before))) = (&applied, banned) {
        // The failed move is the error to report, whether irqbalance takes the command or not.
        let _ = it.leave_alone(&before);
    }
    applied
}

/// The outcome for a program's workers.
#[derive(Debug)]
pub struct Carried {
    /// Events of all scans of the program, oldest first, such as threads that were pinned or could not be.
    pub events: Vec<Event>,
    /// Thread IDs of workers that are not on their CPU.
    pub away: Vec<i32>,
}

/// Moves a program's workers to the CPUs of their instances; workers of other instances stay. A worker is moved when
/// it is observed waiting: scans repeat until all workers of the plan are placed, for at most `time`.
///
/// # Errors
/// If the program does not exist, or may not be accessed.
pub fn carry_workers(
    store: &Store,
    pid: i32,
    placement: &Placement,
    time: Duration,
) -> Result<Carried, PlaceError> {
    let mut attachment =
        Attachment::new(attach::Plan::NOTHING, ProcessJournals::new(store.clone()));
    attachment.raise_open_files();
    attachment.add(pid)?;
    let cpus: BTreeMap<u32, usize> = polled(placement).map(|row| (row.napi, row.cpu)).collect();
    attachment.pin_with(Box::new(move |napi_id: u32| cpus.get(&napi_id).copied()));
    let mut events = attachment.scan().events;
    events.extend(attachment.pin_for(time, |_| away(placement).is_empty()));
    attachment.leave();
    Ok(Carried { events, away: away(placement) })
}

/// The rows whose instances attract workers: an instance without interrupt and thread is not polled on a CPU
/// of its own.
fn polled(placement: &Placement) -> impl Iterator<Item = &Row> {
    placement.rows.iter().filter(|row| row.irq.is_some() || row.thread.is_some())
}

/// Living workers whose affinity is not exactly the CPU of their row.
fn away(placement: &Placement) -> Vec<i32> {
    let all = polled(placement).flat_map(|row| row.workers.iter().map(|it| (it.id, row.cpu)));
    let is_away = |(tid, cpu): &(i32, usize)| {
        napkin_os::sched::affinity(Some(*tid)).is_ok_and(|cpus| cpus != [*cpu])
    };
    all.filter(is_away).map(|(tid, _)| tid).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::Now;

    #[test]
    fn a_worker_that_is_elsewhere_is_away_and_one_that_has_ended_is_not() {
        let placed = |tid: i32, cpu: usize| Placement {
            ifname: "va".into(),
            node: None,
            rows: vec![Row {
                rx_queues: vec![0],
                napi: 8_193,
                irq: Some(Now { id: 1, cpus: vec![] }),
                thread: None,
                workers: vec![Now { id: tid, cpus: vec![] }],
                cpu,
            }],
            notes: vec![],
        };
        let cpu = napkin_os::sched::usable_cpus()[0];
        let worker = std::thread::spawn(move || {
            napkin_os::sched::pin(None, &[cpu]).expect("a CPU of ours");
            let tid = rustix::thread::gettid().as_raw_nonzero().get();
            assert_eq!(away(&placed(tid, cpu)), [0; 0]);
            assert_eq!(away(&placed(tid, cpu + 1)), [tid]);
        });
        worker.join().expect("no panic");
        assert_eq!(away(&placed(i32::MAX, cpu)), [0; 0]);
    }
}
