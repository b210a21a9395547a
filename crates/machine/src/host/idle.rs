//! How deep an idle CPU sleeps: the kernel's guess of how long it will, from how long it did.
//!
//! Two governors, of which a profile names one. `timer` sinks into the deep state after a time.
//! `menu` does what Linux's governor of that name does with its last eight idle intervals, which it
//! keeps in whole microseconds: if they agree, their mean is the guess; else those furthest from the
//! mean are left out, all that are equal at once, as long as six remain, and then the longest of the
//! rest is the guess, if half remain. A guess of at least the deep state's target residency chooses
//! it, at once. Where no pattern is left the kernel scales the time to its next timer by how much of
//! such times it slept before; a tick is far away here, so that comes to the mean of what it slept,
//! which is taken instead.

use napkin_core::{MICROSECOND, Ns};

use crate::config::Processor;

/// Intervals that the governor remembers.
const INTERVALS: usize = 8;

/// Intervals with at most this variance agree (square of 20 us, in us).
const AGREE: u64 = 20 * 20;

/// An idle time beyond all that is remembered, in microseconds.
const LONGEST: u64 = u32::MAX as u64;

/// A CPU's idleness, present and past.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Idleness {
    /// Since when, if it has gone idle and nothing has come since.
    since: Option<Ns>,
    /// The governor has guessed that it will be long.
    deep: bool,
    history: History,
    /// Latency of leaving it that the next context pays.
    exit_latency: Ns,
}

impl Idleness {
    /// A CPU that has been idle from the beginning.
    pub(crate) fn new() -> Self {
        Idleness { since: Some(0), ..Idleness::default() }
    }

    /// The CPU goes idle.
    pub(crate) fn begin(&mut self, now: Ns, processor: &Processor) {
        self.since = Some(now);
        self.deep = processor.idle_menu && self.history.typical() >= processor.idle_deep_after;
    }

    /// Something comes. Not for the first of several that come together: it is awake, then.
    pub(crate) fn end(&mut self, now: Ns, processor: &Processor) {
        let Some(since) = self.since.take() else { return };
        let idle = now - since;
        let deep = match processor.idle_menu {
            true => self.deep,
            false => idle >= processor.idle_deep_after,
        };
        self.history.add(idle);
        self.exit_latency = if deep { processor.idle_exit_deep } else { processor.idle_exit };
    }

    /// What leaving it costs, once.
    pub(super) fn take_exit_latency(&mut self) -> Ns {
        std::mem::take(&mut self.exit_latency)
    }
}

/// The last idle intervals, in microseconds.
#[derive(Debug, Clone, Copy, Default)]
struct History {
    intervals: [u64; INTERVALS],
    next: usize,
}

impl History {
    /// Remembers an interval, in place of the oldest.
    fn add(&mut self, interval: Ns) {
        self.intervals[self.next] = (interval / MICROSECOND).min(LONGEST);
        self.next = (self.next + 1) % INTERVALS;
    }

    /// How long this idleness will last, guessed from the last intervals.
    fn typical(&self) -> Ns {
        let guess = self.pattern().unwrap_or_else(|| {
            let sum: u64 = self.intervals.iter().sum();
            sum / INTERVALS as u64
        });
        guess * MICROSECOND
    }

    /// What the intervals agree on once those that stand out are left out; `None` if nothing.
    fn pattern(&self) -> Option<u64> {
        let (mut above, mut below) = (None, None);
        loop {
            let kept = self.intervals.iter().copied().filter(|&it| {
                above.is_none_or(|least| it > least) && below.is_none_or(|most| it < most)
            });
            let (mut count, mut sum, mut squares) = (0usize, 0, 0u128);
            let (mut min, mut max) = (u64::MAX, 0);
            for it in kept {
                count += 1;
                sum += it;
                squares += u128::from(it) * u128::from(it);
                (min, max) = (min.min(it), max.max(it));
            }
            if max == 0 {
                return None;
            }
            let mean = sum / count as u64;
            let square = u128::from(mean) * u128::from(mean);
            let variance = (squares / count as u128).saturating_sub(square);
            let close = square > 36 * variance && count * 4 >= INTERVALS * 3;
            if variance <= u128::from(AGREE) || close {
                return Some(mean);
            }
            if count * 4 <= INTERVALS * 3 {
                return (count * 2 >= INTERVALS).then_some(max);
            }
            if mean - min > max - mean {
                above = Some(min);
            } else {
                below = Some(max);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(intervals: [Ns; 8]) -> Ns {
        let mut history = History::default();
        intervals.into_iter().for_each(|it| history.add(it));
        history.typical()
    }

    #[test]
    fn intervals_that_agree_give_their_mean() {
        assert_eq!(guess([10_000, 12_000, 10_000, 12_000, 10_000, 12_000, 10_000, 12_000]), 11_000);
    }

    #[test]
    fn one_or_two_that_stand_out_are_left_out() {
        let guessed = guess([1_000, 1_000, 900_000, 1_000, 1_000, 700_000, 1_000, 1_000]);
        assert_eq!(guessed, 1_000);
        assert_eq!(
            guess([500_000, 500_000, 1_000, 500_000, 500_000, 500_000, 500_000, 500_000]),
            500_000
        );
    }

    #[test]
    fn where_half_stand_out_the_longest_that_is_left_is_the_guess() {
        let guessed = guess([1_000, 300_000, 2_000, 400_000, 3_000, 500_000, 4_000, 600_000]);
        assert_eq!(guessed, 400_000, "600 and 500 us are left out, and six remain");
    }

    #[test]
    fn equal_ones_stand_out_together_and_a_part_of_a_microsecond_makes_none_unequal() {
        let long = 58_000;
        let guessed = guess([13_000, long, 13_200, long + 900, 13_900, long, 13_000, long + 10]);
        assert_eq!(guessed, 13_000);
        let other = long + 1_000;
        let guessed = guess([13_000, long, 13_000, other, 13_000, long, 13_000, long]);
        assert_eq!(guessed, 13_000, "first one is left out, then the other three");
    }

    #[test]
    fn intervals_of_less_than_a_microsecond_make_no_pattern_and_a_short_guess() {
        assert_eq!(guess([900; 8]), 0);
    }

    #[test]
    fn old_intervals_are_forgotten() {
        let mut history = History::default();
        (0..8).for_each(|_| history.add(900_000));
        (0..8).for_each(|_| history.add(2_000));
        assert_eq!(history.typical(), 2_000);
    }
}
