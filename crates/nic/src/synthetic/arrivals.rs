//! Arrival schedules: the absolute times of a synthetic queue's frames, computed lazily.
//!
//! Open-loop arrivals do not depend on the receiver. The time of each is a function of the configuration, the seed
//! and its number alone, so a late poll finds exactly the frames that fell due meanwhile, each with the time at
//! which it was meant to arrive. The two closed loops ([`Arrivals::AfterUnmask`] and [`Arrivals::Flood`]) reproduce
//! published experiments that used them.
//!
//! Evenly spaced arrivals and bursts are skipped in constant time, however many fell due. Poisson arrivals have to
//! be drawn one by one, at 10 to 20 ns each: at a million a second an overloaded CPU spends one or two percent of
//! its time on frames that it drops, which a NIC would drop at no cost to the CPU. After a pause in which more than
//! 65,536 fell due, the number of the others is taken from the mean.

use napkin_policy::{NEVER, Ns};

use super::error::{ConfigError, MAX_RATE, MIN_RATE};
use super::flood::Flood;
use napkin_traffic::SplitMix;

/// How frames arrive at a synthetic queue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrivals {
    /// Evenly spaced; the first frame at the start.
    Fixed {
        /// Frames a second, from [`MIN_RATE`] to [`MAX_RATE`].
        per_second: f64,
    },
    /// With independent, exponentially distributed gaps; the first frame one gap after the start.
    Poisson {
        /// Frames a second on average, from [`MIN_RATE`] to [`MAX_RATE`].
        per_second: f64,
    },
    /// In evenly spaced bursts; the first burst at the start.
    Bursts {
        /// Frames (not bursts) a second, from [`MIN_RATE`] to [`MAX_RATE`].
        per_second: f64,
        /// Frames in a burst; at least 1.
        size: u32,
        /// Time between two frames of a burst, ns. A burst has to end before the next one starts.
        within: Ns,
    },
    /// Each frame arrives a fixed time after interrupts are allowed again, and the first at the start: the worst case
    /// of the 2018 proposal, in which every frame interrupts the application just after the last softirq ended.
    AfterUnmask {
        /// Time from unmasking to the arrival, ns; at least 1.
        gap: Ns,
    },
    /// A closed loop, as `ping -f`: each frame follows a transmission (the reply to an earlier frame), or
    /// [`FLOOD_FALLBACK`](super::FLOOD_FALLBACK) of silence.
    Flood {
        /// Time from the end of a transmission to the arrival that follows it, ns.
        turnaround: Ns,
        /// The most requests under way at a time; at least 1.
        outstanding: u16,
    },
    /// No frames at all.
    Silent,
}

/// The most Poisson arrivals that are drawn one by one to be dropped, about a millisecond of work.
const MAX_DRAWN: u64 = 65_536;

/// Bits of fraction in the spacing of arrivals: 2^-32 ns is a drift of less than a second in a hundred years.
const FRACTION: u32 = 32;

#[derive(Debug, Clone)]
enum Kind {
    /// Evenly spaced frames are bursts of one frame.
    Bursts {
        /// Time from burst to burst, in 2^-32 ns; at least 1.
        interval: u128,
        size: u64,
        within: Ns,
    },
    Poisson(Poisson),
    AfterUnmask {
        gap: Ns,
        next: Ns,
    },
    Flood(Flood),
    Silent,
}

/// A Poisson process.
#[derive(Debug, Clone)]
struct Poisson {
    rng: SplitMix,
    /// The mean gap, ns.
    mean: f64,
    /// Time of the next arrival: whole nanoseconds, and the fraction.
    next: Ns,
    fraction: f64,
}

impl Poisson {
    fn new(rng: SplitMix, mean: f64, start: Ns) -> Poisson {
        let mut poisson = Poisson { rng, mean, next: start, fraction: 0.0 };
        poisson.advance();
        poisson
    }

    fn advance(&mut self) {
        // 1 - unit is in (0, 1], so the logarithm is finite and the gap at most 37 means.
        let gap = self.fraction - (1.0 - self.rng.unit()).ln() * self.mean;
        let whole = gap.floor();
        self.fraction = gap - whole;
        self.next = self.next.saturating_add(whole as Ns);
    }

