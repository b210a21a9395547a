//! What this kernel can do: tried, not guessed from its version.
//!
//! Everything is asked of the kernel itself, on descriptors made for the purpose, and nothing is
//! changed. What a policy needs of it is said in `napkin-linux`'s `support`.

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

/// Whether the kernel can do something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Can {
    /// It was tried, and the kernel took it.
    Yes,
    /// It lacks it.
    No,
    /// It could not be tried: this right is missing, or, without one, it failed for no reason that
    /// says.
    Unknown {
        /// What is missing.
        right: Option<&'static str>,
    },
}

impl Can {
    /// Whether it certainly cannot.
    pub fn lacks(self) -> bool {
        self == Can::No
    }

    /// From what a trial came to; the errors that mean that the kernel does not know the thing.
    fn tried(result: Result<(), Errno>, lacking: &[Errno], right: Right) -> Can {
        match result {
            Ok(()) => Can::Yes,
            Err(errno) if lacking.contains(&errno) => Can::No,
            Err(Errno::PERM | Errno::ACCESS) => Can::Unknown { right: Some(right.name()) },
            Err(_) => Can::Unknown { right: None },
        }
    }
}

impl fmt::Display for Can {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Can::Yes => f.pad("yes"),
            Can::No => f.pad("no"),
            Can::Unknown { right: Some(right) } => f.pad(&format!("unknown without {right}")),
            Can::Unknown { right: None } => f.pad("unknown"),
        }
    }
}

/// How a setting is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// On each instance, by netlink; up to this value.
    Napi {
        /// The largest value that is taken.
        largest: u64,
    },
    /// On the whole device, by sysfs; up to this value.
    Device {
        /// The largest value that is taken.
        largest: u64,
    },
}

impl Way {
    /// The largest value that is taken.
    pub fn largest(self) -> u64 {
        match self {
            Way::Napi { largest } | Way::Device { largest } => largest,
        }
    }
}

/// What this kernel can do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Kernel {
    /// Its release, for messages only: distributions take parts of later kernels.
    pub release: String,
    /// Whether it has the netlink family `netdev` with devices, queues and instances.
    pub instances: Can,
    /// How each setting is set; what is absent it lacks.
    pub settings: BTreeMap<Setting, Way>,
    /// Whether it counts each queue's packets (`qstats-get`).
    pub queue_stats: Can,
    /// Whether an epoll descriptor has busy-poll parameters (`EPIOCGPARAMS`).
    pub epoll_params: Can,
    /// Whether a socket says which instance it was last fed by (`SO_INCOMING_NAPI_ID`).
    pub incoming_napi_id: Can,
    /// Whether a socket can prefer busy polling (`SO_PREFER_BUSY_POLL`).
    pub socket_prefer_busy_poll: Can,
    /// Whether a process has a descriptor of its own (`pidfd_open`).
    pub pidfd: Can,
    /// Whether another process's descriptors can be had through it (`pidfd_getfd`).
    pub pidfd_getfd: Can,
    /// Whether network namespaces have a number that is never used again (`SO_NETNS_COOKIE`).
    pub namespace_cookie: Can,
}

impl Kernel {
    /// Asks the running kernel. Reads only; takes a millisecond or so.
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

    /// How a setting is set, if this kernel has it.
    pub fn way(&self, setting: Setting) -> Option<Way> {
        self.settings.get(&setting).copied()
    }

    /// Whether a setting can be set on one instance alone.
    pub fn per_napi(&self, setting: Setting) -> bool {
        matches!(self.way(setting), Some(Way::Napi { .. }))
    }

    /// Whether a setting can have this value. Off is what a kernel that lacks it always has.
    pub fn takes(&self, setting: Setting, value: u64) -> bool {
        value == 0 || self.way(setting).is_some_and(|way| value <= way.largest())
    }
}

