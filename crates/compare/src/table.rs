//! A [`Report`] and its verdict as a table and as JSON.

use napkin_measure::report::text::{rate, time};
use serde_json::{Value, json};

use crate::report::{Report, Row};
use crate::verdict::{Verdict, verdict};
use crate::window::Slice;

impl Report {
    /// The verdict on this report.
    pub fn verdict(&self) -> Verdict {
        verdict(self)
    }

    /// The column headers of [`Report::table`].
    pub fn header(&self) -> Vec<&'static str> {
        columns(self).into_iter().map(|column| column.0).collect()
    }

    /// The indices of the columns in the order in which they get space on a line: columns that distinguish the
    /// policies come before those of the parts.
    pub fn by_rank(&self) -> Vec<usize> {
        let rank = |column: &Column| BY_RANK.iter().position(|name| *name == column.0);
        let columns = columns(self);
        let mut places: Vec<usize> = (0..columns.len()).collect();
        places.sort_by_key(|place| rank(&columns[*place]).unwrap_or(BY_RANK.len()));
        places
    }

    /// A row of cells for each policy: medians over its slices. A dash stands for an unknown value.
    pub fn table(&self) -> Vec<Vec<String>> {
        let columns = columns(self);
        let row = |row: &Row| columns.iter().map(|column| (column.1)(self, row)).collect();
        self.rows.iter().map(row).collect()
    }

    /// The report as JSON, with every slice.
    pub fn json(&self) -> Value {
        let rows = self.rows.iter().map(|row| {
            let part = |name: &'static str| {
                json!({
                    "p50": row.median(Row::part(name, |it| it.p50)),
                    "p90": row.median(Row::part(name, |it| it.p90)),
                    "p99": row.median(Row::part(name, |it| it.p99)),
                    "p999": row.median(Row::part(name, |it| it.p999)),
                })
            };
            json!({
                "name": row.name,
                "policy": row.policy,
                "out": row.out,
                "answers_per_s": row.median(|slice| slice.answers_per_s),
                "latency_ns": {
                    "ring": part("ring"), "socket": part("socket"), "service": part("service"),
                    "whole": part("whole"),
                },
                "cpu": {
                    "softirq": row.median(|slice| Some(slice.cpu.softirq)),
                    "threads": row.median(|slice| Some(slice.cpu.threads)),
                    "application": row.median(|slice| Some(slice.cpu.application)),
                },
                "interrupts_per_s": row.median(|slice| slice.interrupts_per_s),
                "measured": row.median(|slice| slice.measured),
                "slices": row.slices,
            })
        });
        json!({
            "service": self.service,
            "device": self.device,
            "slice_s": self.slice[0],
            "settle_s": self.slice[1],
            "rounds": self.rounds,
            "seed": self.seed,
            "timed_share": self.timed_share,
            "guard": self.guard,
            "measure": self.measure,
            "verdict": self.verdict(),
            "rows": rows.collect::<Vec<_>>(),
            "notes": self.notes,
            "failed": self.failed,
            "interrupted": self.signal.is_some(),
        })
    }
}

/// The columns by importance.
const BY_RANK: [&str; 16] = [
    "policy",
    "measure",
    "/reference",
    "p99",
    "answers",
    "p50",
    "cpu",
    "cpu/reference",
    "ring99",
    "socket99",
    "service99",
    "softirq",
    "threads",
    "app",
    "intr",
    "slices",
];

type Column = (&'static str, fn(&Report, &Row) -> String);

const UNKNOWN: &str = "-";

fn cell(value: Option<f64>, show: fn(f64) -> String) -> String {
    value.map_or_else(|| UNKNOWN.into(), show)
}

fn p99(row: &Row, part: &'static str) -> String {
    cell(row.median(Row::part(part, |it| it.p99)), time)
}

fn cpus(value: f64) -> String {
    format!("{value:.2}")
}

/// A cell with the policy's ratio to the reference, by the verdict's quantity or by CPU.
fn ratio_cell(report: &Report, row: &Row, cpu: bool) -> String {
    let verdict = report.verdict();
    let compared = verdict.compared.iter().find(|it| it.policy == row.name);
    let ratio = compared.and_then(|it| if cpu { it.cpu } else { it.ratio });
    match ratio {
        Some(ratio) => format!("{:.2} [{:.2},{:.2}]", ratio.median, ratio.low, ratio.high),
        None => UNKNOWN.into(),
    }
}

fn columns(report: &Report) -> Vec<Column> {
    let mut columns: Vec<Column> = vec![("policy", |_, row| row.name.clone())];
    columns.push(("slices", |_, row| row.counted().count().to_string()));
    let has = |of: fn(&Slice) -> bool| report.rows.iter().any(|row| row.counted().any(of));
    if report.measure.is_some() {
        columns.push(("measure", |_, row| {
            cell(row.median(|it| it.measured), |it| format!("{it:.4}"))
        }));
    }
    if has(|slice| slice.answers_per_s.is_some()) {
        columns.push(("answers", |_, row| cell(row.median(|it| it.answers_per_s), rate)));
        columns.push(("p50", |_, row| cell(row.median(|it| it.whole().p50), time)));
        columns.push(("p99", |_, row| p99(row, "whole")));
        columns.push(("ring99", |_, row| p99(row, "ring")));
        columns.push(("socket99", |_, row| p99(row, "socket")));
        columns.push(("service99", |_, row| p99(row, "service")));
    }
    columns.push(("/reference", |report, row| ratio_cell(report, row, false)));
    columns.push(("cpu", |_, row| cell(row.median(|it| Some(it.cpu.all())), cpus)));
    columns.push(("softirq", |_, row| cell(row.median(|it| Some(it.cpu.softirq)), cpus)));
    columns.push(("threads", |_, row| cell(row.median(|it| Some(it.cpu.threads)), cpus)));
    columns.push(("app", |_, row| cell(row.median(|it| Some(it.cpu.application)), cpus)));
    columns.push(("cpu/reference", |report, row| ratio_cell(report, row, true)));
    if has(|slice| slice.interrupts_per_s.is_some()) {
        columns.push(("intr", |_, row| cell(row.median(|it| it.interrupts_per_s), rate)));
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_has_a_rank_of_its_own_and_the_policy_the_first() {
        let slice =
            Slice { answers_per_s: Some(1.0), interrupts_per_s: Some(1.0), ..Slice::default() };
        let row = Row { name: "base".into(), slices: vec![slice], ..Row::default() };
        let report = Report { rows: vec![row], measure: Some("true".into()), ..Report::default() };
        let header = report.header();
        let ranked: Vec<&str> = report.by_rank().into_iter().map(|at| header[at]).collect();
        assert_eq!(ranked, BY_RANK);
    }
}
