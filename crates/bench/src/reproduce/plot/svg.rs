//! Draws a plot as SVG.
//!
//! Colours and dashes are classes, which the page's style sheet gives for light and dark; every mark has a
//! title, which a browser shows under the pointer, and without a script. Coordinates are rounded to tenths
//! of a pixel, so that the text does not depend on the last bits of a logarithm.

use std::fmt::Write;

use super::axis::{Scale, tick_text};
use super::{AxisWords, BarSeries, Figure, Plot, Point, Series, Source};
use crate::reproduce::cell::number;

/// Colours that the style sheet has; later configurations begin again with the first.
pub const COLOURS: usize = 12;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 744.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 320.0;

/// Height of a line of the legend.
const LEGEND_LINE: f64 = 18.0;

/// Width of a letter of the legend, roughly: too much rather than too little.
const LETTER: f64 = 7.2;

/// The SVG element of a figure's plot, its legend included.
pub fn draw(figure: &Figure) -> String {
    let (body, entries) = match &figure.plot {
        Plot::Lines { x, y, series } => (lines(x, y, series), legend_of_lines(series)),
        Plot::Bars { y, groups, series } => (bars(y, groups, series), legend_of_bars(series)),
    };
    let (legend, height) = legend(&entries);
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"{}\">\n{body}{legend}</svg>\n",
        tenth(HEIGHT + height),
        escape(&figure.title)
    )
}

fn lines(x: &AxisWords, y: &AxisWords, series: &[Series]) -> String {
    let points = || series.iter().flat_map(|series| &series.points);
    let across = Scale::over(points().map(|point| point.x), x.log);
    // A wide interval must not press the lines together: it may run out of the plot.
    let up = Scale::over(points().map(|point| point.y), y.log);
    let mut out = String::new();
    for tick in across.ticks() {
        let Some(at) = across.place(tick).map(place_x) else { continue };
        let text = tick_text(tick);
        put(
            &mut out,
            &format!(
                "<path class=\"grid\" d=\"M{at} {TOP}V{BOTTOM}\"/><text class=\"x\" x=\"{at}\" y=\"{}\">{text}</text>",
                BOTTOM + 18.0
            ),
        );
    }
    out.push_str(&frame(&x.label, y, up));
    for series in series {
        let placed =
            |point: &Point| Some((place_x(across.place(point.x)?), place_y(up.place(point.y)?)));
        let path: Vec<String> = series
            .points
            .iter()
            .filter_map(|point| placed(point).map(|(x, y)| format!("{x} {y}")))
            .collect();
        let class = class(series.source, series.colour);
        put(&mut out, &format!("<path class=\"line {class}\" d=\"M{}\"/>", path.join("L")));
        for point in &series.points {
            let Some((px, py)) = placed(point) else { continue };
            out.push_str(&whisker(point, px, up, &class));
            let title = format!(
                "{}, {}, {}: {}",
                series.name,
                said(series.source),
                number(point.x),
                number(point.y)
            );
            put(
                &mut out,
                &format!(
                    "<circle class=\"mark {class}\" cx=\"{px}\" cy=\"{py}\" r=\"3.5\"><title>{}</title></circle>",
                    escape(&title)
                ),
            );
        }
    }
    out
}

/// The confidence interval of a point, cut where the plot ends; empty where there is none.
fn whisker(point: &Point, x: f64, up: Scale, class: &str) -> String {
    let end = |value: f64, beyond: f64| up.place(value).unwrap_or(beyond).clamp(0.0, 1.0);
    let Some((low, high)) = point.interval else { return String::new() };
    let (low, high) = (place_y(end(low, 0.0)), place_y(end(high, 1.0)));
    format!("<path class=\"whisker {class}\" d=\"M{x} {low}V{high}\"/>\n")
}

