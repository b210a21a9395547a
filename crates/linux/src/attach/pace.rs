//! Decides how often processes are scanned.
//!
//! Without tracing, no event reports that a process opened an epoll context, so processes are scanned. Soon
//! after a start or a change more contexts are likely; later an occasional scan is enough.

use std::time::{Duration, Instant};

/// The interval between scans while changes are likely.
pub const FAST: Duration = Duration::from_millis(10);

/// How long changes are likely after the start or a change.
pub const FAST_FOR: Duration = Duration::from_secs(1);

/// The longest interval between scans, unless the CPU share requires a longer one.
pub const SLOW: Duration = Duration::from_millis(250);

/// The reciprocal of the share of a CPU that scans may take: 2 %.
const SHARE: u32 = 50;

/// The same in the first second, when nearly everything is opened: 10 %.
const FIRST_SHARE: u32 = 10;

/// The time of the next scan.
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

    /// Returns the wait after a scan that took `cost` of CPU time; `changed`: whether it saw a change.
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
