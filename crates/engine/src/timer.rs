//! The timers of one CPU: many deadlines, one descriptor.
//!
//! Deadlines are kept in the instances; the operating system is called only to bring its timer
//! forward. A deadline that moves later is found out when the timer fires; one that keeps moving is
//! looked at less and less often ([`Slack`]).

use std::os::fd::AsFd;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use napkin_core::{NEVER, Ns};
use rustix::io;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::clock;

/// The timer of one CPU.
#[derive(Debug)]
pub(crate) struct Timer {
    fd: OwnedFd,
    armed: AtomicU64,
    settings: AtomicU64,
}

impl Timer {
    pub(crate) fn new() -> io::Result<Timer> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Ok(Timer {
            fd: timerfd_create(TimerfdClockId::Monotonic, flags)?,
            armed: AtomicU64::new(NEVER),
            settings: AtomicU64::new(0),
        })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// How often the operating system was asked to set the timer.
    pub(crate) fn settings(&self) -> u64 {
        self.settings.load(Ordering::Relaxed)
    }

    /// Sees to it that the timer fires at `at` or before. The deadline behind it has been stored.
    #[inline]
    pub(crate) fn bring_forward(&self, at: Ns) {
        // Store the deadline, then look at the timer; whoever takes an expiry does the reverse.
        fence(Ordering::SeqCst);
        let mut armed = self.armed.load(Ordering::Acquire);
        loop {
            if at >= armed {
                return;
            }
            match self.armed.compare_exchange(armed, at, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(now) => armed = now,
            }
        }
        // Two threads may set the timer in the other order than they entered their deadlines:
        // whoever finds that his is not the one entered sets the one that is.
        let mut set = at;
        loop {
            self.set(set);
            let entered = self.armed.load(Ordering::Acquire);
            if entered == set || entered == NEVER {
                return;
            }
            set = entered;
        }
    }

    /// The timer fired. Before the deadlines are looked at, so that one which is entered afterwards
    /// sets it again.
    pub(crate) fn fired(&self) {
        self.armed.swap(NEVER, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    fn set(&self, at: Ns) {
        self.settings.fetch_add(1, Ordering::Relaxed);
        let value = Itimerspec {
            it_interval: clock::timespec(0),
            // A point in the past fires at once; 0 would disarm.
            it_value: clock::timespec(at.max(1)),
        };
        let result = timerfd_settime(&self.fd, TimerfdTimerFlags::ABSTIME, &value);
        debug_assert!(result.is_ok(), "timerfd_settime: {result:?}");
    }
}

/// The most by which a deadline that keeps moving is let slip.
const SLACK_MAX: Ns = 200_000;

/// How far beyond an instance's deadline the timer is set.
///
/// A deadline that has moved whenever the timer fires for it (a busy poller pushes it ahead with
/// each poll) would cost a wake-up each time for nothing: each time, the timer is set further beyond
/// it, up to [`SLACK_MAX`], until it has really passed. Other instances' deadlines are exact.
#[derive(Debug)]
pub(crate) struct Slack {
    slack: AtomicU64,
    /// For when the timer was last set on this deadline's behalf.
    set_for: AtomicU64,
}

impl Default for Slack {
    fn default() -> Self {
        Slack { slack: AtomicU64::new(0), set_for: AtomicU64::new(NEVER) }
    }
}

impl Slack {
    /// When the timer is to fire for a deadline that has just been stored.
    #[inline]
    pub(crate) fn armed(&self, deadline: Ns) -> Ns {
        let at = deadline.saturating_add(self.slack.load(Ordering::Relaxed));
        if at < self.set_for.load(Ordering::Relaxed) {
            self.set_for.store(at, Ordering::Relaxed);
        }
        at
    }

    /// When the timer is to fire next for a deadline that has not passed yet, or is none.
    pub(crate) fn looked(&self, deadline: Ns, now: Ns) -> Ns {
        if deadline != NEVER && self.set_for.load(Ordering::Relaxed) <= now {
            let slack = self.slack.load(Ordering::Relaxed) + deadline.saturating_sub(now);
            self.slack.store(slack.min(SLACK_MAX), Ordering::Relaxed);
        }
        let at = deadline.saturating_add(self.slack.load(Ordering::Relaxed));
        self.set_for.store(at, Ordering::Relaxed);
        at
    }

    /// The deadline has passed.
    pub(crate) fn passed(&self) {
        self.slack.store(0, Ordering::Relaxed);
        self.set_for.store(NEVER, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_keeps_moving_is_looked_at_less_and_less_often() {
        let slack = Slack::default();
        assert_eq!(slack.armed(15_000), 15_000, "exact at first");
        // It fires, and the deadline has moved ahead: a little slack, then more, then no more.
        assert_eq!(slack.looked(29_000, 15_000), 43_000);
        assert_eq!(slack.armed(44_000), 58_000, "meanwhile it is not brought forward for less");
        assert_eq!(slack.looked(57_000, 43_000), 57_000 + 28_000);
        let mut now = 85_000;
        for _ in 0..50 {
            now = slack.looked(now + 14_000, now);
        }
        assert!(slack.looked(now + 14_000, now) <= now + 14_000 + SLACK_MAX);
        slack.passed();
        assert_eq!(slack.armed(now + 15_000), now + 15_000, "once it has passed it is exact again");
    }

    #[test]
    fn a_neighbour_s_expiry_costs_no_precision() {
        let slack = Slack::default();
        slack.armed(100_000);
        assert_eq!(slack.looked(100_000, 20_000), 100_000, "the timer was not set for this one");
    }
}
