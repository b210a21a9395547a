//! Plots of published beside modelled figures, made from cells.
//!
//! The drawing is our own, a few hundred lines in [`svg`] and [`axis`]: of the crates that were looked at,
//! plotters writes its colours into every element, which rules out one page for light and dark, and poloto
//! brings neither bars nor a logarithmic axis. Published figures are dashed or hollow, modelled ones solid;
//! a configuration has one colour in all of a figure.

pub mod axis;
pub mod svg;

use super::cell::{Cell, Unit};

/// A plot with its words.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// What it shows, in a line.
    pub title: String,
    /// How to read it, and what to look for.
    pub caption: String,
    /// The plot.
    pub plot: Plot,
}

/// A plot.
#[derive(Debug, Clone, PartialEq)]
pub enum Plot {
    /// Lines with markers over a numeric axis.
    Lines {
        /// The horizontal axis.
        x: AxisWords,
        /// The vertical axis.
        y: AxisWords,
        /// The lines.
        series: Vec<Series>,
    },
    /// Bars side by side in named groups.
    Bars {
        /// The vertical axis.
        y: AxisWords,
        /// The groups' names.
        groups: Vec<String>,
        /// One bar a group each.
        series: Vec<BarSeries>,
    },
}

/// What an axis says, and its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AxisWords {
    /// What stands along it, with the unit.
    pub label: String,
    /// Whether it is logarithmic; values at or below zero are then not shown.
    pub log: bool,
}

/// Where a figure comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The document.
    Published,
    /// The machine.
    Modelled,
}

/// A line.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// The configuration.
    pub name: String,
    /// Its colour, by number.
    pub colour: usize,
    /// Where its figures come from.
    pub source: Source,
    /// Its points, in the order of the line.
    pub points: Vec<Point>,
}

/// A point of a line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Across.
    pub x: f64,
    /// Up.
    pub y: f64,
    /// The confidence interval of `y`, where there is one.
    pub interval: Option<(f64, f64)>,
}

/// The bars of one configuration and source.
#[derive(Debug, Clone, PartialEq)]
pub struct BarSeries {
    /// The configuration.
    pub name: String,
    /// Its colour, by number.
    pub colour: usize,
    /// Where its figures come from.
    pub source: Source,
    /// A value for each group; `None` where there is none.
    pub values: Vec<Option<f64>>,
}

/// What a line runs over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum X<'a> {
    /// The cells' `load_value`; the words are the axis's label. Loads that are no numbers are left out.
    Load(&'a str),
    /// Another quantity of the same row, published for the published line and modelled for the modelled
    /// one: the achieved rate, where the load asked for is not what was had.
    Quantity(&'a str),
}

/// What the groups of a bar plot are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// The loads.
    Load,
    /// The quantities, such as percentiles.
    Quantity,
}

/// Two lines for each configuration: one quantity, published and modelled. A line of which there is no
/// point is left out.
pub fn lines(
    title: &str,
    caption: &str,
    cells: &[&Cell],
    x: X<'_>,
    quantity: &str,
    log_y: bool,
) -> Figure {
    let of_quantity: Vec<&Cell> =
        cells.iter().copied().filter(|c| c.quantity == quantity).collect();
    let configs = names(of_quantity.iter().map(|cell| cell.config.as_str()));
    let mut series = Vec::new();
    for (colour, config) in configs.iter().enumerate() {
        for source in [Source::Published, Source::Modelled] {
            let of_config = of_quantity.iter().filter(|cell| cell.config == *config);
            let point = |cell: &&Cell| {
                Some(Point { x: across(cell, cells, x, source)?, ..point(cell, source)? })
            };
            let points: Vec<Point> = of_config.filter_map(point).collect();
            if !points.is_empty() {
                series.push(Series { name: (*config).to_owned(), colour, source, points });
            }
        }
    }
    let unit = |cell: Option<&&Cell>| cell.map_or(Unit::Count, |cell| cell.unit);
    let x_label = match x {
        X::Load(label) => label.to_owned(),
        X::Quantity(name) => label(name, unit(cells.iter().find(|c| c.quantity == name))),
    };
    Figure {
        title: title.to_owned(),
        caption: caption.to_owned(),
        plot: Plot::Lines {
            x: AxisWords { label: x_label, log: false },
            y: AxisWords { label: label(quantity, unit(of_quantity.first())), log: log_y },
            series,
        },
    }
}

fn across(cell: &Cell, cells: &[&Cell], x: X<'_>, source: Source) -> Option<f64> {
    match x {
        X::Load(_) => cell.load_value,
        X::Quantity(name) => {
            let beside = cells.iter().find(|other| {
                other.quantity == name
                    && other.config == cell.config
                    && other.load == cell.load
                    && other.table == cell.table
            })?;
            value(beside, source)
        }
    }
}

fn point(cell: &Cell, source: Source) -> Option<Point> {
    let interval = cell.modelled.estimate().and_then(|e| e.low.zip(e.high));
    let interval = interval.filter(|_| source == Source::Modelled);
    Some(Point { x: 0.0, y: value(cell, source)?, interval })
}

fn value(cell: &Cell, source: Source) -> Option<f64> {
    match source {
        Source::Published => cell.published,
        Source::Modelled => cell.model(),
    }
}

