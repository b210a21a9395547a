//! A histogram with power-of-two buckets, in the format of bpftrace's `hist()`.
//!
//! The 2025 document shows the duration of receive calls in this form: one bucket per doubling, no percentiles. For
//! latencies use [`super::Latency`].

use std::fmt;

use serde::{Deserialize, Serialize};

/// Bucket 0 holds the value 0; bucket i holds [2^(i-1), 2^i).
const BUCKETS: usize = 65;

/// Length of the longest bar in characters.
const BAR: u64 = 52;

/// Counts by power of two, of fixed size; recording does not allocate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Vec<Bucket>", from = "Vec<Bucket>")]
pub struct Pow2 {
    counts: [u64; BUCKETS],
}

/// One bucket, as in the JSON report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// Smallest value in it.
    pub lo: u64,
    /// Smallest value above it (`u64::MAX` for the last bucket, which includes it).
    pub hi: u64,
    /// Samples in it.
    pub count: u64,
}

impl Pow2 {
    /// An empty histogram.
    pub const fn new() -> Pow2 {
        Pow2 { counts: [0; BUCKETS] }
    }

    /// Records one value.
    pub fn record(&mut self, value: u64) {
        let count = &mut self.counts[index(value)];
        *count = count.saturating_add(1);
    }

    /// Adds another histogram's samples to this one.
    pub fn merge(&mut self, other: &Pow2) {
        for (mine, added) in self.counts.iter_mut().zip(other.counts) {
            *mine = mine.saturating_add(added);
        }
    }

    /// Number of samples.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// All buckets from the first to the last that has a sample, including empty ones between; none without
    /// samples.
    pub fn buckets(&self) -> impl Iterator<Item = Bucket> + '_ {
        let first = self.counts.iter().position(|&n| n != 0).unwrap_or(BUCKETS);
        let end = self.counts.iter().rposition(|&n| n != 0).map_or(BUCKETS, |last| last + 1);
        (first..end).map(|i| Bucket { lo: lower(i), hi: upper(i), count: self.counts[i] })
    }
}

/// The bucket of a value.
fn index(value: u64) -> usize {
    (u64::BITS - value.leading_zeros()) as usize
}

/// Smallest value of a bucket.
fn lower(index: usize) -> u64 {
    if index == 0 { 0 } else { 1 << (index - 1) }
}

/// Smallest value above a bucket.
fn upper(index: usize) -> u64 {
    1_u64.checked_shl(u32::try_from(index).unwrap_or(u32::MAX)).unwrap_or(u64::MAX)
}

impl Default for Pow2 {
    fn default() -> Self {
        Pow2::new()
    }
}

impl From<Pow2> for Vec<Bucket> {
    fn from(histogram: Pow2) -> Self {
        histogram.buckets().collect()
    }
}

impl From<Vec<Bucket>> for Pow2 {
    /// Used to read a report. Only `lo` and `count` matter: `hi` follows from `lo`.
    fn from(buckets: Vec<Bucket>) -> Self {
        let mut histogram = Pow2::new();
        for bucket in buckets {
            let count = &mut histogram.counts[index(bucket.lo)];
            *count = count.saturating_add(bucket.count);
        }
        histogram
    }
}

/// One line per bucket: `[256, 512)         55633 |@@@@    |`.
impl fmt::Display for Pow2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tallest = self.counts.iter().copied().max().unwrap_or(0).max(1);
        for bucket in self.buckets() {
            let range = match bucket.lo {
                0 | 1 => format!("[{}]", bucket.lo),
                lo if bucket.hi == u64::MAX => format!("[{}, ...)", short(lo)),
                lo => format!("[{}, {})", short(lo), short(bucket.hi)),
            };
            // In u128, because counts may be large.
            let length = u128::from(bucket.count) * u128::from(BAR) / u128::from(tallest);
            let bar = "@".repeat(usize::try_from(length).unwrap_or(0));
            writeln!(f, "{range:<16} {:>8} |{bar:<width$}|", bucket.count, width = BAR as usize)?;
        }
        Ok(())
    }
}

/// A power of two with the binary suffixes that bpftrace uses: 1024 is `1K`.
fn short(value: u64) -> String {
    const SUFFIXES: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
    let step = (value.max(1).ilog2() / 10) as usize;
    format!("{}{}", value >> (10 * step), SUFFIXES[step])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published histogram of the time in recvfrom (tables/xsk_recvfrom_hist.csv).
    fn published() -> Pow2 {
        let counts = [24_073, 55_633, 20_974, 34_234, 3_266, 19];
        let buckets = (7..).zip(counts).map(|(bit, count)| Bucket {
            lo: 1 << bit,
            hi: 1 << (bit + 1),
            count,
        });
        Pow2::from(buckets.collect::<Vec<_>>())
    }

    #[test]
    fn the_published_histogram_looks_as_published() {
        let text = published().to_string();
        let lines: Vec<_> = text.lines().collect();
        let bars = |line: &str| line.matches('@').count();
        assert_eq!(lines.iter().map(|l| bars(l)).collect::<Vec<_>>(), [22, 52, 19, 31, 3, 0]);
        let full = "@".repeat(52);
        assert_eq!(lines[1], format!("[256, 512)          55633 |{full}|"));
        assert!(lines[2].starts_with("[512, 1K) ") && lines[5].starts_with("[4K, 8K) "));
        assert!(lines.iter().all(|line| line.len() == lines[0].len()));
    }

    #[test]
    fn each_value_falls_between_its_bounds() {
        for value in [0, 1, 2, 3, 4, 255, 256, 511, 512, 1 << 62, 1 << 63, u64::MAX] {
            let mut histogram = Pow2::new();
            histogram.record(value);
            let only: Vec<_> = histogram.buckets().collect();
            assert_eq!(only.len(), 1);
            assert!(only[0].lo <= value && (value < only[0].hi || only[0].hi == u64::MAX));
        }
    }

    #[test]
    fn the_smallest_buckets_hold_one_value_and_the_largest_has_no_end() {
        let mut histogram = Pow2::new();
        [0, 1].iter().for_each(|&v| histogram.record(v));
        assert!(histogram.to_string().starts_with("[0] "));
        assert!(histogram.to_string().lines().nth(1).unwrap().starts_with("[1] "));
        let mut last = Pow2::new();
        last.record(u64::MAX);
        assert!(last.to_string().starts_with("[8E, ...) "));
    }

    #[test]
    fn empty_buckets_inside_are_kept_and_those_outside_are_not() {
        let mut histogram = Pow2::new();
        histogram.record(4);
        histogram.record(64);
        assert_eq!(histogram.buckets().map(|b| b.count).collect::<Vec<_>>(), [1, 0, 0, 0, 1]);
        assert_eq!(Pow2::new().to_string(), "");
    }

    #[test]
    fn merging_adds_and_json_keeps_everything() {
        let mut sum = published();
        sum.merge(&published());
        assert_eq!(sum.count(), 2 * published().count());
        let json = serde_json::to_string(&sum).unwrap();
        assert!(json.starts_with(r#"[{"lo":128,"hi":256,"count":48146}"#), "{json}");
        assert_eq!(serde_json::from_str::<Pow2>(&json).unwrap(), sum);
    }
}
