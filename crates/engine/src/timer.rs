//! The timers of one CPU: many deadlines, one descriptor.
//!
//! Deadlines are kept in the instances; the operating system is called only to bring its timer forward. A deadline
//! that has moved later is noticed when the timer fires; one that keeps moving is checked less and less often
//! ([`Slack`](crate::slack::Slack)). Modelled by `tests/loom`.

use napkin_core::{NEVER, Ns};

use crate::os::Alarm;
use crate::sync::{AtomicU64, Ordering, fence};

/// The timer of one CPU.
#[derive(Debug)]
pub(crate) struct Timer {
    alarm: Alarm,
    /// When the alarm is, or is about to be, set to fire.
    armed: AtomicU64,
}

impl Timer {
    pub(crate) fn new(alarm: Alarm) -> Timer {
        Timer { alarm, armed: AtomicU64::new(NEVER) }
    }

    /// The descriptor that the interrupt thread waits for.
    pub(crate) fn alarm(&self) -> &Alarm {
        &self.alarm
    }

    /// Makes the timer fire at `at` or before. The deadline behind it has been stored.
    #[inline]
    pub(crate) fn bring_forward(&self, at: Ns) {
        // Store the deadline, then read the timer; the thread that takes an expiry does the reverse.
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
        // Two threads may set the alarm in another order than they changed `armed`: a thread that finds another
        // value there sets the alarm to that value.
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

    /// Records that the timer has fired. Called before the deadlines are checked, so that one that is stored
    /// afterwards sets the timer again.
    pub(crate) fn fired(&self) {
        self.armed.swap(NEVER, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }
}
