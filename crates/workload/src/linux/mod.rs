//! Workloads on the kernel's own NAPI: programs of the operating system, over a veth between two network namespaces
//! that a run creates and that vanish with it.
//!
//! - [`pair`]: the namespaces and the veth; [`testbed`]: a pair with a policy in force and its polls counted;
//!   [`window`]: the kernel's counts over a window.
//!
//! A veth is not a network card; every report states the consequences.

pub mod pair;
pub mod testbed;
pub mod window;

use std::fmt::Display;

use napkin_policy::text::quoted;

use crate::error::BenchError;
use crate::rate::whole_rate;
use napkin_measure::report::{Report, Row};

/// What a reader must know about results over a veth.
const NOTES: [&str; 3] = [
    "a veth has no interrupts, and its softirq runs on the sender's CPU until a timer, a \
     thread or an application has taken the instance over: so base costs the serving CPU less here \
     than behind a network card",
    "compare who polled (polls_*), how often a timer had to (watchdogs), and ratios between policies \
     that poll on the serving CPU; not base's CPU, and not absolute times",
    "server_* are shares of the serving CPU's time, polls that found nothing included: the kernel \
     does not tell these apart, so cpu is null",
];

pub(crate) fn notes() -> Vec<String> {
    NOTES.map(str::to_owned).to_vec()
}

/// Adds a note about rows whose counted polls took fewer packets than the device received: polls are missing there.
/// A few packets are in flight at either end of a window.
pub(crate) fn conclude(report: &mut Report) {
    /// One packet in this many may be missing.
    const SLACK: u64 = 100;
    let missing = |row: &Row| {
        let received = row.figures.extra.get("rx_packets")?.as_u64()?;
        let counted = row.figures.polled_packets?;
        let missing = received.saturating_sub(counted);
        (missing > received / SLACK).then(|| format!("{}: {missing} of {received}", row.name))
    };
    let rows: Vec<String> = report.rows.iter().filter_map(missing).collect();
    if !rows.is_empty() {
        report.notes.push(format!(
            "polls were not counted, as packets that the device received are missing from theirs \
             ({}); take polls_*, deferrals and watchdogs of these rows for too few",
            rows.join(", ")
        ));
    }
}

/// Converts an error of the linux world for the report of a run.
pub fn failed(error: impl Display) -> BenchError {
    BenchError::Linux(error.to_string())
}

/// Parses rates per second; `None` stands for `max`, the highest rate possible.
pub(crate) fn rates(loads: &[String]) -> Result<Vec<Option<u64>>, BenchError> {
    /// More than a single-threaded sender can send.
    const HIGHEST: u64 = 10_000_000;
    let rate = |text: &String| match (text.as_str(), whole_rate(text)) {
        ("max", _) => Ok(None),
        (_, Some(rate @ 1..=HIGHEST)) => Ok(Some(rate)),
        _ => Err(not_a_load(text, "requests a second, as in 20000, 20k or max, at most 10M")),
    };
    loads.iter().map(rate).collect()
}

pub(crate) fn not_a_load(given: &str, form: &str) -> BenchError {
    BenchError::Usage(format!("'{}' is not a load of this workload: give {form}", quoted(given)))
}

#[cfg(test)]
mod tests {
    use crate::list::find;
    use crate::setting::Given;
    use serde_json::{Map, Value};

    use super::*;
    use napkin_measure::Host;
    use napkin_measure::report::{Measurement, Repetition};

    fn of(name: &str, loads: &[&str]) -> Result<usize, String> {
        let loads: Vec<String> = loads.iter().map(|load| (*load).to_owned()).collect();
        let live = find(name).expect("one").linux(&loads, &Given::default());
        live.map(|it| it.loads()).map_err(|error| error.to_string())
    }

    #[test]
    fn polls_that_were_not_counted_are_told_by_the_packets_that_they_took() {
        let row = |policy: &str, polled: u64, received: u64| {
            let extra = Map::from_iter([("rx_packets".to_owned(), Value::from(received))]);
            let figures =
                Measurement { polled_packets: Some(polled), extra, ..Measurement::default() };
            let repetitions = vec![Repetition { step: 0, figures }];
            Row::from_repetitions(policy.to_owned(), Map::new(), repetitions, Vec::new())
        };
        let mut report = Report {
            workload: "memcached".into(),
            world: "linux".into(),
            host: Host::default(),
            conclusion: None,
            rows: vec![row("base", 995, 1_000), row("defer20", 900, 1_000)],
            notes: Vec::new(),
            extra: Map::new(),
        };
        conclude(&mut report);
        assert!(report.notes[0].contains("(defer20: 100 of 1000)"), "{:?}", report.notes);
    }

    #[test]
    fn loads_are_rates_or_max() {
        assert_eq!(of("memcached", &["5k", "max"]), Ok(2));
        assert_eq!(of("udp-sink", &["1"]), Ok(1));
        assert_eq!(of("flood-ping", &["flood"]), Ok(1));
        assert_eq!(of("memcached", &[]), Ok(3));
        for (name, wrong) in
            [("memcached", "0"), ("memcached", "11M"), ("udp-sink", "-5"), ("flood-ping", "100")]
        {
            let message = of(name, &[wrong]).expect_err(wrong);
            assert!(message.contains(wrong), "{message}");
        }
        assert_eq!(of("tcp-rr", &[]).expect_err("the machine's"), "linux has no tcp-rr");
    }
}
