//! The real kernel: netlink where it sets an instance, sysfs where it only sets a device, the
//! scheduler for threads, `/proc/irq` for interrupts.

use std::collections::BTreeMap;

use super::error::WorldError;
use super::place::{Instance, Place, Value};
use super::world::{Snapshot, Target, World};
use crate::device::{self, Device, DeviceError, Napi};
use crate::kernel::{Can, Kernel, Way};
use crate::netlink::{Netdev, NetlinkError, Route};
use crate::procfs::{irq, thread};
use crate::rights::Right;
use crate::settings::Setting;
use crate::sysfs::{DeviceFile, Sysfs, online_cpus};

/// The kernel's thread that makes all others, and hands its CPUs down to them.
const KTHREADD: i32 = 2;

/// The running kernel, in the network namespace of the thread that opened this.
#[derive(Debug)]
pub struct Linux {
    kernel: Kernel,
    /// `None` before Linux 6.8, which lists no instances.
    netdev: Option<Netdev>,
    route: Route,
}

impl Linux {
    /// Opens it.
    ///
    /// # Errors
    /// If there is no netlink.
    pub fn open() -> Result<Linux, WorldError> {
        let kernel = Kernel::probe();
        let netdev = if kernel.instances == Can::No { None } else { Some(Netdev::open()?) };
        Ok(Linux { kernel, netdev, route: Route::open()? })
    }

    fn find(&mut self, target: Target<'_>) -> Result<Device, WorldError> {
        let links = self.route.links()?;
        let link = links.iter().find(|link| match target {
            Target::Name(ifname) => link.name == ifname,
            Target::Index(ifindex) => link.ifindex == ifindex,
        });
        match (link, &mut self.netdev) {
            (Some(link), Some(netdev)) => Ok(device::find(netdev, &link.name)?),
            (Some(link), None) => Ok(Device {
                ifindex: link.ifindex,
                ifname: link.name.clone(),
                driver: link.kind.clone(),
                up: link.up,
                napis: Vec::new(),
            }),
            (None, _) => {
                let asked = match target {
                    Target::Name(ifname) => ifname.to_owned(),
                    Target::Index(ifindex) => format!("with ifindex {ifindex}"),
                };
                let there: Vec<String> = links.into_iter().map(|link| link.name).collect();
                let known = there.iter().map(String::as_str);
                let nearest = napkin_core::policy::nearest(&asked, known).map(str::to_owned);
                Err(DeviceError::Absent { ifname: asked, nearest, there }.into())
            }
        }
    }

    fn sysfs(&mut self) -> Result<Sysfs, WorldError> {
        let links = self.route.links()?;
        Ok(Sysfs::open(&links)?)
    }