    /// Skips all arrivals up to and including `last`, but at most `limit`; returns how many.
    fn skip(&mut self, last: Ns, limit: u64) -> u64 {
        let mut passed = 0;
        while self.next <= last && passed < limit {
            if passed == MAX_DRAWN {
                // Estimate the number of the others from the mean. Later arrivals stay exact: the process has no
                // memory, so it may as well restart here.
                let rest = ((last - self.next) as f64 / self.mean).round() as u64;
                (self.next, self.fraction) = (last, 0.0);
                self.advance();
                return passed.saturating_add(rest).saturating_add(1).min(limit);
            }
            self.advance();
            passed += 1;
        }
        passed
    }
}

/// The arrivals of one queue.
#[derive(Debug, Clone)]
pub(super) struct Schedule {
    kind: Kind,
    start: Ns,
    /// Number of the next arrival, which is also its sequence number.
    index: u64,
    count: u64,
    until: Ns,
}

impl Schedule {
    pub(super) fn new(
        arrivals: Arrivals,
        rng: SplitMix,
        start: Ns,
        until: Ns,
        count: u64,
    ) -> Result<Schedule, ConfigError> {
        let kind = match arrivals {
            Arrivals::Fixed { per_second } => {
                Kind::Bursts { interval: interval(rate(per_second)?, 1), size: 1, within: 0 }
            }
            Arrivals::Bursts { per_second, size, within } => {
                if size == 0 {
                    return Err(ConfigError::EmptyBurst);
                }
                let interval = interval(rate(per_second)?, size);
                let length = u128::from(within) * u128::from(size - 1);
                if length >= (interval >> FRACTION).max(1) {
                    return Err(ConfigError::BurstTooLong { size, within });
                }
                Kind::Bursts { interval, size: u64::from(size), within }
            }
            Arrivals::Poisson { per_second } => {
                Kind::Poisson(Poisson::new(rng, 1e9 / rate(per_second)?, start))
            }
            Arrivals::AfterUnmask { gap: 0 } => return Err(ConfigError::NoGap),
            Arrivals::AfterUnmask { gap } => Kind::AfterUnmask { gap, next: start },
            Arrivals::Flood { outstanding: 0, .. } => return Err(ConfigError::NothingOutstanding),
            Arrivals::Flood { turnaround, outstanding } => {
                Kind::Flood(Flood::new(start, turnaround, outstanding))
            }
            Arrivals::Silent => Kind::Silent,
        };
        Ok(Schedule { kind, start, index: 0, count, until })
    }

    /// The sequence number of the next arrival.
    pub(super) fn index(&self) -> u64 {
        self.index
    }

    /// The time of the next arrival, or [`NEVER`].
    pub(super) fn next(&self) -> Ns {
        self.nth(0, NEVER)
    }

    /// The time of the `n`-th arrival behind the next one, or [`NEVER`]. For a time after `limit` the result may be
    /// `NEVER`, which saves computing it.
    pub(super) fn nth(&self, n: usize, limit: Ns) -> Ns {
        let index = self.index.saturating_add(n as u64);
        if index >= self.count {
            return NEVER;
        }
        let at = match &self.kind {
            Kind::Bursts { interval, size, within } => {
                self.burst_start(*interval, index / size).saturating_add(within * (index % size))
            }
            Kind::Poisson(poisson) if n == 0 => poisson.next,
            Kind::Poisson(poisson) => {
                let mut ahead = poisson.clone();
                for _ in 0..n {
                    if ahead.next > limit {
                        return NEVER;
                    }
                    ahead.advance();
                }
                ahead.next
            }
            Kind::AfterUnmask { next, .. } if n == 0 => *next,
            Kind::AfterUnmask { .. } | Kind::Silent => NEVER,
            Kind::Flood(flood) => flood.nth(n),
        };
        if at < self.until { at } else { NEVER }
    }

    /// Moves past the next arrival.
    pub(super) fn advance(&mut self) {
        self.index += 1;
        match &mut self.kind {
            Kind::Bursts { .. } | Kind::Silent => {}
            Kind::Poisson(poisson) => poisson.advance(),
            Kind::AfterUnmask { next, .. } => *next = NEVER,
            Kind::Flood(flood) => flood.advance(),
        }
    }

