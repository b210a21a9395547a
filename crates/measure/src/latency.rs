//! Latency of requests, in nanoseconds from the *intended* send time.
//!
//! A recorder of bounded memory (about 220 KiB, allocated once) for a hot thread; recorders of several threads are
//! merged afterwards. Percentiles have three significant digits; mean and maximum are exact. The recorder does not
//! know the intended send times: the caller passes the differences, and must pass those of late requests as well,
//! or coordinated omission returns.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The longest latency that can be recorded: 100 s. Longer ones are recorded as this, and counted in
/// [`Latency::saturated`].
pub const LONGEST_NS: u64 = 100_000_000_000;

/// Significant decimal digits of a percentile.
const DIGITS: u8 = 3;

/// A recorder of latencies from 1 ns to [`LONGEST_NS`].
#[derive(Debug, Clone)]
pub struct Latency {
    histogram: Histogram<u64>,
    /// The exact sum; the histogram's own mean is limited by its buckets.
    sum_ns: u128,
    max_ns: u64,
    saturated: u64,
}

impl Latency {
    /// An empty recorder. Nothing after this allocates.
    pub fn new() -> Latency {
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, DIGITS)
            .expect("constant bounds: 1 <= low, 2 * low <= high, digits <= 5");
        Latency { histogram, sum_ns: 0, max_ns: 0, saturated: 0 }
    }

    /// Records one latency. Does not allocate; 0 is recorded as 1 ns, more than [`LONGEST_NS`] as that.
    pub fn record(&mut self, ns: u64) {
        let clamped = ns.clamp(1, LONGEST_NS);
        self.saturated += u64::from(ns > LONGEST_NS);
        self.sum_ns += u128::from(clamped);
        self.max_ns = self.max_ns.max(clamped);
        self.histogram.saturating_record(clamped);
    }

    /// Adds another recorder's samples to this one.
    pub fn merge(&mut self, other: &Latency) {
        self.histogram.add(&other.histogram).expect("every recorder has the same constant bounds");
        self.sum_ns += other.sum_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
        self.saturated += other.saturated;
    }

    /// Removes all samples and keeps the memory, at the end of a warm-up.
    pub fn clear(&mut self) {
        self.histogram.reset();
        self.sum_ns = 0;
        self.max_ns = 0;
        self.saturated = 0;
    }

    /// Samples since the last [`clear`](Self::clear).
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Samples longer than [`LONGEST_NS`]; if there are any, the mean and the maximum are too low.
    pub fn saturated(&self) -> u64 {
        self.saturated
    }

    /// The latency that a share of the samples (0 to 1) does not exceed; `None` without samples.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        // The histogram returns the upper end of a bucket, which may exceed the longest sample.
        (self.count() != 0).then(|| self.histogram.value_at_quantile(share).min(self.max_ns))
    }

    /// The recorded values with their counts, in ascending order; a value is the middle of its bucket.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.histogram.iter_recorded().map(|step| {
            (self.histogram.median_equivalent(step.value_iterated_to()), step.count_at_value())
        })
    }

    /// The figures of a table row, given the number of requests without an answer; `None` without samples.
    pub fn summary(&self, unanswered: u64) -> Option<LatencyNs> {
        let count = self.count();
        (count != 0).then(|| LatencyNs {
            mean: Some(self.sum_ns as f64 / count as f64),
            at: Percentiles::of_all(count, unanswered, |share| self.quantile(share)),
            max: self.max_ns,
            count,
            above: None,
        })
    }
}

impl Default for Latency {
    fn default() -> Self {
        Latency::new()
    }
}

/// Percentiles of a latency, in nanoseconds; `None` where the samples do not determine one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Percentiles {
    /// 5th percentile, ns, with which the 2025 table starts.
    pub p5: Option<u64>,
    /// Median, ns.
    pub p50: Option<u64>,
    /// 90th percentile, ns.
    pub p90: Option<u64>,
    /// 95th percentile, ns.
    pub p95: Option<u64>,
    /// 99th percentile, ns.
    pub p99: Option<u64>,
    /// 99.9th percentile, ns.
    pub p999: Option<u64>,
}

impl Percentiles {
    /// Computes each percentile with a function of its share, from 0 to 1.
    pub fn each(mut of: impl FnMut(f64) -> Option<u64>) -> Percentiles {
        Percentiles {
            p5: of(0.05),
            p50: of(0.50),
            p90: of(0.90),
            p95: of(0.95),
            p99: of(0.99),
            p999: of(0.999),
        }
    }

