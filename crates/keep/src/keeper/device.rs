//! One device: brought to what is wished of it, followed, and given up.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use napkin_kernel::netlink::Route;
use napkin_kernel::settings::Setting;
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
    /// kernel refuses of one wish keeps no other from being held: that wish's places are left as they are,
    /// for as long as the refusal [holds](crate::refusals::Refusals::leave).
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
        let again = self.options.look;
        problems.extend(self.refusals.leave(&wishes, &at, &mut assignment, again));
        let held = match self.held.iter().position(|held| held.is(&at)) {
            Some(place) => {
                self.watch.expect(ifindex);
                place
            }
            None if assignment.wanted.is_empty() => return Ok(false),
            None => {
                self.watch.expect(ifindex);
                let held = HeldDevice::take(&self.backend, &self.store, &at)?;
                // Else the next notice that it has left might be another one's.
                if !held.is_here(&mut self.backend) {
                    return Ok(false);
                }
                self.held.push(held);
                self.held.len() - 1
            }
        };
        self.files_of(&at, assignment.wanted.keys(), files);
        let kept = loop {
            let wanted = &assignment.wanted;
            let error = match self.guards.keep(&self.held[held], &mut self.backend, &at, wanted) {
                Ok(kept) => break kept,
                Err(error) => error,
            };
            // The other wishes are held all the same.
            let Some(place) = error.refused() else { return Err(error) };
            let now = self.backend.look(Target::Index(ifindex))?;
            let which = assignment.leave(place, &now);
            let Some(wish) = which.and_then(|which| wishes.get(which)) else { return Err(error) };
            let why = format!("{} ({}): {ifname}: {error}", wish.name, wish.place());
            self.refusals.add(&at, wish, &error, &why);
            problems.insert(why);
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
        Ok(changed)
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

    /// Gives up devices that notices tell to have left: another one may have such a device's number.
    pub(super) fn bury(&mut self, tell: &mut dyn FnMut(&Event)) {
        let mut kept = Vec::new();
        for held in std::mem::take(&mut self.held) {
            if self.watch.may_have_left(held.ifindex()) && !held.is_here(&mut self.backend) {
                self.gone(&held, tell);
            } else {
                kept.push(held);
            }
        }
        self.held = kept;
    }

    /// Tells of a device that is not here any more. What was set went with it, or is with it in another
    /// network namespace: there napkin restore knows of it.
    fn gone(&mut self, held: &HeldDevice, tell: &mut dyn FnMut(&Event)) {
        let ifname = held.ifname().to_owned();
        // Before Linux 4.15 a notice does not tell the two apart; nor has it this setting, which came with 5.8.
        let tells = self.backend.kernel().way(Setting::DeferHardIrqs).is_some();
        let deleted = if self.watch.was_deleted(held.ifindex()) && tells {
            if let Err(error) = held.forget() {
                tell(&Event::Problem(format!("{ifname}: {error}")));
            }
            true
        } else {
            held.is_gone(&mut self.backend).unwrap_or(false)
        };
        tell(&Event::Gone { ifname, deleted });
    }

    /// Gives up devices of which nothing is wished any more, and those that are gone. One that could not be
    /// put back is held on, and that is tried again at the next look.
    pub(super) fn let_go(
        &mut self,
        meant: &BTreeSet<u32>,
        problems: &mut BTreeSet<String>,
        tell: &mut dyn FnMut(&Event),
    ) {
        self.refusals.retain(meant);
        let mut kept = Vec::new();
        for held in std::mem::take(&mut self.held) {
            let here = held.is_here(&mut self.backend);
            if here && meant.contains(&held.ifindex()) {
                kept.push(held);
                continue;
            }
            if !here {
                self.gone(&held, tell);
                continue;
            }
            match held.restore(&mut self.backend) {
                Ok(restored) if restored.failed.is_empty() && restored.journal.is_none() => {
                    tell(&Event::PutBack(restored));
                }
                Ok(restored) => {
                    problems.extend(restored.words());
                    let DeviceRestored { ifname, changes, .. } = restored;
                    if !changes.is_empty() {
                        let put_back =
                            DeviceRestored { ifname, changes, ..DeviceRestored::default() };
                        tell(&Event::PutBack(put_back));
                    }
                    kept.push(held);
                }
                Err(error) => {
                    problems.insert(format!("{}: not put back: {error}", held.ifname()));
                    kept.push(held);
                }
            }
        }
        self.held = kept;
        self.watch.expect_only(&self.held.iter().map(HeldDevice::ifindex).collect());
    }

    /// Tells how a device was put back at the end; whether all of it was.
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
