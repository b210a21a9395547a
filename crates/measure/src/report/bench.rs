//! Runs of `napkin bench` as one HTML page: a section per workload, with charts over its loads.
//!
//! All values drawn are also in the JSON report.

mod charts;

use std::collections::BTreeSet;

use serde_json::Value;

use super::page::{self, escape};
use super::plot::names;
use super::proposal::Proposal;
use super::text::{percent, time};
use super::{Column, Provenance, Report};
use charts::figures;

/// A page under construction.
#[derive(Debug, Default)]
pub struct Page {
    names: Vec<String>,
    sections: String,
}

impl Page {
    /// Adds a run, with the texts above its table (a heading, and what the workload shows) and the table's columns.
    pub fn add(&mut self, heading: &str, shows: &str, columns: &[&Column], report: &Report) {
        self.sections.push_str(&section(heading, shows, columns, report));
        self.names.push(report.workload.clone());
    }

    /// Whether no run was added.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns the complete page.
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
        // The description of the modelled host follows among the facts.
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
    for row in report.rows.iter().filter(|row| !row.is_named_by_policy()) {
        notes.push(format!("{}: {}", row.name, row.policy));
    }
    for row in &report.rows {
        notes.extend(row.notes.iter().map(|note| format!("not measured ({}): {note}", row.name)));
    }
    let grouped = names(notes.iter().map(String::as_str));
    let items: String = grouped.iter().map(|note| format!("<li>{}</li>\n", escape(note))).collect();
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

/// The circumstances of a run.
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

/// The table with all columns, as on the terminal.
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
    use serde_json::Map;

    use super::charts::{CPU, P50, P99, RATE};
    use super::*;
    use crate::conclusion::fixed::{Fixed, report};
    use crate::report::page_check::check;
    use crate::report::plot::{At, Figure, Plot};
    use crate::report::{Row, column};

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
    fn a_server_whose_cpu_has_no_parts_is_drawn_with_the_others() {
        let mut rows = vec![row("napkin/base", 1.into(), 1e4), row("kernel/base", 1.into(), 2e4)];
        rows[1].figures.cpu = None;
        rows[1].figures.extra.insert("server_busy".to_owned(), 0.3.into());
        let figures = figures(&report("memcached", "engine", rows));
        assert_eq!(titles(&figures)[..2], ["Latency", CPU.title]);
        assert_eq!(figures[1].gaps, [] as [&str; 0]);
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
