//! Delivery policies: one vocabulary for all worlds.
//!
//! A policy has four parts, because the modes are set in four places: the NAPI instance, the CPU, the epoll
//! context and the application. This file has the types and the rules that follow from them alone. The other
//! modules name policies (`preset`, `explain`, `named`), parse and print them (`parse`, `format`, `key`,
//! `takes`), and report errors (`error`, `nearest`, `warning`, `conflict`); `time` has the times that policies
//! contain, and `text` escapes untrusted names for printing. The effect of a setting in the engine, the machine
//! or the kernel is not decided here.
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

extern crate alloc;

mod conflict;
mod error;
mod explain;
mod format;
mod key;
mod named;
mod nearest;
mod parse;
mod preset;
pub mod text;
mod time;
mod value_kind;
mod warning;

use core::ops::RangeInclusive;

pub use conflict::Conflict;
pub use error::PolicyError;
pub use explain::{FAMILIES, Family, PRESETS, Preset};
pub use format::SpelledOut;
pub use key::{INSTANCE_KEYS, KEYS, Key, Value};
pub use named::NamedPolicy;
pub use nearest::nearest;
pub use preset::{DEFER_HARD_IRQS, HOLD, SUSPEND_TIMEOUT};
pub use time::{MICROSECOND, MILLISECOND, NEVER, Ns, Time, TimeError};
pub use value_kind::{MAX_COUNT, MAX_TIMEOUT, ValueKind};
pub use warning::Warning;

/// The numbers of microseconds in a family's name: `defer1` to `defer10000000`, which is [`MAX_TIMEOUT`].
pub const FAMILY_MICROSECONDS: RangeInclusive<u32> = 1..=10_000_000;

/// Frames of one busy-poll pass where the budget is 0 (the kernel's `BUSY_POLL_BUDGET`).
pub const DEFAULT_BUDGET: u16 = 8;

/// The largest epoll budget that needs no privilege (the kernel's `NAPI_POLL_WEIGHT`).
pub const UNPRIVILEGED_BUDGET: u16 = 64;

/// The longest time for which *feedback* leaves a queue unpolled.
pub const PARK_TIMEOUT: Ns = 20 * MILLISECOND;

/// The context that polls an instance once it is scheduled.
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

impl Threaded {
    /// All names, indexed by number: the kernel's three, and napkin's own.
    pub const NAMES: [&str; 4] = ["disabled", "enabled", "busy-poll", "workqueue"];

    /// Returns the mode of a number; `None` above that of [`Threaded::Workqueue`].
    pub const fn of(number: u64) -> Option<Threaded> {
        Some(match number {
            0 => Threaded::Disabled,
            1 => Threaded::Enabled,
            2 => Threaded::BusyPoll,
            3 => Threaded::Workqueue,
            _ => return None,
        })
    }

    /// Returns the mode of a name.
    pub fn named(name: &str) -> Option<Threaded> {
        let place = Threaded::NAMES.iter().position(|it| *it == name)?;
        Threaded::of(place as u64)
    }

    /// Its name in policies, in JSON and in the kernel's `netdev` family.
    pub const fn name(self) -> &'static str {
        Threaded::NAMES[self as usize]
    }
}

impl core::fmt::Display for Threaded {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(self.name())
    }
}

/// The part of a policy that is set on each NAPI instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InstancePolicy {
    /// The context that polls the instance.
    pub threaded: Threaded,
    /// The number of empty polls before interrupts are enabled again; at most [`MAX_COUNT`]. 0 switches
    /// deferral off.
    pub defer_hard_irqs: u32,
    /// Time between deferred polls; 0 switches deferral off.
    pub gro_flush_timeout: Ns,
    /// The longest suspension; 0 switches suspension off. Under `feedback` also the park timeout, see
    /// [`InstancePolicy::park_timeout`].
    pub irq_suspend_timeout: Ns,
    /// The time for which an instance stays in polled mode without work (2007); 0 is off.
    pub hold: Ns,
    /// The granularity of the end of a hold, as in a kernel that counts jiffies: a hold ends at the first
    /// multiple of this time after `hold` has passed. 0 is off: a hold ends to the nanosecond.
    pub hold_tick: Ns,
    /// Whether a queue whose receivers are full is not polled.
    pub feedback: bool,
}

impl InstancePolicy {
    /// Whether interrupts stay masked between polls, which takes both numbers.
    pub const fn defers(&self) -> bool {
        self.defer_hard_irqs != 0 && self.gro_flush_timeout != 0
    }

