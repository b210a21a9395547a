//! Plots for a page: what they show, without a pixel.
//!
//! [`Lines`] run over loads, [`Dots`] stand in rows on one axis, [`Shares`] divide a whole. The drawing in
//! [`svg`] is our own: of the crates that were looked at, plotters writes its colours into every element,
//! which rules out one page for light and dark, and poloto has no logarithmic axis.
//!
//! A style is a number: a colour, a shape of the mark and a dash pattern, so that nobody has to tell lines
//! apart by colour alone. Names of more than [`MOST_TOGETHER`] lines get a small plot each.

mod across;
pub mod axis;
mod dots;
pub(super) mod draw;
mod lines;
mod shares;
pub mod svg;

/// The most names whose lines stand in one plot.
pub const MOST_TOGETHER: usize = 6;

/// A plot with its words.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// What it shows, in a line.
    pub title: String,
    /// How to read it, and what to look for.
    pub caption: String,
    /// What is drawn above the caption.
    pub plot: Plot,
    /// What has no figure in it, and why, a sentence each.
    pub gaps: Vec<String>,
}

/// The kinds of plots that a page has.
#[derive(Debug, Clone, PartialEq)]
pub enum Plot {
    /// Lines with marks.
    Lines(Lines),
    /// Rows of dots.
    Dots(Dots),
    /// Rows of bars that divide a whole.
    Shares(Shares),
}

/// What an axis says, and its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Axis {
    /// What stands along it, with the unit.
    pub label: String,
    /// Whether it is logarithmic.
    pub log: bool,
}

/// Where a figure comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A publication: hollow and dashed.
    Published,
    /// The machine, beside a publication.
    Modelled,
    /// The run that a page is about.
    Run,
}

/// Lines over loads.
#[derive(Debug, Clone, PartialEq)]
pub struct Lines {
    /// The horizontal axis.
    pub x: Axis,
    /// Loads that are no numbers, such as `max`: places behind the numbers. Without a number among the
    /// loads they have the axis to themselves.
    pub named: Vec<String>,
    /// The vertical axis. A logarithmic one does not show values at or below zero.
    pub y: Axis,
    /// The lines, in the order of the legend.
    pub series: Vec<Series>,
}

/// A line, with its name in the legend.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Whose it is.
    pub name: String,
    /// Its style, by number.
    pub style: usize,
    /// Where its figures come from.
    pub source: Source,
    /// Its points, in the order of the line.
    pub points: Vec<Point>,
}

/// A place on a horizontal axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum At {
    /// A place on a scale of numbers.
    Number(f64),
    /// One of the axis's named places.
    Name(usize),
}

/// A point of a line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Its place on the horizontal axis.
    pub x: At,
    /// Up; `None` where there is no figure, and the line is interrupted.
    pub y: Option<f64>,
    /// How far `y` is uncertain, or the repetitions lie apart.
    pub interval: Option<(f64, f64)>,
}

/// Rows of dots over one horizontal axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Dots {
    /// The axis. A logarithmic one has a place of its own for zero.
    pub x: Axis,
    /// What the dots are of, in the legend's order.
    pub kinds: Vec<Kind>,
    /// The rows, downwards.
    pub rows: Vec<DotRow>,
}

/// What a dot is of.
#[derive(Debug, Clone, PartialEq)]
pub struct Kind {
    /// Its name in the legend.
    pub name: String,
    /// Its style, by number.
    pub style: usize,
    /// Where it comes from.
    pub source: Source,
}

/// A row of dots.
#[derive(Debug, Clone, PartialEq)]
pub struct DotRow {
    /// The heading that it stands under; empty without one.
    pub group: String,
    /// Its name, left of the row.
    pub name: String,
    /// Its dots, in any order.
    pub dots: Vec<Dot>,
}

/// A dot of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dot {
    /// What it is of, by number.
    pub kind: usize,
    /// Where it stands.
    pub value: f64,
    /// How far that is uncertain, or the repetitions lie apart.
    pub interval: Option<(f64, f64)>,
}

/// Rows of bars, each a whole in parts.
#[derive(Debug, Clone, PartialEq)]
pub struct Shares {
    /// The parts' names, in their order from the left. The last is what is left over.
    pub parts: Vec<String>,
    /// The rows: name and the fractions of the parts; no fractions where there is no figure.
    pub rows: Vec<(String, Vec<f64>)>,
}

/// The different names, each where it stood first.
pub fn names<'a>(all: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for name in all {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}
