//! A placement carried out: interrupts and threads of the device, then the program's workers.
//!
//! All of it is journalled, and put back by `restore`. The policy stays as it is.

use napkin_kernel::device::DeviceError;
use napkin_kernel::process::ProcessError;
use napkin_policy::Policy;
use thiserror::Error;

use super::Placement;
use crate::apply::{Applied, ApplyError, Backend, Options, Request, Target, apply, plan};
use crate::attach::{self, Attachment, Event, cpus_by_napi};
use crate::doctor::Facts;
use crate::journal::{ProcessJournals, Store};
use crate::place::Place;

/// Why a placement was not carried out, or not all of it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// There is nothing to place.
    #[error("{ifname} has no instance that receives, or none of the CPUs is on")]
    Nothing {
        /// The device's name.
        ifname: String,
    },
    /// The instances are not set alike, so that no policy describes all of them.
    #[error(
        "the instances of {ifname} are not set alike: put all of them under one policy first (napkin \
         apply POLICY --dev {ifname}), or name the CPUs there (--cpus)"
    )]
    Mixed {
        /// The device's name.
        ifname: String,
    },
    /// The device's part.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The program cannot be had.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The kernel did not list the instances.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Moves a device's interrupts and threads.
///
/// # Errors
/// If the instances are under several policies, or as [`apply`].
pub fn carry_out<B: Backend>(
    backend: &mut B,
    store: &Store,
    facts: &Facts,
    placement: &Placement,
) -> Result<Applied, PlaceError> {
    let ifname = placement.ifname.clone();
    let first = placement.rows.first().and_then(|row| facts.device.napi(row.napi));
    let Some(first) = first else { return Err(PlaceError::Nothing { ifname }) };
    let policy = Policy { instance: first.settings.policy(), ..Policy::BASE };
    let options = Options { cpus: placement.cpus(), ..Options::default() };
    let at = backend.look(Target::Name(&ifname)).map_err(ApplyError::from)?;
    let planned = plan(&policy, &at, backend.kernel(), &options).map_err(ApplyError::from)?;
    let placed = |place: &Place| matches!(place, Place::IrqCpus(_) | Place::ThreadCpus(_));
    if !planned.changes.iter().all(|change| placed(&change.place)) {
        return Err(PlaceError::Mixed { ifname });
    }
    let request = Request { policy: &policy, ifname: &ifname, options: &options, force: false };
    Ok(apply(backend, store, &request)?)
}

/// Moves a program's workers to where their instances are polled, once; what happened.
///
/// # Errors
/// If there is no such program, or it may not be looked at.
pub fn carry_workers(store: &Store, pid: i32) -> Result<Vec<Event>, PlaceError> {
    let mut attachment =
        Attachment::new(attach::Plan::NOTHING, ProcessJournals::new(store.clone()));
    attachment.raise_open_files();
    attachment.add(pid)?;
    attachment.pin_with(cpus_by_napi()?);
    let events = attachment.look().events;
    attachment.leave();
    Ok(events)
}
