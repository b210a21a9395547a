//! The features of this kernel, found by trying them rather than from its version.
//!
//! All trials use descriptors made for the purpose, and change nothing. What a policy needs of the kernel is in
//! `napkin-linux`'s `support`.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use serde::Serialize;

use crate::netlink::{Netdev, NetlinkError, Operation};
use crate::process::epoll::Params;
use crate::process::socket;
use crate::settings::Setting;
use napkin_os::procfs::read_text;
use napkin_os::rights::Right;

/// Whether the kernel has a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum KernelSupport {
    /// It was tried, and the kernel accepted it.
    Yes,
    /// The kernel lacks it.
    No,
    /// It could not be tried: this capability is missing; or, without one, the trial failed for another reason.
    Unknown {
        /// The missing capability.
        right: Option<&'static str>,
    },
}

impl KernelSupport {
    /// Whether the kernel certainly lacks it.
    pub fn lacks(self) -> bool {
        self == KernelSupport::No
    }

    /// Converts the result of a trial; `lacking` are the errors of a kernel that lacks the feature.
    fn tried(result: Result<(), Errno>, lacking: &[Errno], right: Right) -> KernelSupport {
        match result {
            Ok(()) => KernelSupport::Yes,
            Err(errno) if lacking.contains(&errno) => KernelSupport::No,
            Err(Errno::PERM | Errno::ACCESS) => {
                KernelSupport::Unknown { right: Some(right.name()) }
            }
            Err(_) => KernelSupport::Unknown { right: None },
        }
    }
}

impl fmt::Display for KernelSupport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KernelSupport::Yes => f.pad("yes"),
            KernelSupport::No => f.pad("no"),
            KernelSupport::Unknown { right: Some(right) } => {
                f.pad(&format!("unknown without {right}"))
            }
            KernelSupport::Unknown { right: None } => f.pad("unknown"),
        }
    }
}

/// The interface by which a setting is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Interface {
    /// Per instance, by netlink.
    Napi {
        /// The largest value that the kernel accepts.
        largest: u64,
    },
    /// Per device, by sysfs.
    Device {
        /// The largest value that the kernel accepts.
        largest: u64,
    },
}

impl Interface {
    /// The largest value that the kernel accepts.
    pub fn largest(self) -> u64 {
        match self {
            Interface::Napi { largest } | Interface::Device { largest } => largest,
        }
    }
}

/// The features of this kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Kernel {
    /// Its release, for messages only: distributions backport parts of later kernels.
    pub release: String,
    /// Whether it has the netlink family `netdev` with devices, queues and instances.
    pub instances: KernelSupport,
    /// The interface of each setting; a setting that the kernel lacks is absent.
    pub settings: BTreeMap<Setting, Interface>,
    /// Whether it counts each queue's packets (`qstats-get`).
    pub queue_stats: KernelSupport,
    /// Whether an epoll descriptor has busy-poll parameters (`EPIOCGPARAMS`).
    pub epoll_params: KernelSupport,
    /// Whether a socket reports the instance of its last packet (`SO_INCOMING_NAPI_ID`).
    pub incoming_napi_id: KernelSupport,
    /// Whether a socket can prefer busy polling (`SO_PREFER_BUSY_POLL`).
    pub socket_prefer_busy_poll: KernelSupport,
    /// Whether processes can be opened as descriptors (`pidfd_open`).
    pub pidfd: KernelSupport,
    /// Whether descriptors of another process can be duplicated through a pidfd (`pidfd_getfd`).
    pub pidfd_getfd: KernelSupport,
    /// Whether network namespaces have a number that is never reused (`SO_NETNS_COOKIE`).
    pub namespace_cookie: KernelSupport,
}

impl Kernel {
    /// Probes the running kernel. Only reads; takes about a millisecond.
    pub fn probe() -> Kernel {
        let release = read_text("/proc/sys/kernel/osrelease", 256).unwrap_or_default();
        let release = release.trim().to_owned();
        let (instances, queue_stats, napi) = netdev();
        let mut settings = sysfs();
        settings.extend(napi);
        let [incoming_napi_id, socket_prefer_busy_poll, namespace_cookie] = socket_options();
        let (pidfd, pidfd_getfd) = pidfd();
        Kernel {
            release,
            instances,
            settings,
            queue_stats,
            epoll_params: epoll_params(),
            incoming_napi_id,
            socket_prefer_busy_poll,
            pidfd,
            pidfd_getfd,
            namespace_cookie,
        }
    }

    /// Returns the interface of a setting, if this kernel has it.
    pub fn way(&self, setting: Setting) -> Option<Interface> {
        self.settings.get(&setting).copied()
    }

    /// Whether a setting can be changed per instance.
    pub fn per_napi(&self, setting: Setting) -> bool {
        matches!(self.way(setting), Some(Interface::Napi { .. }))
    }

