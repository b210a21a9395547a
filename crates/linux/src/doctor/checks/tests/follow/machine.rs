//! A simulated host that applies fixes as a kernel would. It knows nothing of the checks.

use std::collections::BTreeSet;

use super::super::super::super::fix::Fix;
use super::super::super::super::gather::{implied_policy, supported};
use super::super::*;
use crate::support::tests::linux;
use napkin_kernel::probe::{Kernel, KernelSupport};
use napkin_os::procfs::Sysctl;

/// The hidden load, which shows only in its effects.
#[derive(Debug, Clone)]
pub(super) struct Load {
    /// The time that the program takes for a batch, in nanoseconds.
    pub(super) batch: u64,
    /// Packets, and microseconds, that a softirq needs in one round.
    pub(super) packets: i64,
    pub(super) usecs: i64,
    /// Packets that reach a backlog at once.
    pub(super) backlog: i64,
    /// Whether the program hangs, and polls nothing.
    pub(super) hangs: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Machine {
    pub(super) facts: Facts,
    pub(super) kernel: Kernel,
    pub(super) load: Load,
    /// The device's instances, whether registered or not.
    pub(super) napis: Vec<Napi>,
    /// Whether GRO is on.
    pub(super) gro: bool,
    /// The next thread ID.
    next_tid: i32,
}

impl Machine {
    pub(super) fn new(policy: &str) -> Machine {
        let facts = sound(policy);
        let napis = facts.device.napis.clone();
        let load = Load { batch: 100_000, packets: 50, usecs: 100, backlog: 10, hangs: false };
        let kernel = linux(7, 2);
        Machine { facts, kernel, load, napis, gro: true, next_tid: 5_000 }
    }

    /// Applies the consequences of changes.
    pub(super) fn settle(&mut self) {
        let Machine { facts, napis, .. } = self;
        let online = facts.host.cpus.clone();
        for napi in napis.iter_mut() {
            if self.kernel.instances == KernelSupport::No
                || supported(&Policy::suspend(20_000), &self.kernel) != Ok(Support::Yes)
            {
                napi.settings.irq_suspend_timeout = None;
            }
            // A CPU that goes offline passes its interrupts to others.
            if let Some(cpus) = &mut napi.irq_cpus {
                keep_online(cpus, &online);
            }
            match (napi.settings.threaded.unwrap_or(0), napi.pid) {
                (0, Some(_)) => {
                    napi.pid = None;
                    facts.poll_threads.remove(&napi.id);
                }
                (1.., None) => {
                    self.next_tid += 1;
                    napi.pid = Some(self.next_tid);
                    let thread =
                        PollThread { tid: self.next_tid, cpus: online.clone(), fifo: None };
                    facts.poll_threads.insert(napi.id, thread);
                }
                _ => {}
            }
            if let Some(thread) = facts.poll_threads.get_mut(&napi.id) {
                keep_online(&mut thread.cpus, &online);
                napi.thread_cpus = Some(thread.cpus.clone());
            }
        }
        for program in &mut facts.programs {
            let may: Vec<usize> = match &program.cpuset {
                Some(set) => online.iter().copied().filter(|cpu| set.contains(cpu)).collect(),
                None => online.clone(),
            };
            for thread in &mut program.threads {
                keep_online(&mut thread.cpus, if may.is_empty() { &online } else { &may });
            }
        }
        let has_napis =
            facts.device.up && (self.gro || facts.device.driver.as_deref() != Some("veth"));
        facts.device.napis = if has_napis { napis.clone() } else { vec![] };
        let ids: BTreeSet<u32> = napis.iter().map(|napi| napi.id).collect();
        facts.poll_threads.retain(|id, _| ids.contains(id));
        if !facts.asked {
            facts.policy = implied_policy(&facts.device, &facts.programs);
        }
        if facts.support.is_ok() {
            facts.support = supported(&facts.policy, &self.kernel);
        }
        self.measure();
    }