    fn setting(&mut self, id: u32, setting: Setting) -> Result<Option<Value>, WorldError> {
        let Some(netdev) = &mut self.netdev else { return Ok(None) };
        match netdev.napi(id) {
            Ok(record) => Ok(record.settings.get(setting).map(Value::Number)),
            Err(NetlinkError::NoNapi { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// An instance's thread, if it has one and that is really one.
    fn thread(&mut self, at: &Snapshot, instance: &Instance) -> Result<Option<i32>, WorldError> {
        let (Some(netdev), Some(napi)) = (&mut self.netdev, at.napi(instance)) else {
            return Ok(None);
        };
        let pid = match netdev.napi(napi.id) {
            Ok(record) => record.pid,
            Err(NetlinkError::NoNapi { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        // The thread may be another namespace's number, or have ended since.
        let real =
            |pid: &i32| thread::comm(*pid).is_some_and(|comm| thread::napi_name(&comm).is_some());
        Ok(pid.filter(real))
    }
}

impl World for Linux {
    fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    fn may_change(&self) -> Result<(), Right> {
        if Right::NetAdmin.held() { Ok(()) } else { Err(Right::NetAdmin) }
    }

    fn look(&mut self, target: Target<'_>) -> Result<Snapshot, WorldError> {
        let device = self.find(target)?;
        let mut values = BTreeMap::new();
        for (instance, napi) in Instance::all(&device) {
            let Napi { settings, thread_cpus, thread_class, irq_cpus, .. } = napi;
            for setting in Setting::ALL {
                if let (true, Some(value)) = (self.kernel.per_napi(setting), settings.get(setting))
                {
                    values.insert(Place::Napi(instance.clone(), setting), Value::Number(value));
                }
            }
            if let Some(cpus) = thread_cpus {
                values.insert(Place::ThreadCpus(instance.clone()), Value::cpus(cpus));
            }
            if let Some(class) = thread_class {
                values.insert(Place::ThreadClass(instance.clone()), Value::Class(*class));
            }
            if let Some(cpus) = irq_cpus {
                values.insert(Place::IrqCpus(instance.clone()), Value::cpus(cpus));
            }
        }
        let by_sysfs =
            |setting: &Setting| matches!(self.kernel.way(*setting), Some(Way::Device { .. }));
        let of_device: Vec<Setting> = Setting::ALL.into_iter().filter(by_sysfs).collect();
        if !of_device.is_empty() {
            let sysfs = self.sysfs()?;
            for setting in of_device {
                let value = file(setting).and_then(|it| sysfs.device_file(&device.ifname, it));
                values.extend(value.map(|it| (Place::Device(setting), Value::Number(it))));
            }
        }
        Ok(Snapshot { device, values, cpus: online_cpus() })
    }

    fn read(&mut self, at: &Snapshot, place: &Place) -> Result<Option<Value>, WorldError> {
        let of = |instance: &Instance| at.napi(instance);
        match place {
            Place::Napi(instance, setting) => match of(instance) {
                Some(napi) => self.setting(napi.id, *setting),
                None => Ok(None),
            },
            Place::Device(setting) => {
                let sysfs = self.sysfs()?;
                let value = file(*setting).and_then(|it| sysfs.device_file(&at.device.ifname, it));
                Ok(value.map(Value::Number))
            }
            Place::ThreadCpus(instance) => {
                let pid = self.thread(at, instance)?;
                // It has ended since: it has no CPUs.
                Ok(pid
                    .and_then(|pid| napkin_sched::affinity(Some(pid)).ok())
                    .as_deref()
                    .map(Value::cpus))
            }
            Place::ThreadClass(instance) => {
                let pid = self.thread(at, instance)?;
                Ok(pid.and_then(|pid| napkin_sched::class(Some(pid)).ok()).map(Value::Class))
            }
            Place::IrqCpus(instance) => match of(instance).and_then(|napi| napi.irq) {
                Some(number) => match irq::affinity(number) {
                    Ok(cpus) => Ok(Some(Value::cpus(&cpus))),
                    Err(irq::IrqError::Absent { .. }) => Ok(None),
                    Err(error) => Err(error.into()),
                },
                None => Ok(None),
            },
        }
    }

    fn write(&mut self, at: &Snapshot, place: &Place, value: &Value) -> Result<(), WorldError> {
        let gone = || WorldError::Gone {
            what: place.what(),
            ifname: at.device.ifname.clone(),
            subject: place.subject(),
        };
        let of_thread = |source| WorldError::Thread { instance: place.subject(), source };
        match (place, value) {
            (Place::Napi(instance, setting), Value::Number(number)) => {
                let napi = at.napi(instance).ok_or_else(gone)?;
                let netdev = self.netdev.as_mut().ok_or_else(gone)?;
                Ok(netdev.set_napi(napi.id, *setting, *number)?)
            }
            (Place::Device(setting), Value::Number(number)) => {
                let sysfs = self.sysfs()?;
                let file = file(*setting).ok_or_else(gone)?;
                Ok(sysfs.set_device_file(&at.device.ifname, file, *number)?)
            }
            (Place::ThreadCpus(instance), Value::Cpus(cpus)) => {
                let pid = self.thread(at, instance)?.ok_or_else(gone)?;
                napkin_sched::pin(Some(pid), cpus).map_err(of_thread)
            }
            (Place::ThreadClass(instance), Value::Class(class)) => {
                let pid = self.thread(at, instance)?.ok_or_else(gone)?;
                napkin_sched::classify(Some(pid), *class).map_err(of_thread)
            }
            (Place::IrqCpus(instance), Value::Cpus(cpus)) => {
                let number = at.napi(instance).and_then(|napi| napi.irq).ok_or_else(gone)?;
                Ok(irq::set_affinity(number, cpus)?)
            }
            (place, value) => {
                Err(WorldError::NoSuchValue { what: place.what(), value: value.to_string() })
            }
        }
    }

    fn new_thread_cpus(&self) -> Vec<usize> {
        // In a container with process ids of its own 2 is somebody else.
        let kthreadd = thread::comm(KTHREADD).filter(|comm| comm == "kthreadd");
        let cpus = kthreadd.and_then(|_| napkin_sched::affinity(Some(KTHREADD)).ok());
        cpus.unwrap_or_else(online_cpus)
    }
}

fn file(setting: Setting) -> Option<DeviceFile> {
    match setting {
        Setting::Threaded => Some(DeviceFile::Threaded),
        Setting::DeferHardIrqs => Some(DeviceFile::DeferHardIrqs),
        Setting::GroFlushTimeout => Some(DeviceFile::GroFlushTimeout),
        Setting::IrqSuspendTimeout => None,
    }
}
