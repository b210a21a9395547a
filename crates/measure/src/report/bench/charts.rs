//! Charts of a run: latency, CPU and rate over the loads, and the split of CPU time.
//!
//! Lines if the loads are numbers, otherwise rows of dots. Each shows medians, with a thin line over the range of
//! the repetitions.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::super::column::{self, Unit};
use super::super::plot::{
    At, Axis, Dot, DotRow, Dots, Figure, Kind, Lines, Plot, Point, Series, Shares, Source, names,
};
use super::super::text::plain;
use super::super::{Column, Measurement, Report, Row};
use crate::Spread;

/// Gets a figure, in the unit of its axis.
type Get = fn(&Measurement) -> Option<f64>;

/// A quantity to draw.
pub(super) struct Quantity {
    pub(super) title: &'static str,
    caption: &'static str,
    /// Axis label with the unit.
    label: &'static str,
    log: bool,
    get: Get,
    /// Its table column, which provides a bound where there is no figure.
    column: Option<&'static Column>,
}

const US: f64 = 1e3;

pub(super) const P99: Quantity = Quantity {
    title: "Latency: what 99 % of all answers stay within",
    caption: "From the time at which a request was meant to be sent. Lower is better.",
    label: "p99, us",
    log: true,
    get: |figures| figures.latency_ns?.at.p99.map(|ns| ns as f64 / US),
    column: Some(column::P99),
};

pub(super) const P50: Quantity = Quantity {
    title: "Latency: the median",
    label: "p50, us",
    get: |figures| figures.latency_ns?.at.p50.map(|ns| ns as f64 / US),
    column: Some(column::P50),
    ..P99
};

pub(super) const CPU: Quantity = Quantity {
    title: "CPU",
    caption: "How much of the serving CPUs' time was spent, usefully or in polls that found nothing.",
    label: "of the serving CPUs, %",
    log: false,
    get: |figures| Some(figures.cpu_busy()? * 100.0),
    column: None,
};

pub(super) const RATE: Quantity = Quantity {
    title: "Rate",
    caption: "Replies, answers or received datagrams. Higher is better.",
    label: "a second",
    log: false,
    get: |figures| figures.achieved_per_s,
    column: None,
};

const INTERRUPTS: Quantity = Quantity {
    title: "Interrupts",
    caption: "Receive interrupts for each packet that was polled.",
    label: "interrupts a packet",
    log: false,
    get: |figures| figures.interrupts_per_packet,
    column: None,
};

impl Quantity {
    fn of(&self, row: &Row) -> Option<f64> {
        (self.get)(&row.figures).filter(|value| value.is_finite())
    }

    /// What is known of a row without a figure: a lower bound, and whether it grows.
    fn bound(&self, row: &Row) -> Option<String> {
        let cell = self.column?.cell(&serde_json::to_value(row).ok()?);
        (cell != column::ABSENT).then_some(cell)
    }

    /// The range of the repetitions, if there are several and all have the figure.
    fn interval(&self, row: &Row) -> Option<(f64, f64)> {
        let all: Option<Vec<f64>> =
            row.repetitions.iter().map(|it| (self.get)(&it.figures)).collect();
        let spread = Spread::of(all?)?;
        (row.repetitions.len() > 1).then_some((spread.min, spread.max))
    }
}

pub(super) fn figures(report: &Report) -> Vec<Figure> {
    let loads = Loads::of(report);
    let known = |quantity: &Quantity| report.rows.iter().any(|row| quantity.of(row).is_some());
    let mut figures = Vec::new();
    if known(&P50) && !loads.are_numbers() {
        figures.push(loads.latencies(report));
    } else {
        // If only bounds are known, the plot is empty and the bounds are listed below it.
        let bound = |it: &Quantity| report.rows.iter().any(|row| it.bound(row).is_some());
        let known = [&P99, &P50].into_iter().filter(|it| known(it) || bound(it));
        figures.extend(known.map(|quantity| loads.draw(report, quantity)));
    }
    if known(&CPU) {
        // For a server outside of the engine, only the busy share is known, without its parts.
        let split =
            report.rows.iter().all(|row| row.figures.cpu.is_some() || CPU.of(row).is_none());
        figures.push(match loads.values.len() > 1 || !split {
            true => loads.draw(report, &CPU),
            false => shares(report),
        });
    }
    // If all policies carry the load, the rate adds nothing.
    let short = |row: &Row| match (row.figures.achieved_per_s, row.figures.offered_per_s) {
        (Some(served), Some(asked)) => served < 0.95 * asked,
        _ => true,
    };
    if known(&RATE) && report.rows.iter().any(short) {
        figures.push(loads.draw(report, &RATE));
    }
    if known(&INTERRUPTS) && !known(&P50) {
        figures.push(loads.draw(report, &INTERRUPTS));
    }
    figures
}

