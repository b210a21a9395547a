//! Makes the changes of a plan, each written to the journal's file before it is made.

use napkin_os::sched::Class;
use napkin_policy::Policy;

use super::backend::{Backend, Snapshot, Target};
use super::error::ApplyError;
use super::foreign::Foreign;
use super::located::located;
use super::plan::{Options, Plan, plan};
use super::suspension::confirm_off;
use super::undo::{real_time, undo};
use crate::journal::{DeviceJournal, Lock, Standing, Store, fault};
use crate::place::{Change, Instance, Place, Value};
use napkin_kernel::settings::Setting;

/// The policy to apply, and the device.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The policy; its instance part is applied.
    pub policy: &'a Policy,
    /// The device's name.
    pub ifname: &'a str,
    /// The options.
    pub options: &'a Options,
    /// Whether to proceed where another program changed what napkin had set.
    pub force: bool,
}

/// The outcome of applying a policy.
#[derive(Debug, Clone)]
pub struct Applied {
    /// The plan, all of which was carried out.
    pub plan: Plan,
    /// The changes that were made, with the actual previous value of each place.
    pub done: Vec<Change>,
    /// The device before the changes.
    pub before: Snapshot,
}

/// Applies a policy to a device, for good: until `napkin restore`, or the next boot.
///
/// Writes nothing if every place has its value already. If a change fails, the earlier ones are undone.
///
/// # Errors
/// If another napkin has locked the device, the kernel lacks a feature, a right is missing, or another program
/// changed what napkin had set.
pub fn apply<W: Backend>(
    backend: &mut W,
    store: &Store,
    request: &Request<'_>,
) -> Result<Applied, ApplyError> {
    let (applied, mut journal, _lock) = apply_and_hold(backend, store, request)?;
    let Applied { plan, done, before } = &applied;
    for place in &plan.off {
        if let Err(failed) = confirm_off(&mut journal, before, place) {
            return Err(undo_and_report(backend, &mut journal, before, place, failed.into(), done));
        }
    }
    Ok(applied)
}

/// The same, returning the lock, still held.
pub(super) fn apply_and_hold<W: Backend>(
    backend: &mut W,
    store: &Store,
    request: &Request<'_>,
) -> Result<(Applied, DeviceJournal, Lock), ApplyError> {
    let first = backend.look(Target::Name(request.ifname))?;
    // An impossible plan is refused before anything is touched, including the lock.
    plan(request.policy, &first, backend.kernel(), request.options)?;
    let ifname = first.device.ifname.clone();
    backend.may_change().map_err(|right| ApplyError::NoRight { ifname: ifname.clone(), right })?;
    let lock = store.lock(first.device.ifindex, &ifname, first.identity)?;
    // Another napkin may have changed it before the lock was taken.
    let before = backend.look(Target::Index(first.device.ifindex))?;
    if before.identity != first.identity {
        // It is another device, with another lock and journal.
        return apply_and_hold(backend, store, request);
    }
    let mut journal = store.device(before.device.ifindex, &ifname, before.identity)?;
    journal.locate(located(&before, journal.records().iter().map(|record| &record.spot)));
    let plan = plan(request.policy, &before, backend.kernel(), request.options)?;
    // Foreign changes of places that this plan does not touch are kept in the journal.
    let mut foreign = foreign(&before, &journal);
    foreign.retain(|it| plan.changes.iter().any(|change| affects(&change.place, &it.place)));
    if !foreign.is_empty() && !request.force {
        return Err(ApplyError::Foreign { foreign });
    }
    let mut done = Vec::new();
    execute(backend, &mut journal, &before, &plan.changes, &mut done)?;
    Ok((Applied { plan, done, before }, journal, lock))
}

/// Whether changing one place also changes the other: a change of mode can end an instance's thread, whose CPUs
/// and class are put back before.
fn affects(changed: &Place, other: &Place) -> bool {
    let mode = match changed {
        Place::Napi(instance, Setting::Threaded) => Some(instance) == other.instance(),
        Place::Device(Setting::Threaded) => true,
        _ => false,
    };
    changed == other || (mode && other.of_thread())
}

/// Returns the values that another program set after napkin.
pub(super) fn foreign(at: &Snapshot, journal: &DeviceJournal) -> Vec<Foreign> {
    let changed = journal.located().filter_map(|(record, spot)| {
        let place = &spot?.place;
        let now = at.values.get(place)?;
        (record.judge(Some(now), &at.cpus) == Standing::Foreign)
            .then(|| Foreign::of(record, place, now, &at.device.ifname))
    });
    changed.collect()
}

