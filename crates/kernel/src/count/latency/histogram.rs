//! Histograms of durations, in the layout that the BPF programs write.
//!
//! Each power of two of nanoseconds has sixteen buckets: a duration is known to one part in sixteen, and to half of
//! that when the middle of its bucket is taken. Below 32 ns each value has its own bucket; the last bucket holds
//! everything above 68 s.

use serde::Serialize;

use super::Part;

/// Number of buckets.
pub(super) const BUCKETS: usize = 528;

/// A histogram of durations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    buckets: Vec<u64>,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { buckets: vec![0; BUCKETS] }
    }
}

/// Returns the lower bound of a bucket in nanoseconds.
fn least(bucket: usize) -> u64 {
    let exponent = (bucket / 16).saturating_sub(1);
    ((bucket - exponent * 16) as u64) << exponent
}

impl Histogram {
    /// Builds a histogram from the programs' counters; missing ones are 0.
    pub(super) fn of(numbers: impl Iterator<Item = u64>) -> Histogram {
        let mut buckets: Vec<u64> = numbers.take(BUCKETS).collect();
        buckets.resize(BUCKETS, 0);
        Histogram { buckets }
    }

    /// The number of durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns the durations that were added since an earlier reading.
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let both = self.buckets.iter().zip(&earlier.buckets);
        Histogram { buckets: both.map(|(now, then)| now.saturating_sub(*then)).collect() }
    }

    /// Adds another histogram, bucket by bucket.
    pub fn add(&mut self, other: &Histogram) {
        for (sum, count) in self.buckets.iter_mut().zip(&other.buckets) {
            *sum = sum.saturating_add(*count);
        }
    }

    /// Returns a quantile (`part` is from 0 to 1) in nanoseconds; `None` if the histogram is empty. Durations are
    /// taken to be spread evenly within a bucket.
    pub fn quantile(&self, part: f64) -> Option<f64> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let mut wanted = part.clamp(0.0, 1.0) * count as f64;
        for (bucket, &in_bucket) in
            self.buckets.iter().enumerate().filter(|(_, in_bucket)| **in_bucket > 0)
        {
            if wanted <= in_bucket as f64 {
                let (low, high) = (least(bucket), least(bucket + 1));
                return Some(low as f64 + (high - low) as f64 * (wanted / in_bucket as f64));
            }
            wanted -= in_bucket as f64;
        }
        self.buckets.iter().rposition(|in_bucket| *in_bucket > 0).map(|last| least(last + 1) as f64)
    }

    /// Returns the quantile if at least ten durations lie beyond it; with fewer it is not meaningful.
    pub fn known_quantile(&self, part: f64) -> Option<f64> {
        // Tolerate rounding: the 0.9 quantile of exactly 100 durations is known.
        let beyond = self.count() as f64 * (1.0 - part);
        (beyond >= 10.0 - 1e-6).then(|| self.quantile(part)).flatten()
    }

    /// Counts the durations above `time` nanoseconds; those in the bucket of `time` are left out.
    pub fn above(&self, time: f64) -> u64 {
        let buckets = self.buckets.iter().enumerate();
        buckets.filter(|(it, _)| least(*it) as f64 > time).map(|(_, count)| *count).sum()
    }

    /// Counts the durations below `time` nanoseconds; those in the bucket of `time` are left out. For a power of
    /// two, which is the boundary of a bucket, the count is exact.
    pub fn below(&self, time: u64) -> u64 {
        let buckets = self.buckets.iter().enumerate();
        buckets.take_while(|(it, _)| least(it + 1) <= time).map(|(_, count)| *count).sum()
    }

    /// Returns the mean in nanoseconds, with each duration at the middle of its bucket; `None` if there are none.
    pub fn mean(&self) -> Option<f64> {
        let middle = |bucket| (least(bucket) + least(bucket + 1)) as f64 / 2.0;
        let sum: f64 =
            self.buckets.iter().enumerate().map(|(it, count)| middle(it) * *count as f64).sum();
        let count = self.count();
        (count > 0).then(|| sum / count as f64)
    }
}

/// Percentiles of a part of the requests' time, in nanoseconds; `None` where fewer than ten durations lie beyond one.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Percentiles {
    /// The median.
    pub p50: Option<f64>,
    /// The 90th percentile.
    pub p90: Option<f64>,
    /// The 99th percentile.
    pub p99: Option<f64>,
    /// The 99.9th percentile.
    pub p999: Option<f64>,
    /// The mean.
    pub mean: Option<f64>,
    /// Number of requests that were timed.
    pub count: u64,
}

impl Percentiles {
    /// Computes the percentiles of a histogram.
    pub fn of(histogram: &Histogram) -> Percentiles {
        let at = |part| histogram.known_quantile(part);
        Percentiles {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            mean: histogram.mean(),
            count: histogram.count(),
        }
    }
}

/// One histogram for each [`Part`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Parts {
    pub(super) histograms: [Histogram; 4],
}

impl Parts {
    /// The histogram of one part.
    pub fn of(&self, part: Part) -> &Histogram {
        &self.histograms[part as usize]
    }

    /// Returns the durations that were added since an earlier reading.
    pub fn since(&self, earlier: &Parts) -> Parts {
        Parts { histograms: Part::ALL.map(|part| self.of(part).since(earlier.of(part))) }
    }

    /// Adds the histograms of another, part by part.
    pub fn add(&mut self, other: &Parts) {
        for (sum, more) in self.histograms.iter_mut().zip(&other.histograms) {
            sum.add(more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The bucket of a duration, computed as the programs do.
    fn bucket(time: u64) -> usize {
        let (mut value, mut exponent) = (time.min((1 << 36) - 1), 0);
        while value >= 32 {
            (value, exponent) = (value >> 1, exponent + 1);
        }
        exponent * 16 + usize::try_from(value).expect("small")
    }

    proptest! {
        #[test]
        fn a_time_is_in_its_bucket_and_in_no_other(time in 0..1_u64 << 36) {
            let bucket = bucket(time);
            prop_assert!(bucket < BUCKETS);
            prop_assert!(least(bucket) <= time && time < least(bucket + 1), "{bucket}");
            prop_assert!((least(bucket + 1) - least(bucket)) * 16 <= time.max(16));
        }
    }

    #[test]
    fn a_quantile_is_between_the_ends_of_its_bucket_and_known_with_ten_beyond() {
        let mut numbers = vec![0; BUCKETS];
        numbers[bucket(1_000)] = 990;
        numbers[bucket(50_000)] = 10;
        let both = Histogram::of(numbers.into_iter());
        assert_eq!(both.count(), 1_000);
        let median = both.quantile(0.5).expect("some");
        assert!((960.0..1_024.0).contains(&median), "{median}");
        assert!(both.quantile(0.995).expect("some") > 47_000.0);
        assert_eq!(both.known_quantile(0.99), both.quantile(0.99));
        assert_eq!(both.known_quantile(0.991), None);
        let hundred = |count| Histogram::of([0; 40].into_iter().chain([count]));
        assert!(hundred(100).known_quantile(0.9).is_some(), "exactly ten are beyond");
        assert_eq!(hundred(99).known_quantile(0.9), None);
        assert_eq!(Histogram::default().quantile(0.5), None);
        assert_eq!((both.below(512), both.below(1_024), both.below(1 << 20)), (0, 990, 1_000));
        assert_eq!((both.above(0.0), both.above(1_000.0), both.above(60_000.0)), (1_000, 10, 0));
        assert_eq!(both.since(&both).count(), 0);
        let mean = both.mean().expect("some");
        assert!((1_400.0..1_550.0).contains(&mean), "{mean}");
    }
}