/// The loads of a report.
struct Loads {
    /// Each load, with its text; the text is empty if there is only one load.
    values: Vec<(Map<String, Value>, String)>,
    /// The column of the field in which the loads differ, if it is a single one.
    only: Option<&'static Column>,
}

impl Loads {
    fn of(report: &Report) -> Loads {
        let mut values: Vec<&Map<String, Value>> = Vec::new();
        for row in &report.rows {
            if !values.contains(&&row.load) {
                values.push(&row.load);
            }
        }
        let Some(first) = values.first() else { return Loads { values: Vec::new(), only: None } };
        // Only loads of one kind: a corner case and a rate share no axis.
        let keys: BTreeSet<&String> = values.iter().flat_map(|load| load.keys()).collect();
        let differs = |key: &&String| values.iter().any(|load| load.get(*key) != first.get(*key));
        let differing: Vec<&'static Column> =
            keys.into_iter().filter(differs).filter_map(|key| Column::of_load(key)).collect();
        let words = |load: &Map<String, Value>| {
            let shown = |column: &&Column| {
                let value = field(column, load)?;
                Some(match value.as_str() {
                    Some(_) if differing.len() == 1 => plain(value),
                    _ => format!(
                        "{} {}",
                        column.name,
                        column.cell(&serde_json::json!({ "load": load }))
                    ),
                })
            };
            differing.iter().filter_map(shown).collect::<Vec<_>>().join(", ")
        };
        let only = if let [only] = differing[..] { Some(only) } else { None };
        let values = values.iter().map(|load| ((*load).clone(), words(load))).collect();
        Loads { values, only }
    }

    /// A load as a number: times in microseconds, others unchanged.
    fn number(&self, load: &Map<String, Value>) -> Option<f64> {
        let column = self.only?;
        let value = field(column, load)?.as_f64()?;
        Some(if column.unit == Unit::Time { value / US } else { value })
    }

    /// The label of an axis of such numbers.
    fn label(&self) -> String {
        let unit = |column: &Column| if column.unit == Unit::Time { ", us" } else { "" };
        self.only.map(|column| format!("{}{}", column.name, unit(column))).unwrap_or_default()
    }

    /// Whether there are enough numeric loads for a line.
    fn are_numbers(&self) -> bool {
        self.values.iter().filter(|(load, _)| self.number(load).is_some()).count() > 1
    }

    fn draw(&self, report: &Report, quantity: &Quantity) -> Figure {
        let plot = if self.are_numbers() {
            self.lines(report, quantity)
        } else {
            self.dots(report, quantity)
        };
        let gaps = report.rows.iter().filter(|row| quantity.of(row).is_none()).map(|row| {
            let words = self.words(row);
            let of = if words.is_empty() { "" } else { ", " };
            let known = quantity.bound(row).map_or(String::new(), |bound| format!(": {bound}"));
            format!("{}{of}{words}{known}", row.name)
        });
        Figure {
            title: quantity.title.to_owned(),
            caption: quantity.caption.to_owned(),
            plot,
            gaps: gaps.collect(),
        }
    }

    fn words(&self, row: &Row) -> &str {
        self.values.iter().find(|(load, _)| *load == row.load).map_or("", |(_, words)| words)
    }

