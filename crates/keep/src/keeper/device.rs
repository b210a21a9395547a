//! Handles one device: brings it to the wished state, follows its files, and gives it up.

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
    /// Brings one device to the wished state, and returns whether anything changed. If the kernel refuses a
    /// part of one wish, that wish's places are left as they are while the refusal
    /// [lasts](crate::refusals::Refusals::leave); other wishes are held all the same.
    pub(super) fn device(
        &mut self,
        ifindex: u32,
        wishes: &[Wish],
        files: &mut BTreeMap<PathBuf, Follow>,
        problems: &mut BTreeSet<String>,
        on_event: &mut dyn FnMut(&Event),
    ) -> Result<bool, ApplyError> {
        let at = self.backend.look(Target::Index(ifindex))?;
        let ifname = at.device.ifname.clone();
        // A device that is down has no instances, and will get new ones.
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
        let look_every = self.options.look;
        problems.extend(self.refusals.leave(&wishes, &at, &mut assignment, look_every));
        let held = match self.held.iter().position(|held| held.is_same_device(&at)) {
            Some(place) => {
                self.watch.track(ifindex);
                place
            }
            None if assignment.wanted.is_empty() => return Ok(false),
            None => {
                self.watch.track(ifindex);
                let held = HeldDevice::take(&self.backend, &self.store, &at)?;
                // Otherwise the next notice of a departure might be about another device.
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
            on_event(&Event::Again(foreign));
        }
        let mut put_back = kept.put_back;
        // What is missing now is put back, or held, when it appears.
        put_back.missing.clear();
        problems.extend(put_back.words());
        let changes = put_back.changes;
        if !changes.is_empty() {
            let ifname = ifname.clone();
            on_event(&Event::PutBack(DeviceRestored {
                ifname,
                changes,
                ..DeviceRestored::default()
            }));
        }
        let changed = !kept.changes.is_empty();
        if changed {
            on_event(&Event::Set { ifname, changes: kept.changes });
        }
        Ok(changed)
    }

    /// Adds the files by which others may change the wished values of a device.
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
            // It may not have been mounted before, or have shown another namespace's devices.
            let links = Route::open().and_then(|mut route| route.links());
            self.sysfs = links.ok().and_then(|links| Sysfs::open(&links).ok());
        }
        let Some(sysfs) = &self.sysfs else { return };
        for file in [DeviceFile::Threaded, DeviceFile::DeferHardIrqs, DeviceFile::GroFlushTimeout] {
            files.extend(sysfs.file(&at.device.ifname, file).map(|it| (it, Follow::Writes)));
        }
    }

    /// Gives up devices that have left according to notices: another device may get the ifindex.
    pub(super) fn release_departed(&mut self, on_event: &mut dyn FnMut(&Event)) {
        let mut kept = Vec::new();
        for held in std::mem::take(&mut self.held) {
            if self.watch.may_have_left(held.ifindex()) && !held.is_here(&mut self.backend) {
                self.report_departed(&held, on_event);
            } else {
                kept.push(held);
            }
        }
        self.held = kept;
    }

    /// Reports a device that has left. Its settings went with it: they are gone, or in another network
    /// namespace, where `napkin restore` knows them.
    fn report_departed(&mut self, held: &HeldDevice, on_event: &mut dyn FnMut(&Event)) {
        let ifname = held.ifname().to_owned();
        // Before Linux 4.15 a notice does not tell deletion from a move. The setting serves as the test: it
        // came with 5.8.
        let distinguishes = self.backend.kernel().way(Setting::DeferHardIrqs).is_some();
        let deleted = if self.watch.was_deleted(held.ifindex()) && distinguishes {
            if let Err(error) = held.forget() {
                on_event(&Event::Problem(format!("{ifname}: {error}")));
            }
            true
        } else {
            held.is_gone(&mut self.backend).unwrap_or(false)
        };
        on_event(&Event::Gone { ifname, deleted });
    }

    /// Gives up devices that no wish matches any more, and those that are gone. A device that could not be
    /// restored stays held, and the next look tries again.
    pub(super) fn release_unwished(
        &mut self,
        meant: &BTreeSet<u32>,
        problems: &mut BTreeSet<String>,
        on_event: &mut dyn FnMut(&Event),
    ) {
        self.refusals.retain(meant);
        let mut kept = Vec::new();
        for held in std::mem::take(&mut self.held) {
            let is_here = held.is_here(&mut self.backend);
            if is_here && meant.contains(&held.ifindex()) {
                kept.push(held);
                continue;
            }
            if !is_here {
                self.report_departed(&held, on_event);
                continue;
            }
            match held.restore(&mut self.backend) {
                Ok(restored) if restored.failed.is_empty() && restored.journal.is_none() => {
                    on_event(&Event::PutBack(restored));
                }
                Ok(restored) => {
                    problems.extend(restored.words());
                    let DeviceRestored { ifname, changes, .. } = restored;
                    if !changes.is_empty() {
                        let put_back =
                            DeviceRestored { ifname, changes, ..DeviceRestored::default() };
                        on_event(&Event::PutBack(put_back));
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
        self.watch.track_only(&self.held.iter().map(HeldDevice::ifindex).collect());
    }

    /// Reports the restoration of a device at the end; returns whether it was complete.
    pub(super) fn report_restored(
        &mut self,
        ifname: &str,
        restored: Result<DeviceRestored, ApplyError>,
        on_event: &mut dyn FnMut(&Event),
    ) -> bool {
        match restored {
            Ok(restored) => {
                let complete = restored.is_complete();
                on_event(&Event::PutBack(restored));
                complete
            }
            Err(error) => {
                on_event(&Event::Problem(format!("{ifname}: not put back: {error}")));
                false
            }
        }
    }
}
