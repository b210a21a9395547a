//! Reads the facts: the device, the host, the programs, and counts of a short window.
//!
//! What cannot be read is recorded in the facts, and is no error: the checks that need it are then unknown.
//! Only what leaves nothing to check is an error. Nothing is changed.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use napkin_os::sched::Class;
use napkin_policy::Policy;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use thiserror::Error;

use super::facts::{
    Facts, Host, Known, Measured, Other, PollThread, Polls, Program, Receive, Ring, Support,
    Unpolled, Wish,
};
use super::without_napi_id::{self, Candidates, WithoutNapiId};
use super::{intent, locks, observe};
use crate::support::{self, Scope};
use napkin_kernel::count::{Counter, Counts, Key, Options};
use napkin_kernel::device::{self, Device, DeviceError};
use napkin_kernel::namespace::Namespace;
use napkin_kernel::netlink::{Ethtool, Netdev, NetlinkError, Route};
use napkin_kernel::probe::Kernel;
use napkin_kernel::process::{self, Owners, Process, ProcessError};
use napkin_kernel::sysfs::{self, Sysfs};
use napkin_os::procfs::{Softnet, Sysctl, SysctlError, Threads};
use napkin_os::rights::Right;

/// What to examine.
#[derive(Debug, Clone)]
pub struct Request {
    /// A process, with its descendants; without it, those that own sockets on the device.
    pub pid: Option<i32>,
    /// A device; without it, those that the program's sockets receive from.
    pub ifname: Option<String>,
    /// The policy to check against; without it, the one that the settings imply.
    pub policy: Option<Policy>,
    /// The length of the observation window, at most [`Request::LONGEST`].
    pub window: Duration,
    /// The wishes for devices (`napkin keep`), and whether they are in force.
    pub wishes: Vec<Wish>,
}

impl Request {
    /// The maximum length of the window.
    pub const LONGEST: Duration = Duration::from_secs(60);
}

/// Why there is nothing to check.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DoctorError {
    /// The kernel did not answer.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The device cannot be found or read.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The process cannot be found or opened.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The program is in another network namespace.
    #[error(
        "process {pid} is in another network namespace, with devices of its own; look from there: \
         nsenter -t {pid} -n napkin doctor {pid}"
    )]
    OtherNamespace {
        /// Process ID, as this PID namespace has it.
        pid: i32,
    },
    /// The program's sockets do not tell which device is meant.
    #[error(
        "{}; name the device with --dev ({})",
        unseen.as_ref().map_or_else(
            || format!("none of the sockets of process {pid} has received by a NAPI instance yet"),
            |missing| format!("the sockets of process {pid} cannot be looked at: it takes {missing}"),
        ),
        .there.join(", ")
    )]
    WhichDevice {
        /// Process ID, as this PID namespace has it.
        pid: i32,
        /// What was missing to read its sockets.
        unseen: Option<String>,
        /// The devices to choose from.
        there: Vec<String>,
    },
}

/// The maximum number of descendants of a program, and of programs on a device.
const PROGRAMS: usize = 64;

/// The maximum number of descriptors of each process that are read to find a device's owners.
const DESCRIPTORS: usize = 4_096;

