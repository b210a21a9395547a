//! Warnings about settings that are valid but do not have the effect that they suggest.
//!
//! None of them is an error: the kernel accepts every one, and published configurations contain some
//! (`interrupts` sets a period that nothing uses). Each says what will happen and why, so that no measurement
//! is made of a policy that was never in force.

use alloc::vec::Vec;
use core::fmt;

use super::{KEYS, NetSoftirq, PARK_TIMEOUT, Policy, SocketPoller, Threaded, ValueKind, WaitsIn};
use crate::{MICROSECOND, Ns, Time};

/// A setting without the effect that it suggests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// A time so short that its unit must be wrong.
    BelowMicrosecond {
        /// The key's name.
        key: &'static str,
        /// Its value, below a microsecond.
        time: Ns,
    },
    /// `defer-hard-irqs` without `gro-flush-timeout`.
    DeferralWithoutPeriod,
    /// `gro-flush-timeout` without `defer-hard-irqs`.
    PeriodWithoutDeferral,
    /// `irq-suspend-timeout` without deferral, on whose masking suspension relies.
    SuspensionWithoutDeferral,
    /// `irq-suspend-timeout` without `epoll-prefer-busy-poll`, which suspension needs.
    SuspensionWithoutPrefer,
    /// A suspension timeout that is shorter than one period of deferral.
    SuspensionShorterThanPeriod {
        /// `irq-suspend-timeout`, as the policy has it.
        suspension: Ns,
        /// `gro-flush-timeout`, as the policy has it.
        period: Ns,
    },
    /// Preferred busy polling without deferral: interrupts return after each wait.
    PreferWithoutDeferral,
    /// Hold and deferral together; hold comes first.
    HoldBeforeDeferral {
        /// `hold`, as the policy has it.
        hold: Ns,
    },
    /// `hold-tick` without `hold`.
    TickWithoutHold,
    /// Threaded busy poll with settings that only matter once the instance is released.
    OverruledByThreadedBusyPoll,
    /// A setting of the softirq's context, for instances that are not polled in softirq.
    SoftirqUnused,
    /// An epoll budget without epoll busy polling.
    EpollBudgetUnused,
    /// A kept NAPI id without epoll busy polling.
    KeepNapiIdUnused,
    /// Socket settings without socket busy polling.
    SocketSettingsUnused,
    /// A spinning application whose waits never busy poll.
    SpinWithoutBusyPoll,
    /// A spinning application whose receive calls busy poll themselves.
    SpinInReceiveUnused,
    /// Socket busy polling in addition to epoll busy polling, in napkin's engine and machine.
    SocketPartUnused,
    /// Epoll busy polling in addition to a thread that polls the sockets, in napkin's engine and machine.
    EpollPartUnused,
    /// A park timeout above its bound.
    ParkTimeoutCapped {
        /// `irq-suspend-timeout`, as the policy has it.
        asked: Ns,
    },
}

