//! Prints rows as a table that fits the width of a line.
//!
//! The most important columns are fitted first; omitted ones are listed below, as are the policies that short signs
//! stand for. No number is ever truncated, and no line is wrapped by the terminal.

use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};
use serde_json::Value;

use super::column::{ABSENT, Column, POLICY, Unit};
use super::fit::{Abbreviations, GAP, fit, omitted_note};
use super::json::Row;
use super::text::{count, wrap};

/// Rank class of a load that is the same in all rows; see [`Shown::rank`].
const SAME: u8 = 1;

/// Rank class of a column that has only dashes.
const SILENT: u8 = 2;

/// Rows in the form shown.
struct Shown {
    /// Each row in the form of the JSON report, with its name as shown.
    rows: Vec<Value>,
    /// Signs for names that are too long.
    signs: Abbreviations,
    /// Named policies: name and text.
    named: Vec<(String, String)>,
}

impl Shown {
    fn new(rows: &[Row], width: usize) -> Shown {
        let (mut signs, mut named) = (Abbreviations::new(width), Vec::<(String, String)>::new());
        let rows = rows.iter().map(|row| {
            // Numbers, strings, lists and maps with string keys: serializing cannot fail.
            let mut shown = serde_json::to_value(row).unwrap_or_default();
            let meaning = match row.is_named_by_policy() {
                true => row.name.clone(),
                false => format!("{} = {}", row.name, row.policy),
            };
            if let Some(sign) = signs.of(&row.name, &meaning) {
                shown[POLICY.field] = sign.into();
            } else if !row.is_named_by_policy() && !named.iter().any(|(name, _)| *name == row.name)
            {
                named.push((row.name.clone(), row.policy.clone()));
            }
            shown
        });
        Shown { rows: rows.collect(), signs, named }
    }

    fn cells(&self, column: &Column) -> Vec<String> {
        self.rows.iter().map(|row| column.cell(row)).collect()
    }

    /// Width of a column, without the gap.
    fn width(&self, column: &Column) -> usize {
        let cells = self.cells(column).into_iter().map(|cell| cell.chars().count());
        cells.chain([column.heading(&self.rows).chars().count()]).max().unwrap_or(0)
    }

    /// Whether a column holds text, which is left-aligned; numbers are right-aligned.
    fn is_text(&self, column: &Column) -> bool {
        column.unit == Unit::Plain
            && self.rows.iter().any(|row| column.value(row).is_some_and(Value::is_string))
    }

    /// The order in which columns are fitted: a load that is the same in all rows does not distinguish them, and a
    /// column of dashes says nothing, so both come last.
    fn rank(&self, column: &Column) -> (u8, usize) {
        let cells = self.cells(column);
        let same = cells.windows(2).all(|pair| pair[0] == pair[1]);
        let class = match cells.iter().all(|cell| cell == ABSENT) {
            true => SILENT,
            false if same && column.is_load() => SAME,
            false => 0,
        };
        (class, column.rank())
    }

