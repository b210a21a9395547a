//! The JSON format of a bench run.
//!
//! Readers of the files rely on field names: a renamed field is listed in the changelog, and `docs/json.md`
//! documents all of them. Rates are per second, times in nanoseconds, the parts of `cpu` fractions of the serving
//! CPUs' time, and counts cover the measured window. A figure that every workload has is `null` if it could not be
//! measured, with the reason in `notes`; figures of only some workloads are omitted if missing.
//!
//! All workloads also have `interrupts_won` and `interrupts_missed`: receive and transmit interrupts that found the
//! instance free, or owned by a poll that then polled once more. `interrupts` and `interrupts_tx` count the won
//! ones by kind; the machine does not distinguish them, and its `interrupts` are all of them. `serving_cpus` are
//! the operating system's numbers of the CPUs that `cpu` refers to.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{CpuSplit, Host, LatencyNs, Pow2, Published, Spread};

/// A complete run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Name of the workload.
    pub workload: String,
    /// The world: `engine`, `machine` or `linux`.
    pub world: String,
    /// The machine it ran on.
    pub host: Host,
    /// A one-sentence summary of the rows; or that none can be given, with the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conclusion: Option<String>,
    /// One row per policy and load.
    pub rows: Vec<Row>,
    /// Figures that could not be measured in any row, with reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Further fields of this workload.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// One policy under one load. Create it with [`Row::from_repetitions`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name of the row: the name given to the policy, or the policy's text.
    pub name: String,
    /// The server, where several are compared: `napkin`, `kernel` or `memcached`. The row's name then starts with
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// The policy, in its text form or by its preset's name.
    pub policy: String,
    /// The load, in the workload's own terms.
    pub load: Map<String, Value>,
    /// The combined figures of the repetitions.
    #[serde(flatten)]
    pub figures: Measurement,
    /// Spread of the repetitions, for the main figures.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub spread: BTreeMap<String, Spread>,
    /// Whether its p99 overlaps that of the best row under the same load: see [`super::ties`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub p99_overlaps_best: bool,
    /// Figures that could not be measured in this row, with reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The individual repetitions.
    pub repetitions: Vec<Repetition>,
}

impl Row {
    /// Whether its name is the policy's text, apart from a server's prefix, so that the policy needs no further
    /// explanation.
    pub(super) fn is_named_by_policy(&self) -> bool {
        let server = self.server.as_deref();
        let own = server.and_then(|server| self.name.strip_prefix(server)?.strip_prefix('/'));
        own.unwrap_or(&self.name) == self.policy
    }
}

/// One run of one policy under one load.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Repetition {
    /// Position in the interleaved order, from 0.
    pub step: u64,
    /// The figures measured.
    #[serde(flatten)]
    pub figures: Measurement,
}

/// The figures of a row or a repetition.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Requests or packets per second that fell due in the window, as counted; `None` in a closed loop.
    pub offered_per_s: Option<f64>,
    /// Requests or packets per second that were served.
    pub achieved_per_s: Option<f64>,
    /// Latency from the intended send time.
    pub latency_ns: Option<LatencyNs>,
    /// Split of the serving CPUs' time.
    pub cpu: Option<CpuSplit>,
    /// Receive interrupts that won the instance; missed ones, which found it owned, are not included.
    pub interrupts: Option<u64>,
    /// Polls, including empty ones.
    pub polls: Option<u64>,
    /// Polls that found nothing.
    pub empty_polls: Option<u64>,
    /// Packets served: echo requests answered (`flood-ping`), datagrams that the application received
    /// (`udp-sink`), packets replied to (`xsk-rr`).
    pub packets: Option<u64>,
    /// Packets lost, by counter name.
    pub drops: BTreeMap<String, u64>,

    /// Requests or packets that fell due in the window; `None` in a closed loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<u64>,
    /// Requests or packets that fell due in the window minus those answered (received) in it: lost, never sent, or
    /// waiting at its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unanswered: Option<u64>,
    /// Whether less than 99 % of what fell due was answered and the rest was not dropped: it waits in a growing
    /// queue, and the latency depends on the length of the run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub grows: bool,
    /// Share of the window for which this host kept the run from a CPU that it needed; that of the most affected
    /// CPU. See [`Interruption`](crate::Interruption). `None` in the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<f64>,
    /// Length of the measured window, ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_ns: Option<u64>,
    /// Packets polled from the receive ring, including those dropped later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polled_packets: Option<u64>,
    /// Transmit interrupts that won the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupts_tx: Option<u64>,
    /// Receive interrupts per packet polled from the ring.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupts_per_packet: Option<f64>,
    /// Context switches of the serving threads, voluntary and involuntary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_switches: Option<u64>,
    /// Context switches per packet served (`packets`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_switches_per_packet: Option<f64>,
    /// Voluntary context switches of the serving threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wakeups: Option<u64>,
    /// Wake-ups per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wakeups_per_s: Option<f64>,
    /// The 2025 document's estimator; its fields are named like percentiles, but are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published_estimator_ns: Option<Published>,
    /// Durations of receive calls, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive_time_histogram: Option<Pow2>,
    /// Further figures of this workload.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// The minimum share of due requests that is answered if no queue grows.
