//! Rows of dots on one axis: one load with several quantities, or several scenarios with two figures each.
//!
//! A bar would need a baseline, which a logarithmic axis does not have; a dot does not.

use super::axis::{Scale, tick_text};
use super::svg::{
    self, Drawing, LETTER, LINE, MARGIN, Panel, WIDTH, class, escape, label_x, mark, push_line,
    tenth, truncate,
};
use super::{Dot, DotRow, Dots, Source};

const TOP: f64 = 8.0;
const ROW: f64 = 19.0;

/// Height of a group's heading.
const HEAD: f64 = 24.0;

/// Longest name in characters.
const LONGEST: usize = 36;

/// Share of a logarithmic axis that is reserved for zero, if there is a zero.
const ZERO: f64 = 0.07;

/// The horizontal axis of a plot.
#[derive(Clone, Copy)]
struct Axis {
    scale: Scale,
    /// Position of the smallest positive value.
    begin: f64,
}

impl Axis {
    fn of(dots: &Dots) -> Axis {
        let values = dots.rows.iter().flat_map(|row| &row.dots).map(|dot| dot.value);
        let zero = dots.x.log && values.clone().any(|value| value <= 0.0);
        Axis { scale: Scale::over(values, dots.x.log), begin: if zero { ZERO } else { 0.0 } }
    }

    fn place(self, value: f64) -> Option<f64> {
        if self.begin > 0.0 && value <= 0.0 {
            return Some(0.0);
        }
        Some(self.begin + self.scale.place(value)? * (1.0 - self.begin))
    }

    fn ticks(self) -> Vec<(f64, String)> {
        let zero = (self.begin > 0.0).then_some(0.0);
        let ticks = zero.into_iter().chain(self.scale.ticks());
        ticks.filter_map(|tick| Some((self.place(tick)?, tick_text(tick)))).collect()
    }
}

pub(super) fn draw(dots: &Dots) -> Drawing {
    let letters = dots.rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
    let left = (LETTER * letters.min(LONGEST) as f64 + MARGIN).max(60.0);
    let heads =
        dots.rows.iter().enumerate().filter(|(i, row)| starts_group(&dots.rows, *i, row)).count();
    let height = ROW * dots.rows.len() as f64 + HEAD * heads as f64;
    let panel = Panel { left, right: WIDTH - MARGIN, top: TOP, bottom: TOP + height + 4.0 };
    let axis = Axis::of(dots);
    let mut body = String::new();
    panel.columns(&mut body, &axis.ticks(), true);
    panel.frame(&mut body);
    let mut y = TOP;
    for (i, row) in dots.rows.iter().enumerate() {
        if starts_group(&dots.rows, i, row) {
            y += HEAD;
            push_line(
                &mut body,
                format_args!(
                    "<text class=\"head\" x=\"{MARGIN}\" y=\"{}\">{}</text>",
                    tenth(y - 4.0),
                    escape(&row.group)
                ),
            );
        }
        draw_row(&mut body, dots, row, panel, axis, y + ROW / 2.0);
        y += ROW;
    }
    let below = panel.bottom + 18.0 + LINE;
    label_x(&mut body, &dots.x, panel.left, panel.right, below + LINE / 2.0);
    // A single kind needs no legend: the figure's title names it.
    let kinds = if dots.kinds.len() > 1 { &dots.kinds[..] } else { &[] };
    let legend = kinds.iter().map(|kind| {
        let key = mark(kind.style, kind.source, 11.0, -4.0, "");
        (key, kind.name.clone())
    });
    Drawing { body, height: below + LINE, legend: legend.collect() }
}

/// Whether a row is the first under its heading.
fn starts_group(rows: &[DotRow], i: usize, row: &DotRow) -> bool {
    let before = i.checked_sub(1).and_then(|before| rows.get(before));
    !row.group.is_empty() && before.is_none_or(|before| before.group != row.group)
}

