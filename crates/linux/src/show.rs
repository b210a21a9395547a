//! The data behind `napkin show`: devices, their instances, the name of the policy in force on each, and the
//! programs whose sockets they serve.
//!
//! [`gather`] reads the system, [`report`] names the policies, and [`fold`] groups equal instances. Nothing
//! here changes or prints anything.

mod fold;
mod mode;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use napkin_kernel::device::{self, Device, DeviceError, Napi};
use napkin_kernel::netlink::{Netdev, Route};
use napkin_kernel::process::{Inaccessible, Owner, Owners, Params, Process, Socket, owners};
use napkin_kernel::sysfs::Sysfs;
use napkin_os::procfs::Sysctl;
use napkin_os::rights::Right;
use napkin_policy::EpollPolicy;

pub use fold::{FOLDED_ABOVE, Group, fold};
pub use mode::{Behind, Mode, mode};

/// The maximum number of descriptors of one process that are read.
const DESCRIPTORS: usize = 65_536;

/// The maximum number of sockets of one process whose options are read: enough to see how it sets them.
const SOCKETS: usize = 256;

/// The report that `napkin show` prints, also as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Report {
    /// In order of ifindex.
    pub devices: Vec<DeviceReport>,
    /// What could not be read, and notes on the whole host.
    pub notes: Vec<String>,
}

/// A device with its instances.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct DeviceReport {
    /// Its number in this network namespace.
    pub ifindex: u32,
    /// The interface's name, as `ip link` prints it.
    pub ifname: String,
    /// Its driver, or the kind of a virtual device.
    pub driver: Option<String>,
    /// Whether it is up.
    pub up: bool,
    /// The policy of all its instances, or `mixed`; `None` without an instance.
    pub policy: Option<String>,
    /// Why it has no instance, and what to do.
    pub why_none: Option<String>,
    /// Its instances, in order of ID.
    pub napis: Vec<NapiReport>,
}

/// An instance with its settings and its programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct NapiReport {
    /// The instance as read from the kernel.
    #[serde(flatten)]
    pub napi: Napi,
    /// The policy in force.
    pub policy: Mode,
    /// The programs whose sockets last received from it, with the most sockets first.
    pub owners: Vec<Program>,
}

/// A program that receives through an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Program {
    /// Its process, and the number of its sockets that the instance serves.
    #[serde(flatten)]
    pub owner: Owner,
    /// Parameters of its busy polling epoll contexts, each once.
    pub epolls: Vec<Params>,
    /// `SO_BUSY_POLL` of the sockets that the instance serves, in microseconds, each once, without zeros.
    pub socket_busy_poll_usecs: Vec<u32>,
}

/// The programs of all instances.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Programs {
    /// Programs by NAPI ID.
    pub by_napi_id: BTreeMap<u32, Vec<Program>>,
    /// Processes that could not be examined for lack of a privilege.
    pub unseen: Inaccessible,
    /// The number of processes whose sockets were not all counted.
    pub cut: usize,
}

impl Programs {
    /// Examines every process that may be accessed.
    pub fn find() -> Programs {
        Programs::of(owners(DESCRIPTORS))
    }

    /// Examines the epoll contexts and sockets of known owners.
    pub fn of(owners: Owners) -> Programs {
        let mut of_process: BTreeMap<i32, Polling> = BTreeMap::new();
        let mut by_napi_id = BTreeMap::new();
        for (napi_id, owners) in owners.by_napi_id {
            let programs = owners.into_iter().map(|owner| {
                let polling = of_process.entry(owner.pid).or_insert_with(|| Polling::of(owner.pid));
                Program {
                    epolls: polling.epolls.clone(),
                    socket_busy_poll_usecs: polling.sockets(napi_id),
                    owner,
                }
            });
            by_napi_id.insert(napi_id, programs.collect());
        }
        Programs { by_napi_id, unseen: owners.denied, cut: owners.cut.len() }
    }

    /// The observed settings of the programs behind an instance.
    pub fn behind(&self, napi_id: u32) -> Behind {
        let programs = self.by_napi_id.get(&napi_id).map_or(&[][..], Vec::as_slice);
        Behind {
            epolls: programs.iter().flat_map(|program| program.epolls.clone()).collect(),
            socket_busy_poll_usecs: programs
                .iter()
                .flat_map(|program| program.socket_busy_poll_usecs.clone())
                .collect(),
            unseen: self.unseen.len(),
        }
    }

