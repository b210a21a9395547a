//! The presets as constants: each proposal's own configurations.
//!
//! A constructor defines the values; the names and their descriptions are in `explain.rs`. Numbers come from
//! the proposals; where a proposal left a number open, the comment names its source.

use super::{
    ApplicationPolicy, CpuPolicy, EpollPolicy, InstancePolicy, NetSoftirq, Policy, SocketPoller,
    Threaded,
};
use crate::{MICROSECOND, MILLISECOND, Ns};

/// The number of empty polls before interrupts return, in every published configuration that defers.
pub const DEFER_HARD_IRQS: u32 = 100;

/// The safety timeout of every published configuration that suspends.
pub const SUSPEND_TIMEOUT: Ns = 20 * MILLISECOND;

/// The time of `hold` without a number. The 2007 proposal held for one or two jiffies, which depends on the
/// kernel's configuration; this value is napkin's choice.
pub const HOLD: Ns = 100 * MICROSECOND;

/// Frames per pass in the published configurations that busy poll through epoll; the largest that needs no
/// privilege.
const PUBLISHED_BUDGET: u16 = 64;

/// The timer period of all four configurations of the 2025 document.
const PERIOD_2025: Ns = 15 * MICROSECOND;

/// `net.core.busy_read` in the 2025 document's busy-poll configurations.
const BUSY_READ_2025: u32 = 400;

impl Policy {
    /// `base`: all features off; Linux as it is since 6.5.
    pub const BASE: Policy = Policy {
        instance: InstancePolicy {
            threaded: Threaded::Disabled,
            defer_hard_irqs: 0,
            gro_flush_timeout: 0,
            irq_suspend_timeout: 0,
            hold: 0,
            hold_tick: 0,
            feedback: false,
        },
        cpu: CpuPolicy { net_softirq: NetSoftirq::Inline, inline_while_ksoftirqd: true },
        epoll: EpollPolicy {
            busy_poll_usecs: 0,
            busy_poll_budget: 0,
            prefer_busy_poll: false,
            keep_napi_id: false,
        },
        application: ApplicationPolicy {
            spin: false,
            socket_busy_poll_usecs: 0,
            socket_busy_poll_budget: 0,
            socket_prefer_busy_poll: false,
            socket_poller: SocketPoller::Inline,
        },
    };

    /// `base-6.4`: Linux 4.9 to 6.4, where no softirq runs inline while ksoftirqd is runnable.
    pub const BASE_6_4: Policy = Policy {
        cpu: CpuPolicy { inline_while_ksoftirqd: false, ..Policy::BASE.cpu },
        ..Policy::BASE
    };

    /// `hold`, `holdN`: goes on polling for `time` after the last work.
    pub const fn hold(time: Ns) -> Policy {
        Policy { instance: InstancePolicy { hold: time, ..Policy::BASE.instance }, ..Policy::BASE }
    }

    /// The 2007 patch as posted, on a kernel with `hz` ticks a second: it stores the second jiffy from now and
    /// leaves polled mode when that one is over, so it holds for two to three jiffies. It has no name, because
    /// it depends on the kernel's configuration.
    ///
    /// # Panics
    /// If `hz` is 0, or more than the number of nanoseconds in a second.
    pub const fn hold_ticks(hz: u32) -> Policy {
        let tick = 1_000 * MILLISECOND / hz as Ns;
        assert!(tick > 0, "a tick shorter than a nanosecond");
        let hold = Policy::hold(2 * tick);
        Policy { instance: InstancePolicy { hold_tick: tick, ..hold.instance }, ..hold }
    }

    /// `ksoftirqd`: the 2018 proposal with the mask that was intended.
    pub const KSOFTIRQD: Policy = Policy {
        cpu: CpuPolicy { net_softirq: NetSoftirq::Ksoftirqd, ..Policy::BASE.cpu },
        ..Policy::BASE
    };

    /// `ksoftirqd-as-posted`: the 2018 proposal literally. The kernel that it patches has the rule of 4.9 to
    /// 6.4, and the patch keeps it: most of the effect comes from the two together.
    pub const KSOFTIRQD_AS_POSTED: Policy = Policy {
        cpu: CpuPolicy {
            net_softirq: NetSoftirq::KsoftirqdAsPosted,
            inline_while_ksoftirqd: false,
        },
        ..Policy::BASE
    };