    /// The percentile of a share; `None` if it is unknown or not among the fields.
    pub fn of(&self, share: f64) -> Option<u64> {
        match (share * 1000.0).round() as u64 {
            50 => self.p5,
            500 => self.p50,
            900 => self.p90,
            950 => self.p95,
            990 => self.p99,
            999 => self.p999,
            _ => None,
        }
    }

    /// The percentiles over all requests, answered or not, from a function that gives those of the answered ones. A
    /// request without an answer counts as later than all answered ones. A percentile that may fall on such a
    /// request is set to that of the answered ones, as a lower bound.
    pub fn of_all(
        answered: u64,
        unanswered: u64,
        mut of_answered: impl FnMut(f64) -> Option<u64>,
    ) -> Percentiles {
        let all = answered as f64 + unanswered as f64;
        let mut least = 0;
        Percentiles::each(|share| {
            let known = !is_bound(share, answered, unanswered);
            let of = if known { (share * all / answered as f64).min(1.0) } else { share };
            // A bound is at least the percentile of any smaller share.
            let at = of_answered(of).map(|ns| ns.max(least));
            least = at.unwrap_or(least);
            at
        })
    }
}

/// Whether a percentile over all requests may fall on a request without an answer.
fn is_bound(share: f64, answered: u64, unanswered: u64) -> bool {
    let all = answered as f64 + unanswered as f64;
    // Tolerate rounding errors.
    unanswered as f64 > (1.0 - share) * all + 1e-6
}

/// Latency figures of one row or repetition, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LatencyNs {
    /// Exact arithmetic mean of the answered requests; `None` for a row with a repetition that has no answers.
    pub mean: Option<f64>,
    /// The known percentiles.
    #[serde(flatten)]
    pub at: Percentiles,
    /// The exact maximum of the answered requests.
    pub max: u64,
    /// Number of samples.
    pub count: u64,
    /// Lower bounds of the percentiles that are unknown, because too many requests had no answer or because their
    /// queue grows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub above: Option<Percentiles>,
}

impl LatencyNs {
    /// Number of samples that must lie beyond a percentile.
    const BEYOND: f64 = 10.0;

