//! Classifies the figures of the 2024 table by whether they test the model, and rows by their load regime.

use crate::cell::Cell;
use crate::null;
use crate::published::{IrqSuspendRow, TargetQps};

use super::row::{ACHIEVED, CPU, MEAN, rate};

/// The reason why a figure does not test the model: no constant of a profile has an effect on it. 71 of 330 are of
/// this kind.
pub(super) fn exempt_reason(row: &IrqSuspendRow, quantity: &str) -> Option<&'static str> {
    let max = row.target_qps == TargetQps::Max;
    match quantity {
        MEAN if max => Some("Little's law: 4480 connections by the rate"),
        CPU if max => Some("a server that is asked for all it can do is never idle"),
        CPU if row.config == "fullbusy" => Some("it spins"),
        ACHIEVED if rate(row.target_qps).is_some_and(|rate| rate < 1e6) => {
            Some("every policy answers what an open loop offers below saturation")
        }
        _ => None,
    }
}

/// The longest time, in microseconds, for which a queue is not polled, as the policy's name suggests: an order of
/// the policies that needs no model. Busy polling polls at once or within its 64 us; an interrupt per packet is
/// assumed to be the worst.
pub(super) fn by_timer(cell: &Cell) -> f64 {
    match cell.config.as_str() {
        "fullbusy" => 0.0,
        "napibusy" => 64.0,
        config => null::numbered(config).map_or(f64::INFINITY, |(_, us)| us),
    }
}

/// The part of the latency curve over the load to which a row belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Regime {
    /// The server has spare capacity.
    Floor,
    /// Below MAX, with requests waiting: a published p99 of at least 500 us.
    Knee,
    /// MAX: each connection sends again as soon as it is answered.
    Saturation,
}

impl Regime {
    pub(super) const ALL: [Regime; 3] = [Regime::Floor, Regime::Knee, Regime::Saturation];

    pub(super) fn of(row: &IrqSuspendRow) -> Regime {
        match row.target_qps {
            TargetQps::Max => Regime::Saturation,
            TargetQps::PerS(_) if row.p99_lat_us_median >= 500.0 => Regime::Knee,
            TargetQps::PerS(_) => Regime::Floor,
        }
    }

    pub(super) fn words(self) -> &'static str {
        match self {
            Regime::Floor => "floor (published p99 below 500 us)",
            Regime::Knee => "knee (published p99 from 500 us, below MAX)",
            Regime::Saturation => "saturation (MAX)",
        }
    }
}
