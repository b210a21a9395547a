//! How deep an idle CPU sleeps: the kernel's guess of how long it will, from how long it did.
//!
//! Two governors, of which a profile names one. `timer` sinks into the deep state after a time.
//! `menu` does what Linux's governor of that name does with its last eight idle intervals: if they
//! agree, their mean is the guess; else those furthest from the mean are left out, as long as six
//! remain, and then the longest of the rest is the guess. A guess of at least the deep state's target
//! residency chooses it, at once. The guess by the next timer is not modelled: a tick is further away
//! than any residency here.

use napkin_core::Ns;

/// Intervals that the governor remembers.
const INTERVALS: usize = 8;

/// Intervals that are no further apart than this agree (square of 20 us, in ns).
const AGREE: u128 = 20_000 * 20_000;

/// A CPU's last idle intervals.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct IdleHistory {
    intervals: [Ns; INTERVALS],
    next: usize,
}

impl IdleHistory {
    /// Remembers an interval.
    pub(crate) fn add(&mut self, interval: Ns) {
        self.intervals[self.next] = interval;
        self.next = (self.next + 1) % INTERVALS;
    }

    /// The guess.
    pub(crate) fn typical(&self) -> Ns {
        let (mut above, mut below) = (None, None);
        loop {
            let kept = self.intervals.iter().copied().filter(|&it| {
                above.is_none_or(|least| it > least) && below.is_none_or(|most| it < most)
            });
            let (mut count, mut sum, mut squares) = (0u128, 0u128, 0u128);
            let (mut min, mut max) = (Ns::MAX, 0);
            for it in kept {
                count += 1;
                sum += u128::from(it);
                squares += u128::from(it) * u128::from(it);
                (min, max) = (min.min(it), max.max(it));
            }
            if count == 0 {
                return Ns::MAX;
            }
            let mean = sum / count;
            let variance = (squares / count).saturating_sub(mean * mean);
            let most = count * 4 > INTERVALS as u128 * 3;
            if variance <= AGREE || (mean * mean > 36 * variance && most) {
                return mean as Ns;
            }
            if !most {
                return if count * 2 >= INTERVALS as u128 { max } else { Ns::MAX };
            }
            if mean - u128::from(min) > u128::from(max) - mean {
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
        let mut history = IdleHistory::default();
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
        let guessed = guess([1_000, 300_000, 1_000, 310_000, 1_000, 320_000, 1_000, 330_000]);
        assert_eq!(guessed, 310_000, "330 and 320 us are left out, and six remain");
    }

    #[test]
    fn old_intervals_are_forgotten() {
        let mut history = IdleHistory::default();
        (0..8).for_each(|_| history.add(900_000));
        (0..8).for_each(|_| history.add(2_000));
        assert_eq!(history.typical(), 2_000);
    }
}
