//! The parts of an SVG plot: its panel, axes, marks and words.
//!
//! Colours and dashes are classes, which the page's style sheet gives for light and dark; every mark has a
//! title, which a browser shows under the pointer, and without a script. Coordinates are rounded to tenths
//! of a pixel, so that the text does not depend on the last bits of a logarithm.

use std::fmt::Write;

use super::axis::{Scale, number, tick_text};
use super::{Axis, Source};

/// Styles that the style sheet has; later ones begin again with the first.
pub const STYLES: usize = 6;

/// Width of every plot.
pub(super) const WIDTH: f64 = 760.0;

/// Room at the right, for half of the last tick's words.
pub(super) const MARGIN: f64 = 16.0;

/// Height of a line of words.
pub(super) const LINE: f64 = 15.0;

/// Width of a letter, roughly: too much rather than too little.
pub(super) const LETTER: f64 = 7.2;

/// What is drawn of a plot.
pub(super) struct Drawing {
    pub(super) body: String,
    /// Its height without the legend.
    pub(super) height: f64,
    /// Keys, drawn at 0 0 and 22 wide, with their words.
    pub(super) legend: Vec<(String, String)>,
}

/// A rectangle in which values stand.
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

    /// Vertical lines at some places, with words below them where these do not overlap, the first given
    /// first; a comma in them is followed by a new line.
    pub(super) fn columns(self, out: &mut String, ticks: &[(f64, String)], words: bool) {
        let mut taken: Vec<(f64, f64)> = Vec::new();
        for (place, text) in ticks {
            let x = self.x(*place);
            put(
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
                put(
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

    /// Horizontal lines at the ticks of a scale, with words at their left.
    pub(super) fn levels(self, out: &mut String, up: Scale, words: bool) {
        let mut free = f64::INFINITY;
        for tick in up.ticks() {
            let Some(y) = up.place(tick).map(|place| self.y(place)) else { continue };
            put(
                out,
                format_args!(
                    "<path class=\"grid\" d=\"M{} {y}H{}\"/>",
                    tenth(self.left),
                    tenth(self.right)
                ),
            );
            if words && y <= free {
                free = y - LINE;
                put(
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

    /// The two axes' own lines.
    pub(super) fn frame(self, out: &mut String) {
        put(
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

/// What stands along a vertical axis from `top` to `bottom`, at the left edge.
pub(super) fn label_y(out: &mut String, axis: &Axis, top: f64, bottom: f64) {
    put(
        out,
        format_args!(
            "<text class=\"mid\" transform=\"translate(16 {}) rotate(-90)\">{}</text>",
            tenth(f64::midpoint(top, bottom)),
            escape(&words(axis))
        ),
    );
}

/// What stands along a horizontal axis.
pub(super) fn label_x(out: &mut String, axis: &Axis, left: f64, right: f64, y: f64) {
    put(
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

/// The classes of whatever is drawn in a style.
pub(super) fn class(source: Source, style: usize) -> String {
    format!("{} s{}", said(source), style % STYLES)
}

/// A source in words; what a page is about needs none.
pub(super) fn said(source: Source) -> &'static str {
    match source {
        Source::Published => "published",
        Source::Modelled => "modelled",
        Source::Run => "run",
    }
}

/// What a mark says under the pointer: whose it is, at what, and how much.
pub(super) fn title(
    name: &str,
    source: Source,
    at: &str,
    value: f64,
    interval: Option<(f64, f64)>,
) -> String {
    let source = if source == Source::Run { "" } else { said(source) };
    let words: Vec<&str> = [name, source, at].into_iter().filter(|it| !it.is_empty()).collect();
    let range = interval
        .map(|(low, high)| format!(" ({} to {})", number(low), number(high)))
        .unwrap_or_default();
    format!("{}: {}{range}", words.join(", "), number(value))
}

/// Rounds to tenths of a pixel.
pub(super) fn tenth(value: f64) -> f64 {
    // Adding zero turns a negative zero into a plain one.
    (value * 10.0).round() / 10.0 + 0.0
}

/// Adds a line.
pub(super) fn put(out: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = out.write_fmt(line);
    out.push('\n');
}

/// At most so many letters, the last of them an ellipsis where more were given.
pub(super) fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['\u{2026}']).collect()
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
