//! A delivery policy: one vocabulary for all worlds. (Parser and presets in the commits that follow.)

use crate::Ns;

/// Who polls an instance once it is scheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Threaded {
    /// The CPU's softirq (netlink value `disabled`, 0).
    #[default]
    Disabled = 0,
    /// The instance's own thread (`enabled`, 1).
    Enabled = 1,
    /// The instance's own thread, which never stops polling (`busy-poll`, 2).
    BusyPoll = 2,
    /// A worker of the shared pool; the kernel has no such mode (`workqueue`, 3).
    Workqueue = 3,
}

/// What a policy sets on each NAPI instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InstancePolicy {
    /// Who polls.
    pub threaded: Threaded,
    /// Empty polls before interrupts are allowed again; at most `i32::MAX`.
    pub defer_hard_irqs: u32,
    /// Time between deferred polls; 0 switches deferral off.
    pub gro_flush_timeout: Ns,
    /// Longest suspension; 0 switches suspension off.
    pub irq_suspend_timeout: Ns,
    /// How long an instance stays in polled mode without work (2007); 0 is off.
    pub hold: Ns,
    /// Whether a full receiver stops its queue's polling.
    pub feedback: bool,
}

/// Where a CPU's network softirqs run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NetSoftirq {
    /// Inline after the interrupt, within the kernel's limits.
    #[default]
    Inline,
    /// In ksoftirqd whenever another thread wants the CPU; other vectors stay inline (2018, as meant).
    Ksoftirqd,
    /// The 2018 patch as posted: its mask names HI and TIMER, and defers the whole pending set.
    KsoftirqdAsPosted,
}

/// What a policy sets on each CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuPolicy {
    /// Where network softirqs run.
    pub net_softirq: NetSoftirq,
    /// Whether pending softirqs run inline while ksoftirqd is runnable: so since Linux 6.5, not so
    /// from 4.9 to 6.4.
    pub inline_while_ksoftirqd: bool,
}

impl Default for CpuPolicy {
    fn default() -> Self {
        CpuPolicy { net_softirq: NetSoftirq::Inline, inline_while_ksoftirqd: true }
    }
}

/// What a policy sets on each epoll context (`EPIOCSPARAMS`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EpollPolicy {
    /// Longest busy poll in microseconds (the kernel's are of 1.024 us); at most `i32::MAX`.
    pub busy_poll_usecs: u32,
    /// Frames a pass; 0 means the default of 8; above 64 needs a privilege.
    pub busy_poll_budget: u16,
    /// Prefer busy polling over softirqs.
    pub prefer_busy_poll: bool,
}

/// Who drives a socket's busy poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SocketPoller {
    /// The thread that receives.
    #[default]
    Inline,
    /// A thread of its own that does nothing but receive calls which poll (2025, "separate").
    Separate,
}

/// What a policy asks of the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ApplicationPolicy {
    /// The application waits with a zero timeout in a loop and never sleeps (2024, fullbusy).
    pub spin: bool,
    /// `SO_BUSY_POLL`: microseconds a receive call busy polls; 0 is off.
    pub socket_busy_poll_usecs: u32,
    /// `SO_BUSY_POLL_BUDGET`: frames a pass; 0 means the default of 8.
    pub socket_busy_poll_budget: u16,
    /// `SO_PREFER_BUSY_POLL`.
    pub socket_prefer_busy_poll: bool,
    /// Who drives the sockets' busy poll.
    pub socket_poller: SocketPoller,
}

/// A delivery policy: one value for all four places in which the modes live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Policy {
    /// Each NAPI instance.
    pub instance: InstancePolicy,
    /// Each CPU.
    pub cpu: CpuPolicy,
    /// Each epoll context.
    pub epoll: EpollPolicy,
    /// The application.
    pub application: ApplicationPolicy,
}
