//! Idle states: a CPU's exit latency, by a model of the kernel's idle governor.
//!
//! There are two governors, of which a profile names one. `timer` enters the deep state after a time. `menu` follows
//! Linux's governor of that name, which keeps the last eight idle intervals in whole microseconds. If they agree, it
//! predicts their mean. Otherwise it drops the outliers furthest from the mean, all equal ones at once, as long as
//! six remain; then it predicts the longest remaining interval, if half of them remain. A prediction of at least the
//! deep state's target residency selects that state at once. Without a pattern the kernel scales the time to its next
//! timer by the fraction of such times that it slept before. Here a tick is far away, so that this amounts to the
//! mean of the intervals, which is used instead.

use napkin_core::{MICROSECOND, Ns};

use crate::config::Processor;

/// Number of intervals that the governor keeps.
const INTERVALS: usize = 8;

/// Largest variance of intervals that agree: the square of 20 us.
const AGREE: u64 = 20 * 20;

/// Upper limit of a kept interval, in microseconds.
const LONGEST: u64 = u32::MAX as u64;

/// The idle state of a CPU, and its past intervals.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Idleness {
    /// Start of the present idle interval; `None` once something has interrupted it.
    since: Option<Ns>,
    /// Whether the governor has selected the deep state.
    deep: bool,
    history: History,
    /// Exit latency that the next context has to pay.
    exit_latency: Ns,
}

impl Idleness {
    /// Creates the state of a CPU that has been idle from time 0.
    pub(crate) fn new() -> Self {
        Idleness { since: Some(0), ..Idleness::default() }
    }

    /// Begins an idle interval.
    pub(crate) fn begin(&mut self, now: Ns, processor: &Processor) {
        self.since = Some(now);
        self.deep = processor.idle_menu && self.history.typical() >= processor.idle_deep_after;
    }

    /// Ends the idle interval, if there is one: of several interrupts at once only the first has to wake the CPU.
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

    /// Takes the exit latency, which is paid once.
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
    /// Adds an interval, which replaces the oldest.
    fn add(&mut self, interval: Ns) {
        self.intervals[self.next] = (interval / MICROSECOND).min(LONGEST);
        self.next = (self.next + 1) % INTERVALS;
    }

    /// Predicts the length of the next idle interval.
    fn typical(&self) -> Ns {
        let guess = self.pattern().unwrap_or_else(|| {
            let sum: u64 = self.intervals.iter().sum();
            sum / INTERVALS as u64
        });
        guess * MICROSECOND
    }

    /// Returns the interval that remains typical without the outliers, in microseconds; `None` without a pattern.
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