    /// Derives the measurements from the load.
    fn measure(&mut self) {
        let Machine { facts, load, .. } = self;
        let beyond = |limit: &Known<i64>, need: i64| limit.as_ref().is_ok_and(|it| *it < need);
        let Host { netdev_budget, netdev_budget_usecs, netdev_max_backlog, .. } = &facts.host;
        if let Ok(squeezes) = &mut facts.measured.squeezes {
            let stops =
                beyond(netdev_budget, load.packets) || beyond(netdev_budget_usecs, load.usecs);
            *squeezes = u64::from(stops);
        }
        if let Ok(drops) = &mut facts.measured.drops {
            *drops = u64::from(beyond(netdev_max_backlog, load.backlog));
        }
        let polls = facts.programs.iter().filter_map(|it| it.epolls.as_ref().ok()).flatten();
        let polls = polls.filter_map(|it| it.params.as_ref().ok()).any(EpollPolicy::enabled);
        let longest = facts.device.napis.iter().filter_map(|it| it.settings.irq_suspend_timeout);
        let longest = longest.max().unwrap_or(0);
        let hangs = load.hangs;
        let epolls = facts.programs.iter().filter_map(|it| it.epolls.as_ref().ok()).flatten();
        let mut prefers = epolls.filter(|it| it.params.as_ref().is_ok_and(EpollPolicy::enabled));
        let ready = prefers.any(|it| it.always_ready.as_ref().is_ok_and(|it| !it.is_empty()));
        let suspended = facts.device.napis.iter().filter(|it| it.settings.policy().suspends());
        let unpolled = suspended.filter(|_| ready && !hangs);
        facts.measured.unpolled =
            Ok(unpolled.map(|it| Unpolled { napi_id: it.id, suspensions: 9_000 }).collect());
        if let Ok(measured) = &mut facts.measured.polls {
            measured.application = if polls && !hangs { 500 } else { 0 };
            measured.thread = if facts.poll_threads.is_empty() { 0 } else { 500 };
            if let Some(expiries) = &mut measured.suspend_expiries {
                let ends_early = polls && longest != 0 && (hangs || load.batch > longest);
                *expiries = if ends_early { 5 } else { 0 };
            }
        }
    }

    /// An operator who applies a policy requests it from now on, if any was requested.
    fn follow(&mut self, policy: Policy) {
        if self.facts.asked {
            self.facts.policy = policy;
        }
    }

    fn set_device(&mut self, policy: Policy) {
        for napi in self.napis.iter_mut().filter(|it| !it.transmits_only()) {
            napi.settings = Settings::of(&policy.instance);
        }
        self.follow(policy);
    }

    fn program(&mut self, pid: i32) -> &mut Program {
        self.facts.programs.iter_mut().find(|it| it.pid == pid).expect("it runs")
    }

    /// A memcached with this many threads, each with the connections of one instance.
    pub(super) fn memcached(&self, pid: i32, threads: usize, params: EpollPolicy) -> Program {
        let cpus = self.facts.host.cpus.clone();
        let mut program = sound("suspend20").programs.remove(0);
        program.pid = pid;
        program.command = ["memcached", "-t", &threads.to_string(), "-N", &threads.to_string()]
            .map(str::to_owned)
            .into();
        let napis = || self.napis.iter().filter(|napi| !napi.transmits_only());
        let of = |thread: usize| napis().skip(thread).step_by(threads);
        let fd = |napi: &Napi| 1_000 + i32::try_from(napi.id).expect("small");
        let tid = |thread: usize| pid + 1 + thread as i32;
        let each = 0..threads;
        program.threads = each
            .clone()
            .map(|it| Thread { tid: tid(it), cpus: cpus.clone(), permille: 300, slept: Some(true) })
            .collect();
        let epoll = |thread: usize| Epoll {
            fd: 5 + thread as i32,
            params: Ok(params),
            members: of(thread).map(fd).collect(),
            always_ready: Ok(vec![]),
        };
        program.epolls = Ok(each.clone().map(epoll).collect());
        let sockets = napis().map(|napi| Socket {
            fd: fd(napi),
            kind: SocketKind::Stream,
            local: Some([10, 0, 0, 1].into()),
            napi_id: napi.id,
            busy_poll_usecs: 0,
        });
        program.sockets = Ok(sockets.collect());
        let wait = |thread: usize| Wait {
            tid: tid(thread),
            epoll: 5 + thread as i32,
            maxevents: 32,
            timeout: None,
            times: 20,
        };
        program.waits = Ok(each.map(wait).collect());
        program
    }

