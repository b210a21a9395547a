//! Undoes the changes of one apply. Earlier changes, and those of other programs, stay.

use napkin_os::sched::Class;

use super::backend::{Backend, Snapshot};
use super::error::{ApplyError, BackendError};
use super::find_device::{DeviceLookup, find_device};
use super::foreign::Foreign;
use super::located::located;
use super::plan::sort;
use super::restored::{DeviceRestored, Failed};
use crate::journal::{DeviceJournal, Record, fault};
use crate::place::{Change, Instance, Place, Spot, Value};
use napkin_kernel::settings::Setting;

/// Puts every place of `done` back to its previous value, if it still has the value that was set. `before` is
/// the device when the changes were made, `at` the device now.
///
/// Writes nothing to the journal first: the records of the changes themselves suffice if this is interrupted,
/// and it works on a full disk. At the end the journal drops the changes that were undone.
pub(super) fn undo<W: Backend>(
    backend: &mut W,
    journal: &mut DeviceJournal,
    before: &Snapshot,
    at: &Snapshot,
    done: &[Change],
) -> DeviceRestored {
    let mut restored = DeviceRestored::of(at);
    let spots: Vec<Spot> = done.iter().map(|change| before.spot(&change.place)).collect();
    let now = located(at, spots.iter());
    let mut back: Vec<(&Spot, Place, bool, &Value, &Value)> = Vec::new();
    for ((change, spot), now) in done.iter().zip(&spots).zip(now) {
        let is_present = now.is_some();
        let place = now.map_or_else(|| spot.place.clone(), |now| now.place);
        back.extend(change.old.as_ref().map(|old| (spot, place, is_present, old, &change.new)));
    }
    sort(&mut back, |(_, place, _, old, new)| (place, old, Some(new)));
    let mut undone: Vec<(Spot, &Value)> = Vec::new();
    let mut modes_left = Vec::new();
    for (spot, place, is_present, old, new) in back {
        let place = &place;
        let outcome = if is_present {
            undo_one(backend, journal, at, place, old, new)
        } else {
            Ok(gone_with_instance(place))
        };
        let outcome = outcome.and_then(|outcome| {
            if matches!(outcome, Outcome::Unchanged) && place.of_thread() {
                undo_kept_thread(backend, journal, spot, place, old, new)?;
            }
            Ok(outcome)
        });
        if matches!(outcome, Ok(Outcome::Set | Outcome::Unchanged)) {
            undone.push((spot.clone(), old));
        }
        match outcome {
            Ok(Outcome::Set) => restored.changes.push(Change {
                place: place.clone(),
                old: Some(new.clone()),
                new: old.clone(),
            }),
            Ok(Outcome::Unchanged) => {}
            Ok(Outcome::Missing) => restored.missing.push(place.clone()),
            Ok(Outcome::Other(now)) => restored.foreign.push(Foreign {
                ifname: at.device.ifname.clone(),
                place: place.clone(),
                now,
                set: new.clone(),
                before: old.clone(),
            }),
            Err(error) => {
                modes_left.push(place.clone());
                restored.failed.push(Failed { place: place.clone(), why: error.to_string() });
            }
        }
    }
    let needed = |spot: &Spot| {
        let record = journal.record(spot);
        record.is_some_and(|it| records_spin(it, &spot.place, modes_left.iter()))
    };
    undone.retain(|(spot, _)| !needed(spot));
    if let Err(error) = journal.retract(&undone) {
        restored.journal = Some(error.to_string());
    }
    restored.kept = journal.records().len();
    // If the device was deleted meanwhile, its changes are gone with it.
    let gone = |lookup| matches!(lookup, Ok(DeviceLookup::Deleted));
    if restored.kept > 0 && gone(find_device(backend, journal.ifindex(), journal.identity())) {
        match journal.drop_all() {
            Ok(()) => {
                return DeviceRestored { gone: true, ..DeviceRestored::of(at) };
            }
            Err(error) => restored.journal = Some(error.to_string()),
        }
    }
    restored
}

enum Outcome {
    Set,
    Unchanged,
    Missing,
    Other(Value),
}

