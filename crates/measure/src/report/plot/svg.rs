//! Building blocks of SVG plots: panel, axes, marks and texts.
//!
//! Colours and dashes are classes, which the page's style sheet defines for light and dark mode. Every mark has a
//! title, which browsers show under the pointer without a script. Coordinates are rounded to tenths of a pixel, so
//! that the text does not depend on the last bits of a logarithm.

use std::fmt::Write;

use super::axis::{Scale, number, tick_text};
use super::{Axis, Source};

/// Number of styles in the style sheet; higher numbers wrap around.
pub const STYLES: usize = 6;

/// Width of every plot.
pub(super) const WIDTH: f64 = 760.0;

/// Margin at the right, for half of the last tick's text.
pub(super) const MARGIN: f64 = 16.0;

/// Height of a line of text.
pub(super) const LINE: f64 = 15.0;

/// Approximate width of a letter, rather too large than too small.
pub(super) const LETTER: f64 = 7.2;

/// A drawn plot.
pub(super) struct Drawing {
    pub(super) body: String,
    /// Height without the legend.
    pub(super) height: f64,
    /// Legend entries: keys, drawn at 0 0 and 22 wide, with their texts.
    pub(super) legend: Vec<(String, String)>,
}

/// The rectangle in which values are drawn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Panel {
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
}

impl Panel {
    pub(super) fn x(self, fraction: f64) -> f64 {
        tenth(self.left + fraction * (self.right - self.left))
    }

    pub(super) fn y(self, fraction: f64) -> f64 {
        tenth(self.bottom - fraction * (self.bottom - self.top))
    }

    /// Draws vertical grid lines, with texts below where these do not overlap earlier ones; a comma in a text
    /// starts a new line.
    pub(super) fn columns(self, out: &mut String, ticks: &[(f64, String)], words: bool) {
        let mut taken: Vec<(f64, f64)> = Vec::new();
        for (place, text) in ticks {
            let x = self.x(*place);
            push_line(
                out,
                format_args!(
                    "<path class=\"grid\" d=\"M{x} {}V{}\"/>",
                    tenth(self.top),
                    tenth(self.bottom)
                ),
            );
            let lines: Vec<&str> = text.split(", ").collect();
            let letters = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
            let half = LETTER * (letters as f64 + 0.5) / 2.0;
            let (from, to) = (x - half, x + half);
            if !words || taken.iter().any(|other| from < other.1 && other.0 < to) {
                continue;
            }
            taken.push((from, to));
            for (i, line) in lines.into_iter().enumerate() {
                push_line(
                    out,
                    format_args!(
                        "<text class=\"mid\" x=\"{x}\" y=\"{}\">{}</text>",
                        tenth(self.bottom + 18.0 + LINE * i as f64),
                        escape(line)
                    ),
                );
            }
        }
    }

    /// Draws horizontal grid lines at the ticks of a scale, with texts at their left.
    pub(super) fn levels(self, out: &mut String, up: Scale, words: bool) {
        let mut free = f64::INFINITY;
        for tick in up.ticks() {
            let Some(y) = up.place(tick).map(|place| self.y(place)) else { continue };
            push_line(
                out,
                format_args!(
                    "<path class=\"grid\" d=\"M{} {y}H{}\"/>",
                    tenth(self.left),
                    tenth(self.right)
                ),
            );
            if words && y <= free {
                free = y - LINE;
                push_line(
                    out,
                    format_args!(
                        "<text class=\"end\" x=\"{}\" y=\"{}\">{}</text>",
                        tenth(self.left - 8.0),
                        tenth(y + 4.0),
                        tick_text(tick)
                    ),
                );
            }
        }
    }

    /// Draws the lines of both axes.
    pub(super) fn frame(self, out: &mut String) {
        push_line(
            out,
            format_args!(
                "<path class=\"axis\" d=\"M{} {}V{}H{}\"/>",
                tenth(self.left),
                tenth(self.top),
                tenth(self.bottom),
                tenth(self.right)
            ),
        );
    }
}