    /// Skips all arrivals up to and including `now`; returns how many.
    pub(super) fn skip(&mut self, now: Ns) -> u64 {
        let before = self.index;
        // The last nanosecond that counts. A schedule that ends at 0 has no arrivals.
        let Some(last) = self.until.checked_sub(1).map(|last| last.min(now)) else { return 0 };
        match &mut self.kind {
            Kind::Bursts { interval, size, within } if last >= self.start => {
                let (interval, size, within) = (*interval, *size, *within);
                // The last burst whose start, rounded down to whole nanoseconds, is at or before `last`.
                let elapsed = u128::from(last - self.start) + 1;
                let burst = ((elapsed << FRACTION) - 1) / interval;
                let burst = u64::try_from(burst).unwrap_or(u64::MAX);
                let into = last.saturating_sub(self.burst_start(interval, burst));
                let of_last = into.checked_div(within).map_or(size, |n| size.min(n + 1));
                let reached = burst.saturating_mul(size).saturating_add(of_last);
                self.index = self.index.max(reached.min(self.count));
            }
            Kind::Poisson(poisson) => self.index += poisson.skip(last, self.count - self.index),
            Kind::Flood(flood) => self.index += flood.skip(last, self.count - self.index),
            _ => {
                while self.next() <= last {
                    self.advance();
                }
            }
        }
        self.index - before
    }

    /// Handles an unmask at `now`; returns whether it scheduled an arrival.
    pub(super) fn unmasked(&mut self, now: Ns) -> bool {
        match &mut self.kind {
            Kind::AfterUnmask { gap, next } if *next == NEVER => {
                *next = now.saturating_add(*gap);
                true
            }
            _ => false,
        }
    }

    /// Handles the end of a transmission at `at`.
    pub(super) fn reply(&mut self, at: Ns) {
        if let Kind::Flood(flood) = &mut self.kind {
            flood.reply(at);
        }
    }

    fn burst_start(&self, interval: u128, burst: u64) -> Ns {
        let after = interval.saturating_mul(u128::from(burst)) >> FRACTION;
        self.start.saturating_add(Ns::try_from(after).unwrap_or(NEVER))
    }
}

/// The spacing of groups of `size` frames, in 2^-32 ns; at least 1.
fn interval(per_second: f64, size: u32) -> u128 {
    let spacing = 1e9 / per_second * f64::from(size) * (1u64 << FRACTION) as f64;
    (spacing.round() as u128).max(1)
}

