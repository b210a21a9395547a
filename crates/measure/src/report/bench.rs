//! Runs of `napkin bench` as one HTML page: a section a workload, with figures over its loads.
//!
//! Latency, CPU and rate are lines over loads that are numbers, and rows of dots otherwise. What is drawn
//! is what stands in the JSON: medians, with a thin line from the least to the most of the repetitions.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::column::{self, Unit};
use super::page::{self, escape};
use super::plot::{
    At, Axis, Dot, DotRow, Dots, Figure, Kind, Lines, Plot, Point, Series, Shares, Source, names,
};
use super::proposal::Proposal;
use super::text::{percent, plain, time};
use super::{Column, Figures, Provenance, Report, Row};
use crate::Spread;

/// A page in the making.
#[derive(Debug, Default)]
pub struct Page {
    names: Vec<String>,
    sections: String,
}

impl Page {
    /// Adds a run, with what is said over its table (a heading, and what the workload shows) and the table's
    /// columns.
    pub fn add(&mut self, heading: &str, shows: &str, columns: &[&Column], report: &Report) {
        self.sections.push_str(&section(heading, shows, columns, report));
        self.names.push(report.workload.clone());
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The page, whole.
    pub fn render(&self, provenance: &Provenance) -> String {
        let body = format!("{INTRODUCTION}{}{}", page::facts(&provenance.facts()), self.sections);
        page::whole(&format!("napkin bench: {}", self.names.join(", ")), &body)
    }
}

const INTRODUCTION: &str = "<p>Each workload ran under each policy in turn, and that several times. A figure \
    is the median of its repetitions; the thin line through it runs from the least to the most of them. On a \
    shared machine trust ratios within one run, not microseconds.</p>\n";

fn section(heading: &str, shows: &str, columns: &[&Column], report: &Report) -> String {
    let mut out = format!(
        "<h2>{}</h2>\n<p>{}</p>\n",
        // What the modelled host is stands below, among the facts.
        escape(heading.split_once(": ").map_or(heading, |(name, _)| name)),
        escape(shows)
    );
    if let Some(conclusion) = &report.conclusion {
        out.push_str(&format!("<p><b>Conclusion:</b> {}.</p>\n", escape(conclusion)));
    }
    out.push_str(&page::facts(&facts(report)));
    for figure in figures(report) {
        out.push_str(&page::figure(&figure));
    }
    out.push_str(&table(columns, report));
    let mut notes: Vec<String> = report.notes.clone();
    for row in report.rows.iter().filter(|row| row.name != row.policy) {
        notes.push(format!("{}: {}", row.name, row.policy));
    }
    for row in &report.rows {
        notes.extend(row.notes.iter().map(|note| format!("not measured ({}): {note}", row.name)));
    }
    let told = names(notes.iter().map(String::as_str));
    let items: String = told.iter().map(|note| format!("<li>{}</li>\n", escape(note))).collect();
    if !items.is_empty() {
        out.push_str(&format!("<ul class=\"small\">\n{items}</ul>\n"));
    }
    let years: BTreeSet<&str> =
        report.rows.iter().filter_map(|row| Some(Proposal::of_policy(&row.policy)?.year)).collect();
    let proposals: Vec<_> = years.into_iter().filter_map(Proposal::of_year).collect();
    out.push_str("<p>Where the policies come from:</p>\n");
    out.push_str(&page::links(&proposals));
    out
}

/// Where and how the figures were taken.
fn facts(report: &Report) -> Vec<(&'static str, String)> {
    let host = &report.host;
    let mut facts = vec![("world", report.world.clone())];
    let number = |name: &str| report.extra.get(name).and_then(Value::as_f64);
    match &host.profile {
        Some(profile) => {
            let set = profile.set.iter().map(|(key, value)| format!(", {key}={value}"));
            let set: String = set.collect();
            let (name, about) = (&profile.name, &profile.about);
            facts.push(("modelled host", format!("{name}: {about} ({} CPUs{set})", profile.cpus)));
        }
        None => {
            let cpus = host.cpus.map(|cpus| format!("{cpus} CPUs"));
            let model = host.cpu_model.clone();
            let virtual_machine =
                host.virtual_machine.filter(|it| *it).map(|_| "virtual machine".to_owned());
            let kernel = host.kernel.as_ref().map(|kernel| format!("Linux {kernel}"));
            let parts = [kernel, cpus, model, virtual_machine];
            facts.push(("host", parts.into_iter().flatten().collect::<Vec<_>>().join(", ")));
        }
    }
    let interrupted =
        report.rows.iter().filter_map(|row| Some((row.figures.interrupted?, &row.name)));
    if let Some((most, name)) = interrupted.max_by(|a, b| a.0.total_cmp(&b.0)) {
        facts.push((
            "interrupted",
            format!("by this host for at most {} of the time ({name})", percent(most)),
        ));
    }
    let repetitions = report.rows.iter().map(|row| row.repetitions.len()).max().unwrap_or(0);
    let window = number("window_ns").map(|ns| format!(" of {}", time(ns))).unwrap_or_default();
    facts.push(("repetitions", format!("{repetitions}{window}")));
    facts.extend(number("seed").map(|seed| ("seed", seed.to_string())));
    facts
}

/// Takes a figure, in the unit of its axis.
type Get = fn(&Figures) -> Option<f64>;

/// What is drawn.
struct Quantity {
    title: &'static str,
    caption: &'static str,
    /// With its unit.
    label: &'static str,
    log: bool,
    get: Get,
    /// The table's column of it, which says what is known where there is no figure.
    column: Option<&'static Column>,
}

const US: f64 = 1e3;

const P99: Quantity = Quantity {
    title: "Latency: what 99 % of all answers stay within",
    caption: "From the time at which a request was meant to be sent. Lower is better.",
    label: "p99, us",
    log: true,
    get: |figures| figures.latency_ns?.at.p99.map(|ns| ns as f64 / US),
    column: Some(column::P99),
};

const P50: Quantity = Quantity {
    title: "Latency: the median",
    label: "p50, us",
    get: |figures| figures.latency_ns?.at.p50.map(|ns| ns as f64 / US),
    column: Some(column::P50),
    ..P99
};

const CPU: Quantity = Quantity {
    title: "CPU",
    caption: "How much of the serving CPUs' time was spent, usefully or in polls that found nothing.",
    label: "of the serving CPUs, %",
    log: false,
    get: |figures| {
        let kernel = || figures.extra.get("server_busy")?.as_f64();
        Some(figures.cpu.map(|cpu| cpu.busy()).or_else(kernel)? * 100.0)
    },
    column: None,
};

const RATE: Quantity = Quantity {
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

    /// What is known of a row without a figure: a bound, and that it grows.
    fn bound(&self, row: &Row) -> Option<String> {
        let cell = self.column?.cell(&serde_json::to_value(row).ok()?);
        (cell != column::ABSENT).then_some(cell)
    }

    /// From the least to the most of the repetitions, if there are several.
    fn interval(&self, row: &Row) -> Option<(f64, f64)> {
        let spread = Spread::of(row.repetitions.iter().filter_map(|it| (self.get)(&it.figures)))?;
        (row.repetitions.len() > 1).then_some((spread.min, spread.max))
    }
}

fn figures(report: &Report) -> Vec<Figure> {
    let loads = Loads::of(report);
    let known = |quantity: &Quantity| report.rows.iter().any(|row| quantity.of(row).is_some());
    let mut figures = Vec::new();
    if known(&P50) && !loads.are_numbers() {
        figures.push(loads.latencies(report));
    } else {
        // Where all are but bounds, the plot is empty and the bounds stand below it.
        let bound = |it: &Quantity| report.rows.iter().any(|row| it.bound(row).is_some());
        let known = [&P99, &P50].into_iter().filter(|it| known(it) || bound(it));
        figures.extend(known.map(|quantity| loads.draw(report, quantity)));
    }
    if known(&CPU) {
        let split = report.rows.iter().any(|row| row.figures.cpu.is_some());
        figures.push(match loads.values.len() > 1 || !split {
            true => loads.draw(report, &CPU),
            false => shares(report),
        });
    }
    // Where everybody serves what is asked for it says nothing.
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
    /// Each in words; one alone has none.
    values: Vec<(Map<String, Value>, String)>,
    /// The column of the one field in which they differ, if it is one.
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
        // Loads of one kind only: a corner and a rate share no axis.
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

    /// A load as a number: a time in microseconds, anything else as it stands.
    fn number(&self, load: &Map<String, Value>) -> Option<f64> {
        let column = self.only?;
        let value = field(column, load)?.as_f64()?;
        Some(if column.unit == Unit::Time { value / US } else { value })
    }

    /// What stands along an axis of such numbers.
    fn label(&self) -> String {
        let unit = |column: &Column| if column.unit == Unit::Time { ", us" } else { "" };
        self.only.map(|column| format!("{}{}", column.name, unit(column))).unwrap_or_default()
    }

    /// Whether lines can run over them.
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
            Series {
                name: (**name).to_owned(),
                style,
                source: Source::Run,
                points: points.collect(),
            }
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

    /// Several quantities of one unit beside each other.
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

/// What stands under a column of loads.
fn field<'a>(column: &Column, load: &'a Map<String, Value>) -> Option<&'a Value> {
    load.get(column.field.split('.').next_back()?)
}