    /// Applies a fix.
    pub(super) fn fix(&mut self, fix: &Fix) {
        match fix {
            Fix::Apply { policy, .. } => self.set_device(*policy),
            Fix::Release { queue, .. } => {
                for napi in &mut self.napis {
                    if napi.rx_queues.contains(queue) {
                        napi.settings = Settings::of(&Policy::BASE.instance);
                    }
                }
            }
            Fix::Attach { pid, policy, ifname } => {
                let program = self.program(*pid);
                for epoll in program.epolls.iter_mut().flatten() {
                    if let Ok(params) = &mut epoll.params {
                        *params = policy.epoll;
                    }
                }
                for socket in program.sockets.iter_mut().flatten() {
                    socket.busy_poll_usecs = policy.application.socket_busy_poll_usecs;
                }
                self.follow(*policy);
                if ifname.is_some() {
                    self.set_device(*policy);
                }
            }
            Fix::Run { policy, .. } => {
                let threads = self.napis.len().max(1);
                let program = self.memcached(900, threads, policy.epoll);
                self.facts.programs.push(program);
                self.set_device(*policy);
            }
            Fix::Memcached { pid, threads } => {
                let program = self.memcached(*pid, *threads, EpollPolicy::default());
                *self.program(*pid) = program;
            }
            Fix::LinkUp { .. } => self.facts.device.up = true,
            Fix::Gro { .. } => self.gro = true,
            Fix::PeerOffloads => self.receive_again(),
            Fix::OneChannel { .. } => {
                let all: Vec<u32> = self.napis.iter().map(|napi| napi.id).collect();
                self.napis.truncate(1);
                for socket in self
                    .facts
                    .programs
                    .iter_mut()
                    .filter_map(|it| it.sockets.as_mut().ok())
                    .flatten()
                {
                    if all.contains(&socket.napi_id) {
                        socket.napi_id = all[0];
                    }
                }
            }
            Fix::Ring { entries, .. } => {
                let ring = self.facts.receive.ring.as_mut().expect("seen").as_mut().expect("has");
                ring.entries = (*entries).min(ring.most);
            }
            Fix::FixedModeration { .. } => self.facts.receive.adaptive = Ok(Some(false)),
            Fix::NoRps { queue, .. } => {
                for (rx, cpus) in self.facts.receive.rps.as_mut().expect("seen") {
                    if queue.is_none_or(|queue| queue == *rx) {
                        cpus.clear();
                    }
                }
            }
            Fix::NoRfs { queue, .. } => {
                for (rx, flows) in self.facts.receive.rps_flows.as_mut().expect("seen") {
                    if queue.is_none_or(|queue| queue == *rx) {
                        *flows = 0;
                    }
                }
            }
            Fix::IrqCpus { irq, cpus } => {
                let online = &self.facts.host.cpus;
                let cpus: Vec<usize> =
                    cpus.iter().copied().filter(|it| online.contains(it)).collect();
                for napi in self.napis.iter_mut().filter(|it| it.irq == Some(*irq)) {
                    assert!(!cpus.is_empty(), "EINVAL: {fix}");
                    napi.irq_cpus = Some(cpus.clone());
                }
            }
            Fix::ThreadCpus { tid, cpus } => self.pin(*tid, cpus),
            Fix::FairThread { tid } => {
                let mut threads = self.facts.poll_threads.values_mut();
                if let Some(thread) = threads.find(|thread| thread.tid == *tid) {
                    thread.fifo = None;
                }
            }
            Fix::Sysctl { name, value } => self.sysctl(*name, *value),
            Fix::WorkqueueCpus { cpus } => {
                assert!(!cpus.is_empty(), "EINVAL: {fix}");
                self.facts.host.workqueue_cpus = Ok(cpus.clone());
            }
            Fix::NoSmt => {
                self.facts.host.smt = Ok(false);
                let cores = self.facts.host.cpus.len().div_ceil(2);
                self.facts.host.cpus.truncate(cores);
            }
            Fix::StopIrqbalance => self.facts.host.irqbalance = Ok(None),
        }
        self.settle();
    }