fn bars(y: &AxisWords, groups: &[String], series: &[BarSeries]) -> String {
    let values = series.iter().flat_map(|series| series.values.iter().flatten().copied());
    let up = Scale::over(values, y.log);
    let mut out = frame("", y, up);
    let group_width = (RIGHT - LEFT) / groups.len().max(1) as f64;
    let bar_width = group_width * 0.84 / series.len().max(1) as f64;
    let base = up.place(up.base()).map_or(BOTTOM, place_y);
    for (i, group) in groups.iter().enumerate() {
        let left = LEFT + group_width * i as f64;
        let middle = tenth(left + group_width / 2.0);
        put(
            &mut out,
            &format!(
                "<text class=\"x\" x=\"{middle}\" y=\"{}\">{}</text>",
                BOTTOM + 18.0,
                escape(group)
            ),
        );
        for (k, series) in series.iter().enumerate() {
            let Some(value) = series.values.get(i).copied().flatten() else { continue };
            // A logarithmic axis cannot show a zero; the bar is then empty, and its title says why.
            let top = up.place(value).map_or(base, place_y);
            let x = tenth(left + group_width * 0.08 + bar_width * k as f64);
            let (from, height) = (top.min(base), tenth((base - top).abs()));
            let title =
                format!("{}, {}, {group}: {}", series.name, said(series.source), number(value));
            put(
                &mut out,
                &format!(
                    "<rect class=\"bar {}\" x=\"{x}\" y=\"{from}\" width=\"{}\" height=\"{height}\"><title>{}</title></rect>",
                    class(series.source, series.colour),
                    tenth((bar_width - 1.0).max(0.5)),
                    escape(&title)
                ),
            );
        }
    }
    out
}

/// The vertical axis with its ticks, and the labels of both.
fn frame(x_label: &str, y: &AxisWords, up: Scale) -> String {
    let mut out = String::new();
    for tick in up.ticks() {
        let Some(at) = up.place(tick).map(place_y) else { continue };
        put(
            &mut out,
            &format!(
                "<path class=\"grid\" d=\"M{LEFT} {at}H{RIGHT}\"/><text class=\"y\" x=\"{}\" y=\"{}\">{}</text>",
                LEFT - 8.0,
                tenth(at + 4.0),
                tick_text(tick)
            ),
        );
    }
    put(&mut out, &format!("<path class=\"axis\" d=\"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}\"/>"));
    let middle = (TOP + BOTTOM) / 2.0;
    let log = if y.log { " (logarithmic)" } else { "" };
    put(
        &mut out,
        &format!(
            "<text class=\"label\" transform=\"translate(18 {middle}) rotate(-90)\">{}{log}</text>",
            escape(&y.label)
        ),
    );
    let centre = (LEFT + RIGHT) / 2.0;
    put(
        &mut out,
        &format!(
            "<text class=\"label\" x=\"{centre}\" y=\"{}\">{}</text>",
            BOTTOM + 40.0,
            escape(x_label)
        ),
    );
    out
}

/// An entry of a legend: its key, drawn at 0 0, and its words.
struct Entry {
    key: String,
    words: String,
}

fn legend_of_lines(series: &[Series]) -> Vec<Entry> {
    let key = |class: &str| {
        format!(
            "<path class=\"line {class}\" d=\"M0 -4H22\"/><circle class=\"mark {class}\" cx=\"11\" cy=\"-4\" r=\"3.5\"/>"
        )
    };
    entries(series.iter().map(|s| (s.name.as_str(), s.colour)), key)
}

fn legend_of_bars(series: &[BarSeries]) -> Vec<Entry> {
    let key = |class: &str| {
        format!("<rect class=\"bar {class}\" x=\"3\" y=\"-10\" width=\"16\" height=\"11\"/>")
    };
    entries(series.iter().map(|s| (s.name.as_str(), s.colour)), key)
}

/// Two entries for the sources, and then one for each configuration.
fn entries<'a>(
    series: impl Iterator<Item = (&'a str, usize)>,
    key: impl Fn(&str) -> String,
) -> Vec<Entry> {
    let sources = [(Source::Published, "published cn"), (Source::Modelled, "modelled cn")];
    let mut entries: Vec<Entry> = sources
        .into_iter()
        .map(|(source, class)| Entry { key: key(class), words: said(source).to_owned() })
        .collect();
    for (name, colour) in series {
        if !entries.iter().any(|entry| entry.words == name) {
            let key = key(&class(Source::Modelled, colour));
            entries.push(Entry { key, words: name.to_owned() });
        }
    }
    entries
}