    /// Whether a setting can have this value. A kernel that lacks the setting behaves as if it were 0 (off).
    pub fn takes(&self, setting: Setting, value: u64) -> bool {
        value == 0 || self.way(setting).is_some_and(|way| value <= way.largest())
    }
}

/// Probes the family `netdev`, and the settings that `napi-set` accepts.
fn netdev() -> (KernelSupport, KernelSupport, BTreeMap<Setting, Interface>) {
    let unknown = |error: &NetlinkError| match error.errno() {
        Some(Errno::PERM | Errno::ACCESS) => {
            KernelSupport::Unknown { right: Some(Right::NetAdmin.name()) }
        }
        _ => KernelSupport::Unknown { right: None },
    };
    let asked = Netdev::open().and_then(|mut netdev| netdev.ability());
    match asked {
        Ok(ability) => {
            let can = |operation| {
                if ability.has(operation) { KernelSupport::Yes } else { KernelSupport::No }
            };
            let ways = Setting::ALL.into_iter().filter_map(|setting| {
                Some((setting, Interface::Napi { largest: ability.largest(setting)? }))
            });
            let settable = ability.has(Operation::NapiSet);
            let ways = if settable { ways.collect() } else { BTreeMap::new() };
            (can(Operation::NapiGet), can(Operation::QstatsGet), ways)
        }
        Err(NetlinkError::NoFamily { .. }) => {
            (KernelSupport::No, KernelSupport::No, BTreeMap::new())
        }
        Err(error) => (unknown(&error), unknown(&error), BTreeMap::new()),
    }
}

/// Probes the settings in a device's directory. Every device has the same files, so any will do; every namespace
/// has at least the loopback device.
fn sysfs() -> BTreeMap<Setting, Interface> {
    // For the last two, sysfs accepts the same values as netlink. For `threaded` it accepts only 0 and 1, whatever
    // netlink accepts.
    let files = [
        (Setting::Threaded, "threaded", 1),
        (Setting::DeferHardIrqs, "napi_defer_hard_irqs", i32::MAX as u64),
        (Setting::GroFlushTimeout, "gro_flush_timeout", u64::MAX),
    ];
    let device = fs::read_dir("/sys/class/net").ok().and_then(|mut devices| {
        devices.find_map(|device| device.ok().map(|device| device.path()).filter(|it| it.is_dir()))
    });
    let Some(device) = device else { return BTreeMap::new() };
    let present = files.into_iter().filter(|(_, file, _)| device.join(file).exists());
    present.map(|(setting, _, largest)| (setting, Interface::Device { largest })).collect()
}

fn epoll_params() -> KernelSupport {
    let tried = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC)
        .and_then(|epoll| Params::get(epoll).map(drop));
    KernelSupport::tried(tried, &[Errno::OPNOTSUPP], Right::NetAdmin)
}

fn socket_options() -> [KernelSupport; 3] {
    let flags = SocketFlags::CLOEXEC;
    let made = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)
        .or_else(|_| rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None));
    let options = [libc::SO_INCOMING_NAPI_ID, libc::SO_PREFER_BUSY_POLL, libc::SO_NETNS_COOKIE];
    options.map(|option| match &made {
        Ok(made) => {
            // Large enough for the longest of these options.
            let tried = socket::option::<8>(made, option).map(drop);
            KernelSupport::tried(tried, &[Errno::NOPROTOOPT], Right::NetAdmin)
        }
        Err(_) => KernelSupport::Unknown { right: None },
    })
}

fn pidfd() -> (KernelSupport, KernelSupport) {
    let own = match pidfd_open(getpid(), PidfdFlags::empty()) {
        Ok(own) => own,
        Err(errno) => {
            let can = KernelSupport::tried(Err(errno), &[Errno::NOSYS], Right::SysPtrace);
            return (can, can);
        }
    };
    let taken = pidfd_getfd(&own, libc::STDERR_FILENO, PidfdGetfdFlags::empty());
    let tried = match taken.map(drop) {
        // Standard error is closed, but the kernel knows the call.
        Err(Errno::BADF) => Ok(()),
        tried => tried,
    };
    (KernelSupport::Yes, KernelSupport::tried(tried, &[Errno::NOSYS], Right::SysPtrace))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_was_not_had_is_not_a_no() {
        let lacking = [Errno::NOTTY];
        let can = |result| KernelSupport::tried(result, &lacking, Right::NetAdmin);
        assert_eq!(can(Ok(())), KernelSupport::Yes);
        assert_eq!(can(Err(Errno::NOTTY)), KernelSupport::No);
        assert_eq!(can(Err(Errno::PERM)).to_string(), "unknown without CAP_NET_ADMIN");
        assert_eq!(can(Err(Errno::MFILE)).to_string(), "unknown");
        assert!(!can(Err(Errno::MFILE)).lacks());
    }
}
