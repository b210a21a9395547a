//! Plots for pages: what they show, independent of drawing.
//!
//! [`Lines`] run over loads, [`Dots`] are in rows on one axis, [`Shares`] divide a whole. [`svg`] draws them
//! without a plotting crate: of those considered, plotters writes colours into every element, which rules out one
//! page for light and dark mode, and poloto has no logarithmic axis.
//!
//! A style is a number that selects a colour, a mark shape and a dash pattern, so that lines can be told apart
//! without colour. If there are more than [`MOST_TOGETHER`] names, each gets a small plot.

pub mod axis;
mod dots;
pub(super) mod draw;
mod horizontal;
mod lines;
mod shares;
pub mod svg;

/// Most names whose lines share one plot.
pub const MOST_TOGETHER: usize = 6;

/// A plot with its texts.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Title.
    pub title: String,
    /// Caption: how to read it, and what to look for.
    pub caption: String,
    /// The plot above the caption.
    pub plot: Plot,
    /// Missing values, with reasons, a sentence each.
    pub gaps: Vec<String>,
}

/// The kinds of plots.
#[derive(Debug, Clone, PartialEq)]
pub enum Plot {
    /// Lines with marks.
    Lines(Lines),
    /// Rows of dots.
    Dots(Dots),
    /// Rows of bars that divide a whole.
    Shares(Shares),
}

/// Label and kind of an axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Axis {
    /// Label with the unit.
    pub label: String,
    /// Whether it is logarithmic.
    pub log: bool,
}

/// Origin of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A publication: drawn hollow and dashed.
    Published,
    /// The machine, next to a publication.
    Modelled,
    /// The run that the page is about.
    Run,
}

/// Lines over loads.
#[derive(Debug, Clone, PartialEq)]
pub struct Lines {
    /// The horizontal axis.
    pub x: Axis,
    /// Loads that are not numbers, such as `max`: positions after the numbers. Without any numbers, they take the
    /// whole axis.
    pub named: Vec<String>,
    /// The vertical axis. A logarithmic one does not show values at or below zero.
    pub y: Axis,
    /// Lines, in the order of the legend.
    pub series: Vec<Series>,
}

/// A line with its name in the legend.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Name of the policy.
    pub name: String,
    /// Number of its style.
    pub style: usize,
    /// Origin of its figures.
    pub source: Source,
    /// Points, in the order of the line.
    pub points: Vec<Point>,
}

/// A position on a horizontal axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum At {
    /// A number on the scale.
    Number(f64),
    /// Index of a named position.
    Name(usize),
}

/// A point of a line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Position on the horizontal axis.
    pub x: At,
    /// Value on the vertical axis; `None` if there is none, which interrupts the line.
    pub y: Option<f64>,
    /// Uncertainty of `y`, or the range of the repetitions.
    pub interval: Option<(f64, f64)>,
}

/// Rows of dots over one horizontal axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Dots {
    /// The axis. A logarithmic one has a separate position for zero.
    pub x: Axis,
    /// Kinds of dots, in the order of the legend.
    pub kinds: Vec<Kind>,
    /// Rows, from top to bottom.
    pub rows: Vec<DotRow>,
}

/// A kind of dots.
#[derive(Debug, Clone, PartialEq)]
pub struct Kind {
    /// Name in the legend.
    pub name: String,
    /// Number of its style.
    pub style: usize,
    /// Origin of its figures.
    pub source: Source,
}

/// A row of dots.
#[derive(Debug, Clone, PartialEq)]
pub struct DotRow {
    /// Heading of its group; empty if there is none.
    pub group: String,
    /// Name, left of the row.
    pub name: String,
    /// Dots, in any order.
    pub dots: Vec<Dot>,
}

/// A dot of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dot {
    /// Index of its kind.
    pub kind: usize,
    /// Its value.
    pub value: f64,
    /// Uncertainty of the value, or the range of the repetitions.
    pub interval: Option<(f64, f64)>,
}

/// Rows of bars, each of which divides a whole into parts.
#[derive(Debug, Clone, PartialEq)]
pub struct Shares {
    /// Names of the parts, from left to right. The last one is the remainder.
    pub parts: Vec<String>,
    /// Rows: a name, and the fractions of the parts; no fractions if there are no figures.
    pub rows: Vec<(String, Vec<f64>)>,
}

/// The distinct names, in order of first appearance.
pub fn names<'a>(all: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for name in all {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}
