//! The timers of one CPU: many deadlines, one descriptor.
//!
//! Deadlines are kept in the instances; the operating system is called only to bring its timer
//! forward. A deadline that moves later is found out when the timer fires; one that keeps moving is
//! looked at less and less often ([`Slack`](crate::slack::Slack)). Modelled by `tests/loom`.

use napkin_core::{NEVER, Ns};

use crate::os::Alarm;
use crate::sync::{AtomicU64, Ordering, fence};

/// The timer of one CPU.
#[derive(Debug)]
pub(crate) struct Timer {
    alarm: Alarm,
    /// For when the alarm is set, or is about to be.
    armed: AtomicU64,
}

impl Timer {
    pub(crate) fn new(alarm: Alarm) -> Timer {
        Timer { alarm, armed: AtomicU64::new(NEVER) }
    }

    /// What the interrupt thread waits for.
    pub(crate) fn alarm(&self) -> &Alarm {
        &self.alarm
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
            self.alarm.set(set);
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
}
