//! What the machine counts on top of the core's own counts.

use std::collections::BTreeMap;

use napkin_core::{Counts, CpuCounts, Ns};

use crate::host::segment::USES;

/// Counts of one NIC queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueCounts {
    /// Frames that reached the queue.
    pub arrived: u64,
    /// Of them: lost because the ring was full.
    pub ring_drops: u64,
    /// Frames handed to the stack.
    pub delivered: u64,
    /// Of them: lost because the socket was full.
    pub socket_drops: u64,
    /// Frames that the card has put on the wire.
    pub sent: u64,
    /// Interrupts that the card has raised, receive and transmit.
    pub interrupts: u64,
    /// Times that the instance's fallback timer was started.
    pub timer_starts: u64,
    /// Times that it expired.
    pub timer_expiries: u64,
    /// Times the watchdog found frames that nobody served.
    pub watchdog: u64,
}

impl QueueCounts {
    /// The growth since `earlier`.
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

/// Who was current on the CPU when a poll was made, as the kernel's tracer names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
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

/// What only a watcher counts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Seen {
    /// Polls by who was current, by budget and work.
    pub polls: BTreeMap<(Who, u16, u16), u64>,
    /// Waits that returned events, by how many.
    pub returns: BTreeMap<u32, u64>,
    /// Rounds of the network softirq.
    pub net_rx: u64,
    /// The queue whose polls are counted one by one; `None`: all.
    pub queue: Option<u16>,
    /// Whether polls and returns are counted one by one.
    pub detailed: bool,
}
