//! Line plots over loads: one plot, or a small plot per name if there are many.
//!
//! A small plot shows the other names' lines in grey behind its own, and all have the same axes, so that they can
//! be compared.

use super::axis::{Scale, number};
use super::horizontal::HorizontalAxis;
use super::svg::{
    self, Drawing, LETTER, LINE, MARGIN, Panel, WIDTH, class, escape, label_x, label_y, mark,
    push_line, source_name, tenth, truncate,
};
use super::{At, Lines, MOST_TOGETHER, Point, Series, Source, names};

const LEFT: f64 = 72.0;
const TOP: f64 = 14.0;

/// Height of a single plot.
const TALL: f64 = 306.0;

/// Layout of small plots: how many side by side, their height, and gaps; the vertical gap holds a heading.
const COLUMNS: usize = 3;
const SMALL: f64 = 120.0;
const GAP_X: f64 = 14.0;
const GAP_Y: f64 = 34.0;

/// The axes of a plot.
#[derive(Clone, Copy)]
struct Axes<'a> {
    lines: &'a Lines,
    up: Scale,
    panel: Panel,
}

pub(super) fn draw(lines: &Lines) -> Drawing {
    let points = lines.series.iter().flat_map(|series| &series.points);
    // Without the intervals: a wide one must not compress the lines, and may extend beyond the plot.
    let up = Scale::over(points.filter_map(|point| point.y), lines.y.log);
    let panel = Panel { left: LEFT, right: WIDTH - MARGIN, top: TOP, bottom: TOP + TALL };
    let axes = Axes { lines, up, panel };
    let names = names(lines.series.iter().map(|series| series.name.as_str()));
    if names.len() > MOST_TOGETHER { small(axes, &names) } else { together(axes) }
}

fn together(axes: Axes<'_>) -> Drawing {
    let Axes { lines, panel, .. } = axes;
    let mut body = String::new();
    axes.grid(&mut body, true, true);
    for series in &lines.series {
        axes.line(&mut body, series, &class(series.source, series.style));
        axes.marks(&mut body, series, series.style);
    }
    label_y(&mut body, &lines.y, panel.top, panel.bottom);
    let below = panel.bottom + axes.words_below();
    label_x(&mut body, &lines.x, panel.left, panel.right, below + LINE);
    let mut legend = sources(&lines.series);
    for series in &lines.series {
        if !legend.iter().any(|(_, words)| *words == series.name) {
            // The modelled line, where there is also a published one.
            let source = match series.source {
                Source::Published => Source::Modelled,
                source => source,
            };
            legend.push((key(series.style, source), series.name.clone()));
        }
    }
    Drawing { body, height: below + LINE + 4.0, legend }
}

fn small(axes: Axes<'_>, names: &[&str]) -> Drawing {
    let Axes { lines, panel: Panel { left, right, .. }, .. } = axes;
    let mut body = String::new();
    let width = (right - left + GAP_X) / COLUMNS as f64 - GAP_X;
    let place = |i: usize| {
        let left = left + (width + GAP_X) * (i % COLUMNS) as f64;
        let top = TOP + LINE + (SMALL + GAP_Y) * (i / COLUMNS) as f64;
        Panel { left, right: left + width, top, bottom: top + SMALL }
    };
    for (i, name) in names.iter().enumerate() {
        let panel = place(i);
        let axes = Axes { panel, ..axes };
        let last = i + COLUMNS >= names.len();
        axes.grid(&mut body, last, i.is_multiple_of(COLUMNS));
        for series in lines.series.iter().filter(|it| it.name != *name && drawn_as_ghost(it.source))
        {
            axes.line(&mut body, series, "ghost");
        }
        for series in lines.series.iter().filter(|it| it.name == *name) {
            axes.line(&mut body, series, &class(series.source, 0));
            axes.marks(&mut body, series, 0);
        }
        let most = (width / LETTER) as usize;
        push_line(
            &mut body,
            format_args!(
                "<text class=\"head\" x=\"{}\" y=\"{}\"><title>{}</title>{}</text>",
                tenth(panel.left),
                tenth(panel.top - 6.0),
                escape(name),
                escape(&truncate(name, most))
            ),
        );
    }
    let bottom = place(names.len().saturating_sub(1)).bottom;
    label_y(&mut body, &lines.y, TOP, bottom);
    let below = bottom + axes.words_below();
    label_x(&mut body, &lines.x, left, right, below + LINE);
    let mut legend = sources(&lines.series);
    let others = "<path class=\"line ghost\" d=\"M0 -4H22\"/>".to_owned();
    legend.push((others, "the others".to_owned()));
    Drawing { body, height: below + LINE + 4.0, legend }
}

