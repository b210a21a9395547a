//! A device that this process has locked, and repeatedly brings to its wanted state: for the keeper, which
//! keeps wishes in force while links come and go.
//!
//! The journal is the memory: wanted places that differ are changed, and changed places that are not wanted any
//! more are put back. It makes no difference whether this process changed them or an earlier one that was
//! killed. Values that another program has set meanwhile are set again, and reported.

use std::collections::{BTreeMap, BTreeSet};

use super::backend::{Backend, Snapshot, Target};
use super::error::{ApplyError, BackendError};
use super::execute::{execute, foreign};
use super::find_device::{DeviceLookup, find_device};
use super::foreign::Foreign;
use super::located::located;
use super::plan::changes;
use super::restore::{RestoreOptions, put_back, restore_locked};
use super::restored::DeviceRestored;
use super::suspension::confirm_off;
use crate::journal::{Lock, Store, sole_writer};
use crate::place::{Change, Place, Value};
use napkin_kernel::settings::Setting;

/// A locked device. When this is dropped, the device is left as it is, and the journal keeps its records.
#[derive(Debug)]
pub struct HeldDevice {
    ifindex: u32,
    ifname: String,
    identity: Option<u64>,
    store: Store,
    _lock: Lock,
}

/// The outcome of bringing a device to its wanted state.
#[derive(Debug, Default)]
pub struct Kept {
    /// The changes that were made, with the previous value of each place.
    pub changes: Vec<Change>,
    /// The wanted places that another program had changed after napkin.
    pub foreign: Vec<Foreign>,
    /// The outcome for the places that are not wanted any more.
    pub put_back: DeviceRestored,
}

impl HeldDevice {
    /// Locks a device that was seen in `at`. Changes nothing.
    ///
    /// # Errors
    /// If another napkin has locked it, or a right is missing.
    pub fn take<W: Backend>(
        backend: &W,
        store: &Store,
        at: &Snapshot,
    ) -> Result<HeldDevice, ApplyError> {
        let (ifindex, ifname) = (at.device.ifindex, at.device.ifname.clone());
        let no_right = |right| ApplyError::NoRight { ifname: ifname.clone(), right };
        backend.may_change().map_err(no_right)?;
        let lock = store.lock(ifindex, &ifname, at.identity)?;
        Ok(HeldDevice { ifindex, ifname, identity: at.identity, store: store.clone(), _lock: lock })
    }

    /// The name it had when it was locked.
    pub fn ifname(&self) -> &str {
        &self.ifname
    }

    /// Its interface index in this namespace.
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Whether `at` is the same device, and not another one with the same index. Where sysfs does not reveal
    /// the identity, now or when it was locked, the index decides.
    pub fn is_same_device(&self, at: &Snapshot) -> bool {
        let same = self.identity.zip(at.identity).is_none_or(|(held, present)| held == present);
        self.ifindex == at.device.ifindex && same
    }

    /// Whether it is still there; no answer from the kernel does not count as gone.
    pub fn is_here<W: Backend>(&self, backend: &mut W) -> bool {
        match backend.look(Target::Index(self.ifindex)) {
            Ok(at) => self.is_same_device(&at),
            Err(error) => !error.is_absent(),
        }
    }

    /// Sets each of these places to its value, and puts every other place that napkin has changed back to its
    /// original value. A place that does not exist now is left for later.
    ///
    /// # Errors
    /// If the device is gone (even if another one has its index), the kernel refuses a change (then the earlier
    /// ones are undone), or the journal cannot be written.
    pub fn keep<W: Backend>(
        &self,
        backend: &mut W,
        wanted: &BTreeMap<Place, Value>,
    ) -> Result<Kept, ApplyError> {
        let _sole = sole_writer();
        let mut kept = Kept::default();
        // The first iteration may create threads whose original CPUs or class are still to be put back.
        if self.once(backend, wanted, &mut kept)? {
            self.once(backend, wanted, &mut kept)?;
        }
        kept.changes.retain(Change::is_change);
        Ok(kept)
    }

