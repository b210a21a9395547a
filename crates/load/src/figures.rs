//! The figures of a load.

use std::collections::BTreeMap;
use std::fmt;

use napkin_client::SendDelayNs;
use napkin_measure::LatencyNs;
use napkin_measure::report::Measurement;
use napkin_measure::report::text::{rate, time};
use serde::Serialize;

/// The figures of the measured time.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LoadFigures {
    /// The signal that ended the load early.
    pub signal: Option<i32>,
    /// Length of the measured time, in seconds.
    pub seconds: f64,
    /// Rate of the schedule, in requests per second; `None` without one.
    pub asked_per_s: Option<f64>,
    /// Requests sent.
    pub sent: u64,
    /// Answers received, up to 100 ms after the end.
    pub answered: u64,
    /// Requests of the schedule that were never sent, because the device or this CPU did not keep up. With
    /// connections, whose schedules are random, an estimate; it includes requests that were due but not yet taken
    /// at the end.
    pub behind: u64,
    /// Requests of the schedule that were not sent, because their connections were waiting for answers.
    pub waiting: u64,
    /// Gets of a memcached that found nothing.
    pub misses: u64,
    /// Refusals, and answers other than expected, over connections: counts by name. Kinds that did not occur are
    /// omitted.
    pub errors: BTreeMap<String, u64>,
    /// Latency from the due time of a request to its answer; without a schedule, from its sending. `None` if there
    /// was no answer. For a percentile that unanswered requests may exceed, only a lower bound is known.
    pub latency_ns: Option<LatencyNs>,
    /// How late requests were sent on free connections: this side's part of the latency. `None` without a schedule,
    /// and for datagrams.
    pub send_delay_ns: Option<SendDelayNs>,
}

/// Keeps those percentiles of a latency that are known if `due` requests fell due and `unanswered` of them had no
/// answer, as the tables of all workloads do. `waiting` of the latter were not lost and still wait, which may show
/// that the queue grows.
pub(crate) fn known_percentiles(
    latency: Option<LatencyNs>,
    due: u64,
    unanswered: u64,
    waiting: u64,
) -> Option<LatencyNs> {
    let waits = Measurement { due: Some(due), unanswered: Some(waiting), ..Measurement::default() };
    latency.map(|it| it.supported(unanswered, waits.queue_grows()))
}

impl LoadFigures {
    /// Requests sent per second.
    pub fn sent_per_s(&self) -> f64 {
        self.sent as f64 / self.seconds.max(1e-9)
    }

    /// Answers per second.
    pub fn answered_per_s(&self) -> f64 {
        self.answered as f64 / self.seconds.max(1e-9)
    }
}

