//! Rows as a table for people: the same numbers as the JSON, rounded to three digits, with units.
//!
//! No column is computed here; what a row does not have is a dash. A table wider than
//! [`WIDTH`] is continued below with its leading columns repeated, so that no number is ever broken.

use comfy_table::{Cell, CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};
use serde_json::Value;

use super::json::{Figures, Row};
use crate::measure::{LatencyNs, Published};

/// Widest table in characters.
pub const WIDTH: usize = 120;

/// How the names of the report's times end.
const TIME: &str = "_ns";

/// What is shown for a figure that a row does not have.
const ABSENT: &str = "-";

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "each shows the report's field of the same name")]
pub enum Column {
    Policy,
    /// A field of the row's `load`; one in nanoseconds is shown with its unit.
    Load(String),
    Offered,
    Achieved,
    P5,
    P50,
    P95,
    P99,
    P999,
    /// The 2025 document's estimator, which is no percentile, under its published name.
    PublishedP5,
    /// See [`Column::PublishedP5`].
    PublishedP50,
    /// See [`Column::PublishedP5`].
    PublishedP95,
    /// See [`Column::PublishedP5`].
    PublishedP99,
    Work,
    Poll,
    Waiting,
    Asleep,
    Interrupts,
    InterruptsTxPerPacket,
    InterruptsPerPacket,
    Polls,
    /// Polls that found nothing.
    EmptyPolls,
    Packets,
    /// All drop counters added up.
    Drops,
    ContextSwitchesPerPacket,
    /// A further figure of the workload, as it stands in the report.
    Extra(String),
}

impl Column {
    fn header(&self) -> &str {
        match self {
            Column::Policy => "policy",
            Column::Load(name) => name.strip_suffix(TIME).unwrap_or(name),
            Column::Extra(name) => name,
            Column::Offered => "offered",
            Column::Achieved => "achieved",
            Column::P5 => "p5",
            Column::P50 => "p50",
            Column::P95 => "p95",
            Column::P99 => "p99",
            Column::P999 => "p99.9",
            Column::PublishedP5 => "\"p5\"",
            Column::PublishedP50 => "\"p50\"",
            Column::PublishedP95 => "\"p95\"",
            Column::PublishedP99 => "\"p99\"",
            Column::Work => "work",
            Column::Poll => "poll",
            Column::Waiting => "waiting",
            Column::Asleep => "asleep",
            Column::Interrupts => "irqs",
            Column::InterruptsTxPerPacket => "tx irqs/pkt",
            Column::InterruptsPerPacket => "irqs/pkt",
            Column::Polls => "polls",
            Column::EmptyPolls => "empty polls",
            Column::Packets => "packets",
            Column::Drops => "drops",
            Column::ContextSwitchesPerPacket => "switches/pkt",
        }
    }

    /// Whether the column says which row it is: such columns come first and are repeated.
    fn names_row(&self) -> bool {
        matches!(self, Column::Policy | Column::Load(_))
    }

    /// Whether the column holds words, which stand left; numbers stand right.
    fn is_text(&self, rows: &[Row]) -> bool {
        match self {
            Column::Policy => true,
            Column::Load(name) => {
                rows.iter().any(|r| r.load.get(name).is_some_and(Value::is_string))
            }
            _ => false,
        }
    }