/// Reads the facts of each device concerned.
///
/// # Errors
/// If there is no such device or program, or the kernel does not answer.
pub fn gather(request: &Request) -> Result<Vec<Facts>, DoctorError> {
    let mut netdev = Netdev::open()?;
    let processes = match request.pid {
        Some(pid) => named(pid)?,
        None => Vec::new(),
    };
    let owners = process::owners(DESCRIPTORS);
    let devices = devices(&mut netdev, request, &processes, &owners)?;
    // If a program was named, only what it shares matters; otherwise all programs that own sockets there.
    let candidates =
        if request.pid.is_some() { Candidates::new() } else { without_napi_id::find(&owners) };
    let processes =
        if request.pid.is_some() { processes } else { programs_on(&devices, &owners, &candidates) };

    let window = request.window.min(Request::LONGEST);
    let softnet = Softnet::read();
    let counter = Counting::start();
    let start = Instant::now();
    let programs: Vec<Program> = std::thread::scope(|scope| {
        let looks = processes.iter().map(|it| scope.spawn(move || observe::program(it, window)));
        // Start all threads before joining the first.
        let looks: Vec<_> = looks.collect();
        looks.into_iter().filter_map(|look| look.join().ok().flatten()).collect()
    });
    std::thread::sleep(window.saturating_sub(start.elapsed()));
    let window = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let counted = counter.map(Counting::finish);
    let (squeezes, drops) = increases(softnet, Softnet::read());

    let host = host();
    let kernel = Kernel::probe();
    // The devices as they are now: one may have gone meanwhile.
    let mut facts = Vec::new();
    for device in devices {
        let mine = |program: &&Program| {
            let may = candidates.get(&program.pid).is_some_and(|it| it.may_use(device.ifindex));
            request.pid.is_some() || may || receives_from(program, &device)
        };
        let programs: Vec<Program> = programs.iter().filter(mine).cloned().collect();
        let policy = request.policy.unwrap_or_else(|| implied_policy(&device, &programs));
        facts.push(Facts {
            policy,
            asked: request.policy.is_some(),
            support: supported(&policy, &kernel),
            poll_threads: poll_threads(&device),
            receive: receive(&device),
            host: host.clone(),
            others: others(&device, &programs, &owners),
            unseen: owners.denied.clone(),
            locks: locks::of(&device, &programs),
            programs,
            wishes: request.wishes.iter().filter(|it| it.is_of(&device.ifname)).cloned().collect(),
            measured: Measured {
                window,
                squeezes: squeezes.clone(),
                drops: drops.clone(),
                polls: counted.as_ref().map_err(Clone::clone).map(|it| it.of(device.ifindex)),
                keeps_settings: counted
                    .as_ref()
                    .map_err(Clone::clone)
                    .map(|it| it.keeps_settings(&device)),
                unpolled: counted.as_ref().map_err(Clone::clone).map(|it| it.unpolled(&device)),
            },
            device,
        });
    }
    Ok(facts)
}

/// Opens a process and its descendants, if it is in this network namespace.
fn named(pid: i32) -> Result<Vec<Process>, DoctorError> {
    let process = Process::open(pid)?;
    if let (Ok(inode), Ok(own)) = (process.network_namespace(), Namespace::identity())
        && inode != own.inode
    {
        return Err(DoctorError::OtherNamespace { pid });
    }
    let children = process.descendants(PROGRAMS)?;
    let mut all = vec![process];
    // Skips those that have ended meanwhile.
    all.extend(children.into_iter().filter_map(|pid| Process::open(pid).ok()));
    Ok(all)
}

/// Selects the devices to examine.
fn devices(
    netdev: &mut Netdev,
    request: &Request,
    processes: &[Process],
    owners: &Owners,
) -> Result<Vec<Device>, DoctorError> {
    if let Some(ifname) = &request.ifname {
        return Ok(vec![device::find(netdev, ifname)?]);
    }
    let all = device::read_all(netdev)?;
    let pids: BTreeSet<i32> = processes.iter().map(Process::pid).collect();
    let owned = |device: &Device| {
        let mut owners = device.napis.iter().flat_map(|napi| owners.of(napi.id));
        owners.any(|owner| pids.contains(&owner.pid))
    };
    let with_sockets: Vec<Device> = all.iter().filter(|it| owned(it)).cloned().collect();
    if !with_sockets.is_empty() {
        return Ok(with_sockets);
    }
    // Devices with instances; failing that, those that could have some.
    let with = |wanted: fn(&Device) -> bool| -> Vec<Device> {
        all.iter().filter(|it| wanted(it)).cloned().collect()
    };
    let mut left = with(|it| !it.napis.is_empty());
    if left.is_empty() {
        left = with(|it| it.ifname != "lo");
    }
    if left.is_empty() {
        left = with(|_| true);
    }
    match (request.pid, left.len()) {
        (Some(pid), 2..) => {
            let there = left.into_iter().map(|it| it.ifname).collect();
            let unseen = processes.iter().find_map(observe::unseen);
            Err(DoctorError::WhichDevice { pid, unseen, there })
        }
        _ => Ok(left),
    }
}

