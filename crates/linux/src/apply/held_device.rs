//! A device that this process has for itself, and brings to what is wanted of it as often as it is
//! asked to: for who keeps wishes in force while links come and go.
//!
//! The journal is the memory: what is wanted and not so is changed, what was changed and is not wanted
//! any more is put back. So it makes no difference whether this process changed it or one before that
//! was killed. What somebody else has set meanwhile is set again, and told of.

use std::collections::{BTreeMap, BTreeSet};

use super::again::{Again, again};
use super::backend::{Backend, Snapshot, Target};
use super::error::{ApplyError, BackendError};
use super::execute::{execute, foreign};
use super::foreign::Foreign;
use super::located::located;
use super::plan::changes;
use super::restore::{RestoreOptions, put_back, unlocked};
use super::restored::DeviceRestored;
use super::suspension::confirm_off;
use crate::journal::{Lock, Store, sole_writer};
use crate::place::{Change, Place, Value};
use napkin_kernel::settings::Setting;

/// A device whose lock is held; dropped, it is left as it is, and the journal knows.
#[derive(Debug)]
pub struct HeldDevice {
    ifindex: u32,
    ifname: String,
    identity: Option<u64>,
    store: Store,
    _lock: Lock,
}

/// What was done to bring a device to what is wanted.
#[derive(Debug, Default)]
pub struct Kept {
    /// What was changed, with what each place was.
    pub changes: Vec<Change>,
    /// Which of these places somebody else had changed after napkin.
    pub foreign: Vec<Foreign>,
    /// What became of places that are not wanted any more.
    pub put_back: DeviceRestored,
}

impl HeldDevice {
    /// Takes the lock of a device as it was just seen. Nothing is changed.
    ///
    /// # Errors
    /// If another napkin is at it, or a right is missing.
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

    /// What it was called when its lock was taken.
    pub fn ifname(&self) -> &str {
        &self.ifname
    }

    /// Its number in this namespace.
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Whether this is that device, and not another one of the same number. Where sysfs did not say which
    /// one it is, now or when it was taken, its number does.
    pub fn is(&self, at: &Snapshot) -> bool {
        let same = self.identity.zip(at.identity).is_none_or(|(held, there)| held == there);
        self.ifindex == at.device.ifindex && same
    }

    /// Whether it is still there, as far as anybody knows: no answer does not say that it is gone.
    pub fn is_here<W: Backend>(&self, backend: &mut W) -> bool {
        match backend.look(Target::Index(self.ifindex)) {
            Ok(at) => self.is(&at),
            Err(error) => !error.is_absent(),
        }
    }

    /// Brings each of these places to its value, and every other one that napkin has changed back to
    /// what it was before. A place that is not there now is left for when it is.
    ///
    /// # Errors
    /// If the device is gone, be it that another one has its number, the kernel refuses a change (then those
    /// before it are put back), or the journal cannot be written.
    pub fn keep<W: Backend>(
        &self,
        backend: &mut W,
        wanted: &BTreeMap<Place, Value>,
    ) -> Result<Kept, ApplyError> {
        let _sole = sole_writer();
        let mut kept = Kept::default();
        // Threads may be there only now that are to get back what somebody had given those before.
        if self.once(backend, wanted, &mut kept)? {
            self.once(backend, wanted, &mut kept)?;
        }
        kept.changes.retain(Change::is_change);
        Ok(kept)
    }

    /// Says that these suspensions, which are off, are to stay so though a guard has ended them: it does not give them
    /// back.
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