    /// Records that these suspensions are wanted off, even if a guard ended them: it does not restore them.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn confirm_off<'a>(
        &self,
        at: &Snapshot,
        mut places: impl Iterator<Item = &'a Place>,
    ) -> Result<(), ApplyError> {
        let _sole = sole_writer();
        let mut journal = self.store.device(self.ifindex, &self.ifname, self.identity)?;
        journal.locate(located(at, journal.records().iter().map(|record| &record.spot)));
        Ok(places.try_for_each(|place| confirm_off(&mut journal, at, place))?)
    }

    /// One iteration of [`HeldDevice::keep`]. Returns whether threads have been created, or put to sleep, whose
    /// places can be put back only now.
    fn once<W: Backend>(
        &self,
        backend: &mut W,
        wanted: &BTreeMap<Place, Value>,
        kept: &mut Kept,
    ) -> Result<bool, ApplyError> {
        let at = backend.look(Target::Index(self.ifindex))?;
        if !self.is_same_device(&at) {
            // Its lock and its journal are not those of this device.
            return Err(BackendError::absent(self.ifname.clone()).into());
        }
        kept.put_back.ifname.clone_from(&at.device.ifname);
        kept.put_back.up = at.device.up;
        let mut journal = self.store.device(self.ifindex, &self.ifname, self.identity)?;
        journal.locate(located(&at, journal.records().iter().map(|record| &record.spot)));
        let mut others = foreign(&at, &journal);
        others.retain(|it| wanted.get(&it.place).is_some_and(|value| *value != it.now));
        kept.foreign.extend(others);
        // Fair classes may be put back on a spinning thread.
        let fair: BTreeSet<Place> = journal
            .located()
            .filter(|(record, _)| matches!(record.before, Value::Class(it) if it.is_fair()))
            .map(|(record, now)| now.map_or(&record.spot.place, |now| &now.place).clone())
            .collect();
        // A thread that is to spin must be fair, with any nice value: where it is fair already, the nice value
        // that another program had given it is put back.
        let is_wanted = |place: &Place| {
            let is_fair = |value: &Value| matches!(value, Value::Class(class) if class.is_fair());
            let nice = || wanted.get(place).is_some_and(is_fair) && fair.contains(place);
            let is_so = || at.values.get(place).is_none_or(is_fair);
            wanted.contains_key(place) && !(nice() && is_so())
        };
        // Remembered for as long as the mode is wanted in which these threads do not spin.
        let remembered: BTreeSet<Place> = journal
            .located()
            .filter(|(record, _)| record.is_remembered())
            .map(|(record, now)| now.map_or(&record.spot.place, |now| &now.place).clone())
            .collect();
        // Putting back a place of a thread that does not exist would drop its record, because it would count as
        // gone with the thread; and a thread that still spins must not become real-time.
        let waits = |place: &Place| {
            let class = matches!(place, Place::ThreadClass(_)) && !fair.contains(place);
            let spins = || class && mode(&at.values, place) == Some(&Value::Number(2));
            let unwanted = !is_wanted(place) && mode(wanted, place).is_some();
            let stays = || remembered.contains(place) || spins();
            unwanted && (!at.values.contains_key(place) || stays())
        };
        let surplus = |place: &Place| !is_wanted(place) && !waits(place);
        let options = RestoreOptions::default();
        let left = put_back(backend, &at, &journal, &surplus, &options, &mut kept.put_back)?;
        journal.keep(&left)?;
        // Locates the records again: some have been removed.
        journal.locate(located(&at, journal.records().iter().map(|record| &record.spot)));
        let wanted = wanted.iter().filter(|(place, _)| is_wanted(place));
        let changes = changes(wanted.map(|(place, value)| (place.clone(), value.clone())), &at);
        execute(backend, &mut journal, &at, &changes, &mut kept.changes)?;
        let mut places =
            journal.located().map(|(record, now)| now.map_or(&record.spot.place, |now| &now.place));
        Ok(changes.iter().any(makes_thread) && places.any(waits))
    }

    /// Puts back everything that napkin has changed on it. Keeps the lock, so that a failed attempt can be
    /// repeated.
    ///
    /// # Errors
    /// If the kernel or the journal does not answer; the journal keeps its records then.
    pub fn restore<W: Backend>(&self, backend: &mut W) -> Result<DeviceRestored, ApplyError> {
        let _sole = sole_writer();
        let journal = self.store.device(self.ifindex, &self.ifname, self.identity)?;
        let mut restored = DeviceRestored { ifname: self.ifname.clone(), ..Default::default() };
        restore_locked(backend, journal, &RestoreOptions::default(), &mut restored)?;
        Ok(restored)
    }

    /// Drops the journal if the device was deleted, and returns whether it was: its changes are gone with it.
    ///
    /// # Errors
    /// If the kernel does not answer, or the journal cannot be removed.
    pub fn is_gone<W: Backend>(&self, backend: &mut W) -> Result<bool, ApplyError> {
        let _sole = sole_writer();
        let gone =
            matches!(find_device(backend, self.ifindex, self.identity)?, DeviceLookup::Deleted);
        if gone {
            self.drop_journal()?;
        }
        Ok(gone)
    }

    /// Drops the journal of a device that was deleted. For a caller that was notified of the deletion:
    /// searching all other namespaces for the device takes rights.
    ///
    /// # Errors
    /// If the journal cannot be read or removed.
    pub fn forget(&self) -> Result<(), ApplyError> {
        let _sole = sole_writer();
        self.drop_journal()
    }

    fn drop_journal(&self) -> Result<(), ApplyError> {
        Ok(self.store.device(self.ifindex, &self.ifname, self.identity)?.drop_all()?)
    }
}