/// The family `netdev`, and what `napi-set` takes.
fn netdev() -> (Can, Can, BTreeMap<Setting, Way>) {
    let unknown = |error: &NetlinkError| match error.errno() {
        Some(Errno::PERM | Errno::ACCESS) => Can::Unknown { right: Some(Right::NetAdmin.name()) },
        _ => Can::Unknown { right: None },
    };
    let asked = Netdev::open().and_then(|mut netdev| netdev.ability());
    match asked {
        Ok(ability) => {
            let can = |operation| if ability.has(operation) { Can::Yes } else { Can::No };
            let ways = Setting::ALL.into_iter().filter_map(|setting| {
                Some((setting, Way::Napi { largest: ability.largest(setting)? }))
            });
            let settable = ability.has(Operation::NapiSet);
            let ways = if settable { ways.collect() } else { BTreeMap::new() };
            (can(Operation::NapiGet), can(Operation::QstatsGet), ways)
        }
        Err(NetlinkError::NoFamily { .. }) => (Can::No, Can::No, BTreeMap::new()),
        Err(error) => (unknown(&error), unknown(&error), BTreeMap::new()),
    }
}

/// The settings that a device's directory has. Every device has the same files, so any will do; the
/// loopback device is in every namespace.
fn sysfs() -> BTreeMap<Setting, Way> {
    // The first two take every value that their attribute in netlink takes; `threaded` takes no
    // more than 0 and 1, whatever netlink takes.
    let files = [
        (Setting::Threaded, "threaded", 1),
        (Setting::DeferHardIrqs, "napi_defer_hard_irqs", i32::MAX as u64),
        (Setting::GroFlushTimeout, "gro_flush_timeout", u64::MAX),
    ];
    let device = fs::read_dir("/sys/class/net").ok().and_then(|mut devices| {
        devices.find_map(|device| device.ok().map(|device| device.path()).filter(|it| it.is_dir()))
    });
    let Some(device) = device else { return BTreeMap::new() };
    let there = files.into_iter().filter(|(_, file, _)| device.join(file).exists());
    there.map(|(setting, _, largest)| (setting, Way::Device { largest })).collect()
}

fn epoll_params() -> Can {
    let tried = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC)
        .and_then(|epoll| Params::get(epoll).map(drop));
    Can::tried(tried, &[Errno::OPNOTSUPP], Right::NetAdmin)
}

fn socket_options() -> [Can; 3] {
    let flags = SocketFlags::CLOEXEC;
    let made = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)
        .or_else(|_| rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None));
    let options = [libc::SO_INCOMING_NAPI_ID, libc::SO_PREFER_BUSY_POLL, libc::SO_NETNS_COOKIE];
    options.map(|option| match &made {
        Ok(made) => {
            // As much as the longest of them takes.
            let tried = socket::option::<8>(made, option).map(drop);
            Can::tried(tried, &[Errno::NOPROTOOPT], Right::NetAdmin)
        }
        Err(_) => Can::Unknown { right: None },
    })
}

fn pidfd() -> (Can, Can) {
    let own = match pidfd_open(getpid(), PidfdFlags::empty()) {
        Ok(own) => own,
        Err(errno) => {
            let can = Can::tried(Err(errno), &[Errno::NOSYS], Right::SysPtrace);
            return (can, can);
        }
    };
    let taken = pidfd_getfd(&own, libc::STDERR_FILENO, PidfdGetfdFlags::empty());
    let tried = match taken.map(drop) {
        // Standard error is closed; the call itself was understood.
        Err(Errno::BADF) => Ok(()),
        tried => tried,
    };
    (Can::Yes, Can::tried(tried, &[Errno::NOSYS], Right::SysPtrace))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_was_not_had_is_not_a_no() {
        let lacking = [Errno::NOTTY];
        let can = |result| Can::tried(result, &lacking, Right::NetAdmin);
        assert_eq!(can(Ok(())), Can::Yes);
        assert_eq!(can(Err(Errno::NOTTY)), Can::No);
        assert_eq!(can(Err(Errno::PERM)).to_string(), "unknown without CAP_NET_ADMIN");
        assert_eq!(can(Err(Errno::MFILE)).to_string(), "unknown");
        assert!(!can(Err(Errno::MFILE)).lacks());
    }
}