/// The legend below the plot, in as many lines as it needs, and their height.
fn legend(entries: &[Entry]) -> (String, f64) {
    let mut out = String::new();
    let (mut x, mut y) = (LEFT, HEIGHT + 4.0);
    for Entry { key, words } in entries {
        let width = 30.0 + LETTER * words.chars().count() as f64 + 16.0;
        if x + width > WIDTH && x > LEFT {
            x = LEFT;
            y += LEGEND_LINE;
        }
        put(
            &mut out,
            &format!(
                "<g transform=\"translate({} {y})\">{key}<text class=\"key\" x=\"28\">{}</text></g>",
                tenth(x),
                escape(words)
            ),
        );
        x += width;
    }
    (out, y - HEIGHT + LEGEND_LINE / 2.0)
}

fn class(source: Source, colour: usize) -> String {
    format!("{} c{}", said(source), colour % COLOURS)
}

fn said(source: Source) -> &'static str {
    match source {
        Source::Published => "published",
        Source::Modelled => "modelled",
    }
}

fn place_x(fraction: f64) -> f64 {
    tenth(LEFT + fraction * (RIGHT - LEFT))
}

fn place_y(fraction: f64) -> f64 {
    tenth(BOTTOM - fraction * (BOTTOM - TOP))
}

fn tenth(value: f64) -> f64 {
    // Adding zero turns a negative zero into a plain one.
    (value * 10.0).round() / 10.0 + 0.0
}

fn put(out: &mut String, line: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(out, "{line}");
}

/// Text for HTML and SVG, in elements and in attributes.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::fake::Fake;

    fn line(source: Source, points: &[(f64, f64)]) -> Series {
        let points = points.iter().map(|&(x, y)| Point { x, y, interval: None }).collect();
        Series { name: "base".into(), colour: 13, source, points }
    }

    fn plot(series: Vec<Series>) -> String {
        let words = |label: &str, log| AxisWords { label: label.into(), log };
        let plot = Plot::Lines { x: words("load", false), y: words("p99, us", true), series };
        draw(&Figure { title: "t".into(), caption: String::new(), plot })
    }

    #[test]
    fn a_line_runs_through_its_points_and_each_has_a_title() {
        let svg = plot(vec![line(Source::Published, &[(0.0, 100.0), (100.0, 1000.0)])]);
        assert!(svg.contains("<path class=\"line published c1\" d=\"M72 320L744 14\"/>"), "{svg}");
        assert!(svg.contains("<title>base, published, 100: 1000</title>"), "{svg}");
        assert!(svg.contains("p99, us (logarithmic)"));
    }

    #[test]
    fn a_value_that_a_logarithmic_axis_cannot_show_is_left_out() {
        let svg = plot(vec![line(Source::Modelled, &[(1.0, 0.0), (2.0, 10.0), (3.0, f64::NAN)])]);
        assert_eq!(svg.matches("<title>").count(), 1, "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn an_interval_is_drawn_as_far_as_the_plot_reaches() {
        let mut series = line(Source::Modelled, &[(1.0, 10.0), (2.0, 100.0)]);
        series.points[1].interval = Some((-5.0, 1e9));
        let svg = plot(vec![series]);
        assert!(svg.contains("<path class=\"whisker modelled c1\" d=\"M744 320V14\"/>"), "{svg}");
    }

    #[test]
    fn bars_stand_on_the_axis_and_what_is_missing_has_none() {
        let series = |source, values: [Option<f64>; 2]| BarSeries {
            name: "softirq".into(),
            colour: 0,
            source,
            values: values.into(),
        };
        let bars = vec![
            series(Source::Published, [Some(10.0), Some(5.0)]),
            series(Source::Modelled, [Some(20.0), None]),
        ];
        let plot = Plot::Bars {
            y: AxisWords { label: "us".into(), log: false },
            groups: vec!["p50".into(), "p99".into()],
            series: bars,
        };
        let svg = draw(&Figure { title: "t".into(), caption: String::new(), plot });
        assert_eq!(svg.matches("<title>").count(), 3, "{svg}");
        assert!(
            svg.contains(
                "y=\"14\" width=\"140.1\" height=\"306\"><title>softirq, modelled, p50: 20"
            ),
            "{svg}"
        );
    }

    #[test]
    fn names_are_escaped_and_empty_plots_do_no_harm() {
        let reproduction = Fake { fails: Some("a at 1"), ..Fake::default() }.run();
        for figure in reproduction.figures {
            let svg = draw(&figure);
            assert!(!svg.contains("<p99>") && !svg.contains("\"p99\""), "{svg}");
        }
        assert!(plot(Vec::new()).starts_with("<svg"));
    }
}
