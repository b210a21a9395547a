//! The input of all checks, read once.
//!
//! Facts are plain values, so that a check is a function of them and can be tested on made-up facts. `gather`
//! reads them, and `checks` interprets them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use napkin_policy::{EpollPolicy, Policy, Threaded};

use super::fix::Fix;
use crate::journal::Holder;
use napkin_kernel::device::{Device, Napi};
use napkin_kernel::process::{Inaccessible, Ready};

/// An observed value, or what was missing to observe it: a privilege by its name, a file that this kernel
/// lacks, or a program that never waited during the window.
pub type Known<T> = Result<T, String>;

/// A device, the programs on it, and the host around them.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The policy to check against: the requested one, or the one that the settings imply.
    pub policy: Policy,
    /// Whether the policy was requested.
    pub asked: bool,
    /// Whether this kernel can do the policy.
    pub support: Known<Support>,
    /// The device, with its instances.
    pub device: Device,
    /// The instances' threads, by NAPI id.
    pub poll_threads: BTreeMap<u32, PollThread>,
    /// How packets are received.
    pub receive: Receive,
    /// The state of the whole machine.
    pub host: Host,
    /// The programs that were named, or that have sockets on the device.
    pub programs: Vec<Program>,
    /// Other programs with sockets on the same instances.
    pub others: Known<Vec<Other>>,
    /// Processes that could not be examined although the privilege is held: they protect themselves.
    pub unseen: Inaccessible,
    /// The wishes that concern the device.
    pub wishes: Vec<Wish>,
    /// Locks that would make napkin's own commands fail.
    pub locks: Locks,
    /// What was counted in the observation window.
    pub measured: Measured,
}

/// A wish for the settings of a device (`napkin keep`), and whether it is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// The device; `None` for an invalid file, which may have been meant for any.
    pub ifname: Option<String>,
    /// The name and place of the wish: `web (/etc/napkin/web.toml:2)`.
    pub name: String,
    /// Why it is not in force; empty if it is.
    pub why: Vec<String>,
}

impl Wish {
    /// Whether it concerns a device.
    pub(super) fn is_of(&self, ifname: &str) -> bool {
        self.ifname.as_deref().is_none_or(|it| it == ifname)
    }
}

/// The holders of the device and its programs, because of which no other napkin process can change them now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Locks {
    /// The holder of the device.
    pub device: Option<Holder>,
    /// The holders of programs, by process ID.
    pub programs: BTreeMap<i32, Holder>,
    /// The process that holds the wishes of this network namespace.
    pub keeper: Option<u32>,
    /// Whether the default route, or the connection of this terminal, uses the device: then a policy that can
    /// delay packets needs `--yes`.
    pub lifeline: bool,
}

/// Whether this kernel can do a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Support {
    /// The kernel can do it.
    Yes,
    /// The kernel lacks something that the policy needs.
    No {
        /// What it lacks, and which Linux has it.
        lacks: String,
        /// The nearest policy that it can do.
        nearest: Option<Policy>,
    },
}

/// The thread of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PollThread {
    /// Thread ID: a name in `/proc/PID/task`.
    pub tid: i32,
    /// The CPUs on which it may run.
    pub cpus: Vec<usize>,
    /// Its real-time priority, if it is `SCHED_FIFO` or `SCHED_RR`.
    pub fifo: Option<u8>,
}

/// How a device's packets are received.
#[derive(Debug, Clone)]
pub struct Receive {
    /// `rps_cpus` of each receive queue, as CPUs.
    pub rps: Known<Vec<(u32, Vec<usize>)>>,
    /// `rps_flow_cnt` of each receive queue.
    pub rps_flows: Known<Vec<(u32, u64)>>,
    /// The receive ring, where the device has one.
    pub ring: Known<Option<Ring>>,
    /// Whether interrupts are coalesced adaptively; `None` if the device cannot.
    pub adaptive: Known<Option<bool>>,
    /// Whether the device has no combined channels (`ethtool -l`), so that each direction is set alone;
    /// `None` if its driver does not say.
    pub per_direction: Option<bool>,
}

/// A receive ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ring {
    /// The current number of entries, one frame each.
    pub entries: u32,
    /// The maximum number of entries.
    pub most: u32,
}