    /// Splits columns into those that fit on a line and those that do not, keeping their order.
    fn fit(&self, columns: &[&'static Column], width: usize) -> (Columns, Columns) {
        let mut by_rank = columns.to_vec();
        by_rank.sort_by_key(|column| self.rank(column));
        let chosen = fit(by_rank.into_iter().map(|column| (column, self.width(column))), width);
        columns.iter().copied().partition(|column| chosen.contains(column))
    }
}

type Columns = Vec<&'static Column>;

/// The rows with the columns that fit on a line of `width` characters, followed by the omitted columns and the
/// figures that could not be measured. Ends with a newline.
pub fn render(rows: &[Row], columns: &[&'static Column], width: usize) -> String {
    let shown = Shown::new(rows, width);
    let (fitting, others) = shown.fit(columns, width);
    let header = fitting.iter().map(|column| column.heading(&shown.rows)).collect();
    let cells = |row| fitting.iter().map(|column| column.cell(row)).collect();
    let cells = shown.rows.iter().map(cells).collect();
    let mut text = draw(header, cells, None, |place| !shown.is_text(fitting[place]));
    text.push('\n');
    let mut say = |line: &str| {
        text.push_str(&wrap(line, width));
        text.push('\n');
    };
    shown.signs.lines().for_each(|line| say(&line));
    for (name, policy) in &shown.named {
        say(&format!("{name}: {policy}"));
    }
    let others = others.into_iter().map(|column| match shown.rows.first() {
        Some(row) if shown.rank(column).0 == SAME => {
            format!("{} ({})", column.name, column.cell(row))
        }
        _ => column.name.to_owned(),
    });
    if let Some(line) = omitted_note(&others.collect::<Vec<_>>()) {
        say(&line);
    }
    let mut noted: Vec<(&str, &str)> = Vec::new();
    for (row, value) in rows.iter().zip(&shown.rows) {
        for note in &row.notes {
            // Loads of one policy often share a note: print it once.
            if !noted.contains(&(&row.name, note)) {
                noted.push((&row.name, note));
                say(&format!("not measured ({}): {note}", POLICY.cell(value)));
            }
        }
    }
    text
}

/// The histograms of receive calls, one for each row that has one, with the row's name and load; empty if there is
/// none.
pub fn receive_times(rows: &[Row], columns: &[&Column], width: usize) -> String {
    let shown = Shown::new(rows, width);
    let mut text = String::new();
    for (row, value) in rows.iter().zip(&shown.rows) {
        let Some(histogram) = &row.figures.receive_time_histogram else { continue };
        let loads = columns.iter().filter(|column| column.is_load());
        let names: String =
            loads.map(|column| format!(", {} {}", column.name, column.cell(value))).collect();
        let line = format!(
            "time in receive calls in ns, {}{names} ({} calls):",
            POLICY.cell(value),
            count(histogram.count())
        );
        text.push_str(&format!("{}\n{histogram}\n", wrap(&line, width)));
    }
    text
}

/// Formats cells under their headers, two blanks apart, without a final newline. With a `width`, cells that do not
/// fit are wrapped; otherwise columns are as wide as their content. Columns for which `numbers` is true, given
/// their index, are right-aligned.
pub fn draw(
    header: Vec<String>,
    rows: Vec<Vec<String>>,
    width: Option<u16>,
    numbers: impl Fn(usize) -> bool,
) -> String {
    let mut table = Table::new();
    // No junctions: with them, every column would be one wider than its padding.
    table.load_style(TableStyle::new().header_separator(LineStyle::none().fill('-')));
    table.set_content_arrangement(ContentArrangement::Disabled);
    if let Some(width) = width {
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(width);
    }
    table.set_header(header);
    table.add_rows(rows);
    let last = table.column_count().saturating_sub(1);
    for (place, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, if place == last { 0 } else { GAP as u16 }));
        column.set_cell_alignment(match numbers(place) {
            true => CellAlignment::Right,
            false => CellAlignment::Left,
        });
    }
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::super::column::*;
    use super::*;
    use crate::report::{Measurement, Repetition};
    use crate::{CpuSplit, Latency, PublishedEstimator};

    fn row(policy: &str, rate: u64, us: u64) -> Row {
        let mut latency = Latency::new();
        let mut published = PublishedEstimator::new();
        for _ in 0..1000 {
            latency.record(us * 1000);
            published.record(us * 1000);
        }
        let figures = Measurement {
            achieved_per_s: Some(rate as f64),
            latency_ns: latency.summary(0),
            cpu: Some(CpuSplit { work: 0.251, poll: 0.5, waiting: 0.0, asleep: 0.249 }),
            interrupts: Some(rate),
            packets: Some(2 * rate),
            polled_packets: Some(2 * rate),
            published_estimator_ns: published.take(),
            extra: Map::from_iter([("server_busy".into(), Value::from(0.5))]),
            ..Measurement::default()
        };
        let load = Map::from_iter([("requests_per_s".into(), Value::from(rate))]);
        Row::from_repetitions(policy, load, vec![Repetition { step: 0, figures }], Vec::new())
    }

    /// Rows for all columns, with names of any length.
    fn all() -> Vec<Row> {
        let spelled = "defer-hard-irqs=100,gro-flush-timeout=20us,irq-suspend-timeout=20ms,\
                       hold=50us,epoll-busy-poll-budget=64,epoll-prefer-busy-poll=on";
        let mut rows = vec![
            row("base", 12_500, 13),
            row("threaded-busy-poll", 1_200_000, 1_300),
            row(spelled, 1, 1),
        ];
        rows[0]
            .notes
            .push("SO_PREFER_BUSY_POLL needs the right CAP_NET_ADMIN, which is missing".into());
        rows
    }