/// Opens the processes that own sockets on devices, and those without a NAPI ID that may use one.
fn programs_on(devices: &[Device], owners: &Owners, candidates: &Candidates) -> Vec<Process> {
    let napis = devices.iter().flat_map(|device| &device.napis);
    let owning = napis.flat_map(|napi| owners.of(napi.id)).map(|owner| owner.pid);
    let may = |it: &WithoutNapiId| devices.iter().any(|device| it.may_use(device.ifindex));
    let candidates = candidates.iter().filter(|(_, it)| may(it)).map(|(pid, _)| *pid);
    let pids: BTreeSet<i32> = owning.chain(candidates).collect();
    pids.into_iter().take(PROGRAMS).filter_map(|pid| Process::open(pid).ok()).collect()
}

/// Whether a program has sockets that receive from a device.
fn receives_from(program: &Program, device: &Device) -> bool {
    let sockets = program.sockets.as_deref().unwrap_or_default();
    sockets.iter().any(|socket| device.napi(socket.napi_id).is_some())
}

/// The policy that the settings of the used instances imply; if none is known to be used, those of all that
/// receive. Fixes leave instances that only transmit alone, so their settings imply nothing.
pub(super) fn implied_policy(device: &Device, programs: &[Program]) -> Policy {
    let used = |id| {
        let sockets = programs.iter().filter_map(|it| it.sockets.as_ref().ok()).flatten();
        sockets.into_iter().any(|socket| socket.napi_id == id)
    };
    let mut napis: Vec<_> = device.napis.iter().filter(|napi| used(napi.id)).collect();
    if napis.is_empty() {
        napis = device.napis.iter().filter(|napi| !napi.transmits_only()).collect();
    }
    intent::of(&napis, programs)
}

/// The other programs on a device's instances. A program found because of its sockets there also counts as
/// another one if it does not busy poll by epoll.
fn others(device: &Device, programs: &[Program], owners: &Owners) -> Known<Vec<Other>> {
    let asks = |program: &Program| {
        let epolls = program.epolls.as_deref().unwrap_or_default();
        epolls.iter().any(|epoll| epoll.params.as_ref().is_ok_and(|it| it.enabled()))
    };
    let examined: BTreeSet<i32> =
        programs.iter().filter(|it| asks(it) || programs.len() == 1).map(|it| it.pid).collect();
    let mut others: BTreeMap<i32, Other> = BTreeMap::new();
    for napi in &device.napis {
        for owner in owners.of(napi.id).iter().filter(|owner| !examined.contains(&owner.pid)) {
            let (pid, comm) = (owner.pid, owner.comm.clone());
            let other = others.entry(pid).or_insert(Other { pid, comm, napi_ids: BTreeSet::new() });
            other.napi_ids.insert(napi.id);
        }
    }
    if others.is_empty() && !owners.denied.is_empty() && !Right::SysPtrace.held() {
        return Err(format!("{}, to look at {} of other users", Right::SysPtrace, owners.denied));
    }
    Ok(others.into_values().collect())
}

pub(super) fn supported(policy: &Policy, kernel: &Kernel) -> Known<Support> {
    match support::check(policy, kernel, Scope::Both) {
        Ok(_) => Ok(Support::Yes),
        Err(refusal) => {
            Ok(Support::No { lacks: refusal.to_string(), nearest: refusal.nearest.parse().ok() })
        }
    }
}

fn poll_threads(device: &Device) -> BTreeMap<u32, PollThread> {
    let thread = |napi: &device::Napi| {
        let fifo = match napi.thread_class {
            Some(Class::Fifo(priority) | Class::Rr(priority)) => Some(priority),
            _ => None,
        };
        Some((napi.id, PollThread { tid: napi.pid?, cpus: napi.thread_cpus.clone()?, fifo }))
    };
    device.napis.iter().filter_map(thread).collect()
}