    /// Keeps the percentiles that the samples support, given the number of requests without an answer. One with
    /// fewer than ten samples beyond it is removed. One that may fall on an unanswered request is turned into a
    /// lower bound ([`LatencyNs::above`]); if the queue `grows`, all are, because a longer window would show longer
    /// latencies. Idempotent. The percentiles must already be those of all requests ([`Percentiles::of_all`]).
    #[must_use]
    pub fn supported(self, unanswered: u64, grows: bool) -> LatencyNs {
        let all = self.count as f64 + unanswered as f64;
        let few = |share: f64| all * share.min(1.0 - share) < Self::BEYOND - 1e-6;
        let bounds = |share: f64| grows || is_bound(share, self.count, unanswered);
        let known = |share: f64| {
            let above = self.above.and_then(|above| above.of(share));
            self.at.of(share).or(above).filter(|_| !few(share))
        };
        let at = Percentiles::each(|share| known(share).filter(|_| !bounds(share)));
        let above = Percentiles::each(|share| known(share).filter(|_| bounds(share)));
        LatencyNs { at, above: (above != Percentiles::default()).then_some(above), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether `got` equals `want` to three significant digits.
    fn near(got: u64, want: u64) -> bool {
        got.abs_diff(want) * 1000 <= want
    }

    #[test]
    fn no_sample_is_no_latency_rather_than_zero() {
        assert_eq!(Latency::new().summary(0), None);
        assert_eq!(Latency::new().quantile(0.5), None);
    }

    #[test]
    fn a_thousand_steps_of_one_microsecond() {
        let mut latency = Latency::new();
        (1..=1000).for_each(|us| latency.record(us * 1000));
        let s = latency.summary(0).unwrap();
        assert_eq!((s.mean, s.max, s.count), (Some(500_500.0), 1_000_000, 1000));
        let at = s.at;
        for (got, want) in [
            (at.p5, 50),
            (at.p50, 500),
            (at.p90, 900),
            (at.p95, 950),
            (at.p99, 990),
            (at.p999, 999),
        ] {
            let got = got.unwrap();
            assert!(near(got, want * 1000), "{got} for {want} us");
        }
    }

    /// The figures of `count` samples of 1 to 1000 us, with `unanswered` requests without an answer.
    fn samples(count: u64, unanswered: u64) -> LatencyNs {
        let mut latency = Latency::new();
        (0..count).for_each(|i| latency.record((1 + i % 1000) * 1000));
        latency.summary(unanswered).unwrap()
    }

    #[test]
    fn a_percentile_with_fewer_than_ten_samples_beyond_it_is_none() {
        for (count, known) in [
            (19, [false; 6]),
            (20, [false, true, false, false, false, false]),
            (100, [false, true, true, false, false, false]),
            (200, [true, true, true, true, false, false]),
            (999, [true, true, true, true, false, false]),
            (1_000, [true, true, true, true, true, false]),
            (10_000, [true; 6]),
        ] {
            let supported = samples(count, 0).supported(0, false);
            let Percentiles { p5, p50, p90, p95, p99, p999 } = supported.at;
            assert_eq!([p5, p50, p90, p95, p99, p999].map(|it| it.is_some()), known, "{count}");
            assert_eq!((supported.above, supported.count), (None, count));
        }
    }

    #[test]
    fn a_percentile_that_unanswered_requests_may_have_is_a_bound() {
        let raw = samples(9_500, 500);
        let supported = raw.supported(500, false);
        assert_eq!(
            (supported.at.p95, supported.at.p99, supported.at.p999),
            (raw.at.p95, None, None)
        );
        let above = supported.above.unwrap();
        assert_eq!((above.p95, above.p99, above.p999), (None, raw.at.p99, raw.at.p999));
        assert_eq!(supported.supported(500, false), supported, "once is enough");
        let little = samples(9_500, 9).supported(9, false);
        assert_eq!(little.above, None, "less than one in a thousand");
        let grows = raw.supported(500, true);
        assert_eq!((grows.at, grows.above), (Percentiles::default(), Some(raw.at)));
    }

    #[test]
    fn a_percentile_is_that_of_all_that_fell_due_and_not_of_the_answered_ones() {
        // Up to 500 us there are ten samples per microsecond, above that nine.
        let supported = samples(9_500, 500).supported(500, false).at;
        for (got, want) in
            [(supported.p5, 50), (supported.p50, 500), (supported.p90, 945), (supported.p95, 1_000)]
        {
            let got = got.unwrap();
            assert!(got.abs_diff(want * 1_000) <= 2_000, "{got} for {want} us");
        }
        // A bound is the percentile of the answered requests.
        let (all, answered) = (samples(9_500, 500).at, samples(9_500, 0).at);
        assert_eq!((all.p99, all.p999), (all.p95, all.p95.max(answered.p999)));
        assert!(all.p50 > answered.p50 && all.p95 > answered.p95);
    }

    #[test]
    fn in_json_a_percentile_that_is_not_known_is_null_and_its_bound_stands_beside_it() {
        let supported = samples(9_500, 500).supported(500, false);
        let json = serde_json::to_value(supported).unwrap();
        assert!(json["p50"].is_u64() && json["p99"].is_null() && json["above"]["p99"].is_u64());
        assert_eq!(serde_json::from_value::<LatencyNs>(json).unwrap(), supported);
        let plain = serde_json::to_value(samples(10_000, 0)).unwrap();
        assert!(plain.get("above").is_none() && plain["p999"].is_u64(), "{plain}");
    }

    #[test]
    fn zero_and_absurd_values_are_clamped_and_the_latter_counted() {
        let mut latency = Latency::new();
        latency.record(0);
        latency.record(u64::MAX);
        let s = latency.summary(0).unwrap();
        assert_eq!((s.at.p5, s.max, s.count), (Some(1), LONGEST_NS, 2));
        assert_eq!(latency.saturated(), 1);
    }

    #[test]
    fn no_percentile_exceeds_the_maximum() {
        let mut latency = Latency::new();
        latency.record(1_000_001);
        let s = latency.summary(0).unwrap();
        assert_eq!((s.at.p50, s.at.p999, s.max), (Some(1_000_001), Some(1_000_001), 1_000_001));
    }

    #[test]
    fn merged_recorders_equal_one_that_saw_everything() {
        let (mut left, mut right, mut both) = (Latency::new(), Latency::new(), Latency::new());
        for ns in [10, 2_000, 300_000, 40_000_000] {
            left.record(ns);
            right.record(ns + 5);
            both.record(ns);
            both.record(ns + 5);
        }
        left.merge(&right);
        assert_eq!(left.summary(0), both.summary(0));
        left.clear();
        assert_eq!(left.summary(0), None);
    }

    #[test]
    fn buckets_hold_every_sample_once_in_order() {
        let mut latency = Latency::new();
        [200_000, 12_700, 12_700, 13_000].iter().for_each(|&ns| latency.record(ns));
        let buckets: Vec<_> = latency.buckets().collect();
        assert_eq!(buckets.iter().map(|b| b.1).collect::<Vec<_>>(), [2, 1, 1]);
        assert!(buckets.iter().zip([12_700, 13_000, 200_000]).all(|(b, want)| near(b.0, want)));
    }
}
