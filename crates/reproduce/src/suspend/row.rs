//! What the figures of a row of 2024's table are called, and what it offers.

use crate::published::TargetQps;

/// What the figures are called.
pub(super) const ACHIEVED: &str = "achieved";
pub(super) const MEAN: &str = "mean";
pub(super) const P95: &str = "p95";
pub(super) const P99: &str = "p99";
pub(super) const CPU: &str = "CPU";

/// The rate that a row offers; `None` for MAX.
pub(super) fn rate(target: TargetQps) -> Option<f64> {
    match target {
        TargetQps::PerS(rate) => Some(rate),
        TargetQps::Max => None,
    }
}
