//! A histogram with bins that grow by a tenth, from which mutilate computes its percentiles.

/// mutilate's histogram: bins of microseconds, each a tenth wider than the last.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LogBins {
    bins: Vec<u64>,
    count: u64,
}

impl LogBins {
    const RATIO: f64 = 1.1;

    /// Counts a latency.
    pub fn add(&mut self, nanoseconds: u64) {
        self.add_many(nanoseconds, 1);
    }

    /// Counts a latency several times.
    pub fn add_many(&mut self, nanoseconds: u64, times: u64) {
        let microseconds = (nanoseconds as f64 / 1000.0).max(1.0);
        let place = (libm::log(microseconds) / libm::log(Self::RATIO)) as usize;
        if place >= self.bins.len() {
            self.bins.resize(place + 1, 0);
        }
        self.bins[place] += times;
        self.count += times;
    }

    /// The percentile in nanoseconds, interpolated within its bin; 0 if there are no values.
    pub fn percentile(&self, percent: f64) -> f64 {
        let wanted = self.count as f64 * percent / 100.0;
        let mut before = 0u64;
        for (place, &count) in self.bins.iter().enumerate() {
            if (before + count) as f64 > wanted {
                let low = libm::pow(Self::RATIO, place as f64);
                let inside = (wanted - before as f64) / count as f64;
                return (low + inside * low * (Self::RATIO - 1.0)) * 1000.0;
            }
            before += count;
        }
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_lies_within_its_bin() {
        let mut bins = LogBins::default();
        (1..=1000u64).for_each(|i| bins.add(i * 1000));
        for percent in [50.0, 95.0, 99.0] {
            let found = bins.percentile(percent) / 1000.0;
            let true_one = percent * 10.0;
            assert!((found / true_one - 1.0).abs() < 0.1, "{percent}: {found}");
        }
        assert_eq!(LogBins::default().percentile(50.0), 0.0);
    }

    #[test]
    fn all_in_one_bin_are_spread_over_it() {
        let mut bins = LogBins::default();
        (0..100).for_each(|_| bins.add(1_000));
        // The first bin ranges from 1 to 1.1 us.
        assert!((bins.percentile(50.0) - 1_050.0).abs() < 1e-6);
    }
}