impl Policy {
    /// Returns a warning for each setting of this policy that does not have the effect that it suggests. Empty
    /// for most presets. Allocates, so for set-up only.
    pub fn warnings(&self) -> Vec<Warning> {
        let Policy { instance, cpu, epoll, application } = self;
        let mut warnings = Vec::new();
        let mut warn = |applies: bool, warning| {
            if applies {
                warnings.push(warning);
            }
        };
        for key in KEYS.iter().filter(|key| key.takes == ValueKind::Time) {
            let (key, time) = (key.name, key.get(self));
            warn((1..MICROSECOND).contains(&time), Warning::BelowMicrosecond { key, time });
        }
        let (n, period) = (instance.defer_hard_irqs, instance.gro_flush_timeout);
        let (suspension, hold) = (instance.irq_suspend_timeout, instance.hold);

        // A thread that polls without end makes all other settings ineffective: one warning says so.
        if instance.threaded == Threaded::BusyPoll {
            let overruled = instance.feedback
                || instance.defers()
                || suspension != 0
                || hold != 0
                || instance.hold_tick != 0;
            let polled = epoll.enabled() || application.socket_busy_poll_usecs != 0;
            warn(overruled || polled, Warning::OverruledByThreadedBusyPoll);
        } else {
            warn(n != 0 && period == 0, Warning::DeferralWithoutPeriod);
            warn(n == 0 && period != 0, Warning::PeriodWithoutDeferral);

            // Under feedback the timeout also bounds parking, so it is not without effect; if the epoll prefers
            // busy polling, suspension was meant as well.
            let meant = suspension != 0 && (!instance.feedback || epoll.prefer_busy_poll);
            warn(meant && !instance.defers(), Warning::SuspensionWithoutDeferral);
            warn(meant && !epoll.prefer_busy_poll, Warning::SuspensionWithoutPrefer);
            warn(
                meant && instance.suspends() && suspension < period,
                Warning::SuspensionShorterThanPeriod { suspension, period },
            );
            let polls_first = epoll.prefer_busy_poll
                || (application.socket_prefer_busy_poll && application.socket_busy_poll_usecs != 0);
            // If suspension was meant, the lack of deferral has been reported already.
            warn(!meant && polls_first && !instance.defers(), Warning::PreferWithoutDeferral);
            warn(hold != 0 && instance.defers(), Warning::HoldBeforeDeferral { hold });
            warn(hold == 0 && instance.hold_tick != 0, Warning::TickWithoutHold);
            let receives = application.socket_busy_polls();
            warn(application.spin && receives && !epoll.enabled(), Warning::SpinInReceiveUnused);
            let busy = epoll.enabled() || receives;
            warn(application.spin && !busy, Warning::SpinWithoutBusyPoll);
            if epoll.enabled() && receives {
                let in_epoll = self.waits_in() == Some(WaitsIn::Epoll);
                warn(in_epoll, Warning::SocketPartUnused);
                warn(!in_epoll, Warning::EpollPartUnused);
            }
        }

        let in_softirq = instance.threaded == Threaded::Disabled;
        warn(!in_softirq && cpu.net_softirq != NetSoftirq::Inline, Warning::SoftirqUnused);
        warn(epoll.busy_poll_budget != 0 && !epoll.enabled(), Warning::EpollBudgetUnused);
        warn(epoll.keep_napi_id && !epoll.enabled(), Warning::KeepNapiIdUnused);
        let socket = application.socket_busy_poll_budget != 0
            || application.socket_prefer_busy_poll
            || application.socket_poller == SocketPoller::Separate;
        warn(socket && application.socket_busy_poll_usecs == 0, Warning::SocketSettingsUnused);
        warn(
            instance.feedback
                && suspension > PARK_TIMEOUT
                && instance.threaded != Threaded::BusyPoll,
            Warning::ParkTimeoutCapped { asked: suspension },
        );
        warnings
    }
}

impl Warning {
    /// Whether it also applies to the kernel, where a program can use both parts of its policy, and decides
    /// itself which of its waits busy poll.
    pub const fn concerns_linux(&self) -> bool {
        !matches!(self, Warning::SocketPartUnused | Warning::EpollPartUnused)
    }

