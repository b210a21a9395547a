//! Paired comparison of two subjects over several rounds: the ratio, with a confidence interval.
//!
//! A disturbance of a round hits both subjects, so each round gives one ratio, and their median is the estimate.
//! The interval lies between two of the sorted ratios, equally far from either end. Each ratio lies above the true
//! median with a probability of one half, so the probability that the interval misses it is binomial, exactly,
//! whatever the distribution of the ratios. With six rounds, minimum and maximum enclose it with 97 %; with five,
//! no interval reaches 95 %.

/// The confidence wanted of an interval.
pub const WANTED: f64 = 0.95;

/// The ratio of two figures over several rounds.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Ratio {
    /// The median of the rounds' ratios.
    pub median: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Probability, from 0 to 1, that the interval contains the true median: at least [`WANTED`] with enough
    /// rounds, otherwise that of the widest interval.
    pub confidence: f64,
    /// Number of rounds that have both figures.
    pub rounds: usize,
}

impl Ratio {
    /// The ratio of pairs (figure, reference), one per round. Pairs without a positive finite ratio are left out;
    /// `None` if nothing remains.
    pub fn of(pairs: impl IntoIterator<Item = (f64, f64)>) -> Option<Ratio> {
        let ratios = pairs.into_iter().map(|(figure, reference)| figure / reference);
        let mut sorted: Vec<f64> = ratios.filter(|it| it.is_finite() && *it > 0.0).collect();
        sorted.sort_by(f64::total_cmp);
        let median = crate::interleave::median(sorted.iter().copied())?;
        let left_out = left_out(sorted.len());
        let (low, high) = (sorted[left_out], sorted[sorted.len() - 1 - left_out]);
        let confidence = confidence(sorted.len(), left_out);
        Some(Ratio { median, low, high, confidence, rounds: sorted.len() })
    }

    /// Whether the figure is significantly below the reference.
    pub fn is_less(&self) -> bool {
        self.confidence >= WANTED && self.high < 1.0
    }

    /// Whether the figure is significantly above the reference.
    pub fn is_more(&self) -> bool {
        self.confidence >= WANTED && self.low > 1.0
    }
}

/// Probability that the median lies within the interval that omits `left_out` ratios at each end.
fn confidence(rounds: usize, left_out: usize) -> f64 {
    // Counts, out of 2^n, the outcomes in which at most `left_out` rounds lie below the median.
    let mut ways = 1.0_f64;
    let mut outside = 0.0;
    for below in 0..=left_out {
        outside += ways;
        ways *= (rounds - below) as f64 / (below + 1) as f64;
    }
    (1.0 - 2.0 * outside / 2.0_f64.powi(i32::try_from(rounds).unwrap_or(i32::MAX))).max(0.0)
}

/// How many ratios may be omitted at each end while the confidence stays at [`WANTED`] or above.
fn left_out(rounds: usize) -> usize {
    let most = rounds.saturating_sub(1) / 2;
    (0..=most).take_while(|it| *it == 0 || confidence(rounds, *it) >= WANTED).last().unwrap_or(0)
}

/// The smallest number of rounds that gives an interval of the confidence [`WANTED`].
pub fn fewest_rounds() -> usize {
    (1..64).find(|rounds| confidence(*rounds, 0) >= WANTED).unwrap_or(64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_as_wide_as_the_rounds_are_few() {
        let of =
            |rounds: u32| Ratio::of((1..=rounds).map(|it| (f64::from(it), 10.0))).expect("some");
        let six = of(6);
        assert_eq!((six.low, six.high, six.median), (0.1, 0.6, 0.35));
        assert!((six.confidence - 0.96875).abs() < 1e-12);
        assert!(six.is_less() && !six.is_more());
        // Nine rounds allow one to be omitted at each end: 1 - 2 * 10 / 512.
        let nine = of(9);
        assert_eq!((nine.low, nine.high), (0.2, 0.8));
        assert!((nine.confidence - 0.9609375).abs() < 1e-12);
        assert_eq!(fewest_rounds(), 6);
        let five = of(5);
        assert!((five.confidence - 0.9375).abs() < 1e-12);
        assert!(!five.is_less(), "five rounds cannot tell");
    }

    #[test]
    fn an_interval_contains_the_median_as_often_as_its_confidence_says() {
        let mut rng = napkin_traffic::Rng::new(7);
        let (mut held, mut confidence) = (0, 0.0);
        let trials = 4_000;
        for _ in 0..trials {
            // A skewed distribution with median 1.
            let ratio = |_| (2.0_f64.powf(rng.unit() * 8.0 - 4.0), 1.0);
            let ratio = Ratio::of((0..12).map(ratio)).expect("some");
            held += u32::from(ratio.low <= 1.0 && 1.0 <= ratio.high);
            confidence = ratio.confidence;
        }
        let share = f64::from(held) / f64::from(trials);
        // Four standard deviations for this number of trials.
        assert!((share - confidence).abs() < 0.014, "{share} for {confidence}");
    }

    #[test]
    fn what_has_no_ratio_is_no_round() {
        let pairs = [(1.0, 2.0), (0.0, 1.0), (1.0, 0.0), (f64::NAN, 1.0)];
        let only = Ratio::of(pairs).expect("one");
        assert_eq!((only.rounds, only.median, only.confidence), (1, 0.5, 0.0));
        assert_eq!(Ratio::of([(1.0, 0.0)]), None);
    }
}