    /// Whether an application can suspend interrupts. Suspension masks nothing itself: it postpones the timer
    /// that deferral armed, so it needs deferral. [`Policy::suspends`] also requires an epoll context that
    /// prefers busy polling.
    pub const fn suspends(&self) -> bool {
        self.irq_suspend_timeout != 0 && self.defers()
    }

    /// The time for which deferral keeps interrupts masked after the last work: N periods. 0 without deferral;
    /// saturating.
    pub const fn deferral_span(&self) -> Ns {
        if !self.defers() {
            return 0;
        }
        (self.defer_hard_irqs as Ns).saturating_mul(self.gro_flush_timeout)
    }

    /// The longest time for which *feedback* leaves this queue unpolled: `irq_suspend_timeout` if there is one,
    /// and never more than [`PARK_TIMEOUT`].
    pub const fn park_timeout(&self) -> Ns {
        match self.irq_suspend_timeout {
            0 => PARK_TIMEOUT,
            timeout if timeout < PARK_TIMEOUT => timeout,
            _ => PARK_TIMEOUT,
        }
    }
}

/// The context that runs a CPU's network softirqs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NetSoftirq {
    /// Inline after the interrupt, within the kernel's limits.
    #[default]
    Inline,
    /// In ksoftirqd whenever another thread wants the CPU; other vectors stay inline (2018, as intended).
    Ksoftirqd,
    /// The 2018 patch as posted: its mask names HI and TIMER, and defers all pending softirqs.
    KsoftirqdAsPosted,
}

/// The part of a policy that is set on each CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuPolicy {
    /// The context that runs network softirqs.
    pub net_softirq: NetSoftirq,
    /// Whether pending softirqs run inline while ksoftirqd is runnable: true since Linux 6.5, false from 4.9 to
    /// 6.4.
    pub inline_while_ksoftirqd: bool,
}

impl Default for CpuPolicy {
    fn default() -> Self {
        CpuPolicy { net_softirq: NetSoftirq::Inline, inline_while_ksoftirqd: true }
    }
}

/// The part of a policy that is set on each epoll context (`EPIOCSPARAMS`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EpollPolicy {
    /// The longest busy poll in microseconds (the kernel's are of 1.024 us); at most `i32::MAX`.
    pub busy_poll_usecs: u32,
    /// Frames per pass; 0 means the default of 8; above 64 needs a privilege.
    pub busy_poll_budget: u16,
    /// Whether busy polling is preferred over softirqs.
    pub prefer_busy_poll: bool,
    /// Whether a wait whose busy poll found nothing keeps its NAPI id, so that the next one polls the same
    /// instance at once. No Linux has it, and `EPIOCSPARAMS` has no field for it: Linux drops the id, and does
    /// not busy poll until a packet arrives by way of the timer or an interrupt.
    pub keep_napi_id: bool,
}

impl EpollPolicy {
    /// Whether waits on this context busy poll at all: the kernel's rule, except for its system-wide switch.
    /// With `prefer_busy_poll` and 0 microseconds a wait makes exactly one pass.
    pub const fn enabled(&self) -> bool {
        self.busy_poll_usecs != 0 || self.prefer_busy_poll
    }

    /// Frames per pass, with the default in place of 0.
    pub const fn effective_budget(&self) -> u16 {
        effective_budget(self.busy_poll_budget)
    }

    /// Whether setting the budget needs `CAP_NET_ADMIN`: above [`UNPRIVILEGED_BUDGET`].
    pub const fn needs_budget_privilege(&self) -> bool {
        self.busy_poll_budget > UNPRIVILEGED_BUDGET
    }
}

/// Frames per pass, with the default in place of 0.
pub const fn effective_budget(budget: u16) -> u16 {
    if budget == 0 { DEFAULT_BUDGET } else { budget }
}

/// The thread that drives a socket's busy poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SocketPoller {
    /// The thread that receives.
    #[default]
    Inline,
    /// A separate thread that only makes receive calls which poll (2025, "separate").
    Separate,
}

/// The part of a policy that concerns the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ApplicationPolicy {
    /// Whether the application never sleeps: it waits again at once, and no wait lasts longer than the epoll's
    /// busy poll (2024, fullbusy). If the epoll has 0 microseconds, that is one pass with `prefer_busy_poll`,
    /// and no busy poll without.
    pub spin: bool,
    /// `SO_BUSY_POLL`: microseconds for which a receive call busy polls; 0 is off.
    pub socket_busy_poll_usecs: u32,
    /// `SO_BUSY_POLL_BUDGET`: frames per pass; 0 means the default of 8.
    pub socket_busy_poll_budget: u16,
    /// `SO_PREFER_BUSY_POLL`: the socket's instance defers its interrupt.
    pub socket_prefer_busy_poll: bool,
    /// The thread that drives the sockets' busy poll.
    pub socket_poller: SocketPoller,
}

