//! The namespace's devices, as of the last read.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use napkin_kernel::device::{self, DeviceError, Napi, NoIrq, NoIrqs};
use napkin_kernel::netlink::{NapiRecord, Netdev};
use napkin_kernel::sysfs;

/// Properties that hardly change, and that netlink's instance records lack: names, queues, interrupts.
#[derive(Debug, Default)]
pub(super) struct Devices {
    /// The device's name and the instance, by ifindex and NAPI ID.
    napis: BTreeMap<(u32, u32), (String, Napi)>,
    /// All devices, including those whose instances have no ID.
    pub(super) ifindexes: BTreeSet<u32>,
    /// Why a device's instances have no interrupt, by ifindex.
    pub(super) no_irq: BTreeMap<u32, NoIrq>,
    /// The IDs of the instances whose frames are handed to other CPUs (RPS).
    pub(super) steered: Vec<u32>,
    read_at: Option<Instant>,
}

impl Devices {
    pub(super) fn read(netdev: &mut Netdev) -> Result<Devices, DeviceError> {
        let (mut napis, mut no_irq) = (BTreeMap::new(), BTreeMap::new());
        let (handing, mut steered) = (sysfs::devices_with_rps(), Vec::new());
        let devices = device::read_all(netdev)?;
        let ifindexes = devices.iter().map(|device| device.ifindex).collect();
        let reasons = NoIrqs::default();
        for device in devices {
            no_irq.extend(reasons.of(&device).map(|why| (device.ifindex, why)));
            let hands = handing.contains(&device.ifname);
            steered.extend(device.napis.iter().map(|napi| napi.id).filter(|_| hands));
            for napi in device.napis {
                napis.insert((device.ifindex, napi.id), (device.ifname.clone(), napi));
            }
        }
        Ok(Devices { napis, ifindexes, no_irq, steered, read_at: Some(Instant::now()) })
    }

    /// Whether instances came or went, or the last read is older than `longest`.
    pub(super) fn outdated(&self, records: &[NapiRecord], longest: Duration) -> bool {
        self.read_at.is_none_or(|at| at.elapsed() >= longest)
            || records.len() != self.napis.len()
            || records.iter().any(|record| self.get(record).is_none())
    }

    pub(super) fn get(&self, record: &NapiRecord) -> Option<(&str, &Napi)> {
        let (ifname, napi) = self.napis.get(&(record.ifindex, record.id))?;
        Some((ifname, napi))
    }
}
