//! Devices and CPUs in sysfs (`/sys`).
//!
//! A sysfs mount shows the devices of the namespace in which it was mounted, not those of the process that reads
//! it: after `setns` or `nsenter --net`, an `eth0` under `/sys` may belong to another namespace. Therefore
//! [`Sysfs::open`] reads through a private mount, if it has the capability for one. Otherwise it compares the
//! devices under `/sys` with netlink's, and returns an error if they belong to another namespace.

use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use thiserror::Error;

use crate::netlink::{LinkRecord, Route};
use napkin_os::procfs::{cpus, read_text};
use napkin_os::rights::Right;

/// Limit of a file's size; a sysfs file has at most one page.
pub(crate) const LIMIT: usize = 64 << 10;

/// Limit of queues of a device that are read.
const MAX_QUEUES: usize = 8_192;

/// A view of `/sys` for one network namespace.
#[derive(Debug)]
pub struct Sysfs {
    root: PathBuf,
    /// Keeps the private mount alive, to which `root` leads.
    _mount: Option<OwnedFd>,
}

/// A file in a device's directory that sets all of its instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceFile {
    /// `threaded`: 0 or 1; 2 where the kernel has threaded busy poll.
    Threaded,
    /// `napi_defer_hard_irqs`: consecutive empty polls before the interrupt is unmasked.
    DeferHardIrqs,
    /// `gro_flush_timeout`: nanoseconds until the timer polls again.
    GroFlushTimeout,
}

impl DeviceFile {
    /// The file's name.
    pub const fn name(self) -> &'static str {
        match self {
            DeviceFile::Threaded => "threaded",
            DeviceFile::DeferHardIrqs => "napi_defer_hard_irqs",
            DeviceFile::GroFlushTimeout => "gro_flush_timeout",
        }
    }
}

/// Receive packet steering of one queue: the CPUs to which its packets are handed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Steering {
    /// The receive queue's index.
    pub queue: u32,
    /// RPS: the CPUs that process its packets; empty if RPS is off.
    pub rps_cpus: Vec<usize>,
    /// RFS: the number of entries in the queue's flow table; 0 if RFS is off.
    pub rps_flow_cnt: u64,
}

/// The reason why sysfs could not be read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SysfsError {
    /// Nothing is mounted on `/sys`.
    #[error("/sys shows no network devices: mount -t sysfs sysfs /sys")]
    Absent,
    /// It shows another network namespace.
    #[error(
        "/sys shows another network namespace's devices ({there}), not those of this one ({here}); \
         with {} napkin mounts a view of its own, and ip netns exec NAME does it for a command",
        Right::SysAdmin
    )]
    Elsewhere {
        /// Devices under `/sys`.
        there: String,
        /// Devices that netlink lists.
        here: String,
    },
    /// The name could lead out of the directory of devices.
    #[error("{ifname:?} is no name of a device")]
    Name {
        /// The name that was given.
        ifname: String,
    },
    /// The capability is missing, or `/sys` is read-only.
    #[error(
        "{path} cannot be written: it takes {} in the namespace, and a writable /sys",
        Right::NetAdmin
    )]
    Denied {
        /// The file under `/sys`.
        path: String,
    },
    /// The kernel refused the value.
    #[error("{path} does not take {value}: {source}")]
    Value {
        /// The file under `/sys`.
        path: String,
        /// The value that was written.
        value: u64,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel is too old, or the device is gone.
    #[error("there is no {path}: this kernel lacks it, or the device has gone")]
    NoFile {
        /// The file under `/sys`.
        path: String,
    },
}