/// Returns the threaded mode that governs this place's thread, if it is a place of a thread.
fn mode<'a>(values: &'a BTreeMap<Place, Value>, place: &Place) -> Option<&'a Value> {
    let instance = place.instance().filter(|_| place.of_thread())?;
    let of_instance = values.get(&Place::Napi(instance.clone(), Setting::Threaded));
    of_instance.or_else(|| values.get(&Place::Device(Setting::Threaded)))
}

/// Whether a change creates threads, or makes spinning threads sleep.
fn makes_thread(change: &Change) -> bool {
    let mode = matches!(
        change.place,
        Place::Napi(_, Setting::Threaded) | Place::Device(Setting::Threaded)
    );
    mode && change.new != Value::Number(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::fake::Fake;
    use crate::place::Instance;
    use napkin_kernel::namespace::Identity;

    #[test]
    fn a_held_device_is_gone_when_the_kernel_says_so_and_not_for_want_of_an_answer() {
        let directory = format!("napkin-held-device-{}", std::process::id());
        let directory = std::env::temp_dir().join(directory);
        let namespace = Identity { cookie: Some(1), inode: 1 };
        let store = Store::at(directory.clone(), "this boot".into(), namespace);
        let mut backend = Fake::new(1);
        let at = backend.look(Target::Name("va")).expect("it is there");
        let held = HeldDevice::take(&backend, &store, &at).expect("nobody else has it");
        assert!(held.is_here(&mut backend));

        backend.unresponsive = true;
        assert!(held.is_here(&mut backend), "there is no answer");
        backend.unresponsive = false;
        let identity = backend.identities.remove(&at.device.ifindex).expect("it has one");
        assert!(held.is_here(&mut backend), "which one it is cannot be seen");

        backend.identities.insert(at.device.ifindex, identity + 1);
        assert!(!held.is_here(&mut backend), "it is another one");
        let instance = Instance { rx: vec![0], tx: vec![0], nth: 0 };
        let place = Place::Napi(instance, Setting::DeferHardIrqs);
        let wanted = BTreeMap::from([(place, Value::Number(7))]);
        let error = held.keep(&mut backend, &wanted).expect_err("it is another one");
        assert!(matches!(error, ApplyError::Backend(error) if error.is_absent()));
        assert_eq!(backend.writes, 0);
        backend.identities.insert(at.device.ifindex, identity);
        assert!(held.is_here(&mut backend));
        backend.devices.remove(0);
        assert!(!held.is_here(&mut backend), "there is none of its number");
        drop(held);
        let _ = std::fs::remove_dir_all(directory);
    }
}