    fn lines(&self, report: &Report, quantity: &Quantity) -> Plot {
        let named = self.values.iter().filter(|(load, _)| self.number(load).is_none());
        let named: Vec<String> = named.map(|(_, words)| words.clone()).collect();
        let at = |row: &Row| match self.number(&row.load) {
            Some(number) => At::Number(number),
            None => At::Name(named.iter().position(|it| it == self.words(row)).unwrap_or(0)),
        };
        let policies = names(report.rows.iter().map(|row| row.name.as_str()));
        let line = |(style, name): (usize, &&str)| {
            let rows = report.rows.iter().filter(|row| row.name == **name);
            let points = rows.map(|row| Point {
                x: at(row),
                y: quantity.of(row),
                interval: quantity.interval(row),
            });
            let mut points: Vec<Point> = points.collect();
            // Sort, because a line runs from left to right whatever the order of the loads.
            let place = |point: &Point| match point.x {
                At::Number(number) => number,
                At::Name(_) => f64::INFINITY,
            };
            points.sort_by(|a, b| place(a).total_cmp(&place(b)));
            Series { name: (**name).to_owned(), style, source: Source::Run, points }
        };
        Plot::Lines(Lines {
            x: Axis { label: self.label(), log: false },
            y: Axis { label: quantity.label.to_owned(), log: quantity.log },
            series: policies.iter().enumerate().map(line).collect(),
            named,
        })
    }

    fn dots(&self, report: &Report, quantity: &Quantity) -> Plot {
        self.rows_of_dots(report, quantity, &[(quantity.title, quantity.get)])
    }

    /// Several quantities of one unit in one plot.
    fn rows_of_dots(&self, report: &Report, quantity: &Quantity, kinds: &[(&str, Get)]) -> Plot {
        let mut rows = Vec::new();
        for (load, words) in &self.values {
            for row in report.rows.iter().filter(|row| row.load == *load) {
                let dot = |(kind, (_, get)): (usize, &(&str, Get))| {
                    let quantity = Quantity { get: *get, ..*quantity };
                    let value = quantity.of(row)?;
                    Some(Dot { kind, value, interval: quantity.interval(row) })
                };
                let dots = kinds.iter().enumerate().filter_map(dot).collect();
                rows.push(DotRow { group: words.clone(), name: row.name.clone(), dots });
            }
        }
        let kind = |(style, (name, _)): (usize, &(&str, _))| Kind {
            name: (*name).to_owned(),
            style,
            source: Source::Run,
        };
        let kinds = kinds.iter().enumerate().map(kind).collect();
        let x = Axis { label: quantity.label.to_owned(), log: quantity.log };
        Plot::Dots(Dots { x, kinds, rows })
    }

    /// The percentiles in one plot.
    fn latencies(&self, report: &Report) -> Figure {
        let kinds: [(&str, Get); 3] = [
            ("p50", P50.get),
            ("p99", P99.get),
            ("p99.9", |figures| figures.latency_ns?.at.p999.map(|ns| ns as f64 / US)),
        ];
        let shown = Quantity { title: "Latency", label: "us", ..P99 };
        let plot = self.rows_of_dots(report, &shown, &kinds);
        Figure { plot, ..self.draw(report, &shown) }
    }
}

/// A load's value for a column.
fn field<'a>(column: &Column, load: &'a Map<String, Value>) -> Option<&'a Value> {
    load.get(column.field.split('.').next_back()?)
}

/// The four parts of the CPUs' time, under one load.
fn shares(report: &Report) -> Figure {
    let parts = ["work", "poll", "waiting", "asleep"].map(str::to_owned).into();
    let row = |row: &Row| {
        let cpu = row.figures.cpu;
        let parts = cpu.map(|cpu| vec![cpu.work, cpu.poll, cpu.waiting, cpu.asleep]);
        (row.name.clone(), parts.unwrap_or_default())
    };
    let rows = report.rows.iter().map(row).collect();
    Figure {
        title: "Where the serving CPUs' time went".to_owned(),
        caption: "Work: ran, and found something to do. Poll: ran, and found nothing. Waiting: ready to run, \
                  and had no CPU."
            .to_owned(),
        plot: Plot::Shares(Shares { parts, rows }),
        gaps: Vec::new(),
    }
}
