//! Interleaved repetition, and what it shows.
//!
//! Policies that are compared run in one session in turn, because a shared machine drifts: what
//! disturbs one repetition of A then disturbs B and C as likely. Each turn has an order of its own,
//! A B C C A B ..., or the drift would favour a place. A table shows the median of the repetitions, and
//! the report their spread. This file knows the order and the arithmetic, not what a policy is.

use napkin_traffic::Rng;
use serde::{Deserialize, Serialize};

/// The order of an interleaved run: every subject once, then every subject again. Those of a group,
/// which are compared, run next to each other, each time in an order drawn from the seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Things that are compared: policies.
    pub subjects: usize,
    /// Groups of them, in their order: loads.
    pub groups: usize,
    /// How often each of them runs.
    pub repetitions: usize,
    /// Where the order comes from.
    pub seed: u64,
}

/// One step of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Which subject runs, from 0, those of the first group before those of the second.
    pub subject: usize,
    /// Its how-manieth run this is, from 0.
    pub repetition: usize,
}

impl Plan {
    /// Steps in all.
    pub fn len(self) -> usize {
        self.subjects.saturating_mul(self.groups).saturating_mul(self.repetitions)
    }

    /// Whether there is nothing to run.
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
                // Fisher and Yates: every order is as likely.
                for last in (1..self.subjects).rev() {
                    steps.swap(first + last, first + rng.below(last as u64 + 1) as usize);
                }
            }
            steps
        })
    }
}

/// Where the repetitions of one figure lie.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The smallest repetition.
    pub min: f64,
    /// The largest repetition.
    pub max: f64,
}

impl Spread {
    /// The spread of some figures. Figures that are not finite are left out, since they are no
    /// measurements; `None` if nothing is left.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut sorted: Vec<f64> = figures.into_iter().filter(|f| f.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            // Halved first: two large figures must not overflow into infinity.
            sorted[middle - 1] / 2.0 + sorted[middle] / 2.0
        };
        Some(Spread { median, min, max })
    }
}

/// The median of some figures, as [`Spread::of`] takes it.
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
    fn no_policy_has_a_place_of_its_own_and_a_seed_is_an_order() {
        let steps: Vec<_> = plan(1).steps().collect();
        let mut places = [[0; 3]; 3];
        for (place, step) in steps.iter().enumerate() {
            places[step.subject % 3][place % 3] += 1;
        }
        // 133 of 400 on average, with a deviation of 9.
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
