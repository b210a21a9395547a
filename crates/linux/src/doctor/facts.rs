//! Everything that the checks look at, read once.
//!
//! Plain values, so that a check is a function of them and can be tested on facts that were made
//! up. Not where they come from (`gather`), and not what they mean (`checks`).

use std::collections::BTreeMap;
use std::net::IpAddr;

use napkin_core::Policy;
use napkin_core::policy::{EpollPolicy, Threaded};

use crate::device::{Device, Napi};
use crate::process::Unseen;

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
    /// The programs.
    pub programs: Vec<Program>,
    /// Other programs with sockets on the same instances.
    pub others: Known<Vec<Other>>,
    /// Processes that could not be looked at although the right is held: they protect themselves.
    pub unseen: Unseen,
    /// What went on while it was looked at.
    pub measured: Measured,
}

/// Whether this kernel can do a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Support {
    /// It can.
    Yes,
    /// It cannot.
    No {
        /// What it lacks, and which Linux has it.
        lacks: String,
        /// The nearest policy that it can do.
        nearest: Option<String>,
    },
}

/// The thread of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PollThread {
    /// Its id.
    pub tid: i32,
    /// Where it may run.
    pub cpus: Vec<usize>,
    /// Its real-time priority, if it is `SCHED_FIFO`.
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
}

/// A receive ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ring {
    /// Its entries.
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
    /// `kernel.timer_migration`.
    pub timer_migration: Known<i64>,
    /// `kernel.sched_rt_runtime_us`; -1 is no limit.
    pub rt_runtime: Known<i64>,
    /// `net.core.busy_poll`.
    pub busy_poll: Known<i64>,
    /// `net.core.busy_read`.
    pub busy_read: Known<i64>,
    /// `net.core.netdev_budget`.
    pub netdev_budget: Known<i64>,
    /// `net.core.rps_sock_flow_entries`.
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
    /// Packets.
    pub packets: u64,
    /// Timers of suspended instances that fired, where it could be told.
    pub suspend_expiries: Option<u64>,
}

/// A program.
#[derive(Debug, Clone)]
pub struct Program {
    /// Its id.
    pub pid: i32,
    /// Its name.
    pub comm: String,
    /// Whether Go's runtime is in it.
    pub go: Known<bool>,
    /// Its epoll descriptors.
    pub epolls: Known<Vec<Epoll>>,
    /// Its sockets of the internet protocols, in this network namespace.
    pub sockets: Known<Vec<Socket>>,
    /// Its threads.
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
    /// Its number.
    pub fd: i32,
    /// Its parameters.
    pub params: Known<EpollPolicy>,
    /// The descriptors in it.
    pub members: Vec<i32>,
}

/// A socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Socket {
    /// Its number.
    pub fd: i32,
    /// What it is for.
    pub kind: SocketKind,
    /// Its own address.
    pub local: Option<IpAddr>,
    /// `SO_INCOMING_NAPI_ID`.
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

/// A thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    /// Its id.
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
    /// The thread.
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
    /// Its id.
    pub pid: i32,
    /// Its name.
    pub comm: String,
}

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

    /// The instances that carry sockets of the programs; all of the device's if none does.
    pub(super) fn instances(&self) -> Vec<&Napi> {
        let carries = |napi: &&Napi| {
            let mut sockets = self.programs.iter().filter_map(|it| it.sockets.as_ref().ok());
            sockets.any(|sockets| sockets.iter().any(|socket| socket.napi_id == napi.id))
        };
        let used: Vec<&Napi> = self.device.napis.iter().filter(carries).collect();
        if used.is_empty() { self.device.napis.iter().collect() } else { used }
    }

    /// A command that applies the policy to the device.
    pub(super) fn apply(&self) -> Option<String> {
        Some(format!("napkin apply {} --dev {}", self.policy, self.device.ifname))
    }

    /// A command that puts a program under the policy.
    pub(super) fn attach(&self, program: &Program) -> Option<String> {
        Some(format!("napkin attach {} --policy {}", program.pid, self.policy))
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
    /// `memcached[812]`.
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
            let Epoll { members, .. } = epoll;
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

    /// A thread by its id.
    pub(super) fn thread(&self, tid: i32) -> Option<&Thread> {
        self.threads.iter().find(|thread| thread.tid == tid)
    }
}