impl ApplicationPolicy {
    /// Whether receive calls busy poll; if not, the other socket settings have no effect.
    pub const fn socket_busy_polls(&self) -> bool {
        self.socket_busy_poll_usecs != 0
    }

    /// Whether a separate thread busy polls the sockets.
    pub const fn has_poller(&self) -> bool {
        self.socket_busy_polls() && matches!(self.socket_poller, SocketPoller::Separate)
    }

    /// Whether setting the budget needs `CAP_NET_ADMIN`: any budget does, because the kernel requires it to
    /// raise one, and a new socket's is 0 (`sk_setsockopt`).
    pub const fn needs_budget_privilege(&self) -> bool {
        self.socket_busy_poll_budget != 0
    }

    /// Whether setting the preference needs `CAP_NET_ADMIN`. That of an epoll context does not.
    pub const fn needs_prefer_privilege(&self) -> bool {
        self.socket_prefer_busy_poll
    }
}

/// The call in which an application waits that follows its policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitsIn {
    /// An epoll wait, which busy polls: the policy's epoll part applies, its socket part does not.
    Epoll,
    /// Receive calls, which busy poll, or have another thread do so (`socket-poller=separate`): the socket part
    /// applies, and neither the epoll part nor `application=spin` does.
    Socket,
}

/// A delivery policy: the settings of all four places in which the modes are set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Policy {
    /// The settings of each NAPI instance.
    pub instance: InstancePolicy,
    /// The settings of each CPU that polls.
    pub cpu: CpuPolicy,
    /// The settings of each epoll context.
    pub epoll: EpollPolicy,
    /// The settings of the application.
    pub application: ApplicationPolicy,
}

impl Policy {
    /// Whether an application suspends interrupts while it finds events: the instance allows it, and the epoll
    /// context prefers busy polling.
    pub const fn suspends(&self) -> bool {
        self.instance.suspends()
            && self.epoll.prefer_busy_poll
            && !matches!(self.instance.threaded, Threaded::BusyPoll)
    }

    /// The call in which the application waits, of which a thread has one; `None` if neither busy polls, as it
    /// does not matter then. A policy that has both parts busy polls in the epoll, unless another thread polls
    /// the sockets: then the application sleeps in a receive call.
    pub const fn waits_in(&self) -> Option<WaitsIn> {
        if self.application.has_poller() {
            Some(WaitsIn::Socket)
        } else if self.epoll.enabled() {
            Some(WaitsIn::Epoll)
        } else if self.application.socket_busy_polls() {
            Some(WaitsIn::Socket)
        } else {
            None
        }
    }

    /// The time for which a packet may wait for the timer after an application's busy poll found nothing, and
    /// the epoll context dropped its NAPI id, or the application sleeps; `None` if it is at most 500 us, or
    /// cannot happen.
    pub const fn timer_wait_after_empty_busy_poll(&self) -> Option<Ns> {
        const SHORT: Ns = 500 * crate::MICROSECOND;
        let period = self.instance.gro_flush_timeout;
        let drops = matches!(self.waits_in(), Some(WaitsIn::Epoll))
            // An application that sleeps afterwards waits for the timer in any case.
            && !(self.epoll.keep_napi_id && self.application.spin)
            && self.instance.defers()
            && !matches!(self.instance.threaded, Threaded::BusyPoll);
        if drops && period > SHORT { Some(period) } else { None }
    }

