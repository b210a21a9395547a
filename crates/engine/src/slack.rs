//! The slack of one instance's deadline, which grows each time the deadline has moved.

use napkin_core::{NEVER, Ns};

use crate::sync::{AtomicU64, Ordering};

/// The maximum slack of a deadline that keeps moving, in nanoseconds.
pub(crate) const SLACK_MAX: Ns = 200_000;

/// How far beyond an instance's deadline the timer is set, in nanoseconds.
///
/// A deadline that has moved whenever the timer fires for it (a busy poller moves it with each poll) would cost a
/// useless wake-up each time. So each time the timer is set further beyond the deadline, by up to [`SLACK_MAX`],
/// until the deadline really passes. Other instances' deadlines are exact.
#[derive(Debug)]
pub(crate) struct Slack {
    slack: AtomicU64,
    /// When the timer was last set to fire for this deadline.
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

    /// When the timer is to fire next for a deadline that has not passed yet, or is not armed.
    pub(crate) fn looked(&self, deadline: Ns, now: Ns) -> Ns {
        if deadline != NEVER && self.set_for.load(Ordering::Relaxed) <= now {
            let slack = self.slack.load(Ordering::Relaxed) + deadline.saturating_sub(now);
            self.slack.store(slack.min(SLACK_MAX), Ordering::Relaxed);
        }
        let at = deadline.saturating_add(self.slack.load(Ordering::Relaxed));
        self.set_for.store(at, Ordering::Relaxed);
        at
    }

    /// Resets the slack, after the deadline has passed.
    pub(crate) fn passed(&self) {
        self.slack.store(0, Ordering::Relaxed);
        self.set_for.store(NEVER, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_keeps_moving_is_looked_at_less_and_less_often() {
        let slack = Slack::default();
        assert_eq!(slack.armed(15_000), 15_000, "exact at first");
        // The timer fires, and the deadline has moved ahead: a little slack, then more, then no more.
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