const CARRIED: f64 = 0.99;

/// Fewer requests than this may wait at the end of any window.
const LEAST_GROWTH: f64 = 10.0;

/// How much the numbers waiting at the start and at the end of a window may differ by chance, in standard
/// deviations of a Poisson count of the requests due.
const CHANCE: f64 = 3.0;

/// Longest time, in nanoseconds, for which another program or the hypervisor may have had the CPU at the end of the
/// window: requests due meanwhile are waiting, and will be served afterwards.
const EDGE: f64 = 10e6;

impl Measurement {
    /// Sets how many requests fell due in the window, and how many of these were answered in it.
    pub fn set_due(&mut self, due: u64, answered: u64) {
        self.due = Some(due);
        self.unanswered = Some(due.saturating_sub(answered));
        self.offered_per_s =
            self.window_ns.filter(|ns| *ns != 0).map(|ns| due as f64 * 1e9 / ns as f64);
    }

    /// Scales the unanswered requests to `measured` answered ones. These may be a sample of all requests, of which
    /// the same share had no answer.
    pub fn unanswered_beside(&self, measured: u64) -> u64 {
        let unanswered = self.unanswered.unwrap_or(0);
        let answered = self.due.map(|due| due.saturating_sub(unanswered)).filter(|it| *it != 0);
        let sampled = answered.map_or(1.0, |answered| measured as f64 / answered as f64);
        (unanswered as f64 * sampled.min(1.0)).round() as u64
    }

    /// Whether less than 99 % of what fell due was answered, the rest was not dropped, and it exceeds what chance
    /// and an interruption at the window's end explain. A short window has few requests, of which an interruption
    /// affects a large part.
    pub fn queue_grows(&self) -> bool {
        let (due, unanswered) = (self.due.unwrap_or(0), self.unanswered.unwrap_or(0));
        let waiting = unanswered.saturating_sub(self.dropped()) as f64;
        let due = due as f64;
        let chance = (CHANCE * due.sqrt()).max(LEAST_GROWTH);
        let edge = self.window_ns.filter(|ns| *ns != 0).map_or(0.0, |ns| EDGE / ns as f64);
        let interrupted = self.interrupted.unwrap_or(0.0).clamp(0.0, 1.0);
        waiting > ((1.0 - CARRIED) * due).max(chance) + due * edge.min(interrupted)
    }

    /// Computes the missing ratios of other figures: interrupts and context switches per packet, and wake-ups per
    /// second. Keeps only the percentiles that the samples support.
    pub fn derive(&mut self) {
        self.grows |= self.queue_grows();
        let supported = |it: LatencyNs| it.supported(self.unanswered_beside(it.count), self.grows);
        self.latency_ns = self.latency_ns.map(supported);
        let per = |count: Option<u64>, of: Option<u64>| match (count, of) {
            (Some(count), Some(of)) if of != 0 => Some(count as f64 / of as f64),
            _ => None,
        };
        self.interrupts_per_packet =
            self.interrupts_per_packet.or(per(self.interrupts, self.polled_packets));
        self.context_switches_per_packet =
            self.context_switches_per_packet.or(per(self.context_switches, self.packets));
        self.wakeups_per_s =
            self.wakeups_per_s.or(per(self.wakeups, self.window_ns).map(|rate| rate * 1e9));
    }

    /// Busy share of the serving CPUs' time, 0 to 1, including empty polls; that measured by the kernel, if known.
    pub fn cpu_busy(&self) -> Option<f64> {
        let kernel = self.extra.get("server_busy").and_then(Value::as_f64);
        kernel.or(self.cpu.map(|cpu| cpu.busy()))
    }

