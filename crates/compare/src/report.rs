//! What a comparison leaves behind: each policy's slices, as a table, as JSON and as a page.

use napkin_kernel::count::latency::Percentiles;
use napkin_measure::Spread;
use napkin_measure::interleave::median;
use napkin_measure::report::text::{rate, time};
use napkin_policy::Policy;
use serde_json::{Value, json};

use crate::run::Options;
use crate::service::Service;
use crate::verdict::{Verdict, verdict};
use crate::window::Slice;

/// A policy's slices.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// The policy as text, in the form that `Policy` parses.
    pub policy: String,
    /// In the order in which they ran.
    pub slices: Vec<Slice>,
    /// Why it was taken out.
    pub out: Option<String>,
}

/// A comparison.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report {
    /// The program, as `memcached[812]`.
    pub service: String,
    /// The device.
    pub device: String,
    /// The policies, the reference first.
    pub rows: Vec<Row>,
    /// How long a slice was, in seconds, and how much of it was not counted.
    pub slice: [f64; 2],
    /// How many rounds were asked for.
    pub rounds: usize,
    /// Where the order comes from.
    pub seed: u64,
    /// The share of the time in which requests were timed.
    pub timed_share: f64,
    /// The guard, as it was given.
    pub guard: Option<String>,
    /// The user's measure, as it was given.
    pub measure: Option<String>,
    /// Whether more of that is better.
    pub higher: Option<bool>,
    /// What must be known beside the figures.
    pub notes: Vec<String>,
    /// What ended it early.
    pub failed: Option<String>,
    /// The signal that ended it early.
    pub signal: Option<i32>,
}

impl Row {
    pub(crate) fn new(name: &str, policy: &Policy) -> Row {
        Row { name: name.into(), policy: policy.to_string(), ..Row::default() }
    }

    /// Those that ran to their end.
    pub fn counted(&self) -> impl Iterator<Item = &Slice> {
        self.slices.iter().filter(|slice| slice.broken.is_none())
    }

    /// The middle of a figure over them.
    pub fn median(&self, of: impl Fn(&Slice) -> Option<f64>) -> Option<f64> {
        median(self.counted().filter_map(of))
    }

    /// The middle, the least and the most.
    pub(crate) fn spread(&self, of: impl Fn(&Slice) -> Option<f64>) -> Option<Spread> {
        Spread::of(self.counted().filter_map(of))
    }

    pub(crate) fn part(
        part: &'static str,
        of: fn(&Percentiles) -> Option<f64>,
    ) -> impl Fn(&Slice) -> Option<f64> {
        move |slice| of(slice.latency_ns.get(part)?)
    }
}

impl Report {
    pub(crate) fn new(service: &Service, options: &Options, rows: Vec<Row>) -> Report {
        Report {
            service: service.to_string(),
            device: service.device.ifname.clone(),
            rows,
            slice: [options.slice, options.settle].map(|it| it.as_secs_f64()),
            rounds: options.rounds,
            seed: options.seed,
            guard: options.guard.as_ref().map(ToString::to_string),
            measure: options.measure.as_ref().map(|it| it.command.clone()),
            higher: options.measure.as_ref().map(|it| it.higher),
            notes: service.notes.clone(),
            timed_share: 1.0,
            ..Report::default()
        }
    }

    /// Adds a note, once.
    pub(crate) fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// What it shows.
    pub fn verdict(&self) -> Verdict {
        verdict(self)
    }

    /// The heads of [`Report::table`]'s columns.
    pub fn header(&self) -> Vec<&'static str> {
        columns(self).into_iter().map(|column| column.0).collect()
    }

    /// A row of cells for each policy: medians over its slices. A dash is what is not known.
    pub fn table(&self) -> Vec<Vec<String>> {
        let columns = columns(self);
        let row = |row: &Row| columns.iter().map(|column| (column.1)(self, row)).collect();
        self.rows.iter().map(row).collect()
    }

    /// The same with every slice.
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

/// A ratio of the verdict's, by the policy's name.
fn beside(report: &Report, row: &Row, cpu: bool) -> String {
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
    columns.push(("/reference", |report, row| beside(report, row, false)));
    columns.push(("cpu", |_, row| cell(row.median(|it| Some(it.cpu.all())), cpus)));
    columns.push(("softirq", |_, row| cell(row.median(|it| Some(it.cpu.softirq)), cpus)));
    columns.push(("threads", |_, row| cell(row.median(|it| Some(it.cpu.threads)), cpus)));
    columns.push(("app", |_, row| cell(row.median(|it| Some(it.cpu.application)), cpus)));
    columns.push(("cpu/reference", |report, row| beside(report, row, true)));
    if has(|slice| slice.interrupts_per_s.is_some()) {
        columns.push(("intr", |_, row| cell(row.median(|it| it.interrupts_per_s), rate)));
    }
    columns
}