    /// Whether a thread occupies a CPU even when nothing arrives: threaded busy poll, a spinning application,
    /// or a separate thread that busy polls the sockets.
    pub const fn spins_by_design(&self) -> bool {
        let separate = self.application.has_poller();
        // A receive call that busy polls sleeps eventually; if there is an epoll, the application waits in
        // that.
        let spins = self.application.spin
            && (self.epoll.enabled() || !self.application.socket_busy_polls());
        matches!(self.instance.threaded, Threaded::BusyPoll) || spins || separate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(text: &str) -> Policy {
        text.parse().expect(text)
    }

    #[test]
    fn deferral_takes_both_numbers() {
        assert!(policy("defer20").instance.defers());
        assert!(!policy("defer20,defer-hard-irqs=0").instance.defers());
        assert!(!policy("defer20,gro-flush-timeout=0").instance.defers());
        assert_eq!(policy("defer20").instance.deferral_span(), 2 * MILLISECOND);
        assert_eq!(policy("interrupts").instance.deferral_span(), 0);
        let longest = policy("defer-hard-irqs=2147483647,gro-flush-timeout=10s").instance;
        assert_eq!(longest.deferral_span(), Ns::MAX);
    }

    #[test]
    fn suspension_takes_deferral_and_an_epoll_that_prefers() {
        assert!(policy("suspend20").instance.suspends());
        assert!(policy("suspend20").suspends());
        assert!(!policy("suspend20,gro-flush-timeout=0").instance.suspends());
        assert!(policy("suspend20,epoll-prefer-busy-poll=off").instance.suspends());
        assert!(!policy("suspend20,epoll-prefer-busy-poll=off").suspends());
        assert!(!policy("suspend20,threaded=busy-poll").suspends());
    }

    #[test]
    fn epoll_busy_polls_by_time_or_by_preference() {
        assert!(!policy("base").epoll.enabled());
        assert!(policy("suspend20").epoll.enabled());
        assert!(policy("epoll-busy-poll-usecs=1").epoll.enabled());
        assert_eq!(policy("base").epoll.effective_budget(), 8);
        assert_eq!(policy("napibusy").epoll.effective_budget(), 64);
    }

    #[test]
    fn only_a_long_timer_behind_a_busy_poll_is_waited_for() {
        let waits = |text: &str| policy(text).timer_wait_after_empty_busy_poll();
        assert_eq!(waits("fullbusy"), Some(5 * MILLISECOND));
        // One pass per wait is a busy poll, too.
        assert_eq!(waits("suspend5000"), Some(5 * MILLISECOND));
        // An application that sleeps waits for the timer in any case.
        let sleeps = "napibusy,gro-flush-timeout=5ms,epoll-keep-napi-id=on";
        assert_eq!(waits(sleeps), Some(5 * MILLISECOND));
        // Another thread polls meanwhile.
        let polled = "fullbusy,socket-busy-poll-usecs=50,socket-poller=separate";
        let kept = "fullbusy,epoll-keep-napi-id=on";
        for text in ["napibusy", "suspend200", "defer5000", kept, polled] {
            assert_eq!(waits(text), None, "{text}");
        }
    }

    #[test]
    fn the_park_timeout_is_bounded() {
        let parks = |text: &str| policy(text).instance.park_timeout();
        assert_eq!(parks("feedback"), PARK_TIMEOUT);
        assert_eq!(parks("feedback,irq-suspend-timeout=5ms"), 5 * MILLISECOND);
        assert_eq!(parks("feedback,irq-suspend-timeout=5s"), PARK_TIMEOUT);
    }

    #[test]
    fn spinning_is_a_design_and_a_bounded_busy_poll_is_not() {
        let with_usecs = "fullbusy,socket-busy-poll-usecs=50";
        for text in ["threaded-busy-poll", "fullbusy", "busypoll-separate", with_usecs] {
            assert!(policy(text).spins_by_design(), "{text}");
        }
        let sleeps = "busypoll,application=spin";
        for text in
            ["base", "hold", "napibusy", "suspend20", "busypoll", "socket-poller=separate", sleeps]
        {
            assert!(!policy(text).spins_by_design(), "{text}");
        }
    }

    #[test]
    fn a_policy_of_both_parts_waits_in_one_of_them() {
        let waits = |text: &str| policy(text).waits_in();
        for text in ["base", "defer20", "threaded-busy-poll", "socket-poller=separate"] {
            assert_eq!(waits(text), None, "{text}");
        }
        let both = "napibusy,socket-busy-poll-usecs=50";
        for text in ["suspend20", "napibusy", "fullbusy", both] {
            assert_eq!(waits(text), Some(WaitsIn::Epoll), "{text}");
        }
        let separate = "napibusy,socket-busy-poll-usecs=50,socket-poller=separate";
        for text in ["busypoll", "busypoll-separate", separate] {
            assert_eq!(waits(text), Some(WaitsIn::Socket), "{text}");
        }
        assert!(
            policy(separate).application.has_poller() && !policy(both).application.has_poller()
        );
    }

    #[test]
    fn privileges_are_asked_for_where_the_kernel_asks() {
        let epoll = |text: &str| policy(text).epoll.needs_budget_privilege();
        let socket = |text: &str| policy(text).application.needs_budget_privilege();
        let prefer = |text: &str| policy(text).application.needs_prefer_privilege();
        assert!(!epoll("suspend20") && epoll("suspend20,epoll-busy-poll-budget=65"));
        assert!(!socket("busypoll") && socket("busypoll,socket-busy-poll-budget=1"));
        assert!(prefer("busypoll") && !prefer("fullbusy"));
    }

    #[test]
    fn a_family_reaches_the_longest_timeout() {
        let most = Ns::from(*FAMILY_MICROSECONDS.end()) * crate::MICROSECOND;
        assert_eq!(most, MAX_TIMEOUT);
    }
}