fn rate(per_second: f64) -> Result<f64, ConfigError> {
    if (MIN_RATE..=MAX_RATE).contains(&per_second) {
        Ok(per_second)
    } else {
        Err(ConfigError::Rate { per_second })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(arrivals: Arrivals) -> Schedule {
        Schedule::new(arrivals, SplitMix::new(1), 100, NEVER, u64::MAX)
            .expect("a valid configuration")
    }

    fn times(schedule: &mut Schedule, n: usize) -> Vec<Ns> {
        let mut times = Vec::new();
        for _ in 0..n {
            times.push(schedule.next());
            schedule.advance();
        }
        times
    }

    #[test]
    fn fixed_arrivals_do_not_drift() {
        let mut thirds = schedule(Arrivals::Fixed { per_second: 3.0 });
        assert_eq!(times(&mut thirds, 3), [100, 333_333_433, 666_666_766]);
        let mut skipped = schedule(Arrivals::Fixed { per_second: 3.0 });
        // In a million seconds three million frames arrive, besides the one at the start.
        assert_eq!(skipped.skip(100 + 1_000_000_000_000_000), 3_000_001);
    }

    #[test]
    fn bursts_are_spaced_by_their_rate() {
        let mut bursts = schedule(Arrivals::Bursts { per_second: 1e6, size: 3, within: 10 });
        assert_eq!(times(&mut bursts, 7), [100, 110, 120, 3100, 3110, 3120, 6100]);
    }

    #[test]
    fn poisson_arrivals_have_the_mean_that_was_asked_for() {
        let mut poisson = schedule(Arrivals::Poisson { per_second: 1e6 });
        let seen: u64 = (1..=100).map(|n| poisson.skip(100 + n * 10_000_000)).sum();
        // Within four standard deviations of a Poisson count, and the same in every run.
        assert!(seen.abs_diff(1_000_000) < 4_000, "{seen} arrivals");
    }

    #[test]
    fn a_year_without_a_poll_is_no_work() {
        const YEAR: Ns = 365 * 86_400 * 1_000_000_000;
        let mut poisson = schedule(Arrivals::Poisson { per_second: 1e6 });
        assert!(poisson.skip(YEAR).abs_diff(YEAR / 1_000) < 100_000);
        assert!((YEAR..YEAR + 40_000).contains(&poisson.next()));
        let mut flood = schedule(Arrivals::Flood { turnaround: 5, outstanding: 3 });
        assert_eq!(flood.skip(YEAR), 3 + (YEAR - 100) / 10_000_000);
        let fixed = Arrivals::Poisson { per_second: 1e6 };
        let mut few = Schedule::new(fixed, SplitMix::new(1), 0, NEVER, 70_000).expect("valid");
        assert_eq!(few.skip(YEAR), 70_000);
        assert_eq!(few.next(), NEVER);
    }

    #[test]
    fn skipping_is_the_same_as_walking() {
        for arrivals in [
            Arrivals::Fixed { per_second: 333_333.3 },
            Arrivals::Poisson { per_second: 500_000.0 },
            Arrivals::Bursts { per_second: 1e6, size: 7, within: 130 },
            Arrivals::Bursts { per_second: 1e6, size: 4, within: 0 },
            Arrivals::Flood { turnaround: 5, outstanding: 3 },
            Arrivals::AfterUnmask { gap: 10 },
            Arrivals::Silent,
        ] {
            for now in (0..40_000).step_by(37) {
                let mut walked = schedule(arrivals);
                let mut n = 0;
                while walked.next() <= now {
                    walked.advance();
                    n += 1;
                }
                let mut skipped = schedule(arrivals);
                assert_eq!(skipped.skip(now), n, "{arrivals:?} until {now}");
                assert_eq!(skipped.next(), walked.next());
            }
        }
    }

    #[test]
    fn looking_ahead_is_the_same_as_walking() {
        for arrivals in [
            Arrivals::Poisson { per_second: 500_000.0 },
            Arrivals::Bursts { per_second: 1e6, size: 7, within: 130 },
        ] {
            let ahead = schedule(arrivals);
            let ahead: Vec<Ns> = (0..20).map(|n| ahead.nth(n, NEVER)).collect();
            assert_eq!(ahead, times(&mut schedule(arrivals), 20));
        }
    }

    #[test]
    fn a_schedule_ends_by_count_and_by_time() {
        let fixed = Arrivals::Fixed { per_second: 1e6 };
        let mut counted = Schedule::new(fixed, SplitMix::new(1), 0, NEVER, 3).expect("valid");
        assert_eq!(counted.skip(1_000_000), 3);
        assert_eq!(counted.next(), NEVER);
        let mut timed = Schedule::new(fixed, SplitMix::new(1), 0, 2_000, u64::MAX).expect("valid");
        assert_eq!(timed.skip(1_000_000), 2);
        assert_eq!(timed.next(), NEVER);
        let mut never = Schedule::new(fixed, SplitMix::new(1), 0, 0, u64::MAX).expect("valid");
        assert_eq!(never.skip(1_000_000), 0);
    }

    #[test]
    fn nonsense_is_refused() {
        for arrivals in [
            Arrivals::Fixed { per_second: 0.0 },
            Arrivals::Fixed { per_second: f64::NAN },
            Arrivals::Poisson { per_second: -1.0 },
            Arrivals::Poisson { per_second: f64::INFINITY },
            Arrivals::Bursts { per_second: 1e6, size: 0, within: 0 },
            Arrivals::Bursts { per_second: 1e6, size: 2, within: 2_000 },
            Arrivals::AfterUnmask { gap: 0 },
            Arrivals::Flood { turnaround: 1, outstanding: 0 },
        ] {
            assert!(
                Schedule::new(arrivals, SplitMix::new(1), 0, NEVER, 1).is_err(),
                "{arrivals:?}"
            );
        }
    }
}