/// Whether the line is drawn in grey behind others'; published ones would double it.
fn drawn_as_ghost(source: Source) -> bool {
    source != Source::Published
}

/// A key of the legend: a line with its mark.
fn key(style: usize, source: Source) -> String {
    let line = format!("<path class=\"line {}\" d=\"M0 -4H22\"/>", class(source, style));
    line + &mark(style, source, 11.0, -4.0, "")
}

/// Legend entries for published and modelled, if there are published lines.
fn sources(series: &[Series]) -> Vec<(String, String)> {
    if !series.iter().any(|series| series.source == Source::Published) {
        return Vec::new();
    }
    let entry = |source: Source| {
        let grey = format!("<g class=\"grey\">{}</g>", key(0, source));
        (grey, source_name(source).to_owned())
    };
    vec![entry(Source::Published), entry(Source::Modelled)]
}

impl<'a> Axes<'a> {
    fn horizontal(self) -> HorizontalAxis<'a> {
        HorizontalAxis::of(self.lines, self.panel.right - self.panel.left)
    }

    /// Height of the texts below the plot, given the one with the most lines.
    fn words_below(self) -> f64 {
        let ticks = self.horizontal().ticks();
        let lines = ticks.iter().map(|(_, text)| text.split(", ").count()).max().unwrap_or(1);
        18.0 + LINE * lines as f64
    }

    fn grid(self, body: &mut String, words_x: bool, words_y: bool) {
        self.panel.columns(body, &self.horizontal().ticks(), words_x);
        self.panel.levels(body, self.up, words_y);
        self.panel.frame(body);
        if let Some(border) = self.horizontal().border() {
            let Panel { top, bottom, .. } = self.panel;
            let x = self.panel.x(border);
            push_line(
                body,
                format_args!(
                    "<path class=\"border\" d=\"M{x} {}V{}\"/>",
                    tenth(top),
                    tenth(bottom)
                ),
            );
        }
    }

    fn place(self, horizontal: HorizontalAxis<'_>, point: &Point) -> Option<(f64, f64)> {
        let x = self.panel.x(horizontal.place(point.x)?);
        Some((x, self.panel.y(self.up.place(point.y?)?)))
    }

    /// Draws the line, interrupted where a point is missing.
    fn line(self, body: &mut String, series: &Series, class: &str) {
        let horizontal = self.horizontal();
        let mut path = String::new();
        let mut last: Option<At> = None;
        for point in &series.points {
            let Some((x, y)) = self.place(horizontal, point) else {
                last = None;
                continue;
            };
            let joined = last.is_some_and(|last| horizontal.joins(last, point.x));
            path.push_str(&format!("{}{x} {y}", if joined { 'L' } else { 'M' }));
            last = Some(point.x);
        }
        if !path.is_empty() {
            push_line(body, format_args!("<path class=\"line {class}\" d=\"{path}\"/>"));
        }
    }

    /// Draws the marks with their intervals, clipped to the plot.
    fn marks(self, body: &mut String, series: &Series, style: usize) {
        let horizontal = self.horizontal();
        for point in &series.points {
            let (Some((x, y)), Some(value)) = (self.place(horizontal, point), point.y) else {
                continue;
            };
            if let Some((low, high)) = point.interval {
                let end = |value: f64, beyond: f64| {
                    self.panel.y(self.up.place(value).unwrap_or(beyond).clamp(0.0, 1.0))
                };
                let class = class(series.source, style);
                let (low, high) = (end(low, 0.0), end(high, 1.0));
                push_line(
                    body,
                    format_args!("<path class=\"whisker {class}\" d=\"M{x} {low}V{high}\"/>"),
                );
            }
            let title = self.title(series, point.x, value, point.interval);
            push_line(body, format_args!("{}", mark(style, series.source, x, y, &title)));
        }
    }

    fn title(self, series: &Series, x: At, y: f64, interval: Option<(f64, f64)>) -> String {
        let x = match x {
            At::Number(x) => number(x),
            At::Name(index) => self.lines.named.get(index).cloned().unwrap_or_default(),
        };
        svg::title(&series.name, series.source, &x, y, interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::plot::{Axis, Figure, Plot};

    fn line(name: &str, source: Source, points: &[(f64, Option<f64>)]) -> Series {
        let point = |&(x, y): &(f64, Option<f64>)| Point { x: At::Number(x), y, interval: None };
        let points = points.iter().map(point).collect();
        Series { name: name.into(), style: 7, source, points }
    }

    fn plot(series: Vec<Series>, named: &[&str]) -> String {
        let axis = |label: &str, log| Axis { label: label.into(), log };
        let plot = Plot::Lines(Lines {
            x: axis("load", false),
            named: named.iter().map(|name| (*name).to_owned()).collect(),
            y: axis("p99, us", true),
            series,
        });
        let gaps = Vec::new();
        super::super::draw::draw(&Figure { title: "t".into(), caption: String::new(), plot, gaps })
    }

    #[test]
    fn a_line_runs_through_its_points_and_each_has_a_title() {
        let points = [(0.0, Some(100.0)), (100.0, Some(1000.0))];
        let svg = plot(vec![line("base", Source::Published, &points)], &[]);
        assert!(svg.contains("<path class=\"line published s1\" d=\"M72 320L744 14\"/>"), "{svg}");
        assert!(svg.contains("<title>base, published, 100: 1000</title>"), "{svg}");
        assert!(svg.contains("p99, us (logarithmic)"));
    }

    #[test]
    fn a_line_is_interrupted_where_a_figure_is_missing() {
        let points = [(0.0, Some(10.0)), (1.0, None), (2.0, Some(10.0)), (3.0, Some(100.0))];
        let svg = plot(vec![line("base", Source::Run, &points)], &[]);
        let path = svg.lines().find(|line| line.contains("line run s1")).expect("a line");
        assert_eq!((path.matches('M').count(), path.matches('L').count()), (2, 1), "{path}");
        assert_eq!(svg.matches("<title>base, ").count(), 3, "{svg}");
    }

    #[test]
    fn a_value_that_a_logarithmic_axis_cannot_show_interrupts_it_as_well() {
        let points = [(1.0, Some(0.0)), (2.0, Some(10.0)), (3.0, Some(f64::NAN))];
        let svg = plot(vec![line("base", Source::Run, &points)], &[]);
        assert_eq!(svg.matches("<title>").count(), 1, "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn an_interval_is_drawn_as_far_as_the_plot_reaches() {
        let points = [(1.0, Some(10.0)), (2.0, Some(100.0))];
        let mut series = line("base", Source::Modelled, &points);
        series.points[1].interval = Some((-5.0, 1e9));
        let svg = plot(vec![series], &[]);
        assert!(svg.contains("<path class=\"whisker modelled s1\" d=\"M744 320V14\"/>"), "{svg}");
    }

    #[test]
    fn more_than_six_names_have_a_plot_each_with_the_others_behind() {
        let series = |names: usize| -> Vec<Series> {
            let points = [(1.0, Some(10.0)), (2.0, Some(100.0))];
            (0..names).map(|i| line(&format!("p{i}"), Source::Run, &points)).collect()
        };
        let heads = |svg: &str| svg.matches("class=\"head\"").count();
        let (few, many) = (plot(series(MOST_TOGETHER), &[]), plot(series(MOST_TOGETHER + 1), &[]));
        assert_eq!((heads(&few), heads(&many)), (0, 7), "{many}");
        // Six others in each of the seven plots, and one in the legend.
        assert_eq!(many.matches("class=\"line ghost\"").count(), 6 * 7 + 1);
    }

    #[test]
    fn the_legend_tells_published_from_modelled_only_where_both_are_shown() {
        let points = [(1.0, Some(10.0))];
        let run = plot(vec![line("base", Source::Run, &points)], &[]);
        assert!(!run.contains(">modelled<") && run.contains(">base<"), "{run}");
        let both = [Source::Published, Source::Modelled].map(|it| line("base", it, &points));
        let both = plot(both.into(), &[]);
        assert!(both.contains(">published<") && both.contains(">modelled<"), "{both}");
        assert_eq!(both.matches(">base<").count(), 1, "{both}");
    }

    #[test]
    fn an_empty_plot_does_no_harm() {
        assert!(plot(Vec::new(), &[]).starts_with("<svg"));
        assert!(plot(Vec::new(), &["max"]).contains(">max<"));
    }
}