impl Sysfs {
    /// Opens a view of the calling thread's network namespace; `links` are netlink's devices.
    ///
    /// # Errors
    /// If `/sys` shows another namespace, or nothing, and the capability to mount another sysfs is missing.
    pub fn open(links: &[LinkRecord]) -> Result<Sysfs, SysfsError> {
        if let Ok(mount) = private_mount() {
            let root = PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd()));
            if root.join("class/net").is_dir() {
                return Ok(Sysfs { root, _mount: Some(mount) });
            }
        }
        let sysfs = Sysfs { root: PathBuf::from("/sys"), _mount: None };
        let mut there = sysfs.devices().map_err(|_| SysfsError::Absent)?;
        let mut here: Vec<(String, u32)> =
            links.iter().map(|link| (link.name.clone(), link.ifindex)).collect();
        there.sort();
        here.sort();
        if same_namespace(&there, &here) {
            return Ok(sysfs);
        }
        Err(SysfsError::Elsewhere { there: name_list(&there), here: name_list(&here) })
    }

    /// Lists the devices with their ifindexes.
    fn devices(&self) -> io::Result<Vec<(String, u32)>> {
        let entries = fs::read_dir(self.root.join("class/net"))?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        // Entries such as the file `bonding_masters` have no ifindex.
        let indexed = names.filter_map(|name| {
            let index = u32::try_from(self.number(&name, "ifindex")?).ok()?;
            Some((name, index))
        });
        Ok(indexed.collect())
    }

    /// Returns the path of a device's file; `None` if the name is invalid.
    fn path(&self, ifname: &str, file: &str) -> Option<PathBuf> {
        let plain = !ifname.is_empty()
            && ifname.len() < 16
            && !matches!(ifname, "." | "..")
            && !ifname.contains(['/', '\0']);
        plain.then(|| self.root.join("class/net").join(ifname).join(file))
    }

    fn text(&self, ifname: &str, file: &str) -> Option<String> {
        let text = read_text(self.path(ifname, file)?, LIMIT).ok()?;
        Some(text.trim().to_owned())
    }

    fn number(&self, ifname: &str, file: &str) -> Option<i64> {
        self.text(ifname, file)?.parse().ok()
    }

    /// Returns the inode of a device's directory, which is unique within a boot, and stays when the device is
    /// renamed or moved to another namespace.
    pub fn identity(&self, ifname: &str) -> Option<u64> {
        fs::metadata(self.path(ifname, "")?).ok().map(|directory| directory.ino())
    }

    /// Returns a device's driver; `None` for a virtual device.
    pub fn driver(&self, ifname: &str) -> Option<String> {
        let target = fs::read_link(self.path(ifname, "device/driver")?).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }

    /// Returns the bus name of the hardware behind a device: `virtio2`, `0000:03:00.0`.
    pub fn hardware(&self, ifname: &str) -> Option<String> {
        let target = fs::read_link(self.path(ifname, "device")?).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }

    /// Returns the NUMA node of the hardware behind a device; `None` without hardware, or if there is only one node.
    pub fn numa_node(&self, ifname: &str) -> Option<usize> {
        usize::try_from(self.number(ifname, "device/numa_node")?).ok()
    }

    /// Reads a device's file; `None` if this kernel has no such file.
    pub fn device_file(&self, ifname: &str, file: DeviceFile) -> Option<u64> {
        u64::try_from(self.number(ifname, file.name())?).ok()
    }

    /// Returns the path of a device's file, which is valid while this view is open.
    pub fn file(&self, ifname: &str, file: DeviceFile) -> Option<PathBuf> {
        self.path(ifname, file.name())
    }

    /// Sets all present and future instances of a device.
    ///
    /// # Errors
    /// Without the capability, without the file, or if the kernel refuses the value.
    pub fn set_device_file(
        &self,
        ifname: &str,
        file: DeviceFile,
        value: u64,
    ) -> Result<(), SysfsError> {
        let Some(real) = self.path(ifname, file.name()) else {
            return Err(SysfsError::Name { ifname: ifname.to_owned() });
        };
        // The path through the private mount would not help in messages.
        let path = format!("/sys/class/net/{ifname}/{}", file.name());
        let written = fs::OpenOptions::new()
            .write(true)
            .open(real)
            .and_then(|mut file| file.write_all(value.to_string().as_bytes()));
        written.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => SysfsError::NoFile { path },
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                SysfsError::Denied { path }
            }
            _ => SysfsError::Value { path, value, source },
        })
    }

    /// Reads RPS and RFS of a device's receive queues, in ascending order. Empty if the kernel was built without them.
    pub fn steering(&self, ifname: &str) -> Vec<Steering> {
        let Some(entries) = self.path(ifname, "queues").and_then(|path| fs::read_dir(path).ok())
        else {
            return Vec::new();
        };
        let names =
            entries.take(MAX_QUEUES).filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let queues = names.filter_map(|name| name.strip_prefix("rx-")?.parse::<u32>().ok());
        let read = |queue: u32| {
            let file = |name: &str| self.text(ifname, &format!("queues/rx-{queue}/{name}"));
            Some(Steering {
                queue,
                rps_cpus: cpus::parse_mask(&file("rps_cpus")?)?,
                rps_flow_cnt: file("rps_flow_cnt").and_then(|text| text.parse().ok()).unwrap_or(0),
            })
        };
        let mut steering: Vec<Steering> = queues.filter_map(read).collect();
        steering.sort_by_key(|it| it.queue);
        steering
    }
}

/// Returns the devices of the calling thread's namespace that use RPS; empty if that is not visible.
pub fn devices_with_rps() -> Vec<String> {
    let links = Route::open().and_then(|mut route| route.links()).unwrap_or_default();
    let Ok(sysfs) = Sysfs::open(&links) else { return Vec::new() };
    let hands = |ifname: &String| sysfs.steering(ifname).iter().any(|it| !it.rps_cpus.is_empty());
    links.into_iter().map(|link| link.name).filter(hands).collect()
}

