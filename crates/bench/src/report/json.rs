//! The JSON form of a bench run.
//!
//! Field names are a contract with whoever reads the files: fields may be added, never renamed.
//! Rates are per second, times in nanoseconds, `cpu` parts are fractions of the CPUs that serve the
//! traffic, and counts cover the measured window. A figure of the contract that could not be
//! measured is `null`, with the reason among the `notes`; figures that only some workloads have are
//! left out where there are none.
//!
//! Among the further figures of every workload are `interrupts_won` and `interrupts_missed`: interrupts
//! of either kind, receive and transmit, that found the instance free, or owned by a poll that then
//! looked once more. `interrupts` and `interrupts_tx` count the won ones, each its kind.
//! `serving_cpus` are the operating system's numbers of the CPUs that `cpu` is of.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::measure::{CpuSplit, Host, LatencyNs, Pow2, Published, Spread};

/// A whole run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Which workload ran.
    pub workload: String,
    /// In which world: `engine`, `machine` or `linux`.
    pub world: String,
    /// The machine it ran on.
    pub host: Host,
    /// What to learn from the rows, in a sentence of their own figures; or that it cannot be told, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conclusion: Option<String>,
    /// One row for each policy and load.
    pub rows: Vec<Row>,
    /// What could not be measured in any row, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Further fields of this workload.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// One policy under one load. Make it with [`Row::from_repetitions`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What the row is called: the name that the policy was given, or the policy's text.
    pub name: String,
    /// The policy, in its text form or by its preset's name.
    pub policy: String,
    /// The load, in the workload's own terms.
    pub load: Map<String, Value>,
    /// The figures of the repetitions, combined.
    #[serde(flatten)]
    pub figures: Figures,
    /// How far the repetitions lie apart, for the main figures.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub spread: BTreeMap<String, Spread>,
    /// What could not be measured in this row, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Each repetition as it was.
    pub repetitions: Vec<Repetition>,
}

/// One run of one policy under one load.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Repetition {
    /// When it ran: its step in the interleaved order, from 0.
    pub step: u64,
    /// What it measured.
    #[serde(flatten)]
    pub figures: Figures,
}

/// The figures of a row or a repetition.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Requests or packets a second that the load meant to send; `None` in a closed loop.
    pub offered_per_s: Option<f64>,
    /// Requests or packets a second that were served.
    pub achieved_per_s: Option<f64>,
    /// Latency from the intended send time.
    pub latency_ns: Option<LatencyNs>,
    /// Where the serving CPUs' time went.
    pub cpu: Option<CpuSplit>,
    /// Receive interrupts that won the instance; a missed one, which found it owned, is not among them.
    pub interrupts: Option<u64>,
    /// Polls, empty ones included.
    pub polls: Option<u64>,
    /// Polls that found nothing.
    pub empty_polls: Option<u64>,
    /// Packets served: echo requests answered (`flood-ping`), datagrams that the application received
    /// (`udp-sink`), packets replied to (`xsk-rr`).
    pub packets: Option<u64>,
    /// Packets lost, by the counter that counted them.
    pub drops: BTreeMap<String, u64>,

    /// Share of the window for which this host kept the run from a CPU that it wanted; of the CPU of
    /// which that was most. See [`Interruption`](crate::measure::Interruption). None in the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<f64>,
    /// Length of the measured window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_ns: Option<u64>,
    /// Packets polled from the receive ring, whatever became of them then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polled_packets: Option<u64>,
    /// Transmit interrupts that won the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupts_tx: Option<u64>,
    /// Receive interrupts for each packet polled from the ring.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupts_per_packet: Option<f64>,
    /// Context switches of the serving threads, of either kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_switches: Option<u64>,
    /// Context switches for each packet served (`packets`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_switches_per_packet: Option<f64>,
    /// Voluntary context switches of the serving threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wakeups: Option<u64>,
    /// Wake-ups a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wakeups_per_s: Option<f64>,
    /// The 2025 document's estimator; its names are percentiles, its values are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published_estimator_ns: Option<Published>,
    /// Time spent in receive calls, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive_time_histogram: Option<Pow2>,
    /// Further figures of this workload.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Figures {
    /// Fills in the ratios that follow from other figures and are not there yet: interrupts and
    /// context switches for each packet, and wake-ups a second.
    pub fn derive(&mut self) {
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

    /// All packets lost, whoever counted them.
    pub fn dropped(&self) -> u64 {
        self.drops.values().fold(0, |sum, n| sum.saturating_add(*n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        let figures = Figures {
            offered_per_s: Some(12_500.0),
            packets: Some(1000),
            interrupts: Some(500),
            drops: BTreeMap::from([("ring_full".into(), 2), ("socket_full".into(), 3)]),
            extra: Map::from_iter([("hit_ratio".into(), Value::from(0.5))]),
            ..Figures::default()
        };
        Row {
            name: "defer20".into(),
            policy: "defer20".into(),
            load: Map::from_iter([("connections".into(), Value::from(4))]),
            figures: figures.clone(),
            spread: BTreeMap::new(),
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
        let mut latency = crate::measure::Latency::new();
        latency.record(5);
        let json = serde_json::to_value(latency.summary()).unwrap();
        for name in ["mean", "p50", "p90", "p95", "p99", "p999", "max"] {
            assert!(json.get(name).is_some(), "{name}");
        }
        let inputs = crate::measure::SplitInputs { wall_ns: 10, cpus: 1, ..Default::default() };
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

    #[test]
    fn ratios_follow_from_counts_where_both_are_known() {
        let mut figures = Figures {
            interrupts: Some(500),
            packets: Some(1000),
            polled_packets: Some(1000),
            context_switches: Some(3000),
            wakeups: Some(10),
            window_ns: Some(2_000_000_000),
            ..Figures::default()
        };
        figures.derive();
        assert_eq!(figures.interrupts_per_packet, Some(0.5));
        assert_eq!(figures.context_switches_per_packet, Some(3.0));
        assert_eq!(figures.wakeups_per_s, Some(5.0));

        let mut idle =
            Figures { interrupts: Some(1), polled_packets: Some(0), ..Figures::default() };
        idle.derive();
        assert_eq!(idle.interrupts_per_packet, None, "no packet, no ratio");
        assert_eq!(row().figures.dropped(), 5);
    }
}
