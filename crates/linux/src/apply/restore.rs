//! Putting back what the journal knows.
//!
//! A place gets what it was before napkin first changed it, if what it is now is napkin's doing. A
//! value that somebody else set is left alone and told of. Putting back needs no journal of its own:
//! whoever is interrupted starts again, and finds what is done already done.

use std::path::PathBuf;

use super::error::ApplyError;
use super::place::{Change, Place, Value};
use super::plan::sort;
use super::restored::{Also, DeviceRestored, Failed, Foreign, ProcessRestored, Restoration};
use super::world::{Snapshot, Target, World};
use crate::attach::Restored;
use crate::journal::{
    DeviceJournal, Found, JournalError, ProcessJournal, Record, Standing, Store, fault,
};
use crate::settings::Setting;

/// How to put back.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RestoreOptions {
    /// Only this device.
    pub ifname: Option<String>,
    /// Also what somebody else changed since.
    pub force: bool,
    /// Forget what could not be put back.
    pub forget: bool,
    /// Only say what would be done.
    pub dry_run: bool,
}

/// Puts back what napkin changed in this namespace. What cannot be done for one device does not keep
/// another from being put back.
///
/// # Errors
/// If the journal's directory cannot be read, or there is no such device.
pub fn restore<W: World>(
    world: &mut W,
    store: &Store,
    options: &RestoreOptions,
) -> Result<Restoration, ApplyError> {
    let mut restoration = Restoration::default();
    if let Some(ifname) = &options.ifname {
        restore_named(world, store, ifname, options, &mut restoration)?;
        return Ok(restoration);
    }
    for found in store.survey()? {
        match found {
            Found::Device(journal) => {
                restoration.devices.push(restore_device(world, store, &journal, options));
            }
            Found::Process(journal) => {
                restoration.processes.push(restore_process(store, &journal, options));
            }
            found => restoration.also.extend(other(store, found, options)?),
        }
    }
    Ok(restoration)
}

