//! Interleaved repetition, and what it shows.
//!
//! Policies that are compared run in one session in turn, A B C A B C ..., because a shared machine
//! drifts: what disturbs one repetition of A then disturbs B and C as likely. A table shows the
//! median of the repetitions, and the report their spread. This file knows the order and the
//! arithmetic, not what a policy is.

use serde::{Deserialize, Serialize};

/// The order of an interleaved run: every subject once, then every subject again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// How many things are compared: policies, or policies times loads.
    pub subjects: usize,
    /// How often each of them runs.
    pub repetitions: usize,
}

/// One step of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Which subject runs, from 0.
    pub subject: usize,
    /// Its how-manieth run this is, from 0.
    pub repetition: usize,
}

impl Plan {
    /// Steps in all.
    pub fn len(self) -> usize {
        self.subjects.saturating_mul(self.repetitions)
    }

    /// Whether there is nothing to run.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The steps in order.
    pub fn steps(self) -> impl Iterator<Item = Step> {
        (0..self.repetitions).flat_map(move |repetition| {
            (0..self.subjects).map(move |subject| Step { subject, repetition })
        })
    }
}

/// Where the repetitions of one figure lie.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
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

    #[test]
    fn three_policies_twice_run_a_b_c_a_b_c() {
        let plan = Plan { subjects: 3, repetitions: 2 };
        let order: String = plan.steps().map(|s| ['A', 'B', 'C'][s.subject]).collect();
        assert_eq!(order, "ABCABC");
        let repetitions: Vec<_> = plan.steps().map(|s| s.repetition).collect();
        assert_eq!(repetitions, [0, 0, 0, 1, 1, 1]);
        assert_eq!(plan.len(), 6);
    }

    #[test]
    fn nothing_to_compare_or_no_repetition_is_an_empty_plan() {
        assert!(Plan { subjects: 0, repetitions: 5 }.is_empty());
        assert_eq!(Plan { subjects: 5, repetitions: 0 }.steps().count(), 0);
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
