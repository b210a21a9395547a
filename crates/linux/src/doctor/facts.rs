//! Everything that the checks look at, read once.
//!
//! Plain values, so that a check is a function of them and can be tested on facts that were made
//! up. Not where they come from (`gather`), and not what they mean (`checks`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use napkin_policy::{EpollPolicy, Policy, Threaded};

use super::fix::Fix;
use crate::journal::Holder;
use napkin_kernel::device::{Device, Napi};
use napkin_kernel::process::{Ready, Unseen};

/// Something that was seen, or what was missing to see it: a right by its name, a file that this
/// kernel does not have, a program that never waited while it was looked at.
pub type Known<T> = Result<T, String>;

/// A device, the programs on it, and the host around them.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The policy whose conditions matter: the one asked for, or the one that the settings mean.
    pub policy: Policy,
    /// Whether it was asked for.
    pub asked: bool,
    /// Whether this kernel can do the policy.
    pub support: Known<Support>,
    /// The device, with its instances.
    pub device: Device,
    /// The instances' threads, by NAPI id.
    pub poll_threads: BTreeMap<u32, PollThread>,
    /// How packets come in.
    pub receive: Receive,
    /// What concerns the whole machine.
    pub host: Host,
    /// The programs that were asked about, or that hold sockets on the device.
    pub programs: Vec<Program>,
    /// Other programs with sockets on the same instances.
    pub others: Known<Vec<Other>>,
    /// Processes that could not be looked at although the right is held: they protect themselves.
    pub unseen: Unseen,
    /// What is wished of the device.
    pub wishes: Vec<Wish>,
    /// What napkin's own commands would be refused for.
    pub held: Held,
    /// What went on while it was looked at.
    pub measured: Measured,
}

/// A wish of how a device is to be set (`napkin keep`), as whoever reads the wishes found it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// The device; `None` of a file that is wrong, which may have been meant for any.
    pub ifname: Option<String>,
    /// The wish, and where it stands: `web (/etc/napkin/web.toml:2)`.
    pub name: String,
    /// Why it is not in force; nothing if it is.
    pub why: Vec<String>,
}

impl Wish {
    /// Whether it concerns a device.
    pub(super) fn is_of(&self, ifname: &str) -> bool {
        self.ifname.as_deref().is_none_or(|it| it == ifname)
    }
}

/// Who has the device and its programs, so that no other napkin can change them now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Held {
    /// Who holds the device.
    pub device: Option<Holder>,
    /// Who holds a program, by its id.
    pub programs: BTreeMap<i32, Holder>,
    /// The process that holds the wishes of this network namespace.
    pub keeper: Option<u32>,
    /// Whether the default route, or this terminal's own connection, hangs on the device: there a policy
    /// that can delay packets takes `--yes`.
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
    /// Where it may run.
    pub cpus: Vec<usize>,
    /// Its real-time priority, if it is `SCHED_FIFO` or `SCHED_RR`.
    pub fifo: Option<u8>,
}

/// How a device's packets come in.
#[derive(Debug, Clone)]
pub struct Receive {
    /// `rps_cpus` of each receive queue, as CPUs.
    pub rps: Known<Vec<(u32, Vec<usize>)>>,
    /// `rps_flow_cnt` of each receive queue.
    pub rps_flows: Known<Vec<(u32, u64)>>,
    /// The receive ring, where the device has one.
    pub ring: Known<Option<Ring>>,
    /// Whether interrupts are coalesced adaptively, where the device can.
    pub adaptive: Known<Option<bool>>,
    /// Whether its queues are set for each direction alone (`ethtool -l` has no combined ones); `None`
    /// where its driver does not say.
    pub per_direction: Option<bool>,
}

/// A receive ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ring {
    /// Entries that it has now, one frame each.
    pub entries: u32,
    /// How many it could have.
    pub most: u32,
}

/// What concerns the whole machine.
#[derive(Debug, Clone)]
pub struct Host {
    /// The CPUs that are on.
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

/// What went on within a short window.
#[derive(Debug, Clone)]
pub struct Measured {
    /// How long it was, in nanoseconds.
    pub window: u64,
    /// By how much `time_squeeze` of all CPUs grew.
    pub squeezes: Known<u64>,
    /// By how much the backlogs' `dropped` of all CPUs grew.
    pub drops: Known<u64>,
    /// What was counted of the device's instances.
    pub polls: Known<Polls>,
    /// Whether the device keeps the settings of its instances that receive, for those that take
    /// their place; `None` if none of them was polled.
    pub keeps_settings: Known<Option<bool>>,
    /// The instances that were not polled, nor did their timer fire, while they were suspended anew.
    pub unpolled: Known<Vec<Unpolled>>,
}

/// What the instances of a device did, summed up.
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
    /// Timers of suspended instances that fired, where it could be told.
    pub suspend_expiries: Option<u64>,
}