/// The state of the whole machine.
#[derive(Debug, Clone)]
pub struct Host {
    /// The online CPUs.
    pub cpus: Vec<usize>,
    /// Whether CPUs share cores.
    pub smt: Known<bool>,
    /// `kernel.timer_migration`: 1 moves timers to busy CPUs.
    pub timer_migration: Known<i64>,
    /// `kernel.sched_rt_runtime_us`; -1 is no limit.
    pub rt_runtime: Known<i64>,
    /// `net.core.busy_poll`: microseconds that `poll` and `select` spin.
    pub busy_poll: Known<i64>,
    /// `net.core.busy_read`: microseconds that a blocking read spins.
    pub busy_read: Known<i64>,
    /// `net.core.netdev_budget`: packets of one round of the network softirq.
    pub netdev_budget: Known<i64>,
    /// `net.core.netdev_budget_usecs`: microseconds of one round of the network softirq.
    pub netdev_budget_usecs: Known<i64>,
    /// `net.core.netdev_max_backlog`: packets in a CPU's backlog queue.
    pub netdev_max_backlog: Known<i64>,
    /// `net.core.rps_sock_flow_entries`: entries of the table of RFS; 0 is off.
    pub rps_sock_flow_entries: Known<i64>,
    /// The CPUs of unbound workqueues.
    pub workqueue_cpus: Known<Vec<usize>>,
    /// The process id of irqbalance, if it runs.
    pub irqbalance: Known<Option<i32>>,
}

/// What was counted in a short window.
#[derive(Debug, Clone)]
pub struct Measured {
    /// The length of the window, in nanoseconds.
    pub window: u64,
    /// The increase of `time_squeeze`, summed over all CPUs.
    pub squeezes: Known<u64>,
    /// The increase of the backlogs' `dropped`, summed over all CPUs.
    pub drops: Known<u64>,
    /// Counts of the device's instances.
    pub polls: Known<Polls>,
    /// Whether the driver keeps the settings of receiving instances for those that replace them; `None` if
    /// none of them was polled.
    pub keeps_settings: Known<Option<bool>>,
    /// Instances that were suspended repeatedly while they were not polled and their timer did not fire.
    pub unpolled: Known<Vec<Unpolled>>,
}

/// Counts of a device's instances, summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Polls {
    /// Polls by softirqs.
    pub softirq: u64,
    /// Polls by the instances' threads.
    pub thread: u64,
    /// Polls by applications.
    pub application: u64,
    /// Packets taken in the window.
    pub packets: u64,
    /// Expired timers of suspended instances, if they can be told from others.
    pub suspend_expiries: Option<u64>,
}

/// An instance that was not polled while its suspension was prolonged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unpolled {
    /// Its NAPI id.
    pub napi_id: u32,
    /// How often a suspension armed its timer.
    pub suspensions: u64,
}

/// A program to check, with its descriptors, threads and waits.
#[derive(Debug, Clone)]
pub struct Program {
    /// Process ID, as this PID namespace has it.
    pub pid: i32,
    /// Its name in `/proc/PID/comm`: the kernel keeps 15 bytes.
    pub comm: String,
    /// Its command line; empty if it cannot be read.
    pub command: Vec<String>,
    /// The CPUs that its cpuset allows; `None` if unknown.
    pub cpuset: Option<Vec<usize>>,
    /// Whether Go's runtime is in it.
    pub go: Known<bool>,
    /// Its epoll descriptors.
    pub epolls: Known<Vec<Epoll>>,
    /// Its sockets of the internet protocols, in this network namespace.
    pub sockets: Known<Vec<Socket>>,
    /// Its threads, with their CPUs and classes.
    pub threads: Vec<Thread>,
    /// Its waits: those of threads observed asleep, and those counted at the system call.
    pub waits: Known<Vec<Wait>>,
    /// How often its threads were sampled.
    pub looks: u32,
    /// What was missing to count its waits too; waits with a zero timeout are never observed asleep.
    pub uncounted: Option<String>,
}

/// An epoll descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Epoll {
    /// Its number in the program's table, a name in `/proc/PID/fd`.
    pub fd: i32,
    /// Its parameters, as `EPIOCGPARAMS` reads them.
    pub params: Known<EpollPolicy>,
    /// The descriptors of its sockets.
    pub members: Vec<i32>,
    /// Members that were ready at every sample.
    pub always_ready: Known<Vec<Ready>>,
}

/// A program's socket, as far as packet delivery is concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Socket {
    /// Its number in the program's table, a name in `/proc/PID/fd`.
    pub fd: i32,
    /// What the socket is used for.
    pub kind: SocketKind,
    /// Its local address.
    pub local: Option<IpAddr>,
    /// `SO_INCOMING_NAPI_ID`: 0 before the first packet.
    pub napi_id: u32,
    /// `SO_BUSY_POLL`, in microseconds.
    pub busy_poll_usecs: u32,
}