    fn lines(text: &str) -> usize {
        text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
    }

    #[test]
    fn a_table_of_two_policies() {
        let rows = [row("softirq", 12_500, 13), row("threaded-busy-poll", 1_200_000, 1_300)];
        let columns = [
            POLICY,
            REQUESTS_PER_S,
            ACHIEVED,
            P50,
            PUBLISHED_P99,
            POLL,
            INTERRUPTS_PER_PACKET,
            BUSY,
        ];
        let want = "\
policy              requests/s  achieved      p50    \"p99\"    poll  irqs/pkt    busy
------------------------------------------------------------------------------------
softirq                  12500  12.5 k/s  13.0 us  13.0 us  50.0 %     0.500  50.0 %
threaded-busy-poll     1200000  1.20 M/s  1.30 ms  1.30 ms  50.0 %     0.500  50.0 %
";
        let text = render(&rows, &columns, 90);
        assert_eq!(text, want, "\n{text}");
    }

    #[test]
    fn on_a_narrow_line_the_less_important_columns_are_left_out_and_named() {
        let rows = [row("softirq", 12_500, 13), row("threaded", 1_200_000, 1_300)];
        let columns = [POLICY, REQUESTS_PER_S, PUBLISHED_P99, ACHIEVED, P50, BUSY, IDLE_GAP];
        let want = "\
policy    requests/s  achieved      p50    busy
-----------------------------------------------
softirq        12500  12.5 k/s  13.0 us  50.0 %
threaded     1200000  1.20 M/s  1.30 ms  50.0 %
not on this line: \"p99\", idle gap; a wider terminal has
  them, --json FILE has all
";
        let text = render(&rows, &columns, 55);
        assert_eq!(text, want, "\n{text}");
    }

    #[test]
    fn whatever_the_line_nothing_is_longer_and_no_column_is_lost() {
        let rows = all();
        for width in 20..=250 {
            let text = render(&rows, COLUMNS, width);
            assert!(lines(&text) <= width, "{width}:\n{text}");
            let (fitting, left_out) = Shown::new(&rows, width).fit(COLUMNS, width);
            assert_eq!(fitting.len() + left_out.len(), COLUMNS.len());
            // The policy is never omitted; only the world may precede it.
            let first = fitting.iter().find(|column| **column != WORLD);
            assert_eq!(first, Some(&POLICY));
            let header = text.lines().next().unwrap_or("");
            assert!(fitting.iter().all(|column| header.contains(column.name)), "{width}:\n{text}");
            // Only the sentence below may be wrapped.
            let unwrapped = text.replace("\n  ", " ");
            assert!(
                left_out.iter().all(|column| unwrapped.contains(column.name)),
                "{width}:\n{text}"
            );
        }
        assert_eq!(Shown::new(&rows, 1_000).fit(COLUMNS, 1_000).1, [] as [&Column; 0]);
    }

    #[test]
    fn eighty_characters_have_rate_latency_and_where_the_cpu_went() {
        let shown = Shown::new(&all(), 80);
        let (fitting, _) = shown.fit(COLUMNS, 80);
        for column in [POLICY, REQUESTS_PER_S, ACHIEVED, P50, P99, WORK, POLL] {
            assert!(fitting.contains(&column), "{}", column.name);
        }
    }

    #[test]
    fn a_long_policy_is_a_sign_that_is_explained_below() {
        let rows = all();
        let text = render(&rows, &[POLICY, P50], 80);
        assert!(text.contains("\n[1]                 1.00 us\n"), "{text}");
        let unwrapped = text.replace("\n  ", "");
        assert!(unwrapped.contains(&format!("[1]: {}\n", rows[2].policy)), "{text}");
        let wide = render(&rows, &[POLICY, P50], 4 * rows[2].policy.len());
        assert!(!wide.contains("[1]"), "{wide}");
    }

    #[test]
    fn a_policy_that_was_given_a_name_is_called_by_it() {
        let mut rows = [row("base", 1, 1), row("suspend20,hold=50us", 1, 1)];
        rows[1].name = "mine".into();
        let text = render(&rows, &[POLICY, P50], 80);
        assert!(text.contains("\nmine    1.00 us\nmine: suspend20,hold=50us\n"), "{text}");
        rows[1].name = "a-name-as-long-as-may-be".into();
        let text = render(&rows, &[POLICY, P50], 80);
        assert!(text.contains("\n[1]: a-name-as-long-as-may-be = suspend20,hold=50us\n"), "{text}");
    }

