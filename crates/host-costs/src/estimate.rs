//! Estimation of a cost and its spread from samples: medians, and a line fitted to medians.
//!
//! A sample is the time of a kernel step plus, sometimes, that of an interruption. The median is not affected as
//! long as fewer than half of the samples were interrupted.

use std::collections::BTreeMap;

use napkin_measure::interleave::{Spread, median};

/// A linear cost: a fixed part and a part per unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line {
    /// The value at 0.
    pub base: f64,
    /// The increase per unit.
    pub each: f64,
}

/// Fits a line to the median cost of each count in the samples `(count, cost)`, weighted by the square root of the
/// number of samples behind a median. `None` if fewer than two counts have `least` samples.
pub fn line(samples: &[(u32, f64)], least: usize) -> Option<Line> {
    let mut groups: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for (count, cost) in samples {
        groups.entry(*count).or_default().push(*cost);
    }
    let points: Vec<(f64, f64, f64)> = groups
        .into_iter()
        .filter(|(_, costs)| costs.len() >= least.max(1))
        .filter_map(|(count, costs)| {
            let weight = (costs.len() as f64).sqrt();
            Some((f64::from(count), median(costs)?, weight))
        })
        .collect();
    if points.len() < 2 {
        return None;
    }
    let sum = |of: fn(&(f64, f64, f64)) -> f64| points.iter().map(of).sum::<f64>();
    let weight = sum(|it| it.2);
    let (x, y) = (sum(|it| it.0 * it.2) / weight, sum(|it| it.1 * it.2) / weight);
    let across: f64 = points.iter().map(|it| it.2 * (it.0 - x) * (it.1 - y)).sum();
    let spread: f64 = points.iter().map(|it| it.2 * (it.0 - x) * (it.0 - x)).sum();
    let each = across / spread;
    Some(Line { base: y - each * x, each })
}

/// The estimate from several rounds of a measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The median of the rounds.
    pub value: f64,
    /// The minimum.
    pub low: f64,
    /// The maximum.
    pub high: f64,
    /// Number of rounds.
    pub rounds: usize,
}

impl Estimate {
    /// The estimate from one figure per round. Negative figures, which differences of two costs can produce, count
    /// as 0. `None` without a round.
    pub fn of(rounds: &[f64]) -> Option<Estimate> {
        let finite = || rounds.iter().filter(|it| it.is_finite());
        let Spread { median, min, max } = Spread::of(finite().map(|it| it.max(0.0)))?;
        Some(Estimate { value: median, low: min, high: max, rounds: finite().count() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_finds_the_cost_of_a_poll_and_of_each_frame_in_spite_of_interruptions() {
        // A poll of 300 ns, a frame of 1200 ns; every fifth sample was interrupted for 50 us, and small polls are
        // far more frequent than large ones.
        let polls = |frames: u32| 400 / (frames + 1);
        let mut samples = Vec::new();
        for frames in [0, 1, 2, 4, 8, 16, 31] {
            for i in 0..polls(frames).max(10) {
                let jitter = f64::from(i % 7) - 3.0;
                let interrupted = if i % 5 == 4 { 50_000.0 } else { 0.0 };
                samples.push((frames, 300.0 + 1200.0 * f64::from(frames) + jitter + interrupted));
            }
        }
        let line = line(&samples, 5).expect("a line");
        assert!((line.base - 300.0).abs() < 5.0, "{line:?}");
        assert!((line.each - 1200.0).abs() < 2.0, "{line:?}");
    }

    #[test]
    fn there_is_no_line_through_one_count_or_through_too_few_samples() {
        assert_eq!(line(&[], 1), None);
        assert_eq!(line(&[(1, 5.0), (1, 6.0)], 1), None);
        assert_eq!(line(&[(1, 5.0), (1, 6.0), (2, 9.0)], 2), None);
        assert_eq!(line(&[(1, 5.0), (2, 9.0)], 1), Some(Line { base: 1.0, each: 4.0 }));
    }

    #[test]
    fn rounds_give_a_value_and_its_spread_and_no_cost_is_negative() {
        assert_eq!(Estimate::of(&[]), None);
        assert_eq!(Estimate::of(&[f64::NAN]), None);
        let found = Estimate::of(&[30.0, 10.0, -5.0]).unwrap();
        assert_eq!(found, Estimate { value: 10.0, low: 0.0, high: 30.0, rounds: 3 });
    }
}
