//! Snapshots of a machine's counts, and their growth over a window.

use napkin_core::{CpuCounts, CpuId, Host, Id, Ns};

use crate::counts::{CpuUse, EpollUse, QueueUse};
use crate::host::cpu::Cpu;
use crate::net::NicQueue;
use crate::net::sockets::Sockets;

/// All counts of a machine at one moment, or, from [`Snapshot::since`], their growth over a window.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// Virtual time in nanoseconds.
    pub at: Ns,
    /// Per CPU, by number.
    pub cpus: Vec<CpuUse>,
    /// Per receive queue, by number.
    pub queues: Vec<QueueUse>,
    /// Per epoll context, in the order in which [`Machine::new`](crate::Machine::new) got them.
    pub epolls: Vec<EpollUse>,
}

impl Snapshot {
    /// Collects the counts of a machine's parts. The CPUs' time accounts must be up to date.
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

    /// Returns the growth since an earlier snapshot of the same machine; `at` is then the elapsed time.
    #[must_use]
    pub fn since(&self, earlier: &Snapshot) -> Snapshot {
        let cpus = self.cpus.iter().zip(&earlier.cpus).map(|(now, then)| CpuUse {
            used: std::array::from_fn(|i| now.used[i] - then.used[i]),
            empty_poll_time: now.empty_poll_time - then.empty_poll_time,
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