    #[test]
    fn a_load_that_never_changes_gets_its_place_last() {
        let rows = [row("base", 9, 1), row("threaded", 9, 1)];
        let text = render(&rows, &[POLICY, REQUESTS_PER_S, P50, P99], 32);
        assert!(text.starts_with("policy        p50      p99\n"), "{text}");
        assert!(text.replace("\n ", "").contains("not on this line: requests/s (9);"), "{text}");
    }

    #[test]
    fn what_was_not_measured_is_a_dash_and_its_reason_stands_below_once() {
        let mut rows = [row("defer20", 1, 1), row("defer20", 2, 1)];
        for row in &mut rows {
            row.figures.cpu = None;
            row.notes.push("cpu: too few CPUs".into());
        }
        let text = render(&rows, &[POLICY, WORK, INTERRUPTS_WON], 80);
        assert!(text.contains("defer20     -         -\n"), "{text}");
        assert_eq!(text.matches("not measured (defer20): cpu: too few CPUs\n").count(), 1);
    }

    #[test]
    fn drops_are_added_up_and_a_dash_where_nothing_was_measured() {
        let mut row = row("base", 1, 1);
        assert!(render(&[row.clone()], &[POLICY, DROPS], 80).ends_with("base        -\n"));
        row.figures.window_ns = Some(1);
        assert!(render(&[row.clone()], &[POLICY, DROPS], 80).ends_with("base        0\n"));
        row.figures.drops = [("ring_full".to_owned(), 2), ("socket_full".to_owned(), 3)].into();
        assert!(render(&[row], &[POLICY, DROPS], 80).ends_with("base        5\n"));
    }

    #[test]
    fn repetitions_have_their_range_beside_the_p99_and_ties_are_marked() {
        let several = |policy: &str, us: [u64; 3]| {
            let mut all = us.map(|us| row(policy, 9, us).repetitions.remove(0));
            all.iter_mut().zip(0..).for_each(|(it, step)| it.step = step);
            Row::from_repetitions(policy, Map::new(), all.to_vec(), Vec::new())
        };
        let mut rows = [several("base", [44, 40, 48]), several("defer20", [46, 47, 999])];
        crate::report::ties::mark(&mut rows);
        let want = "\
policy       p50         p99 [min..max]
---------------------------------------
base     44.0 us   44.0 us [40.0..48.0]
defer20  47.0 us  47.0 us [46.0..999] =
";
        let text = render(&rows, &[POLICY, P50, P99], 80);
        assert_eq!(text, want, "\n{text}");
    }

    #[test]
    fn a_load_in_nanoseconds_is_shown_with_its_unit() {
        let mut row = row("base", 1, 1);
        row.load.insert("delay_ns".into(), Value::from(78_000));
        let text = render(&[row], &[POLICY, DELAY], 80);
        assert!(text.starts_with("policy    delay\n") && text.ends_with("  78.0 us\n"), "{text}");
    }

    #[test]
    fn receive_times_are_shown_for_the_rows_that_have_them() {
        let mut rows = [row("interrupts", 1, 1), row("busypoll", 1, 1)];
        let columns = [POLICY, REQUESTS_PER_S];
        assert_eq!(receive_times(&rows, &columns, 80), "");
        let mut calls = crate::Pow2::new();
        [300, 600, 700].into_iter().for_each(|ns| calls.record(ns));
        rows[1].figures.receive_time_histogram = Some(calls);
        let text = receive_times(&rows, &columns, 80);
        assert!(
            text.starts_with(
                "time in receive calls in ns, busypoll, requests/s 1 (3 calls):\n[256, 512) "
            ),
            "{text}"
        );
        assert_eq!(text.lines().count(), 4, "two buckets, and a blank line");
        assert!(lines(&text) <= 80);
    }

    #[test]
    fn no_rows_is_a_header_and_no_columns_is_no_panic() {
        assert!(render(&[], &[POLICY, PACKETS], 80).starts_with("policy"));
        let _ = render(&[row("x", 1, 1)], &[], 80);
    }
}
