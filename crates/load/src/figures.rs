//! What a load has shown.

use std::fmt;

use napkin_measure::LatencyNs;
use napkin_measure::report::text::{rate, time};
use serde::Serialize;

/// Counts of the time that was measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct LoadFigures {
    /// The time that was measured, in seconds.
    pub seconds: f64,
    /// Requests a second that the schedule had; `None` without one.
    pub asked_per_s: Option<f64>,
    /// Requests that were sent.
    pub sent: u64,
    /// Answers that came, up to 100 ms after the end.
    pub answered: u64,
    /// Requests that the schedule had and that were never sent, as the device or this CPU did not keep up.
    pub behind: u64,
    /// Gets of a memcached that found nothing.
    pub misses: u64,
    /// From when a request was due until its answer; without a schedule from its sending. `None` without
    /// an answer.
    pub latency_ns: Option<LatencyNs>,
}

impl LoadFigures {
    /// Requests sent a second.
    pub fn sent_per_s(&self) -> f64 {
        self.sent as f64 / self.seconds.max(1e-9)
    }

    /// Answers a second.
    pub fn answered_per_s(&self) -> f64 {
        self.answered as f64 / self.seconds.max(1e-9)
    }
}

impl fmt::Display for LoadFigures {
    /// `sent 1.00 M/s, answered 1.00 M/s, p50 12.1 us, p99 30.4 us, p99.9 41.0 us`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sent {}, answered {}", rate(self.sent_per_s()), rate(self.answered_per_s()))?;
        if let Some(latency) = self.latency_ns {
            let at = latency.at;
            for (name, value) in [("p50", at.p50), ("p99", at.p99), ("p99.9", at.p999)] {
                if let Some(value) = value {
                    write!(f, ", {name} {}", time(value as f64))?;
                }
            }
        }
        let lost = self.sent.saturating_sub(self.answered);
        if lost > 0 && self.answered > 0 {
            write!(f, ", {lost} without an answer")?;
        }
        if self.behind > 0 {
            write!(f, "; {} were due and never sent: this side did not keep up", self.behind)?;
        }
        if self.misses > 0 {
            write!(f, "; {} gets found nothing", self.misses)?;
        }
        Ok(())
    }
}