/// An instance that nobody polled while its suspension was prolonged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unpolled {
    /// Its NAPI id.
    pub napi_id: u32,
    /// How often its timer was armed by a suspension.
    pub suspensions: u64,
}

/// A program under inspection, with what it waits on.
#[derive(Debug, Clone)]
pub struct Program {
    /// Process ID, as this PID namespace has it.
    pub pid: i32,
    /// Its name in `/proc/PID/comm`: the kernel keeps 15 bytes.
    pub comm: String,
    /// The words with which it was started; none if they cannot be seen.
    pub command: Vec<String>,
    /// The CPUs on which its threads may be put (its cpuset); `None` if that is not known.
    pub cpuset: Option<Vec<usize>>,
    /// Whether Go's runtime is in it.
    pub go: Known<bool>,
    /// Its epoll descriptors.
    pub epolls: Known<Vec<Epoll>>,
    /// Its sockets of the internet protocols, in this network namespace.
    pub sockets: Known<Vec<Socket>>,
    /// Its threads, with their CPUs and classes.
    pub threads: Vec<Thread>,
    /// Its waits: those in which its threads were seen asleep, and those that were counted.
    pub waits: Known<Vec<Wait>>,
    /// How often its threads were looked at.
    pub looks: u32,
    /// What was missing to count its waits, too; those with a zero timeout are never seen asleep.
    pub uncounted: Option<String>,
}

/// An epoll descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Epoll {
    /// Its number in the program's table, a name in `/proc/PID/fd`.
    pub fd: i32,
    /// Its parameters, as `EPIOCGPARAMS` reads them.
    pub params: Known<EpollPolicy>,
    /// The descriptors in it.
    pub members: Vec<i32>,
    /// What in it is always ready.
    pub always_ready: Known<Vec<Ready>>,
}

/// A program's socket, as far as delivery is concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Socket {
    /// Its number in the program's table, a name in `/proc/PID/fd`.
    pub fd: i32,
    /// What it is for.
    pub kind: SocketKind,
    /// Its own address.
    pub local: Option<IpAddr>,
    /// `SO_INCOMING_NAPI_ID`: 0 before the first packet.
    pub napi_id: u32,
    /// `SO_BUSY_POLL`, in microseconds.
    pub busy_poll_usecs: u32,
}

/// What a socket is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketKind {
    /// A stream with a peer: packets have come in for it.
    Stream,
    /// Datagrams, of which none need have come yet.
    Datagram,
    /// Waits for connections, or is not connected: it carries no data.
    Listener,
}

/// A program's thread, and where it may run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    /// Thread ID: a name in `/proc/PID/task`.
    pub tid: i32,
    /// Where it may run.
    pub cpus: Vec<usize>,
    /// Thousandths of a CPU that it used while it was looked at.
    pub permille: u32,
    /// Whether it was seen asleep, in whatever system call; `None` if that cannot be seen.
    pub slept: Option<bool>,
}

/// A wait on an epoll descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// Thread ID: a name in `/proc/PID/task`.
    pub tid: i32,
    /// The epoll descriptor.
    pub epoll: i32,
    /// The most events that it takes.
    pub maxevents: u32,
    /// How long it waits, in nanoseconds; `None` without end.
    pub timeout: Option<u64>,
    /// How often it was seen.
    pub times: u64,
}

/// A program that shares the device's instances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Other {
    /// Process ID, as this PID namespace has it.
    pub pid: i32,
    /// Its name in `/proc/PID/comm`: the kernel keeps 15 bytes.
    pub comm: String,
    /// The instances by which it receives.
    pub napi_ids: BTreeSet<u32>,
}

/// Thousandths of a CPU from which on a thread that never slept spins.
const SPINS: u32 = 900;

impl Facts {
    /// Whether applications poll: through epoll, or to suspend interrupts.
    pub(super) fn application_polls(&self) -> bool {
        self.policy.epoll.enabled() || self.policy.instance.irq_suspend_timeout != 0
    }

    /// Whether suspension is meant.
    pub(super) fn means_to_suspend(&self) -> bool {
        self.policy.instance.irq_suspend_timeout != 0
            && self.policy.instance.threaded != Threaded::BusyPoll
    }