fn restore_named<W: World>(
    world: &mut W,
    store: &Store,
    ifname: &str,
    options: &RestoreOptions,
    restoration: &mut Restoration,
) -> Result<(), ApplyError> {
    match world.look(Target::Name(ifname)) {
        Ok(at) => {
            let journal = match store.device(at.device.ifindex, ifname) {
                Ok(journal) => journal,
                Err(error) if options.forget => {
                    let also = give_up(store, error, options)?;
                    restoration.also.push(also);
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            };
            if !journal.records().is_empty() {
                restoration.devices.push(restore_device(world, store, &journal, options));
            }
            Ok(())
        }
        // It may be one that was there.
        Err(error) if error.is_absent() => {
            let mut known = false;
            for found in store.survey()? {
                if let Found::Device(journal) = found
                    && journal.ifname() == ifname
                {
                    known = true;
                    restoration.devices.push(restore_device(world, store, &journal, options));
                }
            }
            if known { Ok(()) } else { Err(error.into()) }
        }
        Err(error) => Err(error.into()),
    }
}

/// What is neither a device of this namespace nor a process.
fn other(
    store: &Store,
    found: Found,
    options: &RestoreOptions,
) -> Result<Option<Also>, JournalError> {
    let sweep = |path: &PathBuf| if options.dry_run { Ok(()) } else { store.sweep(path) };
    let drop = |path: &PathBuf| if options.dry_run { Ok(()) } else { store.forget(path) };
    Ok(match found {
        Found::OtherBoot { path, subject } => {
            sweep(&path)?;
            Some(Also::OtherBoot { subject })
        }
        Found::OtherNamespace { path, subject, namespace, alive } => {
            let name = namespace.to_string();
            if alive == Some(false) {
                drop(&path)?;
                Some(Also::NamespaceGone { subject, namespace: name })
            } else {
                Some(Also::OtherNamespace { subject, namespace: name, path })
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
            Some(Also::Unreadable { path, why, forgotten })
        }
        Found::Device(_) | Found::Process(_) => None,
    })
}

fn give_up(
    store: &Store,
    error: JournalError,
    options: &RestoreOptions,
) -> Result<Also, JournalError> {
    let (JournalError::Corrupt { path, .. } | JournalError::TooLarge { path, .. }) = &error else {
        return Err(error);
    };
    if !options.dry_run {
        store.forget(path)?;
    }
    Ok(Also::Unreadable { path: path.clone(), why: error.to_string(), forgotten: true })
}

fn restore_device<W: World>(
    world: &mut W,
    store: &Store,
    seen: &DeviceJournal,
    options: &RestoreOptions,
) -> DeviceRestored {
    let mut restored =
        DeviceRestored { ifname: seen.ifname().to_owned(), ..DeviceRestored::default() };
    if let Err(error) = device(world, store, seen.ifindex(), options, &mut restored) {
        restored.refused = Some(error.to_string());
    }
    restored
}

fn device<W: World>(
    world: &mut W,
    store: &Store,
    ifindex: u32,
    options: &RestoreOptions,
    restored: &mut DeviceRestored,
) -> Result<(), ApplyError> {
    let _lock = if options.dry_run { None } else { Some(store.lock(ifindex, &restored.ifname)?) };
    // As both are now that nobody else can be at them.
    let at = match world.look(Target::Index(ifindex)) {
        Ok(at) => Some(at),
        Err(error) if error.is_absent() => None,
        Err(error) => return Err(error.into()),
    };
    let mut journal = store.device(ifindex, &restored.ifname)?;
    let Some(at) = at else {
        restored.gone = true;
        if !options.dry_run {
            journal.keep(|_| false)?;
        }
        return Ok(());
    };
    restored.ifname.clone_from(&at.device.ifname);
    restored.up = at.device.up;
    put_back(world, &at, journal.records(), options, restored)?;
    restored.forgotten = options.forget;
    if options.dry_run {
        return Ok(());
    }
    let kept = |record: &Record| {
        let place = &record.place;
        !options.forget
            && (restored.foreign.iter().any(|it| it.place == *place)
                || restored.failed.iter().any(|it| it.place == *place)
                || restored.missing.contains(place))
    };
    journal.keep(kept)?;
    restored.kept = journal.records().len();
    Ok(())
}

fn put_back<W: World>(
    world: &mut W,
    at: &Snapshot,
    records: &[Record],
    options: &RestoreOptions,
    restored: &mut DeviceRestored,
) -> Result<(), ApplyError> {
    let mut records: Vec<&Record> =
        records.iter().filter(|record| !ends(record, records)).collect();
    sort(&mut records, |record| (&record.place, &record.before));
    for record in records {
        let Record { place, before, .. } = record;
        let now = match world.read(at, place) {
            Ok(now) => now,
            Err(error) => {
                restored.failed.push(Failed { place: place.clone(), why: error.to_string() });
                continue;
            }
        };
        let standing = record.judge(now.as_ref());
        match (standing, now) {
            (Standing::Before, _) => {}
            (Standing::Gone, _) | (_, None) => {
                // A thread's go with the thread, and do not come back with it.
                if !place.of_thread() {
                    restored.missing.push(place.clone());
                }
            }
            (Standing::Foreign, Some(now)) if !options.force => {
                restored.foreign.push(Foreign::of(record, &now, &at.device.ifname));
            }
            (Standing::Foreign | Standing::Ours, Some(now)) => {
                if !options.dry_run {
                    if restored.changes.is_empty() {
                        let ifname = at.device.ifname.clone();
                        world
                            .may_change()
                            .map_err(|right| ApplyError::NoRight { ifname, right })?;
                    }
                    fault::point();
                    if let Err(error) = world.write(at, place, before) {
                        let why = error.to_string();
                        restored.failed.push(Failed { place: place.clone(), why });
                        continue;
                    }
                    fault::point();
                }
                let (place, new) = (place.clone(), before.clone());
                restored.changes.push(Change { place, old: Some(now), new });
            }
        }
    }
    Ok(())
}

/// Whether a record is of a thread that ends when its instance is put back.
fn ends(record: &Record, records: &[Record]) -> bool {
    let Some(instance) = record.place.instance().filter(|_| record.place.of_thread()) else {
        return false;
    };
    records.iter().any(|other| {
        other.before == Value::Number(0)
            && match &other.place {
                Place::Napi(of, Setting::Threaded) => of == instance,
                Place::Device(Setting::Threaded) => true,
                _ => false,
            }
    })
}

/// Puts back what was changed in a process, thing by thing.
fn restore_process(
    store: &Store,
    seen: &ProcessJournal,
    options: &RestoreOptions,
) -> ProcessRestored {
    let (pid, start_time) = seen.process();
    let mut restored = ProcessRestored { pid, ..ProcessRestored::default() };
    if let Err(error) = process(store, pid, start_time, options, &mut restored) {
        restored.left.push(error.to_string());
    }
    restored
}

fn process(
    store: &Store,
    pid: i32,
    start_time: u64,
    options: &RestoreOptions,
    restored: &mut ProcessRestored,
) -> Result<(), JournalError> {
    let _lock = if options.dry_run { None } else { Some(store.lock_process(pid, start_time)?) };
    // As it is now that nobody else can be at it.
    let journal = store.process(pid, start_time)?;
    for record in journal.records() {
        let Some(last) = record.first() else { continue };
        if options.dry_run {
            restored.changes.push(last.what.back());
            continue;
        }
        fault::point();
        let mut outcome = last.restore();
        for earlier in &record[1..] {
            if matches!(outcome, Ok(Restored::Changed { .. })) {
                outcome = earlier.restore();
            }
        }
        fault::point();
        match outcome {
            Ok(Restored::Done) => restored.changes.push(last.what.back()),
            Ok(Restored::Gone) => restored.gone += 1,
            Ok(Restored::Changed { now }) => restored.left.push(format!(
                "process {pid}: {now} now, set by somebody else; napkin had set {}",
                last.what
            )),
            Err(error) => restored.left.push(error.to_string()),
        }
    }
    restored.forgotten = options.forget;
    if !options.dry_run && (restored.left.is_empty() || options.forget) {
        journal.finish()?;
    }
    Ok(())
}