/// Puts back the settings of a thread that its instance keeps without using it.
fn undo_kept_thread<W: Backend>(
    backend: &mut W,
    journal: &DeviceJournal,
    spot: &Spot,
    place: &Place,
    old: &Value,
    new: &Value,
) -> Result<(), ApplyError> {
    let thread = journal.record(spot).and_then(|record| record.thread);
    if let Some(thread) = thread
        && backend.read_thread(thread, place).as_ref() == Some(new)
    {
        fault::point();
        backend.write_thread(thread, place, old)?;
        fault::point();
    }
    Ok(())
}

/// The outcome for a place whose instance is gone.
fn gone_with_instance(place: &Place) -> Outcome {
    // It ended with its thread, as expected.
    if place.of_thread() { Outcome::Unchanged } else { Outcome::Missing }
}

fn undo_one<W: Backend>(
    backend: &mut W,
    journal: &DeviceJournal,
    at: &Snapshot,
    place: &Place,
    old: &Value,
    new: &Value,
) -> Result<Outcome, ApplyError> {
    // The value was only remembered.
    if old == new {
        return Ok(Outcome::Unchanged);
    }
    match backend.read(at, place)? {
        None => Ok(gone_with_instance(place)),
        Some(now) if now == *old => Ok(Outcome::Unchanged),
        Some(now) if now != *new && place.is_online_part_of(old, &now, &at.cpus) => {
            Ok(Outcome::Unchanged)
        }
        Some(now) if now == *new || place.is_offline_fallback(new, &now, &at.cpus) => {
            no_real_time_spin(backend, journal, at, &[], place, old)?;
            fault::point();
            backend.put_back(at, place, old)?;
            fault::point();
            Ok(Outcome::Set)
        }
        Some(now) => Ok(Outcome::Other(now)),
    }
}

/// Refuses to put back threaded busy polling if the thread has become real-time: another program made it so
/// while it slept, and its class was not recorded. A thread that was real-time before napkin changed it, and
/// was changed by no other program since, had spun in that class. `planned` are changes that count as made
/// already.
///
/// # Errors
/// [`BackendError::RealTimeSpin`], or if the kernel does not answer.
pub(super) fn no_real_time_spin<W: Backend>(
    backend: &mut W,
    journal: &DeviceJournal,
    at: &Snapshot,
    planned: &[Change],
    place: &Place,
    value: &Value,
) -> Result<(), BackendError> {
    let of: Vec<Instance> = match place {
        _ if *value != Value::Number(2) => return Ok(()),
        Place::Napi(instance, Setting::Threaded) => vec![instance.clone()],
        Place::Device(Setting::Threaded) => {
            Instance::all(&at.device).into_iter().map(|(instance, _)| instance).collect()
        }
        _ => return Ok(()),
    };
    for instance in of {
        let place = Place::ThreadClass(instance);
        let now = match planned.iter().rfind(|change| change.place == place) {
            Some(change) => Some(change.new.clone()),
            None => backend.read(at, &place)?,
        };
        let Some(now) = now else { continue };
        let Some(class) = real_time(&now) else { continue };
        let spun_so = journal.record(&at.spot(&place)).is_some_and(|record| {
            // A class that was set after the mode was changed was never recorded.
            record.written_down && (now == record.before || now == record.set)
        });
        if !spun_so {
            return Err(BackendError::RealTimeSpin { instance: place.subject(), class });
        }
    }
    Ok(())
}

/// Whether a record is the only evidence that a real-time thread may spin: one of the places that are `left` is
/// the mode of its instance, or the device's.
pub(super) fn records_spin<'a>(
    record: &Record,
    place: &Place,
    mut left: impl Iterator<Item = &'a Place>,
) -> bool {
    let Place::ThreadClass(of) = place else { return false };
    record.written_down
        && left.any(|left| match left {
            Place::Napi(instance, Setting::Threaded) => instance == of,
            Place::Device(setting) => *setting == Setting::Threaded,
            _ => false,
        })
}

/// Returns a thread's class, if it is a real-time class.
pub(super) fn real_time(value: &Value) -> Option<Class> {
    match value {
        Value::Class(class @ (Class::Fifo(_) | Class::Rr(_))) => Some(*class),
        _ => None,
    }
}