    fn cell(&self, row: &Row) -> String {
        let f: &Figures = &row.figures;
        let latency =
            |get: fn(&LatencyNs) -> u64| f.latency_ns.as_ref().map(|l| time(get(l) as f64));
        let published = |get: fn(&Published) -> u64| {
            f.published_estimator_ns.as_ref().map(|p| time(get(p) as f64))
        };
        let shown = match self {
            Column::Policy => Some(row.policy.clone()),
            Column::Load(name) => row.load.get(name).map(|value| match value.as_f64() {
                Some(ns) if name.ends_with(TIME) => time(ns),
                _ => plain(value),
            }),
            Column::Offered => f.offered_per_s.map(rate),
            Column::Achieved => f.achieved_per_s.map(rate),
            Column::P5 => latency(|l| l.p5),
            Column::P50 => latency(|l| l.p50),
            Column::P95 => latency(|l| l.p95),
            Column::P99 => latency(|l| l.p99),
            Column::P999 => latency(|l| l.p999),
            Column::PublishedP5 => published(|p| p.p5),
            Column::PublishedP50 => published(|p| p.p50),
            Column::PublishedP95 => published(|p| p.p95),
            Column::PublishedP99 => published(|p| p.p99),
            Column::Work => f.cpu.map(|c| percent(c.work)),
            Column::Poll => f.cpu.map(|c| percent(c.poll)),
            Column::Waiting => f.cpu.map(|c| percent(c.waiting)),
            Column::Asleep => f.cpu.map(|c| percent(c.asleep)),
            Column::Interrupts => f.interrupts.map(count),
            Column::InterruptsTxPerPacket => f.extra.get("interrupts_tx_per_packet").map(plain),
            Column::InterruptsPerPacket => f.interrupts_per_packet.map(ratio),
            Column::Polls => f.polls.map(count),
            Column::EmptyPolls => f.empty_polls.map(count),
            Column::Packets => f.packets.map(count),
            // What a window did not name was not dropped in it.
            Column::Drops => f.window_ns.map(|_| count(f.dropped())),
            Column::ContextSwitchesPerPacket => f.context_switches_per_packet.map(ratio),
            Column::Extra(name) => f.extra.get(name).map(plain),
        };
        shown.unwrap_or_else(|| ABSENT.to_owned())
    }
}

/// The rows under the chosen columns, and below them what could not be measured. Ends with a newline.
pub fn render(rows: &[Row], columns: &[Column]) -> String {
    let mut text =
        parts(rows, columns).iter().map(|part| draw(rows, part)).collect::<Vec<_>>().join("\n\n");
    text.push('\n');
    let mut told: Vec<(&str, &str)> = Vec::new();
    for row in rows {
        for note in &row.notes {
            // Loads of one policy often share a note: once is enough.
            if !told.contains(&(&row.policy, note)) {
                told.push((&row.policy, note));
                text.push_str(&format!("not measured ({}): {note}\n", row.policy));
            }
        }
    }
    text
}

/// The histograms of the time in receive calls, one for each row that has one, named as the row is by
/// the columns; empty if there is none.
pub fn receive_times(rows: &[Row], columns: &[Column]) -> String {
    let mut text = String::new();
    for row in rows {
        let Some(histogram) = &row.figures.receive_time_histogram else { continue };
        let names = columns.iter().filter_map(|column| match column {
            Column::Load(_) => Some(format!(", {} {}", column.header(), column.cell(row))),
            _ => None,
        });
        let names: String = names.collect();
        text.push_str(&format!(
            "time in receive calls in ns, {}{names} ({} calls):\n{histogram}\n",
            row.policy,
            count(histogram.count())
        ));
    }
    text
}

/// Distributes the columns over tables of at most [`WIDTH`], each led by those that name the row.
fn parts<'a>(rows: &[Row], columns: &'a [Column]) -> Vec<Vec<&'a Column>> {
    let width = |column: &Column| {
        let cells = rows.iter().map(|row| column.cell(row).chars().count());
        cells.chain([column.header().chars().count()]).max().unwrap_or(0) + usize::from(GAP)
    };
    let (leading, figures): (Vec<_>, Vec<_>) = columns.iter().partition(|c| c.names_row());
    let leading_width: usize = leading.iter().map(|c| width(c)).sum();
    let mut parts = vec![leading.clone()];
    let mut used = leading_width;
    for column in figures {
        let needed = width(column);
        // A part always takes one figure, however wide the leading columns are.
        let full = used + needed > WIDTH + usize::from(GAP) && used > leading_width;
        if full {
            parts.push(leading.clone());
            used = leading_width;
        }
        used += needed;
        if let Some(part) = parts.last_mut() {
            part.push(column);
        }
    }
    parts
}

/// Blanks between two columns.
const GAP: u16 = 2;

