//! Latency of requests, in nanoseconds from the *intended* send time.
//!
//! A recorder of bounded memory (about 220 KiB, taken once) that a hot thread can own; recorders of
//! several threads are merged afterwards. Percentiles carry three significant digits; mean and
//! maximum are exact. It does not know when a request was meant to leave: the caller passes the
//! difference, and must pass it for late requests too, or coordinated omission returns.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The longest latency told apart: 100 s. Longer ones are counted as this long, and counted in
/// [`Latency::saturated`].
pub const LONGEST_NS: u64 = 100_000_000_000;

/// Significant decimal digits of a percentile.
const DIGITS: u8 = 3;

/// A recorder of latencies from 1 ns to [`LONGEST_NS`].
#[derive(Debug, Clone)]
pub struct Latency {
    histogram: Histogram<u64>,
    /// Exact sum: the histogram's own mean is only as good as its buckets.
    sum_ns: u128,
    max_ns: u64,
    saturated: u64,
}

impl Latency {
    /// An empty recorder. This is its only allocation.
    pub fn new() -> Latency {
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, DIGITS)
            .expect("constant bounds: 1 <= low, 2 * low <= high, digits <= 5");
        Latency { histogram, sum_ns: 0, max_ns: 0, saturated: 0 }
    }

    /// Takes one latency. Allocates nothing; 0 counts as 1 ns, more than [`LONGEST_NS`] as that.
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

    /// Forgets all samples and keeps the memory, for the end of a warm-up.
    pub fn clear(&mut self) {
        self.histogram.reset();
        self.sum_ns = 0;
        self.max_ns = 0;
        self.saturated = 0;
    }

    /// Samples taken.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Samples longer than [`LONGEST_NS`]; where this is not 0, the mean and the maximum are too low.
    pub fn saturated(&self) -> u64 {
        self.saturated
    }

    /// The latency that a share of the samples (0 to 1) does not exceed; `None` without samples.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        // A bucket answers with its upper end, which may lie above the longest sample.
        (self.count() != 0).then(|| self.histogram.value_at_quantile(share).min(self.max_ns))
    }

    /// The recorded values in ascending order with their counts, each value being the middle of
    /// its bucket.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.histogram.iter_recorded().map(|step| {
            (self.histogram.median_equivalent(step.value_iterated_to()), step.count_at_value())
        })
    }

    /// The figures of a table row; `None` without samples, because then there is no latency.
    pub fn summary(&self) -> Option<LatencyNs> {
        let count = self.count();
        Some(LatencyNs {
            mean: self.sum_ns as f64 / count as f64,
            p5: self.quantile(0.05)?,
            p50: self.quantile(0.50)?,
            p90: self.quantile(0.90)?,
            p95: self.quantile(0.95)?,
            p99: self.quantile(0.99)?,
            p999: self.quantile(0.999)?,
            max: self.max_ns,
            count,
        })
    }
}

impl Default for Latency {
    fn default() -> Self {
        Latency::new()
    }
}

/// Latency figures of one row or repetition, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LatencyNs {
    /// Arithmetic mean, exact.
    pub mean: f64,
    /// Exceeded by 95 % of the samples; the 2025 table starts with it.
    pub p5: u64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 95th percentile.
    pub p95: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// The longest, exact.
    pub max: u64,
    /// Samples behind these figures.
    pub count: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether `got` is `want` to three significant digits.
    fn near(got: u64, want: u64) -> bool {
        got.abs_diff(want) * 1000 <= want
    }

    #[test]
    fn no_sample_is_no_latency_rather_than_zero() {
        assert_eq!(Latency::new().summary(), None);
        assert_eq!(Latency::new().quantile(0.5), None);
    }

    #[test]
    fn a_thousand_steps_of_one_microsecond() {
        let mut latency = Latency::new();
        (1..=1000).for_each(|us| latency.record(us * 1000));
        let s = latency.summary().unwrap();
        assert_eq!((s.mean, s.max, s.count), (500_500.0, 1_000_000, 1000));
        for (got, want) in
            [(s.p5, 50), (s.p50, 500), (s.p90, 900), (s.p95, 950), (s.p99, 990), (s.p999, 999)]
        {
            assert!(near(got, want * 1000), "{got} for {want} us");
        }
    }

    #[test]
    fn zero_and_absurd_values_are_clamped_and_the_latter_counted() {
        let mut latency = Latency::new();
        latency.record(0);
        latency.record(u64::MAX);
        let s = latency.summary().unwrap();
        assert_eq!((s.p5, s.max, s.count), (1, LONGEST_NS, 2));
        assert_eq!(latency.saturated(), 1);
    }

    #[test]
    fn no_percentile_exceeds_the_maximum() {
        let mut latency = Latency::new();
        latency.record(1_000_001);
        let s = latency.summary().unwrap();
        assert_eq!((s.p50, s.p999, s.max), (1_000_001, 1_000_001, 1_000_001));
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
        assert_eq!(left.summary(), both.summary());
        left.clear();
        assert_eq!(left.summary(), None);
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