    /// Whether the instances have threads.
    pub(super) fn polled_by_threads(&self) -> bool {
        matches!(self.policy.instance.threaded, Threaded::Enabled | Threaded::BusyPoll)
    }

    /// The instances that carry sockets of the programs; if none does all that receive, which are
    /// those that a policy is applied to.
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

    /// Whether a program cannot busy poll, and another one here can: the policy is for that one, and
    /// changing it for the other's sake would be wrong.
    pub(super) fn is_beside(&self, program: &Program) -> bool {
        !program.can_poll(self) && self.somebody_can_poll()
    }

    /// Whether a socket can have come in by this device.
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

    /// The sockets that carry data and are not another device's.
    pub(super) fn served<'a>(&'a self, facts: &Facts) -> Vec<&'a Socket> {
        let sockets = self.sockets.as_deref().unwrap_or_default();
        let served = |socket: &&Socket| {
            socket.kind != SocketKind::Listener && facts.may_be_of_device(socket)
        };
        sockets.iter().filter(served).collect()
    }

    /// The epoll descriptors with connections of this device, each with those sockets.
    pub(super) fn serving<'a>(&'a self, facts: &Facts) -> Vec<(&'a Epoll, Vec<&'a Socket>)> {
        let epolls = self.epolls.as_deref().unwrap_or_default();
        let served = self.served(facts);
        let with_sockets = |epoll: &'a Epoll| {
            // A server has thousands.
            let members: BTreeSet<i32> = epoll.members.iter().copied().collect();
            let inside = served.iter().filter(|it| members.contains(&it.fd));
            (epoll, inside.copied().collect::<Vec<_>>())
        };
        epolls.iter().map(with_sockets).filter(|(_, sockets)| !sockets.is_empty()).collect()
    }

    /// The waits on those epoll descriptors.
    pub(super) fn serving_waits<'a>(&'a self, facts: &Facts) -> Vec<&'a Wait> {
        let serving = self.serving(facts);
        let waits = self.waits.as_deref().unwrap_or_default();
        waits.iter().filter(|it| serving.iter().any(|(epoll, _)| epoll.fd == it.epoll)).collect()
    }

    /// Whether nothing that is known of it keeps it from busy polling by epoll.
    pub(super) fn can_poll(&self, facts: &Facts) -> bool {
        let without_epoll = self.epolls.as_ref().is_ok_and(|epolls| {
            let by_other_means = !self.served(facts).is_empty() && self.serving(facts).is_empty();
            epolls.is_empty() || by_other_means
        });
        let ends_each_other = facts.means_to_suspend() && self.shares_an_epoll(facts);
        self.go != Ok(true) && !without_epoll && !self.only_looks(facts) && !ends_each_other
    }

    /// Whether most of its waits have a zero timeout, and such a wait never busy polls. A look in
    /// between (how Go's runtime looks before it sleeps) is no harm by itself.
    pub(super) fn only_looks(&self, facts: &Facts) -> bool {
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

    /// The wait that takes the most events, and how many those can be: no more than the sockets.
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

    /// The threads that never slept and used a CPU.
    pub(super) fn spinning(&self) -> Vec<&Thread> {
        let spins = |it: &&Thread| it.slept == Some(false) && it.permille >= SPINS;
        self.threads.iter().filter(spins).collect()
    }

    /// With how many threads, and for how many instances, memcached was started; `None` if that is
    /// not known, or it was not said.
    pub(super) fn memcached_threads(&self) -> Option<(usize, usize)> {
        let option = |flag: &str| {
            let mut words = self.command.iter();
            let word = words.find(|word| word.starts_with(flag))?;
            let value = word.strip_prefix(flag).filter(|it| !it.is_empty());
            value.or_else(|| words.next().map(String::as_str))?.parse().ok()
        };
        Some((option("-t")?, option("-N")?))
    }

    /// memcached is started again with a thread for each instance, unless it has been.
    pub(super) fn restart(&self, facts: &Facts) -> Option<Fix> {
        let threads = facts.receiving().len();
        let other = self.memcached_threads() != Some((threads, threads));
        let memcached = self.comm.starts_with("memcached") && other && threads > 0;
        memcached.then_some(Fix::Memcached { pid: self.pid, threads })
    }

    /// A thread by its id.
    pub(super) fn thread(&self, tid: i32) -> Option<&Thread> {
        self.threads.iter().find(|thread| thread.tid == tid)
    }
}
