//! How often to look again.
//!
//! There is no event for "a process opened an epoll context" without tracing it, so it is looked
//! for. Soon after a start or a change more are likely; later a look now and then is enough.

use std::time::{Duration, Instant};

/// Between two looks while more are likely.
pub const FAST: Duration = Duration::from_millis(10);

/// How long more are likely after the start or a change.
pub const FAST_FOR: Duration = Duration::from_secs(1);

/// The longest between two looks, unless one costs so much that this would be too often.
pub const SLOW: Duration = Duration::from_millis(250);

/// The share of a CPU that looking may take: one part in so many. 2 %.
const SHARE: u32 = 50;

/// The share in the first second of all, when nearly everything is opened. 10 %.
const FIRST_SHARE: u32 = 10;

/// Decides when to look again.
#[derive(Debug)]
pub(super) struct Pace {
    started: Instant,
    fast_until: Instant,
    interval: Duration,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Pace {
        Pace { started: now, fast_until: now + FAST_FOR, interval: FAST }
    }

    /// How long to wait after a look that took `cost` of CPU time and saw a change or none.
    pub(super) fn next(&mut self, now: Instant, cost: Duration, changed: bool) -> Duration {
        if changed {
            self.fast_until = now + FAST_FOR;
        }
        self.interval = if now < self.fast_until { FAST } else { (self.interval * 2).min(SLOW) };
        let share = if now < self.started + FAST_FOR { FIRST_SHARE } else { SHARE };
        self.interval.max(cost * share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_often_at_first_and_after_a_change_and_seldom_later() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let cheap = Duration::from_micros(50);
        assert_eq!(pace.next(start, cheap, false), FAST);
        let mut now = start + FAST_FOR;
        let waits: Vec<_> = (0..6).map(|_| pace.next(now, cheap, false).as_millis()).collect();
        assert_eq!(waits, [20, 40, 80, 160, 250, 250]);
        assert_eq!(pace.next(now, cheap, true), FAST);
        now += FAST_FOR / 2;
        assert_eq!(pace.next(now, cheap, false), FAST);
        now += FAST_FOR;
        assert_eq!(pace.next(now, cheap, false), 2 * FAST);
    }

    #[test]
    fn it_never_takes_more_than_its_share() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let dear = Duration::from_millis(20);
        assert_eq!(pace.next(start, dear, true), 10 * dear);
        for changed in [true, false] {
            assert_eq!(pace.next(start + FAST_FOR, dear, changed), 50 * dear);
        }
    }
}