/// Makes changes in their order, and appends those that were made to `done`.
///
/// # Errors
/// If one cannot be made: all of `done` is undone then.
pub(super) fn execute<W: Backend>(
    backend: &mut W,
    journal: &mut DeviceJournal,
    at: &Snapshot,
    changes: &[Change],
    done: &mut Vec<Change>,
) -> Result<(), ApplyError> {
    for change in changes {
        if let Err(failed) = make_change(backend, journal, at, change, done) {
            return Err(undo_and_report(backend, journal, at, &change.place, failed, done));
        }
    }
    Ok(())
}

/// Undoes `done` after the change of this place failed.
fn undo_and_report<W: Backend>(
    backend: &mut W,
    journal: &mut DeviceJournal,
    at: &Snapshot,
    place: &Place,
    failed: ApplyError,
    done: &[Change],
) -> ApplyError {
    let left = undo(backend, journal, at, at, done).words();
    ApplyError::Stopped { place: place.clone(), failed: Box::new(failed), left }
}

/// Makes one change, and appends to `done` what was recorded, even if the kernel refuses the change.
fn make_change<W: Backend>(
    backend: &mut W,
    journal: &mut DeviceJournal,
    at: &Snapshot,
    change: &Change,
    done: &mut Vec<Change>,
) -> Result<(), ApplyError> {
    remember_threads(backend, journal, at, change, done)?;
    let Some(old) = backend.read(at, &change.place)? else {
        return Err(super::BackendError::Gone {
            what: change.place.what(),
            ifname: at.device.ifname.clone(),
            subject: change.place.subject(),
        }
        .into());
    };
    if old == change.new {
        return Ok(());
    }
    let Change { place, new, .. } = change;
    write_down(backend, journal, at, place, &old, new)?;
    // Also if the kernel refuses it: undoing then finds the previous value, and drops the record.
    done.push(Change { old: Some(old), ..change.clone() });
    fault::point();
    backend.write(at, place, new)?;
    fault::point();
    Ok(())
}

/// Records a change that is about to be made.
fn write_down<W: Backend>(
    backend: &mut W,
    journal: &mut DeviceJournal,
    at: &Snapshot,
    place: &Place,
    old: &Value,
    new: &Value,
) -> Result<(), ApplyError> {
    let thread = match place.instance() {
        Some(instance) if place.of_thread() => backend.thread(at, instance)?,
        _ => None,
    };
    Ok(journal.before_of(&at.spot(place), thread, old, new)?)
}

/// A thread ends with its mode, and so do its CPUs, class and nice value. Values that another program had given
/// it are recorded as a change to those of a new thread, so that they are put back. The nice value is recorded
/// for a fair thread only, as other classes have none.
fn remember_threads<W: Backend>(
    backend: &mut W,
    journal: &mut DeviceJournal,
    at: &Snapshot,
    change: &Change,
    done: &mut Vec<Change>,
) -> Result<(), ApplyError> {
    let of: Vec<Instance> = match &change.place {
        Place::Napi(instance, Setting::Threaded) => vec![instance.clone()],
        Place::Device(Setting::Threaded) => {
            Instance::all(&at.device).into_iter().map(|(instance, _)| instance).collect()
        }
        _ => return Ok(()),
    };
    match change.new {
        Value::Number(0) => {}
        Value::Number(1) => return remember_real_time(backend, journal, at, change, of, done),
        _ => return Ok(()),
    }
    for instance in of {
        let fresh = [
            (Place::ThreadCpus(instance.clone()), Value::cpus(&backend.new_thread_cpus())),
            (Place::ThreadClass(instance), Value::Class(Class::Fair)),
        ];
        for (place, new) in fresh {
            // A class that cannot be set cannot be put back either.
            if let Some(old) = backend.read(at, &place)?
                && old != new
                && !matches!(old, Value::Class(Class::Other(_)))
            {
                journal.before(&at.spot(&place), &old, &new)?;
                done.push(Change { place, old: Some(old), new });
            }
        }
    }
    Ok(())
}

/// Threads that another program made real-time and that spin will sleep from now on. Their class is recorded as
/// a change to itself: it permits to make them spin again, which other threads that have become real-time by
/// then may not.
fn remember_real_time<W: Backend>(
    backend: &mut W,
    journal: &mut DeviceJournal,
    at: &Snapshot,
    change: &Change,
    of: Vec<Instance>,
    done: &mut Vec<Change>,
) -> Result<(), ApplyError> {
    if backend.read(at, &change.place)? != Some(Value::Number(2)) {
        return Ok(());
    }
    for place in of.into_iter().map(Place::ThreadClass) {
        if let Some(class) = backend.read(at, &place)?
            && real_time(&class).is_some()
        {
            journal.before(&at.spot(&place), &class, &class)?;
            done.push(Change { place, old: Some(class.clone()), new: class });
        }
    }
    Ok(())
}
