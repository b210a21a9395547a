//! A delivery policy: one vocabulary for all worlds.
//!
//! A policy has four parts, because the modes live in four places: the NAPI instance, the CPU, the
//! epoll context and the application. Here are the types and the rules that follow from them alone;
//! the files beside this one give names to values (`preset`, `explain`), read and print them
//! (`parse`, `format`, `key`), and say what is wrong with them (`error`, `warning`, `conflict`); `time`
//! has the times they are written in, and `text` makes names that are printed beside them harmless.
//! What a setting makes the engine, the machine or the kernel do is not decided here.
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
mod takes;
pub mod text;
mod time;
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
pub use takes::{MAX_COUNT, MAX_TIMEOUT, Takes};
pub use time::{MICROSECOND, MILLISECOND, NEVER, Ns, Time, TimeError};
pub use warning::Warning;

/// Microseconds that a family's name takes: `defer1` to `defer10000000`, which is [`MAX_TIMEOUT`].
pub const FAMILY_MICROSECONDS: RangeInclusive<u32> = 1..=10_000_000;

/// Frames of one busy-poll pass where the budget is 0 (the kernel's `BUSY_POLL_BUDGET`).
pub const DEFAULT_BUDGET: u16 = 8;

/// The largest epoll budget that needs no privilege (the kernel's `NAPI_POLL_WEIGHT`).
pub const UNPRIVILEGED_BUDGET: u16 = 64;

/// Longest that *feedback* leaves a queue unpolled.
pub const PARK_TIMEOUT: Ns = 20 * MILLISECOND;

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

impl Threaded {
    /// The names of all, each at its number: the kernel's three, and ours.
    pub const NAMES: [&str; 4] = ["disabled", "enabled", "busy-poll", "workqueue"];

    /// That of a number; `None` above [`Threaded::Workqueue`]'s.
    pub const fn of(number: u64) -> Option<Threaded> {
        Some(match number {
            0 => Threaded::Disabled,
            1 => Threaded::Enabled,
            2 => Threaded::BusyPoll,
            3 => Threaded::Workqueue,
            _ => return None,
        })
    }

    /// That of a name.
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

/// What a policy sets on each NAPI instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InstancePolicy {
    /// Who polls the instance.
    pub threaded: Threaded,
    /// Empty polls before interrupts are allowed again; at most [`MAX_COUNT`]. 0 switches deferral
    /// off.
    pub defer_hard_irqs: u32,
    /// Time between deferred polls; 0 switches deferral off.
    pub gro_flush_timeout: Ns,
    /// Longest suspension; 0 switches suspension off. Under `feedback` also the park timeout, see
    /// [`InstancePolicy::park_timeout`].
    pub irq_suspend_timeout: Ns,
    /// How long an instance stays in polled mode without work (2007); 0 is off.
    pub hold: Ns,
    /// The tick of the clock at which alone a hold may end, as in a kernel that counts jiffies: it
    /// then ends at the first multiple of this time after `hold` has passed. 0 is off: a hold ends
    /// to the nanosecond.
    pub hold_tick: Ns,
    /// Whether a full receiver stops its queue's polling.
    pub feedback: bool,
}

impl InstancePolicy {
    /// Whether interrupts stay masked between polls: it takes both numbers.
    pub const fn defers(&self) -> bool {
        self.defer_hard_irqs != 0 && self.gro_flush_timeout != 0
    }

    /// Whether an application can suspend interrupts. Suspension masks nothing itself: it puts off
    /// the timer that deferral armed, so without deferral there is nothing to suspend. That the
    /// epoll context must prefer busy polling is the [`Policy`]'s to know: [`Policy::suspends`].
    pub const fn suspends(&self) -> bool {
        self.irq_suspend_timeout != 0 && self.defers()
    }

    /// How long deferral keeps interrupts masked after the last work: N periods. 0 without
    /// deferral; saturating.
    pub const fn deferral_span(&self) -> Ns {
        if !self.defers() {
            return 0;
        }
        (self.defer_hard_irqs as Ns).saturating_mul(self.gro_flush_timeout)
    }

    /// Longest that *feedback* leaves this queue unpolled: `irq_suspend_timeout` if there is one,
    /// and never more than [`PARK_TIMEOUT`].
    pub const fn park_timeout(&self) -> Ns {
        match self.irq_suspend_timeout {
            0 => PARK_TIMEOUT,
            timeout if timeout < PARK_TIMEOUT => timeout,
            _ => PARK_TIMEOUT,
        }
    }
}

/// Where a CPU's network softirqs run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NetSoftirq {
    /// Inline after the interrupt, within the kernel's limits.
    #[default]
    Inline,
    /// In ksoftirqd whenever another thread wants the CPU; other vectors stay inline (2018, as
    /// meant).
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
    /// A wait whose busy poll found nothing keeps its NAPI id, and the next one polls the same
    /// instance at once. No Linux has it: there the id is dropped, and until a packet comes by way of
    /// the timer or of an interrupt nobody busy polls. `EPIOCSPARAMS` has no room for it.
    pub keep_napi_id: bool,
}

impl EpollPolicy {
    /// Whether waits on this context busy poll at all: the kernel's rule, less its system-wide
    /// switch. With `prefer_busy_poll` and 0 microseconds a wait makes exactly one pass.
    pub const fn enabled(&self) -> bool {
        self.busy_poll_usecs != 0 || self.prefer_busy_poll
    }

