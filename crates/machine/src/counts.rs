//! The machine's counts, which supplement the core's.

use std::collections::BTreeMap;

use napkin_core::{Counts, CpuCounts, Ns};

use crate::host::segment::USES;

/// Counts of one NIC queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueCounts {
    /// Frames that reached the queue.
    pub arrived: u64,
    /// Of those: dropped because the ring was full.
    pub ring_drops: u64,
    /// Frames handed to the stack.
    pub delivered: u64,
    /// Of those: dropped because the socket was full.
    pub socket_drops: u64,
    /// Frames given to the card for transmission.
    pub sent: u64,
    /// Interrupts that the card has raised, for receive and transmit.
    pub interrupts: u64,
    /// Starts of the instance's fallback timer.
    pub timer_starts: u64,
    /// Expiries of that timer.
    pub timer_expiries: u64,
    /// Times that the watchdog found frames or completions waiting, without an owner and without a poll since it last
    /// ran.
    pub watchdog: u64,
}

impl QueueCounts {
    /// Returns the growth since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &QueueCounts) -> QueueCounts {
        QueueCounts {
            arrived: self.arrived - earlier.arrived,
            ring_drops: self.ring_drops - earlier.ring_drops,
            delivered: self.delivered - earlier.delivered,
            socket_drops: self.socket_drops - earlier.socket_drops,
            sent: self.sent - earlier.sent,
            interrupts: self.interrupts - earlier.interrupts,
            timer_starts: self.timer_starts - earlier.timer_starts,
            timer_expiries: self.timer_expiries - earlier.timer_expiries,
            watchdog: self.watchdog - earlier.watchdog,
        }
    }
}

/// How one CPU spent its time, and what happened on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuUse {
    /// Nanoseconds by [`Use`](crate::Use).
    pub used: [Ns; USES],
    /// Nanoseconds of that: empty rounds of threads and empty polls of softirqs.
    pub empty_poll_time: Ns,
    /// Nanoseconds that runnable threads have waited for this CPU, summed (run-queue delay).
    pub waited: Ns,
    /// Hard interrupts of any kind.
    pub interrupts: u64,
    /// Context switches, to and from the idle task included.
    pub switches: u64,
    /// The core's counts of its softirqs.
    pub softirq: CpuCounts,
}

/// The counts of one queue, by the core and by the card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueUse {
    /// The core's counts of the queue's instance.
    pub napi: Counts,
    /// The card's counts of the queue.
    pub nic: QueueCounts,
}

/// The results of the waits on one epoll context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EpollUse {
    /// Waits that returned events.
    pub returns: u64,
    /// Events returned by those waits, summed.
    pub events: u64,
}

/// The task that was current on the CPU during a poll, as the kernel's tracer names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CurrentTask {
    /// The idle task: the poll ran in a softirq on an idle CPU.
    Idle,
    /// A thread of an application.
    App,
    /// ksoftirqd of the CPU on which the poll was made.
    Ksoftirqd,
    /// An instance's own thread.
    Kthread,
    /// A worker of the pool.
    Worker,
}

/// Detailed counts, which are collected only on request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DetailedCounts {
    /// Polls, by the current task, the budget and the frames taken.
    pub polls: BTreeMap<(CurrentTask, u16, u16), u64>,
    /// Waits that returned events, by the number of events.
    pub returns: BTreeMap<u32, u64>,
    /// Rounds of the network softirq.
    pub net_rx: u64,
    /// The only queue whose polls enter `polls`; `None`: all queues.
    pub queue: Option<u16>,
    /// Whether `polls` and `returns` are collected.
    pub detailed: bool,
}