fn draw_row(body: &mut String, dots: &Dots, row: &DotRow, panel: Panel, axis: Axis, y: f64) {
    push_line(
        body,
        format_args!(
            "<text class=\"end\" x=\"{}\" y=\"{}\"><title>{}</title>{}</text>",
            tenth(panel.left - 8.0),
            tenth(y + 4.0),
            escape(&row.name),
            escape(&truncate(&row.name, LONGEST))
        ),
    );
    let x = |value: f64| axis.place(value).map(|place| panel.x(place.clamp(0.0, 1.0)));
    let ends = row.dots.iter().filter_map(|dot| x(dot.value));
    let (from, to) = ends.fold((f64::MAX, f64::MIN), |(a, b), x| (a.min(x), b.max(x)));
    if from < to {
        push_line(body, format_args!("<path class=\"span\" d=\"M{from} {}H{to}\"/>", tenth(y)));
    }
    for &Dot { kind, value, interval } in &row.dots {
        let (Some(kind), Some(at)) = (dots.kinds.get(kind), x(value)) else { continue };
        if let Some((low, high)) = interval {
            let (low, high) = (x(low).unwrap_or(panel.left), x(high).unwrap_or(panel.right));
            let class = class(kind.source, kind.style);
            push_line(
                body,
                format_args!("<path class=\"whisker {class}\" d=\"M{low} {}H{high}\"/>", tenth(y)),
            );
        }
        let name = if row.group.is_empty() {
            row.name.clone()
        } else {
            format!("{}, {}", row.name, row.group)
        };
        let title = svg::title(&name, Source::Run, &kind.name, value, interval);
        push_line(body, format_args!("{}", mark(kind.style, kind.source, at, y, &title)));
    }
    if row.dots.is_empty() {
        let at = tenth(panel.left + 8.0);
        push_line(
            body,
            format_args!(
                "<text class=\"none\" x=\"{at}\" y=\"{}\">no figure</text>",
                tenth(y + 4.0)
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::plot::{self, Figure, Kind, Plot};

    fn row(group: &str, name: &str, values: &[f64]) -> DotRow {
        let dot = |(kind, &value)| Dot { kind, value, interval: None };
        let dots = values.iter().enumerate().map(dot).collect();
        DotRow { group: group.into(), name: name.into(), dots }
    }

    fn draw(rows: Vec<DotRow>) -> String {
        let x = plot::Axis { label: "us".into(), log: true };
        let kinds = [("published", Source::Published), ("modelled", Source::Modelled)];
        let kinds = kinds.map(|(name, source)| Kind { name: name.into(), style: 0, source }).into();
        let plot = Plot::Dots(Dots { x, kinds, rows });
        let gaps = Vec::new();
        super::super::draw::draw(&Figure { title: "t".into(), caption: String::new(), plot, gaps })
    }

    #[test]
    fn a_row_has_its_dots_between_which_a_line_shows_the_distance() {
        let svg = draw(vec![row("", "base", &[1.0, 100.0])]);
        assert!(svg.contains("<title>base, published: 1</title>"), "{svg}");
        assert!(svg.contains("<title>base, modelled: 100</title>"), "{svg}");
        assert!(svg.contains("<path class=\"span\" d=\"M60 17.5H744\"/>"), "{svg}");
    }

    #[test]
    fn a_group_has_its_heading_once_and_zero_a_place_on_a_logarithmic_axis() {
        let rows = vec![row("p50", "a", &[0.0]), row("p50", "b", &[10.0]), row("p99", "a", &[5.0])];
        let svg = draw(rows);
        assert_eq!(svg.matches(">p50<").count(), 1, "{svg}");
        assert!(svg.contains("<title>a, p50, published: 0</title>"), "{svg}");
        assert!(svg.contains(">0</text>"), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn a_row_without_a_dot_says_so_and_long_names_are_cut() {
        let name = "x".repeat(99);
        let svg = draw(vec![row("", &name, &[])]);
        assert!(svg.contains(">no figure<"), "{svg}");
        assert!(svg.contains(&format!("<title>{name}</title>")), "whole under the pointer");
        assert!(svg.contains('\u{2026}') && !svg.contains(&format!(">{name}</text>")), "{svg}");
    }
}
