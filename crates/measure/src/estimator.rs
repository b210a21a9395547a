//! The estimator behind the figures of the 2025 document (threaded busy poll, measured with `xsk_rr`).
//!
//! The columns that the document calls p5, p50, p95 and p99 are not percentiles. For each p, the published tool
//! takes the mean of the fastest p % of the samples, with three further effects, all reproduced here:
//!
//! 1. Samples fall into 20 000 buckets of 100 ns; the last one takes everything from 1.9999 ms on.
//! 2. The mean is a running mean of whole bucket numbers, rounded down at every bucket. A thin tail of a few
//!    samples per bucket is therefore rounded away completely.
//! 3. To take exactly p %, the tool truncates the bucket in which p % is reached, in place. The next figure is
//!    computed from the truncated histogram, with its smaller total.
//!
//! It exists only to reproduce the published column next to the true one ([`super::Latency`]): if 2 % of the
//! samples are around 200 us, its "p99" stays where the other 98 % are. It must be fed with the samples themselves,
//! because whether a tail bucket is rounded away depends on how many samples share it, and [`super::Latency`] has
//! buckets of other widths.

use serde::{Deserialize, Serialize};

/// Width of a bucket in nanoseconds.
pub const BUCKET_NS: u64 = 100;

/// Number of buckets; the last one takes all outliers.
pub const BUCKETS: usize = 20_000;

/// The four figures of a cell of the document's table, in nanoseconds: *not* percentiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// Rounded-down mean of the fastest 5 %.
    pub p5: u64,
    /// Rounded-down mean of the fastest 50 % of what the previous figure left.
    pub p50: u64,
    /// Rounded-down mean of the fastest 95 % of what the previous figures left.
    pub p95: u64,
    /// Rounded-down mean of the fastest 99 % of what the previous figures left.
    pub p99: u64,
}

/// The published tool's histogram. The tool prints and clears it once a second: call [`Self::take`] at the end of
/// each second.
#[derive(Debug, Clone)]
pub struct PublishedEstimator {
    buckets: Box<[u64]>,
    count: u64,
}

impl PublishedEstimator {
    /// An empty histogram (160 kB, its only allocation).
    pub fn new() -> PublishedEstimator {
        PublishedEstimator { buckets: vec![0; BUCKETS].into_boxed_slice(), count: 0 }
    }

    /// Records one round-trip time. Does not allocate.
    pub fn record(&mut self, ns: u64) {
        self.record_n(ns, 1);
    }

    /// Records the same round-trip time `count` times.
    pub fn record_n(&mut self, ns: u64, count: u64) {
        let bucket = usize::try_from(ns / BUCKET_NS).unwrap_or(usize::MAX).min(BUCKETS - 1);
        self.buckets[bucket] = self.buckets[bucket].saturating_add(count);
        self.count = self.count.saturating_add(count);
    }

    /// Samples since the last [`Self::take`].
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Computes the four figures in the order in which the tool prints them, which matters because each truncates
    /// the histogram, and then empties the histogram. `None` without samples.
    pub fn take(&mut self) -> Option<Published> {
        if self.count == 0 {
            return None;
        }
        let published = Published {
            p5: self.figure(5),
            p50: self.figure(50),
            p95: self.figure(95),
            p99: self.figure(99),
        };
        self.buckets.fill(0);
        self.count = 0;
        Some(published)
    }

    /// One figure in nanoseconds; truncates the bucket in which it ends.
    fn figure(&mut self, percent: u64) -> u64 {
        let total: u128 = self.buckets.iter().map(|&n| u128::from(n)).sum();
        let wanted = total * u128::from(percent) / 100;
        let (mut seen, mut mean) = (0_u128, 0_u128);
        for (number, bucket) in (0_u128..).zip(self.buckets.iter_mut()) {
            if seen >= wanted {
                break;
            }
            let taken = u128::from(*bucket).min(wanted - seen);
            *bucket = u64::try_from(taken).unwrap_or(*bucket);
            seen += taken;
            // Rounded down to a whole bucket at each step, which is what loses thin tails. Before the first sample,
            // `seen` is 0 and there is no mean.
            let sum = taken * number + (seen - taken) * mean;
            mean = sum.checked_div(seen).unwrap_or(0);
        }
        // `mean` is below BUCKETS, so this neither truncates nor overflows.
        mean as u64 * BUCKET_NS
    }
}