/// The four parts of the CPUs' time, of one load.
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

/// The table, as on the terminal, with all columns.
fn table(columns: &[&Column], report: &Report) -> String {
    let values: Vec<Value> =
        report.rows.iter().map(|row| serde_json::to_value(row).unwrap_or_default()).collect();
    let class = |column: &Column| if column.name == "policy" { "name" } else { "" };
    let head = |column: &&Column| {
        format!(
            "<th class=\"{}\" title=\"{}\">{}</th>",
            class(column),
            escape(column.what),
            escape(&column.heading(&values))
        )
    };
    let heads: String = columns.iter().map(head).collect();
    let row = |value: &Value| {
        let cell = |column: &&Column| {
            format!("<td class=\"{}\">{}</td>", class(column), escape(&column.cell(value)))
        };
        format!("<tr>{}</tr>\n", columns.iter().map(cell).collect::<String>())
    };
    let rows: String = values.iter().map(row).collect();
    format!("<div class=\"wide\"><table>\n<tr>{heads}</tr>\n{rows}</table></div>\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conclusion::fixed::{Fixed, report};
    use crate::report::page_check::check;

    fn render(report: &Report) -> String {
        let mut page = Page::default();
        page.add("the heading", "What it shows.", &[column::POLICY, column::P99], report);
        let provenance = Provenance {
            date: "2030-01-02T03:04:05Z".to_owned(),
            version: "napkin 1, commit 0123abc".to_owned(),
            command: "napkin bench --report page.html".to_owned(),
        };
        let page = page.render(&provenance);
        check(&page);
        page
    }

    fn row(name: &str, load: Value, p99: f64) -> Row {
        let row = Fixed::new(name).load("requests_per_s", load).served(&[1e4; 3]);
        row.p50(&[p99 / 4.0; 3]).p99(&[p99, 1.1 * p99, 1.2 * p99]).cpu(&[0.4; 3]).row()
    }

    fn titles(figures: &[Figure]) -> Vec<&str> {
        figures.iter().map(|figure| figure.title.as_str()).collect()
    }

    #[test]
    fn a_page_says_what_when_where_and_how() {
        let mut report = report("memcached", "machine", vec![row("suspend20", "max".into(), 1e4)]);
        report.conclusion = Some("a < b".to_owned());
        report.notes.push("a note".to_owned());
        report.extra.insert("seed".to_owned(), 7.into());
        report.extra.insert("window_ns".to_owned(), 1_000_000_000.into());
        let page = render(&report);
        for words in [
            "<td>2030-01-02T03:04:05Z</td>",
            "commit 0123abc",
            "<td>napkin bench --report page.html</td>",
            "<h2>the heading</h2>",
            "<p>What it shows.</p>",
            "<b>Conclusion:</b> a &lt; b.",
            "<th scope=\"row\">seed</th><td>7</td>",
            "<td>3 of 1.00 s</td>",
            "<li>a note</li>",
            "20240823173103.94978-1-jdamato@fastly.com",
            "<th class=\"\" title=\"latency that 99 % do not exceed [least..most",
            ">p99 [min..max]</th>",
            "<td class=\"\">11.0 us [10.0..12.0]</td>",
        ] {
            assert!(page.contains(words), "{words}\n{page}");
        }
    }

    #[test]
    fn over_numbers_there_are_lines_and_a_load_that_is_none_stands_behind_them() {
        let loads = [Value::from(1000), Value::from(2000), Value::from("max")];
        let rows =
            loads.iter().flat_map(|load| [("base", 4e4), ("hold", 1e4)].map(|it| (load, it)));
        let rows = rows.map(|(load, (name, p99))| row(name, load.clone(), p99)).collect();
        let report = report("memcached", "machine", rows);
        let figures = figures(&report);
        assert_eq!(titles(&figures), [P99.title, P50.title, CPU.title, RATE.title]);
        let Plot::Lines(lines) = &figures[0].plot else { panic!("lines") };
        assert_eq!(
            (lines.x.label.as_str(), &lines.named[..]),
            ("requests/s", &["max".to_owned()][..])
        );
        let [base, hold] = &lines.series[..] else { panic!("a line a policy") };
        assert_eq!((base.name.as_str(), base.style, hold.style), ("base", 0, 1));
        assert_eq!(base.points[0].y, Some(44.0));
        assert_eq!(base.points[0].interval, Some((40.0, 48.0)));
        let places: Vec<_> = base.points.iter().map(|point| point.x).collect();
        assert_eq!(places, [At::Number(1e3), At::Number(2e3), At::Name(0)]);
        assert!(render(&report).contains(">max<"));
    }

    #[test]
    fn under_one_load_a_policy_is_a_row_of_dots_and_a_bar() {
        let rows = vec![row("base", 1000.into(), 4e4), row("hold", 1000.into(), 1e4)];
        let report = report("xsk-rr", "engine", rows);
        let figures = figures(&report);
        assert_eq!(titles(&figures), ["Latency", "Where the serving CPUs' time went", RATE.title]);
        let Plot::Dots(dots) = &figures[0].plot else { panic!("dots") };
        assert_eq!((dots.kinds.len(), dots.rows.len()), (3, 2));
        assert_eq!(dots.rows[0].group, "", "one load needs no heading");
        assert!(matches!(figures[1].plot, Plot::Shares(_)));
        render(&report);
    }

    #[test]
    fn loads_that_are_times_have_their_unit() {
        let load = |ns: u64| Map::from_iter([("delay_ns".to_owned(), ns.into())]);
        let rows = [0, 78_000].map(|ns| Row { load: load(ns), ..row("base", 0.into(), 1e4) });
        let report = report("xsk-rr", "engine", rows.to_vec());
        let Plot::Lines(lines) = &figures(&report)[0].plot else { panic!("lines") };
        assert_eq!(
            (lines.x.label.as_str(), lines.series[0].points[1].x),
            ("delay, us", At::Number(78.0))
        );
    }

    #[test]
    fn loads_of_two_fields_are_headings() {
        let load = |bytes: u64| {
            let fields = [("bytes", bytes), ("operations_per_s", 1_000_000 / bytes)];
            Map::from_iter(fields.map(|(key, value)| (key.to_owned(), value.into())))
        };
        let rows = [1, 10].map(|bytes| Row { load: load(bytes), ..row("base", 0.into(), 1e4) });
        let report = report("ssd", "machine", rows.to_vec());
        let Plot::Dots(dots) = &figures(&report)[0].plot else { panic!("dots") };
        let groups: Vec<_> = dots.rows.iter().map(|row| row.group.as_str()).collect();
        assert_eq!(groups, ["bytes 1, ops/s 1000000", "bytes 10, ops/s 100000"]);
    }

    #[test]
    fn what_was_not_measured_is_a_gap_with_its_reason() {
        let mut rows = vec![row("base", 1000.into(), 4e4), Fixed::new("busypoll").row()];
        rows[1].load = rows[0].load.clone();
        rows[1].notes.push("no right <to it>".to_owned());
        let report = report("xsk-rr", "engine", rows);
        assert_eq!(figures(&report)[0].gaps, ["busypoll"]);
        let page = render(&report);
        assert!(
            page.contains("<li>not measured (busypoll): no right &lt;to it&gt;</li>"),
            "{page}"
        );
    }

    #[test]
    fn what_is_but_a_bound_is_a_gap_with_the_bound() {
        let mut rows = vec![row("base", 1000.into(), 4e4), row("base", 2000.into(), 4e4)];
        for row in &mut rows {
            row.figures.set_due(1_000_000, 10_000);
            row.figures.derive();
        }
        let report = report("memcached", "machine", rows);
        let drawn = figures(&report);
        assert_eq!(titles(&drawn)[..2], [P99.title, P50.title], "none is known, and they are said");
        assert_eq!(
            drawn[0].gaps,
            ["base, requests/s 1000: >44.0 us grows", "base, requests/s 2000: >44.0 us grows"]
        );
        assert!(render(&report).contains("<li>base, requests/s 1000: &gt;44.0 us grows</li>"));
    }

    #[test]
    fn a_host_s_description_is_no_part_of_the_heading() {
        let mut page = Page::default();
        page.add(
            "ssd, modelled on a-host: of many words",
            "",
            &[],
            &report("ssd", "machine", vec![]),
        );
        assert!(page.sections.contains("<h2>ssd, modelled on a-host</h2>"), "{}", page.sections);
    }

    #[test]
    fn where_all_serve_what_is_asked_the_rate_is_not_drawn() {
        let row = |name: &str| Fixed::new(name).offered(1e4).served(&[1e4; 3]).cpu(&[0.5; 3]).row();
        let report = report("ssd", "machine", vec![row("base"), row("threaded")]);
        assert_eq!(titles(&figures(&report)), ["Where the serving CPUs' time went"]);
    }

    #[test]
    fn a_report_without_rows_is_a_page() {
        render(&report("xsk-rr", "engine", Vec::new()));
    }
}