/// What a socket is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketKind {
    /// A connected stream: packets have come in for it.
    Stream,
    /// A datagram socket, which need not have received anything.
    Datagram,
    /// Listens for connections, or is not connected: it carries no data.
    Listener,
}

/// A program's thread, and its CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    /// Thread ID: a name in `/proc/PID/task`.
    pub tid: i32,
    /// The CPUs on which it may run.
    pub cpus: Vec<usize>,
    /// The CPU time that it used in the window, in thousandths of a CPU.
    pub permille: u32,
    /// Whether it was observed asleep, in any system call; `None` if that cannot be read.
    pub slept: Option<bool>,
}

/// A wait on an epoll descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// Thread ID: a name in `/proc/PID/task`.
    pub tid: i32,
    /// The epoll descriptor.
    pub epoll: i32,
    /// The maximum number of events that it takes.
    pub maxevents: u32,
    /// Its timeout in nanoseconds; `None` is infinite.
    pub timeout: Option<u64>,
    /// How often it was observed.
    pub times: u64,
}

/// A program that shares the device's instances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Other {
    /// Process ID, as this PID namespace has it.
    pub pid: i32,
    /// Its name in `/proc/PID/comm`: the kernel keeps 15 bytes.
    pub comm: String,
    /// The instances from which it receives.
    pub napi_ids: BTreeSet<u32>,
}

/// The CPU use, in thousandths, from which a thread that never slept counts as spinning.
const SPINS: u32 = 900;

impl Facts {
    /// Whether applications poll: through epoll, or to suspend interrupts.
    pub(super) fn application_polls(&self) -> bool {
        self.policy.epoll.enabled() || self.policy.instance.irq_suspend_timeout != 0
    }

    /// Whether the policy suspends interrupts.
    pub(super) fn means_to_suspend(&self) -> bool {
        self.policy.instance.irq_suspend_timeout != 0
            && self.policy.instance.threaded != Threaded::BusyPoll
    }

    /// Whether the policy gives the instances threads.
    pub(super) fn polled_by_threads(&self) -> bool {
        matches!(self.policy.instance.threaded, Threaded::Enabled | Threaded::BusyPoll)
    }

    /// The instances from which the programs' sockets receive; if there are none, all that receive, to which
    /// a policy is applied.
    pub(super) fn instances(&self) -> Vec<&Napi> {
        let carries = |napi: &&Napi| {
            let mut sockets = self.programs.iter().filter_map(|it| it.sockets.as_ref().ok());
            sockets.any(|sockets| sockets.iter().any(|socket| socket.napi_id == napi.id))
        };
        let used: Vec<&Napi> = self.receiving().into_iter().filter(carries).collect();
        if used.is_empty() { self.receiving() } else { used }
    }

    /// The instances that receive.
    pub(super) fn receiving(&self) -> Vec<&Napi> {
        self.device.napis.iter().filter(|it| !it.transmits_only()).collect()
    }

    /// Whether a program cannot busy poll, and another one here can: the policy is for the other, and must
    /// not be changed for this one's sake.
    pub(super) fn is_bystander(&self, program: &Program) -> bool {
        !program.can_poll(self) && self.any_can_poll()
    }

    /// Whether a socket may receive through this device.
    fn may_be_of_device(&self, socket: &Socket) -> bool {
        match socket.napi_id {
            0 => self.device.ifname == "lo" || !socket.local.is_some_and(|it| it.is_loopback()),
            id => self.device.napi(id).is_some(),
        }
    }
}

impl Program {
    pub(super) fn name(&self) -> String {
        format!("{}[{}]", self.comm, self.pid)
    }

