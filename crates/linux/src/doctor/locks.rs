//! Locks that would make napkin's own commands fail: another napkin process that holds the device or a
//! program, and connections that depend on the device.

use std::collections::BTreeSet;

use super::facts::{Facts, Locks, Program};
use super::fix::Fix;
use crate::apply::lifelines;
use crate::journal::{Holder, Store};
use napkin_kernel::device::Device;
use napkin_kernel::netlink::Route;
use napkin_kernel::sysfs::Sysfs;
use napkin_os::procfs::ThreadStat;

/// The holders of a device and of the programs on it, as far as known.
pub(super) fn of(device: &Device, programs: &[Program]) -> Locks {
    let lifeline = lifelines(&device.ifname).is_ok_and(|found| !found.is_empty());
    let Ok(store) = Store::open() else { return Locks { lifeline, ..Locks::default() } };
    let links = Route::open().and_then(|mut route| route.links()).unwrap_or_default();
    let sysfs = Sysfs::open(&links).ok();
    let identity = sysfs.and_then(|sysfs| sysfs.identity(&device.ifname));
    let programs = programs.iter().filter_map(|program| {
        let started = ThreadStat::of_process(program.pid)?.start_ticks;
        Some((program.pid, store.process_holder(program.pid, started)?))
    });
    Locks {
        device: store.holder(device.ifindex, identity),
        programs: programs.collect(),
        keeper: store.keeper().map(|keeper| keeper.pid),
        lifeline,
    }
}

impl Facts {
    /// Why some fixes would be refused now, and what to do first.
    pub(super) fn in_the_way(&self, fixes: &[Fix]) -> Option<String> {
        let Locks { device, programs, keeper, .. } = &self.locks;
        let sentence = |what: String, holder: &Holder| {
            let first = if *keeper == Some(holder.pid) {
                "change its wish instead (napkin keep --list), or stop it first"
            } else {
                "end that first, or start it again with this policy"
            };
            format!("{what} is held by {holder}: {first}")
        };
        let on_device = fixes.iter().any(Fix::takes_device);
        let device = device.as_ref().filter(|_| on_device);
        let device = device.map(|holder| sentence(self.device.ifname.clone(), holder));
        let pids: BTreeSet<i32> = fixes.iter().filter_map(Fix::takes_process).collect();
        let programs = pids.into_iter().filter_map(|pid| Some((pid, programs.get(&pid)?)));
        let programs = programs.map(|(pid, holder)| sentence(format!("process {pid}"), holder));
        let all: Vec<String> = device.into_iter().chain(programs).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}