    /// All packets lost, by all counters.
    pub fn dropped(&self) -> u64 {
        self.drops.values().fold(0, |sum, n| sum.saturating_add(*n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        let figures = Measurement {
            offered_per_s: Some(12_500.0),
            packets: Some(1000),
            interrupts: Some(500),
            drops: BTreeMap::from([("ring_full".into(), 2), ("socket_full".into(), 3)]),
            extra: Map::from_iter([("hit_ratio".into(), Value::from(0.5))]),
            ..Measurement::default()
        };
        Row {
            name: "defer20".into(),
            server: None,
            policy: "defer20".into(),
            load: Map::from_iter([("connections".into(), Value::from(4))]),
            figures: figures.clone(),
            spread: BTreeMap::new(),
            p99_overlaps_best: false,
            notes: vec!["cpu: no engine thread was named".into()],
            repetitions: vec![Repetition { step: 3, figures }],
        }
    }

    fn report() -> Report {
        Report {
            workload: "echo".into(),
            world: "engine".into(),
            host: Host::default(),
            conclusion: None,
            rows: vec![row()],
            notes: Vec::new(),
            extra: Map::new(),
        }
    }

    #[test]
    fn the_contract_s_names_are_all_there() {
        let json = serde_json::to_value(report()).unwrap();
        for name in ["workload", "world", "host", "rows"] {
            assert!(json.get(name).is_some(), "{name}");
        }
        let contract = [
            "policy",
            "load",
            "offered_per_s",
            "achieved_per_s",
            "latency_ns",
            "cpu",
            "interrupts",
            "polls",
            "empty_polls",
            "packets",
            "drops",
            "repetitions",
        ];
        for name in contract {
            assert!(json["rows"][0].get(name).is_some(), "{name}");
        }
        let repetition = &json["rows"][0]["repetitions"][0];
        assert_eq!((&repetition["step"], &repetition["interrupts"]), (&3.into(), &500.into()));
        assert_eq!(json["rows"][0]["hit_ratio"], 0.5, "further figures stand beside the others");
    }

    #[test]
    fn latency_and_cpu_have_the_contract_s_parts() {
        let mut latency = crate::Latency::new();
        (0..20).for_each(|_| latency.record(5));
        let json = serde_json::to_value(latency.summary(0)).unwrap();
        for name in ["mean", "p50", "p90", "p95", "p99", "p999", "max"] {
            assert!(json.get(name).is_some(), "{name}");
        }
        let inputs = crate::SplitInputs { wall_ns: 10, cpus: 1, ..Default::default() };
        let json = serde_json::to_value(CpuSplit::of(inputs)).unwrap();
        for name in ["work", "poll", "waiting", "asleep"] {
            assert!(json.get(name).is_some(), "{name}");
        }
    }

    #[test]
    fn what_was_not_measured_is_null_and_never_zero() {
        let json = serde_json::to_value(report()).unwrap();
        assert!(json["rows"][0]["cpu"].is_null() && json["rows"][0]["latency_ns"].is_null());
        assert!(json["rows"][0].get("wakeups_per_s").is_none(), "only some workloads have it");
    }

    #[test]
    fn a_report_is_read_back_as_it_was_written() {
        let text = serde_json::to_string(&report()).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report());
    }

    /// A window of a second with so many requests due, of which so many were answered or dropped.
    fn window(due: u64, answered: u64, dropped: u64) -> Measurement {
        let mut latency = crate::Latency::new();
        (0..answered).for_each(|i| latency.record(1_000 + i));
        let mut figures = Measurement {
            window_ns: Some(1_000_000_000),
            achieved_per_s: Some(answered as f64),
            latency_ns: latency.summary(due.saturating_sub(answered)),
            drops: BTreeMap::from([("ring_full".into(), dropped)]),
            ..Measurement::default()
        };
        figures.set_due(due, answered);
        figures.derive();
        figures
    }

    #[test]
    fn where_a_queue_grows_no_percentile_is_known() {
        let figures = window(400_000, 22_300, 0);
        assert_eq!((figures.offered_per_s, figures.unanswered), (Some(4e5), Some(377_700)));
        let latency = figures.latency_ns.unwrap();
        assert!(figures.grows && latency.at == Default::default());
        assert!(latency.above.unwrap().p50.is_some() && latency.above.unwrap().p999.is_some());
        // Requests due before the window may be answered in it: nothing grows.
        assert!(!window(10_000, 10_100, 0).grows);
        assert!(!window(1_000_000, 991_000, 0).grows && window(1_000_000, 989_000, 0).grows);
        assert!(!window(10, 0, 0).grows, "ten may wait at the end of any window");
    }

    #[test]
    fn what_chance_leaves_at_the_end_of_a_short_window_does_not_grow() {
        // 2 % of 1000 and of 10 000 are within three standard deviations of a count, of 100 000 far beyond.
        assert!(!window(1_000, 980, 0).grows && !window(10_000, 9_800, 0).grows);
        assert!(window(100_000, 98_000, 0).grows);
        assert!(window(1_000, 900, 0).grows && window(10_000, 9_600, 0).grows);
        // Percentiles that may fall on requests without an answer are still bounds.
        let latency = window(10_000, 9_800, 0).latency_ns.unwrap();
        assert!(latency.at.p95.is_some() && latency.at.p99.is_none());
    }

    #[test]
    fn what_fell_due_while_the_host_had_the_cpu_at_the_end_does_not_grow() {
        let grows = |window_ns: u64, interrupted: Option<f64>, unanswered: u64| {
            let mut figures =
                Measurement { window_ns: Some(window_ns), interrupted, ..Measurement::default() };
            figures.set_due(100_000, 100_000 - unanswered);
            figures.queue_grows()
        };
        // 10 ms are 2 % of 500 ms, in addition to the 1 % that may always wait.
        let short = 500_000_000;
        assert!(grows(short, None, 1_100), "nobody interrupted it");
        assert!(grows(short, Some(0.0), 1_100) && !grows(short, Some(0.5), 1_100));
        assert!(!grows(short, Some(0.5), 2_900) && grows(short, Some(0.5), 3_100));
        assert!(grows(short, Some(0.001), 1_200), "no longer than it was interrupted in all");
        assert!(grows(60_000_000_000, Some(0.5), 1_100), "10 ms are little of a minute");
    }

    #[test]
    fn what_was_dropped_does_not_wait_but_has_no_latency() {
        let figures = window(20_000, 12_000, 7_950);
        assert!(!figures.grows);
        let latency = figures.latency_ns.unwrap();
        assert!(latency.at.p50.is_some() && latency.at.p90.is_none());
        assert!(latency.above.unwrap().p99.is_some());
    }

    #[test]
    fn a_latency_sample_is_scaled_to_the_share_of_unanswered_requests() {
        // Only one of seven clients measures.
        let mut latency = crate::Latency::new();
        (0..10_000).for_each(|i| latency.record(1_000 + i));
        let mut figures = Measurement::default();
        figures.set_due(70_400, 70_000);
        assert_eq!(figures.unanswered_beside(10_000), 57);
        figures.latency_ns = latency.summary(57);
        figures.derive();
        let latency = figures.latency_ns.unwrap();
        assert!(latency.at.p99.is_some() && latency.at.p999.is_none(), "{latency:?}");
    }

    #[test]
    fn ratios_follow_from_counts_where_both_are_known() {
        let mut figures = Measurement {
            interrupts: Some(500),
            packets: Some(1000),
            polled_packets: Some(1000),
            context_switches: Some(3000),
            wakeups: Some(10),
            window_ns: Some(2_000_000_000),
            ..Measurement::default()
        };
        figures.derive();
        assert_eq!(figures.interrupts_per_packet, Some(0.5));
        assert_eq!(figures.context_switches_per_packet, Some(3.0));
        assert_eq!(figures.wakeups_per_s, Some(5.0));

        let mut idle =
            Measurement { interrupts: Some(1), polled_packets: Some(0), ..Measurement::default() };
        idle.derive();
        assert_eq!(idle.interrupts_per_packet, None, "no packet, no ratio");
        assert_eq!(row().figures.dropped(), 5);
    }

    #[test]
    fn a_server_before_the_policy_s_text_is_no_name_of_its_own() {
        let row = |name: &str, server: Option<&str>| Row {
            name: name.into(),
            policy: "base".into(),
            server: server.map(str::to_owned),
            ..row()
        };
        assert!(row("base", None).is_named_by_policy());
        assert!(row("base", Some("napkin")).is_named_by_policy());
        assert!(row("kernel/base", Some("kernel")).is_named_by_policy());
        assert!(!row("kernel/mine", Some("kernel")).is_named_by_policy());
        assert!(!row("kernel/base", None).is_named_by_policy());
    }
}
