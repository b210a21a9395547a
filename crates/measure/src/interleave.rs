//! Interleaved repetitions: their order, and the spread of their figures.
//!
//! Policies to be compared run in turn within one session, because a shared machine drifts: a disturbance then hits
//! repetitions of A, B and C with equal chance. Each round has its own order (A B C, C A B, ...), or drift would
//! favour a position. Tables show the median of the repetitions, reports also their spread. This file knows the
//! order and the arithmetic, not what a policy is.

use napkin_traffic::Rng;
use serde::{Deserialize, Serialize};

/// The order of an interleaved run: every subject once, then every subject again. Subjects of one group, which are
/// compared, run next to each other, in an order drawn from the seed each time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Number of subjects to compare: policies.
    pub subjects: usize,
    /// Number of groups, which run in order: loads.
    pub groups: usize,
    /// Runs of each subject.
    pub repetitions: usize,
    /// Seed of the random order.
    pub seed: u64,
}

/// One step of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Index of the subject, from 0; those of the first group precede those of the second.
    pub subject: usize,
    /// Number of its repetition, from 0.
    pub repetition: usize,
}

impl Plan {
    /// Total number of steps.
    pub fn len(self) -> usize {
        self.subjects.saturating_mul(self.groups).saturating_mul(self.repetitions)
    }

    /// Whether the plan has no steps.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The steps in order.
    pub fn steps(self) -> impl Iterator<Item = Step> {
        let mut rng = Rng::new(self.seed);
        (0..self.repetitions).flat_map(move |repetition| {
            let mut steps = Vec::with_capacity(self.subjects * self.groups);
            for group in 0..self.groups {
                let first = steps.len();
                let of_group = (0..self.subjects).map(|it| group * self.subjects + it);
                steps.extend(of_group.map(|subject| Step { subject, repetition }));
                // Fisher-Yates shuffle: every order is equally likely.
                for last in (1..self.subjects).rev() {
                    steps.swap(first + last, first + rng.below(last as u64 + 1) as usize);
                }
            }
            steps
        })
    }
}

/// The spread of one figure's repetitions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The median: the middle value, or the mean of the two middle ones.
    pub median: f64,
    /// The smallest repetition.
    pub min: f64,
    /// The largest repetition.
    pub max: f64,
}

impl Spread {
    /// The spread of some values. Values that are not finite are left out, because they are not measurements;
    /// `None` if nothing remains.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut sorted: Vec<f64> = figures.into_iter().filter(|f| f.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            // Halve first: the sum of two large values could overflow to infinity.
            sorted[middle - 1] / 2.0 + sorted[middle] / 2.0
        };
        Some(Spread { median, min, max })
    }
}

/// The median of some values, as in [`Spread::of`].
pub fn median(figures: impl IntoIterator<Item = f64>) -> Option<f64> {
    Spread::of(figures).map(|spread| spread.median)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(seed: u64) -> Plan {
        Plan { subjects: 3, groups: 2, repetitions: 200, seed }
    }

    #[test]
    fn each_turn_has_every_policy_once_under_a_load_and_then_under_the_next() {
        let steps: Vec<_> = plan(1).steps().collect();
        assert_eq!(steps.len(), plan(1).len());
        for (turn, steps) in steps.chunks(3).enumerate() {
            let mut subjects: Vec<_> = steps.iter().map(|step| step.subject).collect();
            subjects.sort_unstable();
            let first = turn % 2 * 3;
            assert_eq!(subjects, [first, first + 1, first + 2], "turn {turn}");
            assert!(steps.iter().all(|step| step.repetition == turn / 2));
        }
    }

    #[test]
    fn positions_are_random_and_determined_by_the_seed() {
        let steps: Vec<_> = plan(1).steps().collect();
        let mut places = [[0; 3]; 3];
        for (place, step) in steps.iter().enumerate() {
            places[step.subject % 3][place % 3] += 1;
        }
        // An expected 133 of 400, with a standard deviation of 9.
        assert!(places.iter().flatten().all(|times| (95..172).contains(times)), "{places:?}");
        assert_eq!(plan(1).steps().collect::<Vec<_>>(), steps);
        assert_ne!(plan(2).steps().collect::<Vec<_>>(), steps);
    }

    #[test]
    fn nothing_to_compare_or_no_repetition_is_an_empty_plan() {
        assert!(Plan { subjects: 0, ..plan(1) }.is_empty());
        assert_eq!(Plan { repetitions: 0, ..plan(1) }.steps().count(), 0);
    }

    #[test]
    fn the_median_is_the_middle_one_or_between_the_two() {
        let odd = Spread::of([3.0, 1.0, 100.0]).unwrap();
        assert_eq!((odd.median, odd.min, odd.max), (3.0, 1.0, 100.0));
        assert_eq!(median([4.0, 2.0]), Some(3.0));
        assert_eq!(median([f64::MAX, f64::MAX]), Some(f64::MAX));
    }

    #[test]
    fn what_is_no_number_is_no_repetition() {
        assert_eq!(median([f64::NAN, 7.0, f64::INFINITY]), Some(7.0));
        assert_eq!(Spread::of([f64::NAN]), None);
        assert_eq!(Spread::of([]), None);
    }
}