impl Default for PublishedEstimator {
    fn default() -> Self {
        PublishedEstimator::new()
    }
}

/// The published figures of a list of round-trip times in nanoseconds, in any order.
pub fn of_samples(samples: impl IntoIterator<Item = u64>) -> Option<Published> {
    let mut estimator = PublishedEstimator::new();
    samples.into_iter().for_each(|ns| estimator.record(ns));
    estimator.take()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Latency;

    fn figures(p: Published) -> [u64; 4] {
        [p.p5, p.p50, p.p95, p.p99]
    }

    #[test]
    fn no_sample_gives_no_figure() {
        assert_eq!(of_samples([]), None);
        assert_eq!(PublishedEstimator::new().take(), None);
    }

    #[test]
    fn equal_samples_give_their_bucket() {
        assert_eq!(figures(of_samples(vec![12_799; 1000]).unwrap()), [12_700; 4]);
    }

    /// By hand: 100 samples in bucket 10, 100 in bucket 30. p5: 10 of 200, all in bucket 10, which is truncated to
    /// 10. p50: half of 110 is 55: 10 in bucket 10 and 45 in bucket 30, which is truncated; (10 * 10 + 45 * 30) /
    /// 55 = 26. p95: 52 of 55: 10 and 42, (100 + 1260) / 52 = 26. p99: 51 of 52: 10 and 41, (100 + 1230) / 51 = 26.
    #[test]
    fn each_figure_reads_what_the_one_before_cut() {
        let samples = (0..200).map(|i| if i % 2 == 0 { 1_000 } else { 3_000 });
        assert_eq!(figures(of_samples(samples).unwrap()), [1_000, 2_600, 2_600, 2_600]);
    }

    /// Like the tool: with fewer than 20 samples, 5 % of them is none, and it prints 0.
    #[test]
    fn five_percent_of_ten_samples_is_nothing() {
        assert_eq!(figures(of_samples(vec![5_000; 10]).unwrap()), [0, 5_000, 5_000, 5_000]);
    }

    #[test]
    fn everything_beyond_two_milliseconds_is_one_bucket() {
        assert_eq!(of_samples(vec![u64::MAX; 1000]).unwrap().p99, 1_999_900);
        assert_eq!(of_samples(vec![1_999_900; 1000]).unwrap().p99, 1_999_900);
    }

    #[test]
    fn taking_empties_the_histogram_for_the_next_second() {
        let mut estimator = PublishedEstimator::new();
        estimator.record(12_700);
        assert_eq!(estimator.count(), 1);
        assert!(estimator.take().is_some());
        assert_eq!((estimator.count(), estimator.take()), (0, None));
    }

    /// One second of the document's first row: 12 500 round trips between 12.6 and 13.3 us, most
    /// of them around 12.9 us, and every fiftieth at 195 to 205 us.
    fn a_second_with_a_tail() -> impl Iterator<Item = u64> + Clone {
        (0..12_500_u64).map(|i| {
            if i % 50 == 49 {
                195_000 + (i / 50) % 100 * 100
            } else {
                // The sum of two uniform distributions: a triangular one.
                12_600 + (i * 7) % 351 + (i * 11) % 349
            }
        })
    }

    #[test]
    fn two_percent_at_two_hundred_microseconds_vanish_from_the_published_p99() {
        let mut latency = Latency::new();
        a_second_with_a_tail().for_each(|ns| latency.record(ns));
        let truth = latency.summary(0).unwrap().at.p99.unwrap();
        assert!((195_000..205_000).contains(&truth), "the true p99 is {truth}");

        let published = of_samples(a_second_with_a_tail()).unwrap();
        assert_eq!(published.p99, 12_700);
        assert_eq!(published.p95, published.p99, "as in 20 of the document's 20 cells");
        assert!(published.p5 < published.p50 && published.p50 <= published.p95, "{published:?}");
    }
}