    /// Says for how many processes not all sockets were counted, and why; `None` if all were.
    pub fn cut_note(&self) -> Option<String> {
        let processes = match self.cut {
            0 => return None,
            1 => "1 process".to_owned(),
            count => format!("{count} processes"),
        };
        Some(format!(
            "not all sockets of {processes} are counted: more than {DESCRIPTORS} descriptors, or some cannot be \
             duplicated (pidfd_getfd)"
        ))
    }
}

/// How a process busy polls. If it ends meanwhile, what was read so far.
#[derive(Debug, Default)]
struct Polling {
    epolls: Vec<Params>,
    /// NAPI ID and microseconds.
    sockets: BTreeSet<(u32, u32)>,
}

impl Polling {
    fn of(pid: i32) -> Polling {
        let mut polling = Polling::default();
        let Ok(process) = Process::open(pid) else { return polling };
        let Ok(descriptors) = process.descriptors(DESCRIPTORS) else { return polling };
        for epoll in descriptors.epolls() {
            let Ok(Some(taken)) = process.take(&epoll) else { continue };
            // Kernels before 6.9 have no parameters.
            let Ok(Some(params)) = Params::get(&taken) else { continue };
            if EpollPolicy::from(params).enabled() && !polling.epolls.contains(&params) {
                polling.epolls.push(params);
            }
        }
        for socket in descriptors.sockets().take(SOCKETS) {
            let Ok(Some(taken)) = process.take(&socket) else { continue };
            let Ok(Some(Socket { napi_id: Some(napi_id), options, .. })) = Socket::of(&taken)
            else {
                continue;
            };
            if options.busy_poll_usecs != 0 {
                polling.sockets.insert((napi_id, options.busy_poll_usecs));
            }
        }
        polling
    }

    fn sockets(&self, napi_id: u32) -> Vec<u32> {
        let mine = self.sockets.iter().filter(|(id, _)| *id == napi_id);
        mine.map(|(_, usecs)| *usecs).collect()
    }
}

/// Reads this namespace's devices, or one of them, and the programs on them.
///
/// # Errors
/// If the kernel does not answer, or has no device of that name.
pub fn gather(ifname: Option<&str>) -> Result<Report, DeviceError> {
    let mut netdev = Netdev::open()?;
    let devices = match ifname {
        Some(ifname) => vec![device::find(&mut netdev, ifname)?],
        None => device::read_all(&mut netdev)?,
    };
    // Without an instance there are no owners to find.
    let any = devices.iter().any(|device| !device.napis.is_empty());
    let programs = if any { Programs::find() } else { Programs::default() };
    let mut report = report(devices, &programs);
    report.notes.extend(host());
    Ok(report)
}

/// Notes that concern all devices.
fn host() -> Vec<String> {
    let mut notes = Vec::new();
    if let Ok(usecs @ 1..) = Sysctl::BusyPoll.read() {
        let name = Sysctl::BusyPoll;
        notes.push(format!("{name} is {usecs}: every program's epoll busy polls, {usecs} us long"));
    }
    let links = Route::open().and_then(|mut route| route.links());
    if let Some(Err(error)) = links.ok().map(|links| Sysfs::open(&links)) {
        notes.push(format!("drivers are not shown: {error}"));
    }
    notes
}

/// Names the policy in force on each instance.
pub fn report(devices: Vec<Device>, programs: &Programs) -> Report {
    let mut notes = Vec::new();
    if !programs.unseen.is_empty() {
        let unseen = &programs.unseen;
        // Access may fail even with the capability: because of a security module, or a process with more
        // capabilities.
        let without = if Right::SysPtrace.held() { "even with" } else { "without" };
        let right = Right::SysPtrace;
        notes.push(format!(
            "{unseen} could not be looked at {without} {right}; owners among them are not shown"
        ));
    }
    notes.extend(programs.cut_note());
    let devices: Vec<DeviceReport> =
        devices.into_iter().map(|device| of_device(device, programs)).collect();
    let napis = || devices.iter().flat_map(|device| &device.napis).map(|napi| &napi.napi);
    if napis().any(|napi| napi.pid.is_some() && napi.thread_cpus.is_none()) {
        notes.push("where threads run is not shown: their ids are of another PID namespace".into());
    }
    if napis().any(|napi| napi.rx_queues.is_empty() && napi.tx_queues.is_empty()) {
        notes.push("where no queue is shown, the driver does not say which it polls".into());
    }
    if napis().any(|napi| napi.settings.irq_suspend_timeout.is_none()) {
        notes.push(
            "this kernel has no settings of single instances (Linux 6.13 has): those shown are \
             their device's"
                .into(),
        );
    }
    Report { devices, notes }
}

