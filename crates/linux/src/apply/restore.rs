//! Puts back what the journal records.
//!
//! A place gets the value that it had before napkin first changed it, if its current value was set by napkin. A
//! value that another program set is left alone and reported. Putting back needs no journal of its own: after
//! an interruption it starts again, and finds what is done already.

mod options;
mod process;

use std::collections::BTreeSet;
use std::path::PathBuf;

pub use self::options::RestoreOptions;
pub use self::process::restore_leftovers;
use self::process::restore_process;
use super::backend::{Backend, Snapshot, Target, Whereabouts};
use super::error::{ApplyError, BackendError};
use super::find_device::{DeviceLookup, find_device};
use super::foreign::Foreign;
use super::located::located;
use super::plan::sort;
use super::restored::{DeviceRestored, Failed, OtherJournal, Restoration};
use super::undo::{no_real_time_spin, records_spin};
use crate::journal::{DeviceJournal, Found, JournalError, Record, Standing, Store, fault};
use crate::place::{Change, Instance, Place, Spot, Value};
use napkin_kernel::settings::Setting;

/// Puts back what napkin changed in this namespace. A failure for one device does not keep the others from
/// being put back.
///
/// # Errors
/// If the journal's directory cannot be read, or there is no such device.
pub fn restore<W: Backend>(
    backend: &mut W,
    store: &Store,
    options: &RestoreOptions,
) -> Result<Restoration, ApplyError> {
    let mut restoration = Restoration::default();
    if let Some(ifname) = &options.ifname {
        restore_named(backend, store, ifname, options, &mut restoration)?;
        return Ok(restoration);
    }
    for found in store.survey()? {
        match found {
            Found::Device(journal) => {
                restoration.devices.push(restore_device(backend, store, &journal, options));
            }
            Found::Process(journal) => {
                restoration.processes.push(restore_process(store, &journal, options));
            }
            found => {
                let path = found.path().to_owned();
                let also = match moved_here(backend, found) {
                    Ok(Ok(journal)) => {
                        restoration.devices.push(restore_device(backend, store, &journal, options));
                        continue;
                    }
                    Ok(Err(found)) => {
                        restore_other(store, found, options).map_err(ApplyError::from)
                    }
                    Err(error) => Err(error),
                };
                restoration.also.extend(also.unwrap_or_else(|error| Some(failed(path, &error))));
            }
        }
    }
    Ok(restoration)
}