/// Sets the RPS CPUs of each receive queue of a device of the calling thread's namespace: the kernel distributes the
/// packets over them by flow, whichever CPU they arrive on. Nothing journals it: for devices that the caller made.
///
/// # Errors
/// If sysfs does not show this namespace's devices, if the kernel has no RPS (`CONFIG_RPS`), or if it refuses the mask.
pub fn set_rps_cpus(ifname: &str, cpus: &[usize]) -> io::Result<()> {
    for queue in std::fs::read_dir(format!("/sys/class/net/{ifname}/queues"))? {
        let queue = queue?;
        if queue.file_name().to_string_lossy().starts_with("rx-") {
            std::fs::write(queue.path().join("rps_cpus"), cpus::show_mask(cpus))?;
        }
    }
    Ok(())
}

/// Returns the online CPUs; if the kernel does not tell, the CPUs that this process may use.
pub fn online_cpus() -> Vec<usize> {
    let text = read_text("/sys/devices/system/cpu/online", LIMIT);
    let online = text.ok().and_then(|text| cpus::parse_list(&text));
    online.unwrap_or_else(napkin_os::sched::usable_cpus)
}

/// Whether SMT is active: some CPUs of this host share a core.
pub fn smt_active() -> Option<bool> {
    match read_text("/sys/devices/system/cpu/smt/active", LIMIT).ok()?.trim() {
        "1" => Some(true),
        "0" => Some(false),
        _ => None,
    }
}

/// Returns the CPUs on which unbound workqueues of the kernel may run.
pub fn workqueue_cpumask() -> Option<Vec<usize>> {
    cpus::parse_mask(&read_text("/sys/devices/virtual/workqueue/cpumask", LIMIT).ok()?)
}

/// Creates a detached mount of sysfs, which ends with its descriptor.
fn private_mount() -> rustix::io::Result<OwnedFd> {
    let quiet = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let context = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, quiet)
}

/// Whether two lists of devices are from the same namespace, although a device may have appeared or left between
/// them. `lo` is ignored, because every namespace has one.
fn same_namespace(there: &[(String, u32)], here: &[(String, u32)]) -> bool {
    let known = |list: &[(String, u32)], device: &(String, u32)| list.contains(device);
    let count_without_lo = |list: &[(String, u32)]| list.iter().filter(|it| it.0 != "lo").count();
    let common = here.iter().filter(|it| it.0 != "lo" && known(there, it)).count();
    let unmatched = count_without_lo(there).max(count_without_lo(here)) - common;
    unmatched == 0 || (unmatched == 1 && common > 1)
}

fn name_list(devices: &[(String, u32)]) -> String {
    const SHOWN: usize = 6;
    let mut names: Vec<&str> = devices.iter().take(SHOWN).map(|it| it.0.as_str()).collect();
    if devices.len() > SHOWN {
        names.push("...");
    }
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(names: &[(&str, u32)]) -> Vec<(String, u32)> {
        names.iter().map(|(name, index)| ((*name).to_owned(), *index)).collect()
    }

    #[test]
    fn another_namespace_s_devices_are_told_from_one_s_own() {
        let host = devices(&[("lo", 1), ("eth0", 2), ("eth1", 3)]);
        assert!(same_namespace(&host, &host));
        assert!(same_namespace(
            &host,
            &devices(&[("lo", 1), ("eth0", 2), ("eth1", 3), ("new", 9)])
        ));
        assert!(!same_namespace(&host, &devices(&[("lo", 1)])));
        assert!(
            !same_namespace(&host, &devices(&[("lo", 1), ("eth0", 7), ("eth1", 8)])),
            "another eth0"
        );
        assert!(!same_namespace(&host, &devices(&[("lo", 1), ("va", 2), ("vb", 3)])));
        assert!(!same_namespace(&devices(&[("lo", 1)]), &devices(&[("lo", 1), ("va", 2)])));
    }

    #[test]
    fn a_name_leads_nowhere_else() {
        let sysfs = Sysfs { root: "/sys".into(), _mount: None };
        for name in ["", ".", "..", "../../etc", "a\0b", "sixteen-letters!"] {
            assert_eq!(sysfs.path(name, "threaded"), None, "{name:?}");
            let error = sysfs.set_device_file(name, DeviceFile::Threaded, 1).expect_err("no name");
            assert!(matches!(error, SysfsError::Name { .. }), "{error}");
        }
    }

    #[test]
    fn unbound_work_has_a_cpu() {
        assert!(workqueue_cpumask().is_none_or(|all| !all.is_empty()));
    }
}