fn draw(rows: &[Row], columns: &[&Column]) -> String {
    let mut table = Table::new();
    // No junctions: with them, every column would be one wider than its padding.
    table.load_style(TableStyle::new().header_separator(LineStyle::none().fill('-')));
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(columns.iter().map(|column| Cell::new(column.header())));
    table.add_rows(
        rows.iter().map(|row| columns.iter().map(|column| column.cell(row)).collect::<Vec<_>>()),
    );
    for (i, (column, drawn)) in columns.iter().zip(table.column_iter_mut()).enumerate() {
        let last = i + 1 == columns.len();
        drawn.set_padding((0, if last { 0 } else { GAP }));
        drawn.set_cell_alignment(if column.is_text(rows) {
            CellAlignment::Left
        } else {
            CellAlignment::Right
        });
    }
    table.trim_fmt()
}

/// A length of time, given in nanoseconds.
pub fn time(ns: f64) -> String {
    scaled(ns, 1000.0, &[" ns", " us", " ms", " s"])
}

/// A rate, given per second.
pub fn rate(per_s: f64) -> String {
    scaled(per_s, 1000.0, &["/s", " k/s", " M/s", " G/s"])
}

/// A fraction as a percentage.
pub fn percent(fraction: f64) -> String {
    format!("{:.1} %", fraction * 100.0)
}

/// A count: exact up to six digits, then rounded.
pub fn count(n: u64) -> String {
    if n < 1_000_000 {
        n.to_string()
    } else {
        scaled(n as f64, 1000.0, &["", " k", " M", " G", " T"])
    }
}

/// A ratio of two counts.
fn ratio(value: f64) -> String {
    format!("{value:.3}")
}

