//! A histogram of latencies, with buckets of at most 1/256 of their value.

/// A histogram of nanoseconds: exact below 512 ns, within 0.4 % above, with an unlimited range.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    sum: u128,
    min: u64,
    max: u64,
}

const BITS: u32 = 8;

fn place(value: u64) -> usize {
    let shift = (64 - value.leading_zeros()).saturating_sub(BITS + 1);
    ((u64::from(shift) << BITS) + (value >> shift)) as usize
}

/// Returns the middle of a bucket.
fn value(place: usize) -> u64 {
    let place = place as u64;
    let shift = (place >> BITS).saturating_sub(1);
    let low = (place - (shift << BITS)) << shift;
    low + ((1 << shift) >> 1)
}

impl Histogram {
    /// Counts a value.
    #[inline]
    pub fn add(&mut self, nanoseconds: u64) {
        let place = place(nanoseconds);
        if place >= self.buckets.len() {
            self.buckets.resize(place + 1, 0);
        }
        self.buckets[place] += 1;
        self.min = if self.count == 0 { nanoseconds } else { self.min.min(nanoseconds) };
        self.max = self.max.max(nanoseconds);
        self.count += 1;
        self.sum += u128::from(nanoseconds);
    }

    /// The number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The exact mean of the values; 0 if there are none.
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }

    /// The smallest value; 0 if there are none.
    pub fn min(&self) -> u64 {
        self.min
    }

    /// The largest value; 0 if there are none.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Returns the value at or below which this share of all values lies; 0 if there are none.
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = (share.clamp(0.0, 1.0) * self.count as f64).max(1.0);
        let mut seen = 0;
        for (place, &count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen as f64 >= wanted && count > 0 {
                return value(place).clamp(self.min, self.max);
            }
        }
        self.max
    }

    /// Removes all values, and keeps the memory.
    pub fn clear(&mut self) {
        self.buckets.fill(0);
        (self.count, self.sum, self.min, self.max) = (0, 0, 0, 0);
    }

    /// Adds the values of another histogram.
    pub fn merge(&mut self, other: &Histogram) {
        if other.count == 0 {
            return;
        }
        self.min = if self.count == 0 { other.min } else { self.min.min(other.min) };
        self.max = self.max.max(other.max);
        self.count += other.count;
        self.sum += other.sum;
        if self.buckets.len() < other.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_again_within_its_bucket() {
        for exponent in 0..60 {
            for step in 0..50 {
                let wanted = (1u64 << exponent) + (1u64 << exponent) / 50 * step;
                let found = value(place(wanted));
                assert!(found.abs_diff(wanted) * 500 <= wanted.max(1), "{wanted}: {found}");
            }
        }
    }

    #[test]
    fn quantiles_and_the_mean_are_those_of_the_values() {
        let mut histogram = Histogram::default();
        (1..=1000).for_each(|value| histogram.add(value * 1000));
        assert_eq!(histogram.count(), 1000);
        assert!((histogram.mean() - 500_500.0).abs() < 1e-6);
        assert!(histogram.quantile(0.5).abs_diff(500_000) < 2_500);
        assert!(histogram.quantile(0.99).abs_diff(990_000) < 5_000);
        assert_eq!((histogram.min(), histogram.max()), (1000, 1_000_000));
        assert_eq!(histogram.quantile(1.0), 1_000_000);
        let mut twice = histogram.clone();
        twice.merge(&histogram);
        assert_eq!(twice.count(), 2000);
        histogram.clear();
        assert_eq!((histogram.count(), histogram.quantile(0.5)), (0, 0));
    }
}
