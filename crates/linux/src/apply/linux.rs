//! The real kernel: netlink for settings of an instance, sysfs for those of a whole device, the scheduler for
//! threads, `/proc/irq` for interrupts.

use std::collections::{BTreeMap, BTreeSet};

use super::backend::{Backend, Snapshot, Target, Whereabouts};
use super::error::BackendError;
use crate::journal::namespaces;
use crate::place::{Instance, Place, ThreadId, Value};
use napkin_kernel::device::{self, Device, DeviceError, Napi};
use napkin_kernel::namespace::Namespace;
use napkin_kernel::netlink::{LinkRecord, Netdev, NetlinkError, Route};
use napkin_kernel::probe::{Interface, Kernel, KernelSupport};
use napkin_kernel::settings::Setting;
use napkin_kernel::sysfs::{DeviceFile, Sysfs, SysfsError, online_cpus};
use napkin_os::procfs::irq;
use napkin_os::procfs::thread::{self, ThreadStat};
use napkin_os::rights::Right;
use napkin_os::sched::{SchedError, allowed, pin, unpin};

/// `kthreadd`, the kernel thread that creates all others, which inherit its CPUs.
const KTHREADD: i32 = 2;

/// The maximum number of times that the network namespaces are listed, while some of them disappear.
const MAX_LISTINGS: usize = 5;

/// The running kernel, in the network namespace of the thread that opened this.
#[derive(Debug)]
pub struct Linux {
    kernel: Kernel,
    /// `None` before Linux 6.8, which lists no instances.
    netdev: Option<Netdev>,
    route: Route,
}

impl Linux {
    /// Probes the kernel and opens its netlink sockets.
    ///
    /// # Errors
    /// If netlink is not available.
    pub fn open() -> Result<Linux, BackendError> {
        let kernel = Kernel::probe();
        let netdev =
            if kernel.instances == KernelSupport::No { None } else { Some(Netdev::open()?) };
        Ok(Linux { kernel, netdev, route: Route::open()? })
    }