    /// The sockets that carry data and do not belong to another device.
    pub(super) fn served<'a>(&'a self, facts: &Facts) -> Vec<&'a Socket> {
        let sockets = self.sockets.as_deref().unwrap_or_default();
        let served = |socket: &&Socket| {
            socket.kind != SocketKind::Listener && facts.may_be_of_device(socket)
        };
        sockets.iter().filter(served).collect()
    }

    /// The epoll descriptors that contain connections of this device, with those sockets.
    pub(super) fn serving<'a>(&'a self, facts: &Facts) -> Vec<(&'a Epoll, Vec<&'a Socket>)> {
        let epolls = self.epolls.as_deref().unwrap_or_default();
        let served = self.served(facts);
        let with_sockets = |epoll: &'a Epoll| {
            // A set, as a server has thousands of members.
            let members: BTreeSet<i32> = epoll.members.iter().copied().collect();
            let inside = served.iter().filter(|it| members.contains(&it.fd));
            (epoll, inside.copied().collect::<Vec<_>>())
        };
        epolls.iter().map(with_sockets).filter(|(_, sockets)| !sockets.is_empty()).collect()
    }

    /// The waits on the epoll descriptors with connections of this device.
    pub(super) fn serving_waits<'a>(&'a self, facts: &Facts) -> Vec<&'a Wait> {
        let serving = self.serving(facts);
        let waits = self.waits.as_deref().unwrap_or_default();
        waits.iter().filter(|it| serving.iter().any(|(epoll, _)| epoll.fd == it.epoll)).collect()
    }

    /// Whether it can busy poll by epoll, as far as known.
    pub(super) fn can_poll(&self, facts: &Facts) -> bool {
        let without_epoll = self.epolls.as_ref().is_ok_and(|epolls| {
            let by_other_means = !self.served(facts).is_empty() && self.serving(facts).is_empty();
            epolls.is_empty() || by_other_means
        });
        let ends_each_other = facts.means_to_suspend() && self.shares_an_epoll(facts);
        self.go != Ok(true)
            && !without_epoll
            && !self.mostly_zero_timeouts(facts)
            && !ends_each_other
    }

    /// Whether most of its waits have a zero timeout: such a wait never busy polls. An occasional one (as by
    /// Go's runtime before it sleeps) does no harm by itself.
    pub(super) fn mostly_zero_timeouts(&self, facts: &Facts) -> bool {
        let waits = self.serving_waits(facts);
        let times =
            |waits: &mut dyn Iterator<Item = &&Wait>| -> u64 { waits.map(|wait| wait.times).sum() };
        let all = times(&mut waits.iter());
        let zeros = times(&mut waits.iter().filter(|wait| wait.timeout == Some(0)));
        zeros.saturating_mul(2) > all
    }

    /// The threads that wait on each of its epolls with connections.
    pub(super) fn waiters(&self, facts: &Facts) -> BTreeMap<i32, BTreeSet<i32>> {
        let mut waiters: BTreeMap<i32, BTreeSet<i32>> = BTreeMap::new();
        for wait in self.serving_waits(facts) {
            waiters.entry(wait.epoll).or_default().insert(wait.tid);
        }
        waiters
    }

    fn shares_an_epoll(&self, facts: &Facts) -> bool {
        self.waiters(facts).values().any(|tids| tids.len() > 1)
    }

    /// The wait with the largest possible batch, and that batch: `maxevents`, but at most the number of sockets.
    pub(super) fn largest_batch(&self, facts: &Facts) -> Option<(&Wait, u64)> {
        let waits = self.serving_waits(facts);
        let serving = self.serving(facts);
        let batch = |wait: &Wait| {
            let sockets = serving.iter().find(|(epoll, _)| epoll.fd == wait.epoll);
            u64::from(wait.maxevents).min(sockets.map_or(0, |(_, sockets)| sockets.len() as u64))
        };
        waits
            .into_iter()
            .map(|wait| (wait, batch(wait)))
            .max_by_key(|(wait, batch)| (*batch, wait.maxevents))
    }

    /// The threads that never slept and used a whole CPU.
    pub(super) fn spinning(&self) -> Vec<&Thread> {
        let spins = |it: &&Thread| it.slept == Some(false) && it.permille >= SPINS;
        self.threads.iter().filter(spins).collect()
    }

    /// memcached's options `-t` (threads) and `-N` (NAPI IDs); `None` if its command line is unknown or lacks them.
    pub(super) fn memcached_threads(&self) -> Option<(usize, usize)> {
        let option = |flag: &str| {
            let mut words = self.command.iter();
            let word = words.find(|word| word.starts_with(flag))?;
            let value = word.strip_prefix(flag).filter(|it| !it.is_empty());
            value.or_else(|| words.next().map(String::as_str))?.parse().ok()
        };
        Some((option("-t")?, option("-N")?))
    }

    /// The fix that restarts memcached with one thread for each instance, unless it already runs so.
    pub(super) fn restart(&self, facts: &Facts) -> Option<Fix> {
        let threads = facts.receiving().len();
        let other = self.memcached_threads() != Some((threads, threads));
        let memcached = self.comm.starts_with("memcached") && other && threads > 0;
        memcached.then_some(Fix::Memcached { pid: self.pid, threads })
    }

    /// Returns a thread by its ID.
    pub(super) fn thread(&self, tid: i32) -> Option<&Thread> {
        self.threads.iter().find(|thread| thread.tid == tid)
    }
}