    /// Lets connections receive again, through the device's instances.
    fn receive_again(&mut self) {
        let first = self.napis[0].id;
        for socket in
            self.facts.programs.iter_mut().filter_map(|it| it.sockets.as_mut().ok()).flatten()
        {
            let loopback = socket.local.is_some_and(|it| it.is_loopback());
            if socket.napi_id == 0 && !loopback {
                socket.napi_id = first;
            }
        }
    }

    /// `sched_setaffinity`, which refuses CPUs outside the thread's cpuset.
    fn pin(&mut self, tid: i32, cpus: &[usize]) {
        let online = self.facts.host.cpus.clone();
        let mut poll = self.facts.poll_threads.values_mut();
        if let Some(thread) = poll.find(|thread| thread.tid == tid) {
            assert!(cpus.iter().any(|cpu| online.contains(cpu)), "EINVAL: {tid} to {cpus:?}");
            thread.cpus = cpus.to_vec();
            return;
        }
        for program in &mut self.facts.programs {
            let may = |cpu: &usize| {
                online.contains(cpu) && program.cpuset.as_ref().is_none_or(|set| set.contains(cpu))
            };
            if let Some(thread) = program.threads.iter_mut().find(|thread| thread.tid == tid) {
                assert!(cpus.iter().any(may), "EINVAL: {tid} to {cpus:?}");
                thread.cpus = cpus.iter().copied().filter(may).collect();
            }
        }
    }

    fn sysctl(&mut self, name: Sysctl, value: i64) {
        let host = &mut self.facts.host;
        let place = match name {
            Sysctl::BusyPoll => &mut host.busy_poll,
            Sysctl::BusyRead => &mut host.busy_read,
            Sysctl::NetdevBudget => &mut host.netdev_budget,
            Sysctl::NetdevBudgetUsecs => &mut host.netdev_budget_usecs,
            Sysctl::NetdevMaxBacklog => &mut host.netdev_max_backlog,
            Sysctl::RpsSockFlowEntries => &mut host.rps_sock_flow_entries,
            Sysctl::TimerMigration => &mut host.timer_migration,
            Sysctl::SchedRtRuntimeUs => &mut host.rt_runtime,
            other => panic!("no fix sets {other}"),
        };
        *place = Ok(value);
    }

    /// Advances by one second.
    pub(super) fn pass(&mut self) {
        let online = self.facts.host.cpus.clone();
        if matches!(self.facts.host.irqbalance, Ok(Some(_))) {
            for cpus in self.napis.iter_mut().filter_map(|napi| napi.irq_cpus.as_mut()) {
                let next = cpus.first().map_or(0, |cpu| cpu + 1) % online.len();
                *cpus = vec![online[next]];
            }
        }
        self.settle();
    }
}

/// Keeps a thread or an interrupt on those of its CPUs that are online; if none is, it may use any.
fn keep_online(cpus: &mut Vec<usize>, online: &[usize]) {
    cpus.retain(|cpu| online.contains(cpu));
    if cpus.is_empty() {
        *cpus = online.to_vec();
    }
}
