//! Two things measured side by side in several rounds: their ratio, and how sure it is.
//!
//! What disturbs a round disturbs both, so each round gives a ratio, and the middle of the ratios is the
//! answer. Its interval is from one of them to another, counted from the two ends: the middle of what all
//! rounds would give lies above any of them with even chance, so the chance that k or more of n lie on
//! its wrong side is the binomial's, exactly, whatever the ratios' distribution. With six rounds the
//! least and the greatest hold it with 97 %; with five no two do with 95 %.

/// The chance with which an interval should hold the middle.
pub const WANTED: f64 = 0.95;

/// The ratio of two figures over several rounds.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Ratio {
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The lower end of its interval.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// The chance with which the interval holds it, from 0 to 1: at least [`WANTED`] where so many
    /// rounds can tell, otherwise that of the widest.
    pub confidence: f64,
    /// Rounds that have both figures.
    pub rounds: usize,
}

impl Ratio {
    /// Of pairs (figure, reference), one a round. Pairs without a ratio above 0 are left out; `None` if
    /// nothing is left.
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

    /// Whether its interval says that the figure is below the reference.
    pub fn is_less(&self) -> bool {
        self.confidence >= WANTED && self.high < 1.0
    }

    /// Whether its interval says that it is above.
    pub fn is_more(&self) -> bool {
        self.confidence >= WANTED && self.low > 1.0
    }
}

/// The chance that the middle lies between the ends, with so many left out at each.
fn confidence(rounds: usize, left_out: usize) -> f64 {
    // Of 2^n ways for the rounds to fall above or below.
    let mut ways = 1.0_f64;
    let mut outside = 0.0;
    for below in 0..=left_out {
        outside += ways;
        ways *= (rounds - below) as f64 / (below + 1) as f64;
    }
    (1.0 - 2.0 * outside / 2.0_f64.powi(i32::try_from(rounds).unwrap_or(i32::MAX))).max(0.0)
}

/// How many may be left out at each end, so that what is between still holds the middle as wanted.
fn left_out(rounds: usize) -> usize {
    let most = rounds.saturating_sub(1) / 2;
    (0..=most).take_while(|it| *it == 0 || confidence(rounds, *it) >= WANTED).last().unwrap_or(0)
}

/// The fewest rounds that can tell.
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
        // Nine rounds bear one lost at each end: 1 - 2 * 10 / 512.
        let nine = of(9);
        assert_eq!((nine.low, nine.high), (0.2, 0.8));
        assert!((nine.confidence - 0.9609375).abs() < 1e-12);
        assert_eq!(fewest_rounds(), 6);
        let five = of(5);
        assert!((five.confidence - 0.9375).abs() < 1e-12);
        assert!(!five.is_less(), "five rounds cannot tell");
    }

    #[test]
    fn an_interval_holds_the_middle_as_often_as_it_says() {
        let mut rng = napkin_traffic::Rng::new(7);
        let (mut held, mut confidence) = (0, 0.0);
        let trials = 4_000;
        for _ in 0..trials {
            // Skewed, with its middle at 1.
            let ratio = |_| (2.0_f64.powf(rng.unit() * 8.0 - 4.0), 1.0);
            let ratio = Ratio::of((0..12).map(ratio)).expect("some");
            held += u32::from(ratio.low <= 1.0 && 1.0 <= ratio.high);
            confidence = ratio.confidence;
        }
        let share = f64::from(held) / f64::from(trials);
        // Four deviations of so many trials.
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
