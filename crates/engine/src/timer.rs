//! The timers of one CPU: many deadlines, one descriptor.
//!
//! Deadlines are kept in the instances; the operating system is called only to bring its timer
//! forward. A deadline that moves later is found out when the timer fires; one that keeps moving is
//! looked at less and less often ([`Timer::set_next`]).

use std::os::fd::AsFd;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

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
    /// Expiries in a row that found every deadline moved.
    early: AtomicU64,
    /// How far beyond its deadline the timer is set at present.
    slack: AtomicU64,
}

/// The most by which a deadline that keeps moving is let slip.
const SLACK_MAX: Ns = 200_000;

impl Timer {
    pub(crate) fn new() -> io::Result<Timer> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Ok(Timer {
            fd: timerfd_create(TimerfdClockId::Monotonic, flags)?,
            armed: AtomicU64::new(NEVER),
            settings: AtomicU64::new(0),
            early: AtomicU64::new(0),
            slack: AtomicU64::new(0),
        })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// How often the operating system was asked to set the timer.
    pub(crate) fn settings(&self) -> u64 {
        self.settings.load(Ordering::Relaxed)
    }

    /// Sees to it that the timer fires at `at` (and the present slack) or before.
    #[inline]
    pub(crate) fn bring_forward(&self, at: Ns) {
        let at = at.saturating_add(self.slack.load(Ordering::Relaxed));
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
        self.early.fetch_add(1, Ordering::Relaxed);
        self.armed.store(NEVER, Ordering::Release);
    }

    /// A deadline had passed.
    pub(crate) fn was_due(&self) {
        self.early.store(0, Ordering::Relaxed);
        self.slack.store(0, Ordering::Relaxed);
    }

    /// Sets the timer for the next deadline. One that moves whenever the timer fires (a busy poller
    /// pushes it ahead with each poll) would cost a wake-up each time for nothing: the more often
    /// that has happened in a row, the further beyond its deadline the timer is set, up to
    /// [`SLACK_MAX`], until a deadline has really passed.
    pub(crate) fn set_next(&self, at: Ns, now: Ns) {
        let moved = self.early.load(Ordering::Relaxed).saturating_sub(1);
        let slack = at.saturating_sub(now).saturating_mul(moved).min(SLACK_MAX);
        self.slack.store(slack, Ordering::Relaxed);
        self.bring_forward(at);
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
