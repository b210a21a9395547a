//! Names of the figures in a row of the 2024 table, and its offered rate.

use crate::published::TargetQps;

/// Names of the figures.
pub(super) const ACHIEVED: &str = "achieved";
pub(super) const MEAN: &str = "mean";
pub(super) const P95: &str = "p95";
pub(super) const P99: &str = "p99";
pub(super) const CPU: &str = "CPU";

/// The offered rate of a row; `None` for MAX.
pub(super) fn rate(target: TargetQps) -> Option<f64> {
    match target {
        TargetQps::PerS(rate) => Some(rate),
        TargetQps::Max => None,
    }
}