    /// `threaded`: each instance polled by a thread of its own.
    pub const THREADED: Policy = Policy::polled_by(Threaded::Enabled);

    /// `workqueue`: each instance polled by any free worker of a shared pool.
    pub const WORKQUEUE: Policy = Policy::polled_by(Threaded::Workqueue);

    const fn polled_by(threaded: Threaded) -> Policy {
        Policy { instance: InstancePolicy { threaded, ..Policy::BASE.instance }, ..Policy::BASE }
    }

    /// `deferN`: 100 empty polls, `time` apart, before interrupts return.
    pub const fn defer(time: Ns) -> Policy {
        Policy {
            instance: InstancePolicy {
                defer_hard_irqs: DEFER_HARD_IRQS,
                gro_flush_timeout: time,
                ..Policy::BASE.instance
            },
            ..Policy::BASE
        }
    }

    /// `suspendN`: `deferN`, and interrupts suspended for as long as the application finds events.
    pub const fn suspend(time: Ns) -> Policy {
        let defer = Policy::defer(time);
        Policy {
            instance: InstancePolicy { irq_suspend_timeout: SUSPEND_TIMEOUT, ..defer.instance },
            epoll: EpollPolicy {
                busy_poll_usecs: 0,
                busy_poll_budget: PUBLISHED_BUDGET,
                prefer_busy_poll: true,
                ..Policy::BASE.epoll
            },
            ..defer
        }
    }

    /// `napibusy`: the application busy polls for 64 us before it sleeps.
    pub const NAPIBUSY: Policy = Policy {
        epoll: EpollPolicy {
            busy_poll_usecs: 64,
            busy_poll_budget: PUBLISHED_BUDGET,
            prefer_busy_poll: true,
            ..Policy::BASE.epoll
        },
        ..Policy::defer(200 * MICROSECOND)
    };

    /// `fullbusy`: the application busy polls and never sleeps.
    pub const FULLBUSY: Policy = Policy {
        epoll: EpollPolicy {
            busy_poll_usecs: 1_000,
            busy_poll_budget: PUBLISHED_BUDGET,
            prefer_busy_poll: true,
            ..Policy::BASE.epoll
        },
        application: ApplicationPolicy { spin: true, ..Policy::BASE.application },
        ..Policy::defer(5 * MILLISECOND)
    };

    /// `interrupts`: the 2025 document's first configuration. Its script leaves the timer's period
    /// set; without deferral, only the kernel's ageing of GRO packets uses it.
    pub const INTERRUPTS: Policy = Policy {
        instance: InstancePolicy { gro_flush_timeout: PERIOD_2025, ..Policy::BASE.instance },
        ..Policy::BASE
    };

    /// `busypoll`: sockets of the 2025 document, busy polled by the receiving thread. The times are those of
    /// its script, the preference is named in its change log, and no budget is set anywhere, so the default of
    /// 8 applies.
    pub const BUSYPOLL: Policy = Policy {
        application: ApplicationPolicy {
            socket_busy_poll_usecs: BUSY_READ_2025,
            socket_prefer_busy_poll: true,
            ..Policy::BASE.application
        },
        ..Policy::defer(PERIOD_2025)
    };

    /// `busypoll-separate`: the same, polled by a thread that does nothing else.
    pub const BUSYPOLL_SEPARATE: Policy = Policy {
        application: ApplicationPolicy {
            socket_poller: SocketPoller::Separate,
            ..Policy::BUSYPOLL.application
        },
        ..Policy::BUSYPOLL
    };

    /// `threaded-busy-poll`: each instance polled without end by a thread of its own. The deferral is that of
    /// the document: it takes effect when the mode is left.
    pub const THREADED_BUSY_POLL: Policy = {
        let defer = Policy::defer(PERIOD_2025);
        Policy {
            instance: InstancePolicy { threaded: Threaded::BusyPoll, ..defer.instance },
            ..defer
        }
    };