    /// Whether it follows from an instance's settings alone, independent of how the application waits and where
    /// the CPU runs its softirqs.
    pub const fn concerns_instance(&self) -> bool {
        match self {
            Warning::BelowMicrosecond { .. }
            | Warning::DeferralWithoutPeriod
            | Warning::PeriodWithoutDeferral
            | Warning::SuspensionWithoutDeferral
            | Warning::SuspensionShorterThanPeriod { .. }
            | Warning::HoldBeforeDeferral { .. }
            | Warning::TickWithoutHold
            | Warning::OverruledByThreadedBusyPoll
            | Warning::ParkTimeoutCapped { .. } => true,
            Warning::SuspensionWithoutPrefer
            | Warning::PreferWithoutDeferral
            | Warning::SoftirqUnused
            | Warning::EpollBudgetUnused
            | Warning::KeepNapiIdUnused
            | Warning::SocketSettingsUnused
            | Warning::SpinWithoutBusyPoll
            | Warning::SpinInReceiveUnused
            | Warning::SocketPartUnused
            | Warning::EpollPartUnused => false,
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Warning::BelowMicrosecond { key, time } => write!(
                f,
                "{key} ({}) is shorter than a single poll: the kernel's own field is in nanoseconds, \
                 and {time}us was probably meant",
                Time(time)
            ),
            Warning::DeferralWithoutPeriod => f.write_str(
                "defer-hard-irqs does nothing without gro-flush-timeout: with no timer to poll \
                 again, interrupts return at once",
            ),
            Warning::PeriodWithoutDeferral => f.write_str(
                "gro-flush-timeout masks nothing without defer-hard-irqs: in the kernel it only \
                 ages GRO packets, and in napkin it does nothing",
            ),
            Warning::SuspensionWithoutDeferral => f.write_str(
                "irq-suspend-timeout does nothing without deferral: suspension only puts off the \
                 timer that keeps interrupts masked, and there is none; set defer-hard-irqs and \
                 gro-flush-timeout",
            ),
            Warning::SuspensionWithoutPrefer => f.write_str(
                "irq-suspend-timeout is never used: only an epoll with epoll-prefer-busy-poll=on \
                 suspends interrupts",
            ),
            Warning::SuspensionShorterThanPeriod { suspension, period } => write!(
                f,
                "irq-suspend-timeout ({}) is shorter than gro-flush-timeout ({}): suspending \
                 brings the next timer poll nearer instead of putting it off",
                Time(suspension),
                Time(period)
            ),
            Warning::PreferWithoutDeferral => f.write_str(
                "preferred busy polling without deferral: interrupts return as soon as a busy \
                 poll ends; set defer-hard-irqs and gro-flush-timeout",
            ),
            Warning::HoldBeforeDeferral { hold } => write!(
                f,
                "hold and deferral are both on: hold comes first, for {} after the last work, and \
                 then deferral",
                Time(hold)
            ),
            Warning::TickWithoutHold => f.write_str(
                "hold-tick does nothing without hold: it says at which times a hold may end; set \
                 hold",
            ),
            Warning::OverruledByThreadedBusyPoll => f.write_str(
                "threaded=busy-poll never releases its instance: hold, deferral, suspension, feedback \
                 and the application's busy polling have no effect until the mode is left",
            ),
            Warning::SoftirqUnused => f.write_str(
                "net-softirq does not concern these instances: they are polled by threads, not in \
                 softirq",
            ),
            Warning::EpollBudgetUnused => f.write_str(
                "epoll-busy-poll-budget is never used: set epoll-busy-poll-usecs or \
                 epoll-prefer-busy-poll=on",
            ),
            Warning::KeepNapiIdUnused => f.write_str(
                "epoll-keep-napi-id does nothing: no wait busy polls; set epoll-busy-poll-usecs or \
                 epoll-prefer-busy-poll=on",
            ),
            Warning::SocketSettingsUnused => f.write_str(
                "the socket settings are never used: receive calls busy poll only with \
                 socket-busy-poll-usecs",
            ),
            Warning::SpinWithoutBusyPoll => f.write_str(
                "the application spins, but its waits never busy poll, and leave the queue to \
                 interrupts and softirqs, which it delays; set epoll-busy-poll-usecs or \
                 epoll-prefer-busy-poll=on",
            ),
            Warning::SpinInReceiveUnused => f.write_str(
                "application=spin is ignored where the sockets busy poll (socket-busy-poll-usecs): a \
                 receive call sleeps once its busy poll has found nothing; only the waits of an epoll \
                 spin",
            ),
            Warning::SocketPartUnused => f.write_str(
                "in napkin's engine and machine the socket settings are not used beside an epoll that busy \
                 polls: a thread has one wait, and that is the epoll's; leave out socket-busy-poll-usecs, or \
                 epoll-busy-poll-usecs and epoll-prefer-busy-poll",
            ),
            Warning::EpollPartUnused => f.write_str(
                "in napkin's engine and machine the epoll settings, and application=spin, are not used \
                 beside a thread that polls the sockets (socket-poller=separate): the application waits in \
                 receive calls then; leave out epoll-busy-poll-usecs and epoll-prefer-busy-poll, or \
                 socket-poller=separate",
            ),
            Warning::ParkTimeoutCapped { asked } => write!(
                f,
                "irq-suspend-timeout ({}) bounds suspension only: feedback parks a queue for {} \
                 at the most",
                Time(asked),
                Time(PARK_TIMEOUT)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PRESETS;
    use std::string::ToString;
    use std::vec;

    fn warnings(text: &str) -> Vec<Warning> {
        text.parse::<Policy>().expect(text).warnings()
    }

    #[test]
    fn only_two_published_configurations_hold_a_setting_without_effect() {
        for preset in PRESETS {
            let expected = match preset.name {
                "interrupts" => vec![Warning::PeriodWithoutDeferral],
                "threaded-busy-poll" => vec![Warning::OverruledByThreadedBusyPoll],
                _ => vec![],
            };
            assert_eq!(preset.policy.warnings(), expected, "{}", preset.name);
        }
    }

    #[test]
    fn a_time_below_a_microsecond_is_a_mistake_in_its_unit() {
        let (key, time) = ("gro-flush-timeout", 50);
        let warned = warnings("defer20,gro-flush-timeout=50ns");
        assert_eq!(warned, [Warning::BelowMicrosecond { key, time }]);
        assert_eq!(
            warned[0].to_string(),
            "gro-flush-timeout (50ns) is shorter than a single poll: the kernel's own field is in \
             nanoseconds, and 50us was probably meant"
        );
        assert_eq!(warnings("defer1"), []);
    }

    #[test]
    fn deferral_needs_both_of_its_numbers() {
        assert_eq!(warnings("defer-hard-irqs=100"), [Warning::DeferralWithoutPeriod]);
        assert_eq!(warnings("gro-flush-timeout=20us"), [Warning::PeriodWithoutDeferral]);
    }

    #[test]
    fn suspension_needs_deferral_to_mask_for_it() {
        assert_eq!(
            warnings("suspend20,gro-flush-timeout=0"),
            [Warning::DeferralWithoutPeriod, Warning::SuspensionWithoutDeferral]
        );
        assert_eq!(
            warnings("suspend20,defer-hard-irqs=0"),
            [Warning::PeriodWithoutDeferral, Warning::SuspensionWithoutDeferral]
        );
    }

    #[test]
    fn suspension_needs_an_epoll_that_prefers_to_busy_poll() {
        assert_eq!(
            warnings("defer20,irq-suspend-timeout=20ms"),
            [Warning::SuspensionWithoutPrefer]
        );
        assert_eq!(
            warnings("suspend20,epoll-prefer-busy-poll=off"),
            [Warning::SuspensionWithoutPrefer, Warning::EpollBudgetUnused]
        );
    }

    #[test]
    fn a_suspension_shorter_than_the_period_hastens_the_timer() {
        let [warning] = warnings("suspend200,irq-suspend-timeout=100us")[..] else {
            panic!("one warning");
        };
        assert_eq!(
            warning.to_string(),
            "irq-suspend-timeout (100us) is shorter than gro-flush-timeout (200us): suspending \
             brings the next timer poll nearer instead of putting it off"
        );
        assert_eq!(warnings("suspend200,irq-suspend-timeout=200us"), []);
    }

    #[test]
    fn preferring_without_deferral_is_said_once() {
        let text = "epoll-prefer-busy-poll=on,epoll-busy-poll-usecs=64";
        assert_eq!(warnings(text), [Warning::PreferWithoutDeferral]);
        assert_eq!(
            warnings("busypoll,defer-hard-irqs=0,gro-flush-timeout=0"),
            [Warning::PreferWithoutDeferral]
        );
    }

    #[test]
    fn hold_comes_before_deferral() {
        assert_eq!(warnings("defer20,hold=50us"), [Warning::HoldBeforeDeferral { hold: 50_000 }]);
    }

    #[test]
    fn a_tick_needs_a_hold_to_end() {
        assert_eq!(warnings("hold-tick=4ms"), [Warning::TickWithoutHold]);
        assert_eq!(warnings("hold=8ms,hold-tick=4ms"), []);
        let text = "hold-tick=4ms,threaded=busy-poll";
        assert_eq!(warnings(text), [Warning::OverruledByThreadedBusyPoll]);
    }

    #[test]
    fn a_thread_that_never_lets_go_makes_the_rest_ineffective() {
        for rest in ["defer20", "suspend20", "hold", "napibusy", "busypoll", "feedback"] {
            let text = std::format!("{rest},threaded=busy-poll");
            assert_eq!(warnings(&text), [Warning::OverruledByThreadedBusyPoll], "{text}");
        }
        assert_eq!(warnings("threaded=busy-poll"), []);
    }

    #[test]
    fn settings_of_parts_that_are_off_are_named() {
        assert_eq!(warnings("epoll-busy-poll-budget=64"), [Warning::EpollBudgetUnused]);
        assert_eq!(warnings("epoll-keep-napi-id=on"), [Warning::KeepNapiIdUnused]);
        assert_eq!(warnings("fullbusy,epoll-keep-napi-id=on"), []);
        assert_eq!(warnings("socket-poller=separate"), [Warning::SocketSettingsUnused]);
        assert_eq!(warnings("ksoftirqd,threaded=enabled"), [Warning::SoftirqUnused]);
        assert_eq!(warnings("application=spin"), [Warning::SpinWithoutBusyPoll]);
        assert_eq!(warnings("busypoll,application=spin"), [Warning::SpinInReceiveUnused]);
        assert_eq!(warnings("suspend20,application=spin"), [], "each wait makes one pass");
    }

    #[test]
    fn a_policy_of_both_parts_is_told_which_of_them_is_not_used() {
        let both = "suspend20,socket-busy-poll-usecs=50";
        assert_eq!(warnings(both), [Warning::SocketPartUnused]);
        assert!(!Warning::SocketPartUnused.concerns_linux(), "a program may have both waits");
        assert!(Warning::TickWithoutHold.concerns_linux());
        let prefers = "napibusy,socket-busy-poll-usecs=50,socket-prefer-busy-poll=on";
        assert_eq!(warnings(prefers), [Warning::SocketPartUnused]);
        // Beside a polling thread the application does not wait in the epoll, and therefore does not spin
        // there.
        for name in ["suspend20", "napibusy", "fullbusy"] {
            let text = std::format!("{name},socket-busy-poll-usecs=50,socket-poller=separate");
            assert_eq!(warnings(&text), [Warning::EpollPartUnused], "{text}");
        }
        let text = std::format!("{both},threaded=busy-poll");
        assert_eq!(warnings(&text), [Warning::OverruledByThreadedBusyPoll], "neither is reached");
    }

    #[test]
    fn under_feedback_the_timeout_bounds_the_park() {
        assert_eq!(warnings("feedback,irq-suspend-timeout=5ms"), []);
        assert_eq!(
            warnings("feedback,irq-suspend-timeout=50ms"),
            [Warning::ParkTimeoutCapped { asked: 50_000_000 }]
        );
    }

    #[test]
    fn a_condition_of_several_parts_is_met_by_each_and_only_then() {
        assert_eq!(
            warnings("threaded=busy-poll,socket-busy-poll-usecs=50"),
            [Warning::OverruledByThreadedBusyPoll]
        );
        let short = "feedback,defer-hard-irqs=2,gro-flush-timeout=20us,irq-suspend-timeout=10us";
        assert_eq!(warnings(short), [], "not meant for suspension");
        assert_eq!(warnings("socket-busy-poll-usecs=50"), [], "a socket that does not prefer it");
        assert_eq!(warnings("socket-busy-poll-budget=8"), [Warning::SocketSettingsUnused]);
        assert_eq!(warnings("feedback,irq-suspend-timeout=20ms"), [], "no longer than parking");
    }
}