/// Draws the label of a vertical axis from `top` to `bottom`, at the left edge.
pub(super) fn label_y(out: &mut String, axis: &Axis, top: f64, bottom: f64) {
    push_line(
        out,
        format_args!(
            "<text class=\"mid\" transform=\"translate(16 {}) rotate(-90)\">{}</text>",
            tenth(f64::midpoint(top, bottom)),
            escape(&words(axis))
        ),
    );
}

/// Draws the label of a horizontal axis.
pub(super) fn label_x(out: &mut String, axis: &Axis, left: f64, right: f64, y: f64) {
    push_line(
        out,
        format_args!(
            "<text class=\"mid\" x=\"{}\" y=\"{}\">{}</text>",
            tenth(f64::midpoint(left, right)),
            tenth(y),
            escape(&words(axis))
        ),
    );
}

fn words(axis: &Axis) -> String {
    let log = if axis.log { " (logarithmic)" } else { "" };
    format!("{}{log}", axis.label)
}

/// A mark in the shape of its style, with a title unless that is empty.
pub(super) fn mark(style: usize, source: Source, x: f64, y: f64, title: &str) -> String {
    let class = class(source, style);
    let title =
        if title.is_empty() { String::new() } else { format!("<title>{}</title>", escape(title)) };
    let at = |dx: f64, dy: f64| format!("{} {}", tenth(x + dx), tenth(y + dy));
    let path = |points: &[(f64, f64)]| {
        let points: Vec<String> = points.iter().map(|&(dx, dy)| at(dx, dy)).collect();
        format!("<path class=\"mark {class}\" d=\"M{}Z\">{title}</path>", points.join("L"))
    };
    match style % STYLES {
        0 => format!(
            "<circle class=\"mark {class}\" cx=\"{}\" cy=\"{}\" r=\"3.6\">{title}</circle>",
            tenth(x),
            tenth(y)
        ),
        1 => path(&[(-3.2, -3.2), (3.2, -3.2), (3.2, 3.2), (-3.2, 3.2)]),
        2 => path(&[(0.0, -4.4), (4.2, 3.2), (-4.2, 3.2)]),
        3 => path(&[(0.0, -4.8), (4.8, 0.0), (0.0, 4.8), (-4.8, 0.0)]),
        4 => path(&[(0.0, 4.4), (4.2, -3.2), (-4.2, -3.2)]),
        // A cross of five squares.
        _ => {
            let (a, b) = (1.4, 4.4);
            path(&[
                (-a, -b),
                (a, -b),
                (a, -a),
                (b, -a),
                (b, a),
                (a, a),
                (a, b),
                (-a, b),
                (-a, a),
                (-b, a),
                (-b, -a),
                (-a, -a),
            ])
        }
    }
}

/// Class attribute of a style.
pub(super) fn class(source: Source, style: usize) -> String {
    format!("{} s{}", source_name(source), style % STYLES)
}

/// The class and legend text of a source.
pub(super) fn source_name(source: Source) -> &'static str {
    match source {
        Source::Published => "published",
        Source::Modelled => "modelled",
        Source::Run => "run",
    }
}

/// The title of a mark: name, source, position and value.
pub(super) fn title(
    name: &str,
    source: Source,
    at: &str,
    value: f64,
    interval: Option<(f64, f64)>,
) -> String {
    let source = if source == Source::Run { "" } else { source_name(source) };
    let words: Vec<&str> = [name, source, at].into_iter().filter(|it| !it.is_empty()).collect();
    let range = interval
        .map(|(low, high)| format!(" ({} to {})", number(low), number(high)))
        .unwrap_or_default();
    format!("{}: {}{range}", words.join(", "), number(value))
}

/// Rounds to tenths of a pixel.
pub(super) fn tenth(value: f64) -> f64 {
    // Adding zero turns a negative zero into a positive one.
    (value * 10.0).round() / 10.0 + 0.0
}

/// Appends a line.
pub(super) fn push_line(out: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = out.write_fmt(line);
    out.push('\n');
}

/// Truncates text to `most` characters, the last of which is then an ellipsis.
pub(super) fn truncate(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['\u{2026}']).collect()
}

/// Escapes text for HTML and SVG, for elements and attributes.
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