    fn find(&mut self, target: Target<'_>) -> Result<Device, BackendError> {
        let links = self.route.links()?;
        let link = links.iter().find(|link| match target {
            Target::Name(ifname) => link.is_called(ifname),
            Target::Index(ifindex) => link.ifindex == ifindex,
        });
        match (link, &mut self.netdev) {
            (Some(link), Some(netdev)) => {
                let ifindex = link.ifindex;
                Ok(device::of_index(netdev, links, ifindex)?)
            }
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
                let names: Vec<String> = links.into_iter().map(|link| link.name).collect();
                let known = names.iter().map(String::as_str);
                let nearest = napkin_policy::nearest(&asked, known).map(str::to_owned);
                Err(DeviceError::Absent { ifname: asked, nearest, there: names }.into())
            }
        }
    }

    /// Opens the sysfs of this namespace and returns it with the device's current name: the name in a snapshot
    /// may belong to another device by now.
    fn sysfs(&mut self, ifindex: u32) -> Result<(Sysfs, String), BackendError> {
        let (links, sysfs) = links_and_sysfs(&mut self.route)?;
        match links.into_iter().find(|link| link.ifindex == ifindex) {
            Some(link) => Ok((sysfs, link.name)),
            None => Err(BackendError::absent(format!("with ifindex {ifindex}"))),
        }
    }

    fn setting(&mut self, id: u32, setting: Setting) -> Result<Option<Value>, BackendError> {
        let Some(netdev) = &mut self.netdev else { return Ok(None) };
        match netdev.napi(id) {
            Ok(record) => Ok(record.settings.get(setting).map(Value::Number)),
            Err(NetlinkError::NoNapi { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The thread id of an instance's thread, if it has one and the id is really that of a NAPI thread.
    fn pid(&mut self, at: &Snapshot, instance: &Instance) -> Result<Option<i32>, BackendError> {
        let (Some(netdev), Some(napi)) = (&mut self.netdev, at.napi(instance)) else {
            return Ok(None);
        };
        let pid = match netdev.napi(napi.id) {
            Ok(record) => record.pid,
            Err(NetlinkError::NoNapi { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        // The id may be that of another PID namespace, or the thread may have ended.
        let real = |pid: &i32| ThreadStat::read(*pid, *pid).is_some_and(|it| it.is_napi());
        Ok(pid.filter(real))
    }
}

impl Backend for Linux {
    fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    fn may_change(&self) -> Result<(), Right> {
        if Right::NetAdmin.held() { Ok(()) } else { Err(Right::NetAdmin) }
    }

    fn look(&mut self, target: Target<'_>) -> Result<Snapshot, BackendError> {
        let device = self.find(target)?;
        let mut values = BTreeMap::new();
        for (instance, napi) in Instance::all(&device) {
            let Napi { settings, pid, thread_cpus, thread_class, irq_cpus, .. } = napi;
            for setting in Setting::ALL {
                if let (true, Some(value)) = (self.kernel.per_napi(setting), settings.get(setting))
                {
                    values.insert(Place::Napi(instance.clone(), setting), Value::Number(value));
                }
            }
            // Includes the CPUs that are offline, which are put back as well.
            let seen = pid.filter(|_| thread_cpus.is_some());
            if let Some(cpus) = seen.and_then(|pid| allowed(Some(pid)).ok()) {
                values.insert(Place::ThreadCpus(instance.clone()), Value::cpus(&cpus));
            }
            if let Some(class) = thread_class {
                values.insert(Place::ThreadClass(instance.clone()), Value::Class(*class));
            }
            if let Some(cpus) = irq_cpus {
                values.insert(Place::IrqCpus(instance.clone()), Value::cpus(cpus));
            }
        }
        let by_sysfs =
            |setting: &Setting| matches!(self.kernel.way(*setting), Some(Interface::Device { .. }));
        let of_device: Vec<Setting> = Setting::ALL.into_iter().filter(by_sysfs).collect();
        if !of_device.is_empty() {
            let (sysfs, ifname) = self.sysfs(device.ifindex)?;
            for setting in of_device {
                let value = file(setting).and_then(|it| sysfs.device_file(&ifname, it));
                values.extend(value.map(|it| (Place::Device(setting), Value::Number(it))));
            }
        }
        let sysfs = self.sysfs(device.ifindex).ok();
        let identity = sysfs.and_then(|(sysfs, ifname)| sysfs.identity(&ifname));
        Ok(Snapshot::new(device, values, online_cpus(), identity))
    }

    fn here(&mut self, identity: u64) -> Result<Option<u32>, BackendError> {
        Ok(of_identity(&mut self.route, identity)?.map(|link| link.ifindex))
    }

    fn whereabouts(&mut self, identity: u64) -> Result<Whereabouts, BackendError> {
        if let Some(ifindex) = self.here(identity)? {
            return Ok(Whereabouts::Here(ifindex));
        }
        let mut seen: BTreeSet<u64> =
            Namespace::current().and_then(|own| own.inode()).into_iter().collect();
        // A namespace whose last process ends between being listed and being opened cannot hide the device: it
        // is not listed again.
        for _ in 0..MAX_LISTINGS {
            let Some(others) = namespaces() else { return Ok(Whereabouts::Unknown) };
            let unseen: Vec<_> =
                others.into_iter().filter(|(inode, _)| !seen.contains(inode)).collect();
            if unseen.is_empty() {
                return Ok(Whereabouts::Gone);
            }
            for (inode, path) in unseen {
                let look =
                    || Route::open().ok().map(|mut route| of_identity(&mut route, identity).ok());
                match Namespace::open(&path).and_then(|other| other.run(look)) {
                    Ok(Some(Some(Some(link)))) => {
                        let namespace = path.display().to_string();
                        return Ok(Whereabouts::Elsewhere { ifname: link.name, namespace });
                    }
                    Ok(Some(Some(None))) => {
                        seen.insert(inode);
                    }
                    Ok(_) | Err(_) => {}
                }
            }
        }
        Ok(Whereabouts::Unknown)
    }

    fn read(&mut self, at: &Snapshot, place: &Place) -> Result<Option<Value>, BackendError> {
        let of = |instance: &Instance| at.napi(instance);
        match place {
            Place::Napi(instance, setting) => match of(instance) {
                Some(napi) => self.setting(napi.id, *setting),
                None => Ok(None),
            },
            Place::Device(setting) => match self.sysfs(at.device.ifindex) {
                Ok((sysfs, ifname)) => {
                    let value = file(*setting).and_then(|it| sysfs.device_file(&ifname, it));
                    Ok(value.map(Value::Number))
                }
                Err(error) if error.is_absent() => Ok(None),
                Err(error) => Err(error),
            },
            Place::ThreadCpus(instance) => {
                let pid = self.pid(at, instance)?;
                // It may have ended since: then it has no CPUs.
                Ok(pid.and_then(|pid| allowed(Some(pid)).ok()).as_deref().map(Value::cpus))
            }
            Place::ThreadClass(instance) => {
                let pid = self.pid(at, instance)?;
                Ok(pid.and_then(|pid| napkin_os::sched::class(Some(pid)).ok()).map(Value::Class))
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

    fn write(&mut self, at: &Snapshot, place: &Place, value: &Value) -> Result<(), BackendError> {
        let gone = || gone(at, place);
        match (place, value) {
            (Place::Napi(instance, setting), Value::Number(number)) => {
                let napi = at.napi(instance).ok_or_else(gone)?;
                let netdev = self.netdev.as_mut().ok_or_else(gone)?;
                Ok(netdev.set_napi(napi.id, *setting, *number)?)
            }
            (Place::Device(setting), Value::Number(number)) => {
                let (sysfs, ifname) = self.sysfs(at.device.ifindex)?;
                let file = file(*setting).ok_or_else(gone)?;
                Ok(sysfs.set_device_file(&ifname, file, *number)?)
            }
            (Place::ThreadCpus(instance), Value::Cpus(_)) => {
                let pid = self.pid(at, instance)?.ok_or_else(gone)?;
                place_thread(pid, place, value, pin)
            }
            (Place::ThreadClass(instance), Value::Class(_)) => {
                let pid = self.pid(at, instance)?.ok_or_else(gone)?;
                place_thread(pid, place, value, pin)
            }
            (Place::IrqCpus(instance), Value::Cpus(cpus)) => {
                let number = at.napi(instance).and_then(|napi| napi.irq).ok_or_else(gone)?;
                Ok(irq::set_affinity(number, cpus)?)
            }
            (place, value) => {
                Err(BackendError::NoSuchValue { what: place.what(), value: value.to_string() })
            }
        }
    }

    fn put_back(
        &mut self,
        at: &Snapshot,
        place: &Place,
        value: &Value,
    ) -> Result<(), BackendError> {
        match place {
            Place::ThreadCpus(instance) => {
                let pid = self.pid(at, instance)?.ok_or_else(|| gone(at, place))?;
                place_thread(pid, place, value, unpin)
            }
            _ => self.write(at, place, value),
        }
    }

    fn thread(
        &mut self,
        at: &Snapshot,
        instance: &Instance,
    ) -> Result<Option<ThreadId>, BackendError> {
        let stat = self.pid(at, instance)?.and_then(|pid| ThreadStat::read(pid, pid));
        Ok(stat.map(|stat| ThreadId { tid: stat.tid, start_ticks: stat.start_ticks }))
    }

    fn read_thread(&mut self, thread: ThreadId, place: &Place) -> Option<Value> {
        let ThreadId { tid, start_ticks } = thread;
        let stat = ThreadStat::read(tid, tid)?;
        if !stat.is_napi() || stat.start_ticks != start_ticks {
            return None;
        }
        match place {
            Place::ThreadCpus(_) => allowed(Some(tid)).ok().as_deref().map(Value::cpus),
            Place::ThreadClass(_) => napkin_os::sched::class(Some(tid)).ok().map(Value::Class),
            _ => None,
        }
    }

    fn write_thread(
        &mut self,
        thread: ThreadId,
        place: &Place,
        value: &Value,
    ) -> Result<(), BackendError> {
        place_thread(thread.tid, place, value, unpin)
    }

    fn new_thread_cpus(&self) -> Vec<usize> {
        // In a container with a PID namespace, process 2 is another process.
        let kthreadd = thread::comm(KTHREADD).filter(|comm| comm == "kthreadd");
        let cpus = kthreadd.and_then(|_| allowed(Some(KTHREADD)).ok());
        cpus.unwrap_or_else(online_cpus)
    }
}

/// The error for a place that vanished with its instance or its thread.
fn gone(at: &Snapshot, place: &Place) -> BackendError {
    let ifname = at.device.ifname.clone();
    BackendError::Gone { what: place.what(), ifname, subject: place.subject() }
}

/// Sets the CPUs (by [`pin`] or [`unpin`]) or the class of a thread.
fn place_thread(
    tid: i32,
    place: &Place,
    value: &Value,
    to_cpus: fn(Option<i32>, &[usize]) -> Result<(), SchedError>,
) -> Result<(), BackendError> {
    let done = match value {
        Value::Cpus(cpus) => to_cpus(Some(tid), cpus),
        Value::Class(class) => napkin_os::sched::classify(Some(tid), *class),
        Value::Number(_) => {
            return Err(BackendError::NoSuchValue { what: place.what(), value: value.to_string() });
        }
    };
    done.map_err(|source| BackendError::Thread { instance: place.subject(), source })
}

/// Returns the links of a socket's namespace, and its sysfs. Tolerates links that appear or disappear
/// meanwhile.
///
/// # Errors
/// If the kernel does not answer, or sysfs is missing, or shows another namespace at each of several attempts.
pub fn links_and_sysfs(route: &mut Route) -> Result<(Vec<LinkRecord>, Sysfs), BackendError> {
    const MAX_ATTEMPTS: usize = 4;
    for _ in 1..MAX_ATTEMPTS {
        let links = route.links()?;
        match Sysfs::open(&links) {
            // Links that appeared or disappeared between the two listings look like another namespace.
            Err(SysfsError::Elsewhere { .. }) => {}
            sysfs => return Ok((links, sysfs?)),
        }
    }
    let links = route.links()?;
    let sysfs = Sysfs::open(&links)?;
    Ok((links, sysfs))
}

/// Returns the link of this identity in the namespace of a socket.
fn of_identity(route: &mut Route, identity: u64) -> Result<Option<LinkRecord>, BackendError> {
    let (links, sysfs) = links_and_sysfs(route)?;
    Ok(links.into_iter().find(|link| sysfs.identity(&link.name) == Some(identity)))
}

fn file(setting: Setting) -> Option<DeviceFile> {
    match setting {
        Setting::Threaded => Some(DeviceFile::Threaded),
        Setting::DeferHardIrqs => Some(DeviceFile::DeferHardIrqs),
        Setting::GroFlushTimeout => Some(DeviceFile::GroFlushTimeout),
        Setting::IrqSuspendTimeout => None,
    }
}