fn restore_named<W: Backend>(
    backend: &mut W,
    store: &Store,
    ifname: &str,
    options: &RestoreOptions,
    restoration: &mut Restoration,
) -> Result<(), ApplyError> {
    let at = match backend.look(Target::Name(ifname)) {
        Ok(at) => Some(at),
        // The name may be that of a device that has gone.
        Err(error) if error.is_absent() && has_changes_of(store, ifname)? => None,
        Err(error) => return Err(error.into()),
    };
    if let Some(at) = &at {
        match store.device(at.device.ifindex, ifname, at.identity) {
            Ok(_) => {}
            Err(error) if options.forget => {
                restoration.also.push(give_up(store, error, options)?);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
    }
    for found in store.survey()? {
        let journal = match found {
            Found::Device(journal) => journal,
            // Records of other devices are skipped, without asking the kernel for them.
            found if !may_be_of(&found, ifname, at.as_ref()) => continue,
            found => {
                let path = found.path().to_owned();
                match moved_here(backend, found) {
                    Ok(Ok(journal)) => journal,
                    Ok(Err(_)) => continue,
                    Err(error) => {
                        restoration.also.push(failed(path, &error));
                        continue;
                    }
                }
            }
        };
        let asked = match &at {
            None => journal.ifname() == ifname,
            Some(at) => match (journal.identity(), at.identity) {
                (Some(journalled), Some(its)) => journalled == its,
                _ => journal.ifindex() == at.device.ifindex,
            },
        };
        if asked {
            restoration.devices.push(restore_device(backend, store, &journal, options));
        }
    }
    Ok(())
}

/// Whether a journal of another namespace may belong to the device that was asked for by this name.
fn may_be_of(found: &Found, ifname: &str, at: Option<&Snapshot>) -> bool {
    let Found::OtherNamespace { journal, .. } = found else { return false };
    match journal.identity().zip(at.and_then(|at| at.identity)) {
        Some((journalled, its)) => journalled == its,
        None => journal.ifname() == ifname,
    }
}

/// Whether the journal has changes of a device with this name.
fn has_changes_of(store: &Store, ifname: &str) -> Result<bool, JournalError> {
    let had = |it: &Found| matches!(it, Found::Device(journal) if journal.ifname() == ifname);
    Ok(store.survey()?.iter().any(had))
}

/// Whether a device may still exist, in whichever namespace.
fn may_exist<W: Backend>(backend: &mut W, journal: &DeviceJournal) -> Result<bool, ApplyError> {
    let Some(identity) = journal.identity() else { return Ok(false) };
    Ok(!matches!(backend.whereabouts(identity)?, Whereabouts::Gone))
}

/// Returns the journal of another namespace if its device is in this one now.
fn moved_here<W: Backend>(
    backend: &mut W,
    found: Found,
) -> Result<Result<DeviceJournal, Found>, ApplyError> {
    let Found::OtherNamespace { journal, .. } = &found else { return Ok(Err(found)) };
    let here = match journal.identity() {
        Some(identity) => backend.here(identity)?.is_some(),
        None => false,
    };
    Ok(match found {
        Found::OtherNamespace { journal, .. } if here => Ok(journal),
        // When a namespace ends, hardware moves back to the initial one, with its settings.
        Found::OtherNamespace { path, subject, namespace, alive: Some(false), journal }
            if may_exist(backend, &journal)? =>
        {
            Err(Found::OtherNamespace { path, subject, namespace, alive: None, journal })
        }
        found => Err(found),
    })
}

/// Reports a file that could not be processed: it stays as it is, and the others are still put back.
fn failed(path: PathBuf, error: &ApplyError) -> OtherJournal {
    OtherJournal::Unreadable { path, why: error.to_string(), forgotten: false }
}

/// Handles journals that are neither of a device of this namespace nor of a process.
fn restore_other(
    store: &Store,
    found: Found,
    options: &RestoreOptions,
) -> Result<Option<OtherJournal>, JournalError> {
    let sweep = |path: &PathBuf| if options.dry_run { Ok(()) } else { store.sweep(path) };
    let drop = |path: &PathBuf| if options.dry_run { Ok(()) } else { store.forget(path) };
    Ok(match found {
        Found::OtherBoot { path, subject } => {
            sweep(&path)?;
            Some(OtherJournal::OtherBoot { subject })
        }
        Found::OtherNamespace { path, subject, namespace, alive, journal: _ } => {
            let name = namespace.to_string();
            if alive == Some(false) {
                drop(&path)?;
                Some(OtherJournal::NamespaceGone { subject, namespace: name })
            } else {
                Some(OtherJournal::OtherNamespace { subject, namespace: name, path })
            }
        }
        Found::Empty { path } => {
            sweep(&path)?;
            None
        }
        Found::Unreadable { path, error } => {
            let why = error.to_string();
            let given_up = if options.forget { drop(&path) } else { Err(error) };
            let forgotten = given_up.is_ok();
            let why = given_up.err().map_or(why, |error| error.to_string());
            Some(OtherJournal::Unreadable { path, why, forgotten })
        }
        Found::Device(_) | Found::Process(_) => None,
    })
}

fn give_up(
    store: &Store,
    error: JournalError,
    options: &RestoreOptions,
) -> Result<OtherJournal, JournalError> {
    let (JournalError::Corrupt { path, .. } | JournalError::TooLarge { path, .. }) = &error else {
        return Err(error);
    };
    if !options.dry_run {
        store.forget(path)?;
    }
    Ok(OtherJournal::Unreadable { path: path.clone(), why: error.to_string(), forgotten: true })
}

fn restore_device<W: Backend>(
    backend: &mut W,
    store: &Store,
    seen: &DeviceJournal,
    options: &RestoreOptions,
) -> DeviceRestored {
    let mut restored =
        DeviceRestored { ifname: seen.ifname().to_owned(), ..DeviceRestored::default() };
    if let Err(error) = lock_and_restore(backend, store, seen, options, &mut restored) {
        restored.refused = Some(refused(store, &error));
    }
    restored
}

/// The reason why nothing was done for a device. A keeper may still hold a device for which there is no wish
/// any more, because it could not put it back: waiting for the lock, as for any other napkin, would not help.
fn refused(store: &Store, error: &ApplyError) -> String {
    let ApplyError::Journal(JournalError::Locked { what, holder }) = error else {
        return error.to_string();
    };
    if !store.keeper().is_some_and(|keeper| keeper.pid != 0 && keeper.pid == holder.pid) {
        return error.to_string();
    }
    format!(
        "{what} is held by {holder}, which keeps the wishes: napkin unkeep has it put back what was set for one; what \
         it could not put back its log says (journalctl -u napkin): fix that, or stop it (systemctl stop napkin), and \
         then napkin restore"
    )
}

fn lock_and_restore<W: Backend>(
    backend: &mut W,
    store: &Store,
    seen: &DeviceJournal,
    options: &RestoreOptions,
    restored: &mut DeviceRestored,
) -> Result<(), ApplyError> {
    let _lock = if options.dry_run { None } else { Some(store.lock_of(seen)?) };
    // Read again under the lock, where no other napkin can change them.
    restore_locked(backend, store.reopen(seen)?, options, restored)
}

/// The same for a caller that holds the device's lock.
pub(super) fn restore_locked<W: Backend>(
    backend: &mut W,
    mut journal: DeviceJournal,
    options: &RestoreOptions,
    restored: &mut DeviceRestored,
) -> Result<(), ApplyError> {
    let at = match find_device(backend, journal.ifindex(), journal.identity())? {
        DeviceLookup::Here(at) => at,
        DeviceLookup::Deleted => {
            restored.gone = true;
            return if options.dry_run { Ok(()) } else { Ok(journal.drop_all()?) };
        }
        DeviceLookup::Unreachable(why) => {
            restored.away = Some(why);
            restored.forgotten = options.forget;
            if options.forget && !options.dry_run {
                journal.drop_all()?;
            }
            restored.kept = journal.records().len();
            return Ok(());
        }
    };
    restored.ifname.clone_from(&at.device.ifname);
    restored.up = at.device.up;
    journal.locate(located(&at, journal.records().iter().map(|record| &record.spot)));
    let left = put_back(backend, &at, &journal, &|_| true, options, restored)?;
    restored.forgotten = options.forget;
    if options.dry_run {
        return Ok(());
    }
    let kept: Vec<bool> = left.iter().map(|left| *left && !options.forget).collect();
    if let Err(error) = journal.keep(&kept) {
        // What was put back stays so even if the journal cannot be updated.
        restored.journal = Some(error.to_string());
    }
    restored.kept = journal.records().len();
    Ok(())
}

/// Puts back the places that are `chosen`, and returns for each record whether it is still needed. Records that
/// are not chosen are.
pub(super) fn put_back<W: Backend>(
    backend: &mut W,
    at: &Snapshot,
    journal: &DeviceJournal,
    chosen: &dyn Fn(&Place) -> bool,
    options: &RestoreOptions,
    restored: &mut DeviceRestored,
) -> Result<Vec<bool>, ApplyError> {
    let records: Vec<(&Record, Option<&Spot>)> = journal.located().collect();
    let mut left: Vec<bool> =
        records.iter().map(|(record, now)| !chosen(place(record, *now))).collect();
    let mut settled = left.clone();
    let ending = Ending::of(&records, chosen);
    // By its current location, or by its last one.
    let mut all: Vec<(usize, &Record, &Place, bool)> = records
        .iter()
        .enumerate()
        .map(|(at, (record, now))| (at, *record, place(record, *now), now.is_some()))
        .filter(|(at, _, place, _)| !left[*at] && !ending.holds(place))
        .collect();
    // A thread may be real-time now, whether napkin or another program made it so.
    sort(&mut all, |(_, record, place, _)| {
        (place, &record.before, at.values.get(*place).or(Some(&record.set)))
    });
    for (number, record, place, is_there) in all {
        let now = match if is_there { backend.read(at, place) } else { Ok(None) } {
            Ok(now) => now,
            Err(error) => {
                restored.failed.push(Failed { place: place.clone(), why: error.to_string() });
                left[number] = true;
                continue;
            }
        };
        settled[number] = now.is_some();
        let before = &record.before;
        match (record.judge(now.as_ref(), &at.cpus), now) {
            (Standing::Before, _) => {}
            (Standing::Gone, _) | (_, None) => {
                // Settings of a thread end with the thread, and do not return with the next one.
                if !place.of_thread() {
                    restored.missing.push(place.clone());
                    left[number] = true;
                }
            }
            (Standing::Foreign, Some(now)) if !options.force => {
                restored.foreign.push(Foreign::of(record, place, &now, &at.device.ifname));
                left[number] = true;
            }
            (Standing::Foreign | Standing::Ours, Some(now)) => {
                if !options.dry_run && restored.changes.is_empty() {
                    let ifname = at.device.ifname.clone();
                    backend.may_change().map_err(|right| ApplyError::NoRight { ifname, right })?;
                }
                // The changes made so far are read from the kernel; a dry run has made none.
                let planned: &[Change] = if options.dry_run { &restored.changes } else { &[] };
                let mut done = no_real_time_spin(backend, journal, at, planned, place, before);
                if !options.dry_run {
                    fault::point();
                    done = done.and_then(|()| backend.put_back(at, place, before));
                }
                if let Err(error) = done {
                    let why = error.to_string();
                    restored.failed.push(Failed { place: place.clone(), why });
                    left[number] = true;
                    continue;
                }
                if !options.dry_run {
                    fault::point();
                }
                let (place, new) = (place.clone(), before.clone());
                restored.changes.push(Change { place, old: Some(now), new });
            }
        }
    }
    let unsettled = records.iter().enumerate().filter(|(number, _)| !settled[*number]);
    for (number, (record, now)) in unsettled {
        let place = place(record, *now);
        match kept_thread(backend, at, record, place, options) {
            Ok(Outcome::Nothing) => {}
            Ok(Outcome::Back(change)) => restored.changes.push(change),
            Ok(Outcome::Foreign(now)) => {
                restored.foreign.push(Foreign::of(record, place, &now, &at.device.ifname));
                left[number] = true;
            }
            Err(error) => {
                restored.failed.push(Failed { place: place.clone(), why: error.to_string() });
                left[number] = true;
            }
        }
    }
    let places = || records.iter().map(|(record, now)| (*record, place(record, *now)));
    let modes: Vec<&Place> =
        places().zip(&left).filter(|(_, left)| **left).map(|((_, place), _)| place).collect();
    for (left, (record, place)) in left.iter_mut().zip(places()) {
        *left |=
            at.values.contains_key(place) && records_spin(record, place, modes.iter().copied());
    }
    Ok(left)
}

/// The outcome for a thread that an instance keeps.
enum Outcome {
    Nothing,
    Back(Change),
    Foreign(Value),
}

/// Puts back a thread that still exists although the mode for which it was created is off; the mode is put back
/// before. The kernel disables the mode together with the device but keeps the thread, and reuses it with its
/// CPUs and class when another program enables threads. The kernel may go on reporting it as the instance's.
fn kept_thread<W: Backend>(
    backend: &mut W,
    at: &Snapshot,
    record: &Record,
    place: &Place,
    options: &RestoreOptions,
) -> Result<Outcome, BackendError> {
    let Some(thread) = record.thread else { return Ok(Outcome::Nothing) };
    if options.dry_run && was_polled_by_thread(at, place) {
        // The thread would end with its mode, or was handled above.
        return Ok(Outcome::Nothing);
    }
    let Some(now) = backend.read_thread(thread, place) else { return Ok(Outcome::Nothing) };
    match record.judge(Some(&now), &at.cpus) {
        Standing::Before | Standing::Gone => Ok(Outcome::Nothing),
        Standing::Foreign if !options.force => Ok(Outcome::Foreign(now)),
        Standing::Foreign | Standing::Ours => {
            if !options.dry_run {
                fault::point();
                if let Err(error) = backend.write_thread(thread, place, &record.before) {
                    // The thread may have been about to end.
                    let lives = backend.read_thread(thread, place).is_some();
                    return if lives { Err(error) } else { Ok(Outcome::Nothing) };
                }
                fault::point();
            }
            let new = record.before.clone();
            Ok(Outcome::Back(Change { place: place.clone(), old: Some(now), new }))
        }
    }
}

/// Whether an instance was polled by its thread at the time of the snapshot.
fn was_polled_by_thread(at: &Snapshot, place: &Place) -> bool {
    let mode = |place: Place| at.values.get(&place).is_some_and(|it| *it != Value::Number(0));
    let of_instance = |it: &Instance| mode(Place::Napi(it.clone(), Setting::Threaded));
    mode(Place::Device(Setting::Threaded)) || place.instance().is_some_and(of_instance)
}

/// Returns the current place of a record, or its last known one.
fn place<'a>(record: &'a Record, now: Option<&'a Spot>) -> &'a Place {
    now.map_or(&record.spot.place, |now| &now.place)
}

/// The threads that end when their instances are put back.
#[derive(Default)]
struct Ending<'a> {
    instances: BTreeSet<&'a Instance>,
    all: bool,
}

impl<'a> Ending<'a> {
    fn of(
        records: &[(&'a Record, Option<&'a Spot>)],
        chosen: &dyn Fn(&Place) -> bool,
    ) -> Ending<'a> {
        let mut ending = Ending::default();
        for (record, now) in records.iter().filter(|(it, _)| it.before == Value::Number(0)) {
            match place(record, *now) {
                place if !chosen(place) => {}
                Place::Napi(instance, Setting::Threaded) => {
                    ending.instances.insert(instance);
                }
                Place::Device(Setting::Threaded) => ending.all = true,
                _ => {}
            }
        }
        ending
    }

    /// Whether a place belongs to one of these threads.
    fn holds(&self, place: &Place) -> bool {
        place.of_thread()
            && place.instance().is_some_and(|it| self.all || self.instances.contains(it))
    }
}