impl fmt::Display for LoadFigures {
    /// `sent 1.00 M/s, answered 1.00 M/s, p50 12.1 us, p99 30.4 us, p99.9 >41.0 us`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.seconds == 0.0 {
            return f.write_str("nothing was measured: stopped before the measured time began");
        }
        write!(f, "sent {}, answered {}", rate(self.sent_per_s()), rate(self.answered_per_s()))?;
        if let Some(latency) = self.latency_ns {
            for (name, share) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)] {
                if let Some(value) = latency.at.of(share) {
                    write!(f, ", {name} {}", time(value as f64))?;
                } else if let Some(bound) = latency.above.and_then(|above| above.of(share)) {
                    write!(f, ", {name} >{}", time(bound as f64))?;
                }
            }
        }
        let lost = self.sent.saturating_sub(self.answered);
        if lost > 0 && self.answered > 0 {
            write!(f, ", {lost} without an answer")?;
        }
        if let Some(delay) = self.send_delay_ns {
            let (p50, p99) = (time(delay.p50 as f64), time(delay.p99 as f64));
            write!(f, "; sent {p50} (p50), {p99} (p99) after their time")?;
        }
        if self.behind > 0 {
            write!(f, "; {} were due and never sent: this side did not keep up", self.behind)?;
        }
        if self.waiting > 0 {
            write!(
                f,
                "; {} waited behind an answer and were not sent: more --flows, or a slower rate",
                self.waiting
            )?;
        }
        if self.misses > 0 {
            write!(f, "; {} gets found nothing", self.misses)?;
        }
        for (place, (name, times)) in self.errors.iter().enumerate() {
            write!(f, "{}{name} {times}", if place == 0 { "; errors: " } else { ", " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use napkin_measure::Latency;

    use super::*;

    /// One second in which `due` requests fell due, `sent` were sent, and `answered` were answered after 5 us each.
    fn second(due: u64, sent: u64, answered: u64) -> LoadFigures {
        let mut latency = Latency::new();
        (0..answered).for_each(|_| latency.record(5_000));
        let behind = due - sent;
        LoadFigures {
            signal: None,
            seconds: 1.0,
            asked_per_s: Some(due as f64),
            sent,
            answered,
            behind,
            waiting: 0,
            misses: 0,
            errors: BTreeMap::new(),
            latency_ns: known_percentiles(
                latency.summary(due - answered),
                due,
                due - answered,
                behind,
            ),
            send_delay_ns: None,
        }
    }

    #[test]
    fn a_percentile_that_requests_without_an_answer_may_exceed_is_a_bound() {
        let whole = second(20_000, 20_000, 20_000);
        let want = "sent 20.0 k/s, answered 20.0 k/s, p50 5.00 us, p99 5.00 us, p99.9 5.00 us";
        assert_eq!(whole.to_string(), want);
        let lost = second(20_000, 20_000, 19_000);
        let want = "sent 20.0 k/s, answered 19.0 k/s, p50 5.00 us, p99 >5.00 us, p99.9 >5.00 us, 1000 \
                    without an answer";
        assert_eq!(lost.to_string(), want);
        let few = second(100, 100, 100);
        assert_eq!(few.to_string(), "sent 100/s, answered 100/s, p50 5.00 us");
    }

    #[test]
    fn what_was_never_sent_has_no_answer_either_and_waits_as_long_as_it_lasts() {
        let behind = second(20_000, 10_000, 10_000);
        let want = "sent 10.0 k/s, answered 10.0 k/s, p50 >5.00 us, p99 >5.00 us, p99.9 >5.00 us; 10000 were \
                    due and never sent: this side did not keep up";
        assert_eq!(behind.to_string(), want);
        // A small number is chance, not a growing queue.
        let little = second(20_000, 19_900, 19_900).latency_ns.expect("answers");
        assert!(little.at.p99.is_some() && little.at.p999.is_none(), "{little:?}");
    }

    #[test]
    fn a_slow_service_is_not_this_side_that_did_not_keep_up() {
        let all = second(20_000, 10_000, 10_000);
        let slow = LoadFigures { behind: 0, waiting: 10_000, ..all };
        let want = "sent 10.0 k/s, answered 10.0 k/s, p50 >5.00 us, p99 >5.00 us, p99.9 >5.00 us; 10000 waited \
                    behind an answer and were not sent: more --flows, or a slower rate";
        assert_eq!(slow.to_string(), want);
        let delay = SendDelayNs { p50: 300, p99: 2_000, max: 9_000 };
        let prompt = LoadFigures { send_delay_ns: Some(delay), ..second(100, 100, 100) };
        let want = "sent 100/s, answered 100/s, p50 5.00 us; sent 300 ns (p50), 2.00 us (p99) after their time";
        assert_eq!(prompt.to_string(), want);
    }

    #[test]
    fn refusals_are_told_where_there_are_any() {
        let errors = [("error", 1), ("server-error", 2)].map(|(name, it)| (name.to_owned(), it));
        let refused = LoadFigures { errors: BTreeMap::from(errors), ..second(100, 100, 100) };
        let want = "sent 100/s, answered 100/s, p50 5.00 us; errors: error 1, server-error 2";
        assert_eq!(refused.to_string(), want);
    }

    #[test]
    fn what_was_ended_before_it_was_measured_says_so() {
        let nothing = LoadFigures::default().to_string();
        assert_eq!(nothing, "nothing was measured: stopped before the measured time began");
    }
}