/// Two bars for each configuration in each group. The cells must have one unit, and one cell for each
/// configuration and group.
pub fn bars(title: &str, caption: &str, cells: &[&Cell], group: Group, log_y: bool) -> Figure {
    let of_group = |cell: &Cell| match group {
        Group::Load if cell.table.is_empty() => cell.load.clone(),
        Group::Load => format!("{} {}", cell.table, cell.load).trim_end().to_owned(),
        Group::Quantity => cell.quantity.clone(),
    };
    let mut groups: Vec<String> = Vec::new();
    for cell in cells {
        let name = of_group(cell);
        if !groups.contains(&name) {
            groups.push(name);
        }
    }
    let configs = names(cells.iter().map(|cell| cell.config.as_str()));
    let mut series = Vec::new();
    for (colour, config) in configs.iter().enumerate() {
        for source in [Source::Published, Source::Modelled] {
            let of_name = |name: &String| {
                let mut own = cells.iter().filter(|c| c.config == *config && of_group(c) == *name);
                own.find_map(|cell| value(cell, source))
            };
            let values: Vec<Option<f64>> = groups.iter().map(of_name).collect();
            series.push(BarSeries { name: (*config).to_owned(), colour, source, values });
        }
    }
    let first = cells.first();
    let unit = first.map_or(Unit::Count, |cell| cell.unit);
    let words = match group {
        Group::Load => first.map_or("", |cell| cell.quantity.as_str()),
        Group::Quantity => "",
    };
    Figure {
        title: title.to_owned(),
        caption: caption.to_owned(),
        plot: Plot::Bars { y: AxisWords { label: label(words, unit), log: log_y }, groups, series },
    }
}

fn label(quantity: &str, unit: Unit) -> String {
    match (quantity, unit.suffix()) {
        (quantity, "") => quantity.to_owned(),
        ("", unit) => unit.to_owned(),
        (quantity, unit) => format!("{quantity}, {unit}"),
    }
}

/// The different names, in order.
fn names<'a>(all: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for name in all {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::cell::Modelled;

    fn cell(config: &str, load: f64, quantity: &str, published: f64, modelled: &[f64]) -> Cell {
        Cell {
            load_value: Some(load),
            published: Some(published),
            modelled: Modelled::of(modelled, "it failed"),
            ..Cell::new("2024", config, &load.to_string(), quantity, Unit::Us)
        }
    }

    #[test]
    fn a_configuration_has_a_published_and_a_modelled_line_of_one_colour() {
        let cells = [
            cell("base", 1.0, "p99", 10.0, &[11.0]),
            cell("base", 2.0, "p99", 20.0, &[]),
            cell("defer20", 1.0, "p99", 30.0, &[]),
        ];
        let cells: Vec<&Cell> = cells.iter().collect();
        let figure = lines("t", "c", &cells, X::Load("requests/s"), "p99", true);
        let Plot::Lines { x, y, series } = figure.plot else { panic!("lines") };
        assert_eq!((x.label.as_str(), y.label.as_str(), y.log), ("requests/s", "p99, us", true));
        let shown: Vec<_> = series.iter().map(|s| (s.colour, s.source, s.points.len())).collect();
        let want = [(0, Source::Published, 2), (0, Source::Modelled, 1), (1, Source::Published, 1)];
        assert_eq!(shown, want, "nothing was modelled for defer20, so it has no modelled line");
    }

    #[test]
    fn a_line_over_another_quantity_takes_that_quantity_from_its_own_source() {
        let cells = [
            cell("base", 1.0, "achieved", 900.0, &[950.0]),
            cell("base", 1.0, "p99", 10.0, &[11.0, 13.0]),
        ];
        let cells: Vec<&Cell> = cells.iter().collect();
        let figure = lines("t", "c", &cells, X::Quantity("achieved"), "p99", false);
        let Plot::Lines { series, .. } = figure.plot else { panic!("lines") };
        assert_eq!((series[0].points[0].x, series[0].points[0].interval), (900.0, None));
        assert_eq!((series[1].points[0].x, series[1].points[0].y), (950.0, 12.0));
        assert!(series[1].points[0].interval.is_some());
    }

    #[test]
    fn bars_are_grouped_by_quantity_or_by_load() {
        let cells = [
            cell("softirq", 1.0, "p50", 337.0, &[340.0]),
            cell("softirq", 1.0, "p99", 1040.0, &[]),
            cell("kthread", 1.0, "p99", 455.0, &[460.0]),
        ];
        let cells: Vec<&Cell> = cells.iter().collect();
        let Plot::Bars { groups, series, .. } = bars("t", "c", &cells, Group::Quantity, true).plot
        else {
            panic!("bars")
        };
        assert_eq!(groups, ["p50", "p99"]);
        let values: Vec<_> = series.iter().map(|s| s.values.clone()).collect();
        let want = [
            [Some(337.0), Some(1040.0)],
            [Some(340.0), None],
            [None, Some(455.0)],
            [None, Some(460.0)],
        ];
        assert_eq!(values, want);
        let Plot::Bars { groups, .. } = bars("t", "c", &cells, Group::Load, true).plot else {
            panic!("bars")
        };
        assert_eq!(groups, ["1"]);
    }
}