    /// `feedback`: a queue whose receivers are full is not polled. `irq_suspend_timeout` stays 0, which leaves
    /// the park timeout at [`PARK_TIMEOUT`](super::PARK_TIMEOUT).
    pub const FEEDBACK: Policy = Policy {
        instance: InstancePolicy { feedback: true, ..Policy::BASE.instance },
        ..Policy::BASE
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preset(name: &str) -> Policy {
        name.parse().expect(name)
    }

    #[test]
    fn base_is_the_default() {
        assert_eq!(Policy::BASE, Policy::default());
    }

    #[test]
    fn the_2024_configurations_are_as_published() {
        // (name, N, T, suspension, epoll usecs, budget, prefer, spins)
        let published = [
            ("base", 0, 0, 0, 0, 0, false, false),
            ("defer20", 100, 20_000, 0, 0, 0, false, false),
            ("defer200", 100, 200_000, 0, 0, 0, false, false),
            ("napibusy", 100, 200_000, 0, 64, 64, true, false),
            ("fullbusy", 100, 5_000_000, 0, 1_000, 64, true, true),
            ("suspend20", 100, 20_000, 20_000_000, 0, 64, true, false),
            ("suspend200", 100, 200_000, 20_000_000, 0, 64, true, false),
        ];
        for (name, n, t, suspension, usecs, budget, prefer, spin) in published {
            let Policy { instance, epoll, application, .. } = preset(name);
            assert_eq!(
                (instance.defer_hard_irqs, instance.gro_flush_timeout),
                (n, t),
                "{name}: deferral"
            );
            assert_eq!(instance.irq_suspend_timeout, suspension, "{name}: suspension");
            let expected = EpollPolicy {
                busy_poll_usecs: usecs,
                busy_poll_budget: budget,
                prefer_busy_poll: prefer,
                keep_napi_id: false,
            };
            assert_eq!(epoll, expected, "{name}: epoll");
            assert_eq!(application.spin, spin, "{name}: application");
        }
    }

    #[test]
    fn the_2025_configurations_differ_in_one_thing_each() {
        let [interrupts, inline, separate, threaded] =
            ["interrupts", "busypoll", "busypoll-separate", "threaded-busy-poll"].map(preset);
        for policy in [interrupts, inline, separate, threaded] {
            assert_eq!(policy.instance.gro_flush_timeout, 15_000);
        }
        assert_eq!(interrupts.instance.defer_hard_irqs, 0);
        assert_eq!(threaded.instance.defer_hard_irqs, 100);
        assert_eq!(threaded.instance.threaded, Threaded::BusyPoll);
        assert_eq!(inline.application.socket_busy_poll_usecs, 400);
        assert_eq!(inline.application.socket_poller, SocketPoller::Inline);
        assert_eq!(separate.application.socket_poller, SocketPoller::Separate);
        assert_eq!(separate.instance, inline.instance);
    }

    #[test]
    fn the_posted_patch_keeps_the_rule_of_its_kernel_and_the_meant_one_does_not_need_it() {
        assert!(!preset("ksoftirqd-as-posted").cpu.inline_while_ksoftirqd);
        assert!(preset("ksoftirqd").cpu.inline_while_ksoftirqd);
        assert!(!preset("base-6.4").cpu.inline_while_ksoftirqd);
        assert_eq!(preset("base-6.4").cpu.net_softirq, NetSoftirq::Inline);
    }

    #[test]
    fn hold_without_a_number_holds_for_a_hundred_microseconds() {
        assert_eq!(preset("hold").instance.hold, 100 * MICROSECOND);
        assert_eq!(preset("hold"), preset("hold100"));
    }

    #[test]
    fn the_2007_patch_counts_jiffies() {
        let posted = Policy::hold_ticks(250);
        assert_eq!(posted.to_string(), "hold=8ms,hold-tick=4ms");
        assert_eq!("hold8000,hold-tick=4ms".parse(), Ok(posted));
        assert_eq!(Policy::hold_ticks(1_000).instance.hold, 2 * MILLISECOND);
    }

    #[test]
    fn feedback_brings_no_hold_and_leaves_the_park_timeout_at_its_default() {
        let feedback = preset("feedback").instance;
        assert!(feedback.feedback);
        assert_eq!((feedback.hold, feedback.irq_suspend_timeout), (0, 0));
        assert_eq!(feedback.park_timeout(), 20 * MILLISECOND);
    }
}
