//! Ends an instance's suspension for some time, and restores it: the action of a guard when an instance
//! starves.
//!
//! `irq-suspend-timeout` is set to 0. Like every other change this is recorded in the journal first, so that
//! `restore` can undo it after a crash. The suspension is restored only if neither the value nor napkin's own
//! record of it has changed since: another napkin may have restored the device meanwhile, or have applied a
//! policy that wants no suspension ([`confirm_off`]).
//!
//! The decision when to do so is made by [`guard`](crate::guard).

use std::collections::BTreeSet;

use super::backend::{Backend, Snapshot, Target};
use super::error::ApplyError;
use super::find_device::{DeviceLookup, find_device};
use super::located::located;
use crate::journal::{
    DeviceJournal, Holder, JournalError, Lock, Record, Store, fault, sole_writer,
};
use crate::place::{Place, Spot, Value};
use napkin_kernel::device::Device;
use napkin_kernel::settings::Setting;

/// A suspension that was ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suspension {
    /// The interface index.
    pub ifindex: u32,
    /// The interface's name at that time.
    pub ifname: String,
    /// The instance's NAPI id.
    pub napi_id: u32,
    /// The queues that the instance polls: `queue 0`.
    pub subject: String,
    /// The previous `irq-suspend-timeout`, in nanoseconds.
    pub timeout: u64,
    /// The device's identity, as in [`Snapshot::identity`].
    identity: Option<u64>,
    /// The place, as the journal records it.
    spot: Spot,
}

/// Sets the `irq-suspend-timeout` of an instance to 0; `None` if it is 0 already, or the instance is gone.
///
/// Takes the device's lock meanwhile, unless `held` is the device: this process holds its lock already.
///
/// # Errors
/// If another napkin has locked the device, the journal cannot be written, or the kernel refuses. Nothing was
/// changed then.
pub fn end_suspension<W: Backend>(
    backend: &mut W,
    store: &Store,
    (ifindex, napi_id): (u32, u32),
    held: Option<u32>,
) -> Result<Option<Suspension>, ApplyError> {
    let at = match backend.look(Target::Index(ifindex)) {
        Ok(at) => at,
        Err(error) if error.is_absent() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let Some(instance) = at.by_id(napi_id) else { return Ok(None) };
    let place = Place::Napi(instance.clone(), Setting::IrqSuspendTimeout);
    let ifname = at.device.ifname.clone();
    let _lock = lock(store, &at, held)?;
    let _sole = sole_writer();
    let old = match backend.read(&at, &place)? {
        Some(Value::Number(timeout)) if timeout != 0 => timeout,
        _ => return Ok(None),
    };
    let mut journal = store.device(ifindex, &ifname, at.identity)?;
    let spot = recorded(&mut journal, &at, &place);
    let subject = place.subject();
    journal.before(&spot, &Value::Number(old), &Value::Number(0))?;
    fault::point();
    backend.write(&at, &place, &Value::Number(0))?;
    fault::point();
    let identity = at.identity;
    Ok(Some(Suspension { ifindex, ifname, napi_id, subject, timeout: old, identity, spot }))
}

/// Restores a suspension; returns whether it did. It does not if the value or its record has changed since, or
/// the instance is gone.
///
/// # Errors
/// If another napkin has locked the device, or the kernel refuses; the journal keeps the record then.
pub fn give_back<W: Backend>(
    backend: &mut W,
    store: &Store,
    suspension: &Suspension,
    held: Option<u32>,
) -> Result<bool, ApplyError> {
    let Suspension { ifindex, ifname, timeout, identity, spot, .. } = suspension;
    let DeviceLookup::Here(at) = find_device(backend, *ifindex, *identity)? else {
        return Ok(false);
    };
    let _lock = lock(store, &at, held)?;
    let _sole = sole_writer();
    let mut journal = store.device(at.device.ifindex, ifname, at.identity)?;
    let place = located(&at, std::iter::once(spot)).pop().flatten().map(|spot| spot.place);
    let off = Value::Number(0);
    let is_own = journal.record(spot).is_some_and(|it| it.set == off && !it.is_confirmed());
    let Some(place) = place.filter(|_| is_own) else { return Ok(false) };
    if backend.read(&at, &place)?.as_ref() != Some(&off) {
        return Ok(false);
    }
    let timeout = Value::Number(*timeout);
    fault::point();
    backend.write(&at, &place, &timeout)?;
    fault::point();
    journal.retract(&[(spot.clone(), &timeout)])?;
    Ok(true)
}

/// Whether a place is `irq-suspend-timeout`, and the value 0.
pub(super) fn is_off(place: &Place, value: &Value) -> bool {
    matches!(place, Place::Napi(_, Setting::IrqSuspendTimeout)) && *value == Value::Number(0)
}

/// Records that a suspension is wanted off, so that a guard that ended it does not restore it.
pub(super) fn confirm_off(
    journal: &mut DeviceJournal,
    at: &Snapshot,
    place: &Place,
) -> Result<(), JournalError> {
    let spot = at.spot(place);
    let ended = |record: &Record| record.set == Value::Number(0) && !record.is_remembered();
    if journal.record(&spot).is_some_and(ended) { journal.confirm(&spot) } else { Ok(()) }
}

/// Returns those of these devices that another napkin has locked, by name, with the holder of the lock: only
/// that process can end a suspension there.
pub(crate) fn held_by_others<W: Backend>(
    backend: &mut W,
    store: &Store,
    devices: &BTreeSet<u32>,
    held: Option<u32>,
) -> Vec<(String, Holder)> {
    let holder = |ifindex: &u32| {
        let at = backend.look(Target::Index(*ifindex)).ok()?;
        Some((at.device.ifname, store.holder(*ifindex, at.identity)?))
    };
    devices.iter().filter(|ifindex| held != Some(**ifindex)).filter_map(holder).collect()
}

fn lock(store: &Store, at: &Snapshot, held: Option<u32>) -> Result<Option<Lock>, ApplyError> {
    let Device { ifindex, ifname, .. } = &at.device;
    if held == Some(*ifindex) {
        return Ok(None);
    }
    Ok(Some(store.lock(*ifindex, ifname, at.identity)?))
}

/// Returns the spot under which the journal has recorded the place already, if it has: the guard that wrote the
/// record finds it again by that spot.
fn recorded(journal: &mut DeviceJournal, at: &Snapshot, place: &Place) -> Spot {
    let spot = at.spot(place);
    let now = located(at, journal.records().iter().map(|record| &record.spot));
    let known = journal.records().iter().zip(&now).find(|(_, now)| now.as_ref() == Some(&spot));
    let known = known.map(|(record, _)| record.spot.clone());
    journal.locate(now);
    known.unwrap_or(spot)
}