fn receive(device: &Device) -> Receive {
    let name = &device.ifname;
    let links = Route::open().and_then(|mut route| route.links());
    let steering = match links.map(|links| Sysfs::open(&links)) {
        Ok(Ok(sysfs)) => Ok(sysfs.steering(name)),
        Ok(Err(error)) => Err(error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    let each = |queue: &sysfs::Steering| (queue.queue, queue.rps_cpus.clone());
    let flows = |queue: &sysfs::Steering| (queue.queue, queue.rps_flow_cnt);
    let rps = steering.clone().map(|queues| queues.iter().map(each).collect());
    let rps_flows = steering.map(|queues| queues.iter().map(flows).collect());
    let (ring, adaptive, per_direction) = match Ethtool::open() {
        Ok(mut it) => (ring(&mut it, name), adaptive(&mut it, name), per_direction(&mut it, name)),
        Err(error) => (Err(error.to_string()), Err(error.to_string()), None),
    };
    Receive { rps, rps_flows, ring, adaptive, per_direction }
}

fn ring(ethtool: &mut Ethtool, ifname: &str) -> Known<Option<Ring>> {
    let rings = ethtool.rings(ifname).map_err(|error| error.to_string())?;
    Ok(rings.and_then(|it| Some(Ring { entries: it.rx?, most: it.rx_max.unwrap_or(it.rx?) })))
}

fn adaptive(ethtool: &mut Ethtool, ifname: &str) -> Known<Option<bool>> {
    let coalescing = ethtool.coalescing(ifname).map_err(|error| error.to_string())?;
    Ok(coalescing.and_then(|it| it.adaptive_rx))
}

fn per_direction(ethtool: &mut Ethtool, ifname: &str) -> Option<bool> {
    let channels = ethtool.channels(ifname).ok().flatten();
    channels.map(|it| it.combined_max.unwrap_or(0) == 0)
}

fn host() -> Host {
    let sysctls = sysctls();
    let sysctl =
        |name: Sysctl| sysctls.get(&name).cloned().unwrap_or_else(|| Err(name.to_string()));
    let absent = |path: &'static str| move || format!("{path}, which this kernel does not have");
    Host {
        cpus: sysfs::online_cpus(),
        smt: sysfs::smt_active().ok_or_else(absent("/sys/devices/system/cpu/smt/active")),
        timer_migration: sysctl(Sysctl::TimerMigration),
        rt_runtime: sysctl(Sysctl::SchedRtRuntimeUs),
        busy_poll: sysctl(Sysctl::BusyPoll),
        busy_read: sysctl(Sysctl::BusyRead),
        netdev_budget: sysctl(Sysctl::NetdevBudget),
        netdev_budget_usecs: sysctl(Sysctl::NetdevBudgetUsecs),
        netdev_max_backlog: sysctl(Sysctl::NetdevMaxBacklog),
        rps_sock_flow_entries: sysctl(Sysctl::RpsSockFlowEntries),
        workqueue_cpus: sysfs::workqueue_cpumask()
            .ok_or_else(absent("/sys/devices/virtual/workqueue/cpumask")),
        irqbalance: Ok(Threads::find().irqbalance),
    }
}

/// Reads the sysctls. Those of the network are visible only in the initial network namespace: a separate
/// thread reads them there, if a process in that namespace may be accessed.
fn sysctls() -> BTreeMap<Sysctl, Known<i64>> {
    let read = || {
        let all = Sysctl::ALL.into_iter();
        all.map(|it| (it, it.read())).collect::<BTreeMap<_, _>>()
    };
    let mut here = read();
    let hidden = |it: &Result<i64, SysctlError>| matches!(it, Err(SysctlError::Hidden { .. }));
    for path in ["/proc/1/ns/net", "/proc/self/ns/net"] {
        if !here.values().any(hidden) {
            break;
        }
        let there = std::thread::spawn(move || {
            let namespace = std::fs::File::open(path).ok()?;
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).ok()?;
            Some(read())
        });
        let there = there.join().ok().flatten().unwrap_or_default();
        here.extend(there.into_iter().filter(|(_, value)| value.is_ok()));
    }
    let known = |value: Result<i64, SysctlError>| value.map_err(|error| error.to_string());
    here.into_iter().map(|(sysctl, value)| (sysctl, known(value))).collect()
}

/// The increases of `time_squeeze` and `dropped`.
fn increases(
    before: std::io::Result<Vec<Softnet>>,
    after: std::io::Result<Vec<Softnet>>,
) -> (Known<u64>, Known<u64>) {
    let (before, after) = match (before, after) {
        (Ok(before), Ok(after)) if before.len() == after.len() => (before, after),
        (Err(error), _) | (_, Err(error)) => {
            let missing = format!("/proc/net/softnet_stat: {error}");
            return (Err(missing.clone()), Err(missing));
        }
        _ => {
            let missing = "the same CPUs before and after: one went on or off".to_owned();
            return (Err(missing.clone()), Err(missing));
        }
    };
    // The kernel's counters are 32 bits wide and wrap.
    let sum = |of: fn(&Softnet) -> u32| {
        let pairs = before.iter().zip(&after);
        pairs.map(|(before, after)| u64::from(of(after).wrapping_sub(of(before)))).sum()
    };
    (Ok(sum(|it| it.time_squeeze)), Ok(sum(|it| it.dropped)))
}

/// A count of polls in the kernel, while it runs.
struct Counting {
    counter: Counter,
    before: BTreeMap<Key, Counts>,
}

impl Counting {
    /// Starts counting; the error says what is missing.
    fn start() -> Known<Counting> {
        let identity = Namespace::identity().map_err(|error| error.to_string())?;
        let netns = u32::try_from(identity.inode)
            .map_err(|_| "a network namespace with a number of 32 bits".to_owned())?;
        let options = Options { namespace: Some(netns), ..Options::default() };
        let counter = Counter::start(&options).map_err(|error| error.to_string())?;
        let before = counter.read();
        Ok(Counting { counter, before })
    }

    /// Stops, and returns the counts since the start.
    fn finish(self) -> Counted {
        let mut counts = self.counter.read();
        for (key, count) in &mut counts {
            if let Some(before) = self.before.get(key) {
                *count = count.since(before);
            }
        }
        Counted(counts)
    }
}

/// Counts of this namespace's instances.
struct Counted(BTreeMap<Key, Counts>);

impl Counted {
    /// The sum over a device's instances.
    fn of(&self, ifindex: u32) -> Polls {
        let mut polls = Polls { suspend_expiries: Some(0), ..Polls::default() };
        for (_, counts) in self.0.iter().filter(|(key, _)| key.ifindex == ifindex) {
            polls.softirq += counts.softirq.polls;
            polls.thread += counts.thread.polls;
            polls.application += counts.application.polls;
            polls.packets += counts.all().packets;
            let expiries = polls.suspend_expiries.zip(counts.expiries);
            polls.suspend_expiries = expiries.map(|(one, other)| one.saturating_add(other));
        }
        polls
    }

    /// Whether the settings of all receiving instances of a device that were polled are kept; `None` if none
    /// was polled.
    fn keeps_settings(&self, device: &Device) -> Option<bool> {
        let receives =
            |key: &Key| device.napi(key.napi_id).is_some_and(|napi| !napi.transmits_only());
        let of_device = self.0.iter().filter(|(key, _)| key.ifindex == device.ifindex);
        let known = of_device.filter(|(key, _)| receives(key));
        known.filter_map(|(_, counts)| counts.keeps_settings).reduce(|one, other| one && other)
    }

    /// A device's instances that were suspended at least twice without a poll or an expired timer.
    fn unpolled(&self, device: &Device) -> Vec<Unpolled> {
        let unpolled = |(key, counts): (&Key, &Counts)| {
            let suspensions = counts.suspensions.filter(|suspensions| *suspensions > 1)?;
            let silent = counts.all().polls == 0 && counts.watchdogs == Some(0);
            let napi = device.napi(key.napi_id).filter(|_| key.ifindex == device.ifindex)?;
            silent.then_some(Unpolled { napi_id: napi.id, suspensions })
        };
        self.0.iter().filter_map(unpolled).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn softnet(dropped: u32, time_squeeze: u32) -> std::io::Result<Vec<Softnet>> {
        let line = |number: u32| format!("{number:08x}");
        let columns: Vec<String> = (0..15)
            .map(|column| match column {
                1 => line(dropped),
                2 => line(time_squeeze),
                _ => line(0),
            })
            .collect();
        Ok(Softnet::parse(&(columns.join(" ") + "\n")))
    }

    #[test]
    fn counters_of_the_kernel_wrap() {
        let (squeezes, drops) = increases(softnet(u32::MAX, 7), softnet(1, 9));
        assert_eq!((squeezes, drops), (Ok(2), Ok(2)));
    }
}