    /// Frames a pass, with the default in the place of 0.
    pub const fn effective_budget(&self) -> u16 {
        effective_budget(self.busy_poll_budget)
    }

    /// Whether setting the budget needs `CAP_NET_ADMIN`: above [`UNPRIVILEGED_BUDGET`].
    pub const fn needs_budget_privilege(&self) -> bool {
        self.busy_poll_budget > UNPRIVILEGED_BUDGET
    }
}

/// Frames a pass, with the default in the place of 0.
pub const fn effective_budget(budget: u16) -> u16 {
    if budget == 0 { DEFAULT_BUDGET } else { budget }
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
    /// The application never sleeps: it waits again at once, and no wait lasts longer than the
    /// epoll's busy poll (2024, fullbusy). Where the epoll has 0 microseconds that is one pass with
    /// `prefer_busy_poll`; without, no wait busy polls.
    pub spin: bool,
    /// `SO_BUSY_POLL`: microseconds a receive call busy polls; 0 is off.
    pub socket_busy_poll_usecs: u32,
    /// `SO_BUSY_POLL_BUDGET`: frames a pass; 0 means the default of 8.
    pub socket_busy_poll_budget: u16,
    /// `SO_PREFER_BUSY_POLL`: the socket's instance defers its interrupt.
    pub socket_prefer_busy_poll: bool,
    /// Who drives the sockets' busy poll.
    pub socket_poller: SocketPoller,
}

impl ApplicationPolicy {
    /// Whether receive calls busy poll at all; without, the other socket settings mean nothing.
    pub const fn socket_busy_polls(&self) -> bool {
        self.socket_busy_poll_usecs != 0
    }

    /// Whether that is done by a thread of its own.
    pub const fn has_poller(&self) -> bool {
        self.socket_busy_polls() && matches!(self.socket_poller, SocketPoller::Separate)
    }

    /// Whether setting the budget needs `CAP_NET_ADMIN`: any does, as the kernel lets nobody else
    /// raise one, and a new socket's is 0 (`sk_setsockopt`).
    pub const fn needs_budget_privilege(&self) -> bool {
        self.socket_busy_poll_budget != 0
    }

    /// Whether setting the preference needs `CAP_NET_ADMIN`. An epoll context's needs none.
    pub const fn needs_prefer_privilege(&self) -> bool {
        self.socket_prefer_busy_poll
    }
}

/// In what an application waits that does as its policy says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitsIn {
    /// In an epoll, which busy polls: the policy's epoll part counts, and its socket part does not.
    Epoll,
    /// In receive calls, which busy poll, or have another thread do so (`socket-poller=separate`): the
    /// socket part counts, and neither the epoll part nor `application=spin` does.
    Socket,
}

/// A delivery policy: one value for all four places in which the modes live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Policy {
    /// Each NAPI instance.
    pub instance: InstancePolicy,
    /// What holds for each CPU that polls.
    pub cpu: CpuPolicy,
    /// Each epoll context.
    pub epoll: EpollPolicy,
    /// How the application waits.
    pub application: ApplicationPolicy,
}

impl Policy {
    /// Whether an application suspends interrupts while it finds events: the instance can, and the
    /// epoll context prefers busy polling.
    pub const fn suspends(&self) -> bool {
        self.instance.suspends()
            && self.epoll.prefer_busy_poll
            && !matches!(self.instance.threaded, Threaded::BusyPoll)
    }

    /// In what the application waits, of which a thread has one; `None` where neither busy polls, and so it does
    /// not matter. A policy that has both parts busy polls in the epoll, unless another thread polls the
    /// sockets: beside that the application sleeps in a receive call.
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

    /// How long a packet may wait for the timer after an application's busy poll has found nothing,
    /// and its epoll context has dropped its NAPI id, or it sleeps; `None` where that is at most 500 us, or cannot be.
    pub const fn waits_after_vain_poll(&self) -> Option<Ns> {
        const SHORT: Ns = 500 * crate::MICROSECOND;
        let period = self.instance.gro_flush_timeout;
        let drops = matches!(self.waits_in(), Some(WaitsIn::Epoll))
            // One that sleeps afterwards waits for the timer all the same.
            && !(self.epoll.keep_napi_id && self.application.spin)
            && self.instance.defers()
            && !matches!(self.instance.threaded, Threaded::BusyPoll);
        if drops && period > SHORT { Some(period) } else { None }
    }

    /// Whether a thread occupies a CPU even when nothing arrives: threaded busy poll, an
    /// application that spins, or a separate thread that busy polls the sockets.
    pub const fn spins_by_design(&self) -> bool {
        let separate = self.application.has_poller();
        // A receive call that busy polls sleeps in the end; where there is an epoll, that is waited in.
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
        let waits = |text: &str| policy(text).waits_after_vain_poll();
        assert_eq!(waits("fullbusy"), Some(5 * MILLISECOND));
        // One pass a wait is a busy poll, too.
        assert_eq!(waits("suspend5000"), Some(5 * MILLISECOND));
        // Who sleeps waits for it all the same.
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
        let beside = "fullbusy,socket-busy-poll-usecs=50";
        for text in ["threaded-busy-poll", "fullbusy", "busypoll-separate", beside] {
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
        let apart = "napibusy,socket-busy-poll-usecs=50,socket-poller=separate";
        for text in ["busypoll", "busypoll-separate", apart] {
            assert_eq!(waits(text), Some(WaitsIn::Socket), "{text}");
        }
        assert!(policy(apart).application.has_poller() && !policy(both).application.has_poller());
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
