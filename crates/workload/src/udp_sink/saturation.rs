//! The rate that a policy receives up to saturation, and whether it falls beyond it.

use napkin_measure::report::Row;
use serde::Serialize;

/// The received rates of a policy up to saturation, and beyond it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Saturation {
    /// The name of its rows.
    pub policy: String,
    /// The highest received rate per second up to saturation: under any load up to and including the first one of
    /// which less than 98 % was received.
    pub peak_per_s: f64,
    /// The load at that rate, as a multiple of the CPU's capacity.
    pub peak_at: f64,
    /// The highest received rate per second under any load.
    pub maximum_per_s: f64,
    /// The load at that rate.
    pub maximum_at: f64,
    /// The lowest received rate under any load above `peak_at`; `None` if there was none.
    pub least_per_s: Option<f64>,
    /// The load at that rate.
    pub least_at: Option<f64>,
    /// `least_per_s` divided by `peak_per_s`: at least 1 if it never fell below.
    pub of_peak: Option<f64>,
    /// `least_per_s` divided by `maximum_per_s`.
    pub of_maximum: Option<f64>,
}

impl Saturation {
    /// Returns the saturation of each policy that was offered more than it could receive.
    pub fn all(rows: &[Row]) -> Vec<Saturation> {
        let mut policies: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        policies.sort_unstable();
        policies.dedup();
        policies.into_iter().filter_map(|policy| Saturation::of(policy, rows)).collect()
    }

    fn of(policy: &str, rows: &[Row]) -> Option<Saturation> {
        let mut points: Vec<(f64, f64, f64)> = rows
            .iter()
            .filter(|row| row.name == policy)
            .filter_map(|row| {
                let times = row.load.get("times_peak")?.as_f64()?;
                Some((times, row.figures.offered_per_s?, row.figures.achieved_per_s?))
            })
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let full = points.iter().position(|(_, offered, received)| *received < 0.98 * offered)?;
        let by_rate = |a: &&(f64, f64, f64), b: &&(f64, f64, f64)| a.2.total_cmp(&b.2);
        let peak = points[..=full].iter().max_by(by_rate)?;
        let maximum = points.iter().max_by(by_rate)?;
        let least = points.iter().filter(|point| point.0 > peak.0).min_by(by_rate);
        // A policy that received nothing at all has no ratio.
        let of = |whole: f64| least.filter(|_| whole > 0.0).map(|least| least.2 / whole);
        Some(Saturation {
            policy: policy.to_owned(),
            peak_per_s: peak.2,
            peak_at: peak.0,
            maximum_per_s: maximum.2,
            maximum_at: maximum.0,
            least_per_s: least.map(|point| point.2),
            least_at: least.map(|point| point.0),
            of_peak: of(peak.2),
            of_maximum: of(maximum.2),
        })
    }
}

impl std::fmt::Display for Saturation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Saturation { policy, peak_per_s, peak_at, maximum_per_s, maximum_at, .. } = self;
        write!(
            f,
            "{policy}: most received up to saturation {peak_per_s:.0}/s (at {peak_at} times the peak)"
        )?;
        let (Some(least), Some(at)) = (self.least_per_s, self.least_at) else {
            return f.write_str("; nothing higher was offered");
        };
        let (Some(of_peak), Some(of_maximum)) = (self.of_peak, self.of_maximum) else {
            return f.write_str("; nothing was received");
        };
        let maximum =
            format!("{of_maximum:.2} of its maximum, {maximum_per_s:.0}/s at {maximum_at}");
        if of_peak >= 1.0 {
            return write!(f, "; never less beyond it (least {least:.0}/s at {at}, {maximum})");
        }
        write!(
            f,
            "; beyond it the least was {least:.0}/s (at {at}), {of_peak:.2} of that ({maximum})"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use napkin_measure::report::{Measurement, Repetition};
    use serde_json::{Map, json};

    fn row(policy: &str, times: f64, received: f64) -> Row {
        let figures = Measurement {
            offered_per_s: Some(times * 25_000.0),
            achieved_per_s: Some(received),
            ..Measurement::default()
        };
        let load = Map::from_iter([("times_peak".to_owned(), json!(times))]);
        Row::from_repetitions(policy, load, vec![Repetition { step: 0, figures }], Vec::new())
    }

    #[test]
    fn a_collapse_is_measured_from_the_first_load_that_was_too_much() {
        let rows = [
            row("base", 0.2, 5_000.0),
            row("base", 0.5, 11_500.0),
            row("base", 0.8, 1_100.0),
            row("base", 4.0, 23_000.0),
        ];
        let [beyond] = &Saturation::all(&rows)[..] else { panic!("one policy") };
        assert_eq!((beyond.peak_per_s, beyond.peak_at), (11_500.0, 0.5));
        assert_eq!((beyond.least_per_s, beyond.least_at), (Some(1_100.0), Some(0.8)));
        assert_eq!((beyond.maximum_per_s, beyond.maximum_at), (23_000.0, 4.0));
        assert_eq!(
            beyond.to_string(),
            "base: most received up to saturation 11500/s (at 0.5 times the peak); beyond it the \
             least was 1100/s (at 0.8), 0.10 of that (0.05 of its maximum, 23000/s at 4)"
        );
    }

    #[test]
    fn a_policy_that_stays_where_it_is_does_not_read_like_a_collapse() {
        // The rate at saturation is what it received of the first load that was too much.
        let rows = [
            row("feedback", 0.8, 20_000.0),
            row("feedback", 1.0, 24_000.0),
            row("feedback", 2.0, 24_240.0),
            row("feedback", 4.0, 24_480.0),
        ];
        let [beyond] = &Saturation::all(&rows)[..] else { panic!("one policy") };
        assert_eq!((beyond.peak_per_s, beyond.peak_at), (24_000.0, 1.0));
        assert_eq!(beyond.of_peak, Some(1.01));
        assert_eq!(
            beyond.to_string(),
            "feedback: most received up to saturation 24000/s (at 1 times the peak); never less \
             beyond it (least 24240/s at 2, 0.99 of its maximum, 24480/s at 4)"
        );
    }

    #[test]
    fn a_policy_that_receives_nothing_has_no_ratio() {
        let [beyond] = &Saturation::all(&[row("base", 2.0, 0.0), row("base", 4.0, 0.0)])[..] else {
            panic!("one policy")
        };
        assert_eq!((beyond.of_peak, beyond.of_maximum), (None, None));
        assert!(beyond.to_string().ends_with("nothing was received"));
        let [beyond] = &Saturation::all(&[row("base", 2.0, 9.0)])[..] else { panic!("one policy") };
        assert!(beyond.to_string().ends_with("nothing higher was offered"));
    }

    #[test]
    fn a_policy_that_always_keeps_up_has_no_peak() {
        assert!(Saturation::all(&[row("base", 0.2, 5_000.0)]).is_empty());
    }
}