fn of_device(device: Device, programs: &Programs) -> DeviceReport {
    let why_none = device.why_none().map(|error| error.to_string());
    let Device { ifindex, ifname, driver, up, napis } = device;
    let napis: Vec<NapiReport> = napis
        .into_iter()
        .map(|napi| NapiReport {
            policy: mode(&napi.settings, &programs.behind(napi.id)),
            owners: programs.by_napi_id.get(&napi.id).cloned().unwrap_or_default(),
            napi,
        })
        .collect();
    let mut names: Vec<String> = napis.iter().map(|napi| napi.policy.to_string()).collect();
    names.dedup();
    let policy = match names.len() {
        0 => None,
        1 => names.pop(),
        _ => Some("mixed".into()),
    };
    DeviceReport { ifindex, ifname, driver, up, policy, why_none, napis }
}

#[cfg(test)]
mod tests {
    use super::*;
    use napkin_kernel::settings::Settings;
    use napkin_policy::Policy;

    pub(super) fn napi(id: u32, policy: &str) -> Napi {
        let policy: Policy = policy.parse().expect(policy);
        Napi {
            id,
            rx_queues: vec![id % 100],
            tx_queues: vec![],
            irq: None,
            irq_cpus: None,
            pid: None,
            thread_cpus: None,
            thread_class: None,
            settings: Settings::of(&policy.instance),
        }
    }

    fn device(napis: Vec<Napi>) -> Device {
        Device { ifindex: 2, ifname: "va".into(), driver: Some("veth".into()), up: true, napis }
    }

    fn program(pid: i32, epolls: Vec<Params>) -> Program {
        let owner = Owner { pid, comm: "memcached".into(), sockets: 3 };
        Program { owner, epolls, socket_busy_poll_usecs: vec![] }
    }

    #[test]
    fn a_device_has_its_instances_policy_or_a_mixture() {
        let named = |policies: [&str; 2]| {
            let [one, other] = policies;
            let device = device(vec![napi(11, one), napi(12, other)]);
            report(vec![device], &Programs::default()).devices[0].policy.clone()
        };
        assert_eq!(named(["base", "base"]).as_deref(), Some("base"));
        assert_eq!(named(["base", "defer20"]).as_deref(), Some("mixed"));
        let none = report(vec![device(vec![])], &Programs::default());
        assert_eq!(none.devices[0].policy, None);
        assert!(none.devices[0].why_none.as_deref().is_some_and(|why| why.contains("gro on")));
    }

    #[test]
    fn a_program_s_epoll_names_the_policy_of_its_instance_alone() {
        let napibusy: Policy = "napibusy".parse().expect("a preset");
        let program = program(812, vec![Params::from(napibusy.epoll)]);
        let programs =
            Programs { by_napi_id: BTreeMap::from([(12, vec![program])]), ..Programs::default() };
        let device = device(vec![napi(11, "defer200"), napi(12, "defer200")]);
        let report = report(vec![device], &programs);
        let names: Vec<_> =
            report.devices[0].napis.iter().map(|napi| napi.policy.to_string()).collect();
        assert_eq!(names, ["defer200", "napibusy"]);
        assert_eq!(report.devices[0].napis[1].owners[0].owner.pid, 812);
        assert_eq!(report.notes, Vec::<String>::new());
    }

    #[test]
    fn what_could_not_be_seen_names_the_right() {
        let unseen = Inaccessible((1..5).map(|pid| (pid, "x".into())).collect());
        let programs = Programs { unseen, ..Programs::default() };
        let report = report(vec![device(vec![napi(11, "base")])], &programs);
        assert!(report.notes[0].contains("4 processes"), "{:?}", report.notes);
        assert!(report.notes[0].contains("CAP_SYS_PTRACE"), "{:?}", report.notes);
    }

    #[test]
    fn json_has_the_kernel_s_names() {
        let report = report(vec![device(vec![napi(11, "suspend20")])], &Programs::default());
        let json = serde_json::to_value(&report).expect("plain data");
        let napi = &json["devices"][0]["napis"][0];
        assert_eq!(napi["id"], 11);
        assert_eq!(napi["defer-hard-irqs"], 100);
        assert_eq!(napi["gro-flush-timeout"], 20_000);
        assert_eq!(napi["irq-suspend-timeout"], 20_000_000);
        assert_eq!(napi["policy"]["name"], "suspend20");
        assert_eq!(json["devices"][0]["policy"], "suspend20");
    }
}
