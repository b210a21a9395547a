//! All counts of a machine at one moment, and their growth over a window.

use napkin_core::{Counts, CpuCounts, CpuId, Host, Id, Ns};

use crate::counts::QueueCounts;
use crate::host::cpu::Cpu;
use crate::host::segment::USES;
use crate::net::NicQueue;
use crate::net::sockets::Sockets;

/// How one CPU spent its time, and what happened on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuUse {
    /// Nanoseconds by [`Use`](crate::Use).
    pub used: [Ns; USES],
    /// Of them: in rounds of threads, and in polls of softirqs, that found nothing.
    pub polled_in_vain: Ns,
    /// Time that runnable threads have waited for it, added up (run-queue delay).
    pub waited: Ns,
    /// Hard interrupts of any kind.
    pub interrupts: u64,
    /// Changes of the current thread.
    pub switches: u64,
    /// The core's counts of its softirqs.
    pub softirq: CpuCounts,
}

/// What was counted of one queue, by the core and by the card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueUse {
    /// The core's counts of its instance.
    pub napi: Counts,
    /// The card's counts of it.
    pub nic: QueueCounts,
}

/// What the waits in one epoll context have returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EpollUse {
    /// Waits that returned events.
    pub returns: u64,
    /// Events that those waits returned, added up.
    pub events: u64,
}

/// All counts of a machine at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// Nanoseconds of virtual time.
    pub at: Ns,
    /// A CPU each, by its number.
    pub cpus: Vec<CpuUse>,
    /// A receive queue each, by its number.
    pub queues: Vec<QueueUse>,
    /// An epoll context each, in the order in which [`Machine::new`](crate::Machine::new) got them.
    pub epolls: Vec<EpollUse>,
}

impl Snapshot {
    /// All counts of a machine's parts; its CPUs' accounts are up to date.
    pub(crate) fn of(
        at: Ns,
        host: &Host<()>,
        cpus: &[Cpu<'_>],
        queues: &[NicQueue],
        sockets: &Sockets,
    ) -> Snapshot {
        let cpu = |(id, cpu): (u16, &Cpu<'_>)| cpu.counts(host.cpu(CpuId(id)).counts());
        let queue = |(id, queue): (u16, &NicQueue)| QueueUse {
            napi: host.instance(Id(id)).counts(),
            nic: *queue.counts(),
        };
        Snapshot {
            at,
            cpus: (0..).zip(cpus).map(cpu).collect(),
            queues: (0..).zip(queues).map(queue).collect(),
            epolls: sockets.uses().collect(),
        }
    }

    /// The growth since an earlier snapshot of the same machine; `at` is the time between them.
    #[must_use]
    pub fn since(&self, earlier: &Snapshot) -> Snapshot {
        let cpus = self.cpus.iter().zip(&earlier.cpus).map(|(now, then)| CpuUse {
            used: std::array::from_fn(|i| now.used[i] - then.used[i]),
            polled_in_vain: now.polled_in_vain - then.polled_in_vain,
            waited: now.waited - then.waited,
            interrupts: now.interrupts - then.interrupts,
            switches: now.switches - then.switches,
            softirq: CpuCounts {
                net_rx: now.softirq.net_rx - then.softirq.net_rx,
                time_squeeze: now.softirq.time_squeeze - then.softirq.time_squeeze,
                dispatches: now.softirq.dispatches - then.softirq.dispatches,
                ksoftirqd_wakes: now.softirq.ksoftirqd_wakes - then.softirq.ksoftirqd_wakes,
            },
        });
        let queues = self.queues.iter().zip(&earlier.queues).map(|(now, then)| QueueUse {
            napi: now.napi.since(&then.napi),
            nic: now.nic.since(&then.nic),
        });
        let epolls = self.epolls.iter().zip(&earlier.epolls).map(|(now, then)| EpollUse {
            returns: now.returns - then.returns,
            events: now.events - then.events,
        });
        Snapshot {
            at: self.at - earlier.at,
            cpus: cpus.collect(),
            queues: queues.collect(),
            epolls: epolls.collect(),
        }
    }
}