    /// The same but for what is to be put back of threads that sleep only after it. Gives whether
    /// there are such now.
    fn once<W: Backend>(
        &self,
        backend: &mut W,
        wanted: &BTreeMap<Place, Value>,
        kept: &mut Kept,
    ) -> Result<bool, ApplyError> {
        let at = backend.look(Target::Index(self.ifindex))?;
        if !self.is(&at) {
            // Its lock and its journal are others.
            return Err(BackendError::absent(self.ifname.clone()).into());
        }
        kept.put_back.ifname.clone_from(&at.device.ifname);
        kept.put_back.up = at.device.up;
        let mut journal = self.store.device(self.ifindex, &self.ifname, self.identity)?;
        journal.locate(located(&at, journal.records().iter().map(|record| &record.spot)));
        let mut others = foreign(&at, &journal);
        others.retain(|it| wanted.get(&it.place).is_some_and(|value| *value != it.now));
        kept.foreign.extend(others);
        // A fair class may be given back to a thread that spins.
        let fair: BTreeSet<Place> = journal
            .located()
            .filter(|(record, _)| matches!(record.before, Value::Class(it) if it.is_fair()))
            .map(|(record, now)| now.map_or(&record.spot.place, |now| &now.place).clone())
            .collect();
        // A thread that is about to spin has to be fair, which it is with any nice value: where it is fair the
        // one that somebody had given it is given back.
        let is_wanted = |place: &Place| {
            let is_fair = |value: &Value| matches!(value, Value::Class(class) if class.is_fair());
            let nice = || wanted.get(place).is_some_and(is_fair) && fair.contains(place);
            let is_so = || at.values.get(place).is_none_or(is_fair);
            wanted.contains_key(place) && !(nice() && is_so())
        };
        // For as long as the mode is wanted in which these do not spin.
        let remembered: BTreeSet<Place> = journal
            .located()
            .filter(|(record, _)| record.is_remembered())
            .map(|(record, now)| now.map_or(&record.spot.place, |now| &now.place).clone())
            .collect();
        // A place of a thread that is not there would be forgotten, as it goes with the thread; and
        // one that still spins must not become real-time.
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
        // Which records are where is told anew: some are gone.
        journal.locate(located(&at, journal.records().iter().map(|record| &record.spot)));
        let wanted = wanted.iter().filter(|(place, _)| is_wanted(place));
        let changes = changes(wanted.map(|(place, value)| (place.clone(), value.clone())), &at);
        execute(backend, &mut journal, &at, &changes, &mut kept.changes)?;
        let mut places =
            journal.located().map(|(record, now)| now.map_or(&record.spot.place, |now| &now.place));
        Ok(changes.iter().any(makes_thread) && places.any(waits))
    }

    /// Puts back all that napkin has changed on it. Its lock is held on, so that what could not be put back
    /// can be tried again.
    ///
    /// # Errors
    /// If the kernel or the journal does not answer; then the journal still knows.
    pub fn restore<W: Backend>(&self, backend: &mut W) -> Result<DeviceRestored, ApplyError> {
        let _sole = sole_writer();
        let journal = self.store.device(self.ifindex, &self.ifname, self.identity)?;
        let mut restored = DeviceRestored { ifname: self.ifname.clone(), ..Default::default() };
        unlocked(backend, journal, &RestoreOptions::default(), &mut restored)?;
        Ok(restored)
    }

    /// Forgets what was changed on it, if it was deleted: that went with it.
    ///
    /// # Errors
    /// If the kernel does not answer, or the journal cannot be removed.
    pub fn is_gone<W: Backend>(&self, backend: &mut W) -> Result<bool, ApplyError> {
        let _sole = sole_writer();
        let gone = matches!(again(backend, self.ifindex, self.identity)?, Again::Gone);
        if gone {
            self.drop_journal()?;
        }
        Ok(gone)
    }

    /// Forgets what was changed on it, as it was deleted: by who was told that, for to look for it in all
    /// other namespaces takes rights.
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

/// The mode with which this place's thread comes and goes, if it is a thread's place.
fn mode<'a>(values: &'a BTreeMap<Place, Value>, place: &Place) -> Option<&'a Value> {
    let instance = place.instance().filter(|_| place.of_thread())?;
    let of_instance = values.get(&Place::Napi(instance.clone(), Setting::Threaded));
    of_instance.or_else(|| values.get(&Place::Device(Setting::Threaded)))
}

/// Whether a change makes threads, or has those sleep that spun.
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

        backend.silent = true;
        assert!(held.is_here(&mut backend), "there is no answer");
        backend.silent = false;
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
