//! Making the changes of a plan, each on the disk before it is made.

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

/// What is to be applied, and where.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The policy, of which the instance's part is applied.
    pub policy: &'a Policy,
    /// The device's name.
    pub ifname: &'a str,
    /// What else was asked for.
    pub options: &'a Options,
    /// Whether to go on where somebody else changed what napkin had set.
    pub force: bool,
}

/// What was applied.
#[derive(Debug, Clone)]
pub struct Applied {
    /// The plan, all of which was done.
    pub plan: Plan,
    /// The changes that were made, with what each place really was.
    pub done: Vec<Change>,
    /// The device as it was before.
    pub before: Snapshot,
}

/// Applies a policy to a device, for good: until `napkin restore`, or the next boot.
///
/// Nothing is written if everything is so already. If a change fails, those before it are put back.
///
/// # Errors
/// If another napkin is at the device, the kernel lacks something, a right is missing, or somebody
/// else changed what napkin had set.
pub fn apply<W: Backend>(
    backend: &mut W,
    store: &Store,
    request: &Request<'_>,
) -> Result<Applied, ApplyError> {
    let (applied, mut journal, _lock) = held(backend, store, request)?;
    let Applied { plan, done, before } = &applied;
    for place in &plan.off {
        if let Err(failed) = confirm_off(&mut journal, before, place) {
            return Err(stopped(backend, &mut journal, before, place, failed.into(), done));
        }
    }
    Ok(applied)
}

/// The same, with the lock still held.
pub(super) fn held<W: Backend>(
    backend: &mut W,
    store: &Store,
    request: &Request<'_>,
) -> Result<(Applied, DeviceJournal, Lock), ApplyError> {
    let first = backend.look(Target::Name(request.ifname))?;
    // What cannot be is said before anything is touched, the lock included.
    plan(request.policy, &first, backend.kernel(), request.options)?;
    let ifname = first.device.ifname.clone();
    backend.may_change().map_err(|right| ApplyError::NoRight { ifname: ifname.clone(), right })?;
    let lock = store.lock(first.device.ifindex, &ifname, first.identity)?;
    // Another napkin may have been at it until now.
    let before = backend.look(Target::Index(first.device.ifindex))?;
    if before.identity != first.identity {
        // It is another one, whose lock and journal are others.
        return held(backend, store, request);
    }
    let mut journal = store.device(before.device.ifindex, &ifname, before.identity)?;
    journal.locate(located(&before, journal.records().iter().map(|record| &record.spot)));
    let plan = plan(request.policy, &before, backend.kernel(), request.options)?;
    // Of what is not touched now the journal knows all the same.
    let mut foreign = foreign(&before, &journal);
    foreign.retain(|it| plan.changes.iter().any(|change| touches(&change.place, &it.place)));
    if !foreign.is_empty() && !request.force {
        return Err(ApplyError::Foreign { foreign });
    }
    let mut done = Vec::new();
    execute(backend, &mut journal, &before, &plan.changes, &mut done)?;
    Ok((Applied { plan, done, before }, journal, lock))
}

/// Whether what is at the other place changes as well where this one does: a thread goes with its instance's mode, and
/// where it may run and its class are put back before.
fn touches(changed: &Place, other: &Place) -> bool {
    let mode = match changed {
        Place::Napi(instance, Setting::Threaded) => Some(instance) == other.instance(),
        Place::Device(Setting::Threaded) => true,
        _ => false,
    };
    changed == other || (mode && other.of_thread())
}

/// What somebody else changed after napkin did.
pub(super) fn foreign(at: &Snapshot, journal: &DeviceJournal) -> Vec<Foreign> {
    let changed = journal.located().filter_map(|(record, spot)| {
        let place = &spot?.place;
        let now = at.values.get(place)?;
        (record.judge(Some(now), &at.cpus) == Standing::Foreign)
            .then(|| Foreign::of(record, place, now, &at.device.ifname))
    });
    changed.collect()
}

/// Makes changes in their order, and adds those that were made to `done`.
///
/// # Errors
/// If one cannot be made: then all of `done` was taken back.
pub(super) fn execute<W: Backend>(
    backend: &mut W,
    journal: &mut DeviceJournal,
    at: &Snapshot,
    changes: &[Change],
    done: &mut Vec<Change>,
) -> Result<(), ApplyError> {
    for change in changes {
        if let Err(failed) = make(backend, journal, at, change, done) {
            return Err(stopped(backend, journal, at, &change.place, failed, done));
        }
    }
    Ok(())
}

/// Takes back what was done, as this failed at this place.
fn stopped<W: Backend>(
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

/// Makes one change, and adds to `done` what was written down, be it refused or not.
fn make<W: Backend>(
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
    // Also if it is refused: who takes back what was made finds the place as it was, and has the
    // journal forget it.
    done.push(Change { old: Some(old), ..change.clone() });
    fault::point();
    backend.write(at, place, new)?;
    fault::point();
    Ok(())
}

/// Writes a change down that is about to be made.
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

/// A thread ends with its mode, and its CPUs, class and nice value with it. What somebody had given it is
/// written down as a change to what a new thread has, so that it is given back: the nice value of a fair one
/// alone, as none is part of other classes.
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
            // What can never be set cannot be given back either.
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

/// Threads that spin though they are real-time, as somebody wants them, sleep from now on. What they are is written
/// down, as a change to the same: they may be set spinning again, which others that are real-time by then may not.
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
