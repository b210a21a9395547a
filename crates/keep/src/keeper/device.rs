//! One device: brought to what is wished of it, followed, and given up.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use napkin_kernel::netlink::Route;
use napkin_kernel::sysfs::{DeviceFile, Sysfs};
use napkin_linux::apply::{ApplyError, Backend, DeviceRestored, HeldDevice, Snapshot, Target};
use napkin_linux::place::Place;

use super::Keeper;
use crate::assign::assign;
use crate::event::Event;
use crate::watch::Follow;
use crate::wish::Wish;

impl Keeper {
    /// Brings one device to what is wished of it, and says whether anything had to be changed. What the
    /// kernel refuses of one wish keeps no other from being held: that wish's places are left as they are.
    pub(super) fn device(
        &mut self,
        ifindex: u32,
        wishes: &[Wish],
        files: &mut BTreeMap<PathBuf, Follow>,
        problems: &mut BTreeSet<String>,
        tell: &mut dyn FnMut(&Event),
    ) -> Result<bool, ApplyError> {
        let at = self.backend.look(Target::Index(ifindex))?;
        let ifname = at.device.ifname.clone();
        // One that is down has no instances, and those that it gets will be others.
        if !at.device.up && at.device.napis.is_empty() {
            problems.insert(format!("{ifname} is down; it is set when it comes up"));
            return Ok(false);
        }
        let wishes: Vec<&Wish> = wishes.iter().collect();
        let mut assignment = assign(&wishes, &at, self.backend.kernel());
        for (wish, share) in wishes.iter().zip(&assignment.shares) {
            for why in &share.refused {
                problems.insert(format!("{} ({}): {why}", wish.name, wish.place()));
            }
        }
        let held = match self.held.iter().position(|held| held.is(&at)) {
            Some(place) => place,
            None if assignment.wanted.is_empty() => return Ok(false),
            None => {
                self.held.push(HeldDevice::take(&self.backend, &self.store, &at)?);
                self.held.len() - 1
            }
        };
        self.files_of(&at, assignment.wanted.keys(), files);
        let mut refused = false;
        let kept = loop {
            let wanted = &mut assignment.wanted;
            let error = match self.guards.keep(&self.held[held], &mut self.backend, &at, wanted) {
                Ok(kept) => break kept,
                Err(error) => error,
            };
            // The other wishes are held all the same.
            let Some(place) = error.refused() else { return Err(error) };
            let now = self.backend.look(Target::Index(ifindex))?;
            let which = assignment.leave(place, &now);
            let Some(wish) = which.and_then(|which| wishes.get(which)) else { return Err(error) };
            problems.insert(format!("{} ({}): {ifname}: {error}", wish.name, wish.place()));
            refused = true;
        };
        for foreign in kept.foreign {
            tell(&Event::Again(foreign));
        }
        let mut put_back = kept.put_back;
        // What is not there now is put back, or held, when it comes.
        put_back.missing.clear();
        problems.extend(put_back.words());
        let changes = put_back.changes;
        if !changes.is_empty() {
            let ifname = ifname.clone();
            tell(&Event::PutBack(DeviceRestored { ifname, changes, ..DeviceRestored::default() }));
        }
        let changed = !kept.changes.is_empty();
        if changed {
            tell(&Event::Set { ifname, changes: kept.changes });
        }
        Ok(changed || refused)
    }

    /// The files by which others may change what is wanted of a device.
    fn files_of<'a>(
        &mut self,
        at: &Snapshot,
        wanted: impl Iterator<Item = &'a Place>,
        files: &mut BTreeMap<PathBuf, Follow>,
    ) {
        for place in wanted {
            let Place::IrqCpus(instance) = place else { continue };
            if let Some(irq) = at.napi(instance).and_then(|napi| napi.irq) {
                for name in ["smp_affinity", "smp_affinity_list"] {
                    files.insert(format!("/proc/irq/{irq}/{name}").into(), Follow::Writes);
                }
            }
        }
        if self.sysfs.is_none() {
            // It may not have been mounted yet, or have shown another namespace's devices.
            let links = Route::open().and_then(|mut route| route.links());
            self.sysfs = links.ok().and_then(|links| Sysfs::open(&links).ok());
        }
        let Some(sysfs) = &self.sysfs else { return };
        for file in [DeviceFile::Threaded, DeviceFile::DeferHardIrqs, DeviceFile::GroFlushTimeout] {
            files.extend(sysfs.file(&at.device.ifname, file).map(|it| (it, Follow::Writes)));
        }
    }

    /// Gives up devices of which nothing is wished any more, and those that are gone.
    pub(super) fn let_go(
        &mut self,
        meant: &BTreeSet<u32>,
        problems: &mut BTreeSet<String>,
        tell: &mut dyn FnMut(&Event),
    ) {
        let mut kept = Vec::new();
        for held in std::mem::take(&mut self.held) {
            let here = held.is_here(&mut self.backend);
            if here && meant.contains(&held.ifindex()) {
                kept.push(held);
                continue;
            }
            let ifname = held.ifname().to_owned();
            if !here {
                // What was set went with it, or is with it in another network namespace: there napkin
                // restore knows of it.
                let gone = held.is_gone(&mut self.backend).unwrap_or(false);
                tell(&Event::Gone { ifname, deleted: gone });
                continue;
            }
            let restored = held.restore(&mut self.backend);
            if let Err(error) = &restored {
                problems.insert(format!("{ifname}: {error}"));
            }
            self.told_restored(&ifname, restored, tell);
        }
        self.held = kept;
    }

    pub(super) fn told_restored(
        &mut self,
        ifname: &str,
        restored: Result<DeviceRestored, ApplyError>,
        tell: &mut dyn FnMut(&Event),
    ) -> bool {
        match restored {
            Ok(restored) => {
                let complete = restored.is_complete();
                tell(&Event::PutBack(restored));
                complete
            }
            Err(error) => {
                tell(&Event::Problem(format!("{ifname}: not put back: {error}")));
                false
            }
        }
    }
}
