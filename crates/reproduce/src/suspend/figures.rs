//! Figures of a row of the 2024 table, computed from a run of the machine.

use napkin_measure::LatencyNs;
use napkin_measure::report::Measurement;
use napkin_workload::machine::measurement::measurement;
use napkin_workload::machine::run::Outcome;
use serde_json::Value;

use super::row::{ACHIEVED, CPU, MEAN, P95, P99};
use crate::cell::Unit;
use crate::published::IrqSuspendRow;

/// A figure: its name, its unit, the published value, the modelled one, and the true value of that name.
pub(super) type Quantity = (
    &'static str,
    Unit,
    fn(&IrqSuspendRow) -> f64,
    fn(&PublishedFigures) -> f64,
    Option<fn(&PublishedFigures) -> f64>,
);

pub(super) const QUANTITIES: [Quantity; 5] = [
    (ACHIEVED, Unit::PerS, |row| row.achieved_qps_mean, |it| it.achieved_per_s, None),
    (MEAN, Unit::Us, |row| row.avg_lat_us_median, |it| it.mean_us, Some(|it| it.true_us[0])),
    (P95, Unit::Us, |row| row.p95_lat_us_median, |it| it.p95_us, Some(|it| it.true_us[1])),
    (P99, Unit::Us, |row| row.p99_lat_us_median, |it| it.p99_us, Some(|it| it.true_us[2])),
    (CPU, Unit::Percent, |row| row.cpu_util_pct_mean, |it| it.cpu_percent, None),
];

/// Unpublished counts per second, for each queue or worker: name, and key of the run's figure.
pub(super) const COUNTS: [(&str, &str); 5] = [
    ("interrupts", "interrupts_per_queue_and_s"),
    ("polls", "polls_per_queue_and_s"),
    ("empty polls", "empty_polls_per_queue_and_s"),
    ("packets a poll", "packets_per_poll"),
    ("epoll returns", "epoll_returns_per_worker_and_s"),
];

/// A run's counterparts of the published figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PublishedFigures {
    pub(super) achieved_per_s: f64,
    pub(super) mean_us: f64,
    pub(super) p95_us: f64,
    pub(super) p99_us: f64,
    pub(super) cpu_percent: f64,
    /// Mean, p95 and p99 relative to the intended send time.
    pub(super) true_us: [f64; 3],
}

impl PublishedFigures {
    pub(super) fn of(outcome: &Outcome) -> PublishedFigures {
        PublishedFigures::from(&measurement(outcome))
    }

    /// Computes them from a run's figures.
    pub(super) fn from(figures: &Measurement) -> PublishedFigures {
        let us = |name: &str| {
            let value = figures.extra.get(name).and_then(Value::as_f64);
            value.map_or(f64::NAN, |ns| ns / 1e3)
        };
        let supported =
            figures.latency_ns.map(|it| it.supported(figures.unanswered_beside(it.count), false));
        let latency = |get: fn(&LatencyNs) -> Option<f64>| {
            supported.as_ref().and_then(get).map_or(f64::NAN, |ns| ns / 1e3)
        };
        PublishedFigures {
            achieved_per_s: figures.achieved_per_s.unwrap_or(f64::NAN),
            mean_us: us("published_mean_ns"),
            p95_us: us("published_p95_ns"),
            p99_us: us("published_p99_ns"),
            cpu_percent: figures.cpu.map_or(f64::NAN, |cpu| cpu.busy() * 100.0),
            true_us: [
                latency(|it| it.mean),
                latency(|it| it.at.p95.map(|ns| ns as f64)),
                latency(|it| it.at.p99.map(|ns| ns as f64)),
            ],
        }
    }
}