/// A value of the report as it stands there, without a string's quotes.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Three significant digits in the largest unit that keeps the number at or above 1.
fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut units = units.iter();
    let mut unit = units.next().copied().unwrap_or("");
    // 999.5 would be printed as 1000: it already belongs to the next unit.
    while value.abs() >= step - 0.5 {
        let Some(next) = units.next() else { break };
        unit = next;
        value /= step;
    }
    let digits = match value.abs() {
        0.0 => 0,
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}{unit}")
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use crate::measure::{CpuSplit, Latency, PublishedEstimator};
    use crate::report::Repetition;

    fn row(policy: &str, rate: u64, us: u64) -> Row {
        let mut latency = Latency::new();
        let mut published = PublishedEstimator::new();
        for _ in 0..1000 {
            latency.record(us * 1000);
            published.record(us * 1000);
        }
        let figures = Figures {
            achieved_per_s: Some(rate as f64),
            latency_ns: latency.summary(),
            cpu: Some(CpuSplit { work: 0.251, poll: 0.5, waiting: 0.0, asleep: 0.249 }),
            interrupts: Some(rate),
            packets: Some(2 * rate),
            polled_packets: Some(2 * rate),
            published_estimator_ns: published.take(),
            extra: Map::from_iter([("hits".into(), Value::from("most"))]),
            ..Figures::default()
        };
        let load = Map::from_iter([("connections".into(), Value::from(4))]);
        Row::from_repetitions(policy, load, vec![Repetition { step: 0, figures }], Vec::new())
    }

    #[test]
    fn a_table_of_two_policies() {
        let rows = [row("softirq", 12_500, 13), row("threaded-busy-poll", 1_200_000, 1_300)];
        let columns = [
            Column::Policy,
            Column::Load("connections".into()),
            Column::Achieved,
            Column::P50,
            Column::PublishedP99,
            Column::Poll,
            Column::InterruptsPerPacket,
            Column::Drops,
            Column::Extra("hits".into()),
        ];
        let text = render(&rows, &columns);
        let want = "\
policy              connections  achieved      p50    \"p99\"    poll  irqs/pkt  drops  hits
------------------------------------------------------------------------------------------
softirq                       4  12.5 k/s  13.0 us  13.0 us  50.0 %     0.500      -  most
threaded-busy-poll            4  1.20 M/s  1.30 ms  1.30 ms  50.0 %     0.500      -  most
";
        assert_eq!(text, want, "\n{text}");
    }

    #[test]
    fn a_wide_table_is_continued_below_and_never_wider_than_promised() {
        let rows = [row("a policy with a rather long name indeed", 12_500, 13)];
        use Column::{
            Achieved, Asleep, Interrupts, Load, P5, P50, P95, P99, P999, Packets, Policy, Poll,
            Polls, PublishedP50, PublishedP99, Waiting, Work,
        };
        let mut columns = vec![Policy, Load("connections".into()), Achieved, P5, P50, P95, P99];
        columns.extend([P999, PublishedP50, PublishedP99, Work, Poll, Waiting, Asleep]);
        columns.extend([Interrupts, Polls, Packets]);
        let text = render(&rows, &columns);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert_eq!(text.matches("a policy with").count(), 2, "the row is named again:\n{text}");
        for column in &columns {
            assert!(text.contains(column.header()), "{column:?}");
        }
    }

    #[test]
    fn what_was_not_measured_is_a_dash_and_its_reason_stands_below_once() {
        let mut rows = [row("defer20", 1, 1), row("defer20", 2, 1)];
        for row in &mut rows {
            row.figures.cpu = None;
            row.notes.push("cpu: too few CPUs".into());
        }
        let text = render(&rows, &[Column::Policy, Column::Work, Column::Drops]);
        assert!(text.contains("defer20     -      -\n"), "{text}");
        assert_eq!(text.matches("not measured (defer20): cpu: too few CPUs\n").count(), 1);
    }

    #[test]
    fn a_window_without_a_drop_has_none_and_that_is_no_dash() {
        let mut row = row("base", 1, 1);
        row.figures.window_ns = Some(1);
        assert!(render(&[row], &[Column::Policy, Column::Drops]).ends_with("base        0\n"));
    }

    #[test]
    fn a_load_in_nanoseconds_is_shown_with_its_unit() {
        let mut row = row("base", 1, 1);
        row.load.insert("delay_ns".into(), Value::from(78_000));
        let text = render(&[row], &[Column::Policy, Column::Load("delay_ns".into())]);
        assert!(text.starts_with("policy    delay\n") && text.ends_with("  78.0 us\n"), "{text}");
    }

    #[test]
    fn receive_times_are_shown_for_the_rows_that_have_them() {
        let mut rows = [row("interrupts", 1, 1), row("busypoll", 1, 1)];
        let columns = [Column::Policy, Column::Load("connections".into())];
        assert_eq!(receive_times(&rows, &columns), "");
        let mut calls = crate::measure::Pow2::new();
        [300, 600, 700].into_iter().for_each(|ns| calls.record(ns));
        rows[1].figures.receive_time_histogram = Some(calls);
        let text = receive_times(&rows, &columns);
        assert!(
            text.starts_with(
                "time in receive calls in ns, busypoll, connections 4 (3 calls):\n[256, 512) "
            ),
            "{text}"
        );
        assert_eq!(text.lines().count(), 4, "two buckets, and a blank line");
    }

    #[test]
    fn no_rows_is_a_header_and_no_columns_is_no_panic() {
        assert!(render(&[], &[Column::Policy, Column::Packets]).starts_with("policy"));
        let _ = render(&[row("x", 1, 1)], &[]);
    }

    #[test]
    fn units_change_where_three_digits_do() {
        let times = [0.0, 7.0, 950.0, 999.6, 12_700.0, 127_000.0, 1_000_000.0, 2e9, 5e12];
        let shown: Vec<_> = times.into_iter().map(time).collect();
        let want = [
            "0 ns", "7.00 ns", "950 ns", "1.00 us", "12.7 us", "127 us", "1.00 ms", "2.00 s",
            "5000 s",
        ];
        assert_eq!(shown, want);
        assert_eq!((rate(32_000.0), rate(99.96)), ("32.0 k/s".into(), "100/s".into()));
        assert_eq!((count(999_999), count(1_234_567)), ("999999".into(), "1.23 M".into()));
        assert_eq!(percent(0.1234), "12.3 %");
    }
}
