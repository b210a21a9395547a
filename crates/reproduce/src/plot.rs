//! Plots of published and modelled values, made from cells.
//!
//! Published values are dashed or hollow, modelled ones solid; a configuration has the same style throughout a
//! figure.

use super::cell::{Cell, Modelled, Unit};
pub use napkin_measure::report::plot::Figure;
use napkin_measure::report::plot::{
    At, Axis, Dot, DotRow, Dots, Kind, Lines, Plot, Point, Series, Source, names,
};

/// The grouping of dots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// One group per load.
    Load,
    /// One group per quantity, such as a percentile.
    Quantity,
}

/// Two lines per configuration over the loads: one quantity, published and modelled. A load that is not a number
/// has a named position; a line without any points is omitted. `x` is the label of the loads, with their unit.
pub fn lines(
    title: &str,
    caption: &str,
    cells: &[&Cell],
    x: &str,
    quantity: &str,
    log: bool,
) -> Figure {
    let cells: Vec<&Cell> = cells.iter().copied().filter(|it| it.quantity == quantity).collect();
    let unnumbered = cells.iter().filter(|cell| cell.load_value.is_none());
    let named = names(unnumbered.map(|cell| cell.load.as_str()));
    let at = |cell: &Cell| match cell.load_value {
        Some(value) => At::Number(value),
        None => At::Name(named.iter().position(|name| *name == cell.load).unwrap_or(0)),
    };
    let mut series = Vec::new();
    for (style, name) in names(cells.iter().map(|cell| cell.config.as_str())).iter().enumerate() {
        for source in [Source::Published, Source::Modelled] {
            let of_name = cells.iter().filter(|cell| cell.config == *name);
            let point = |cell: &&Cell| Point {
                x: at(cell),
                y: value(cell, source),
                interval: interval(cell, source),
            };
            let points: Vec<Point> = of_name.map(point).collect();
            if points.iter().any(|point| point.y.is_some()) {
                series.push(Series { name: (*name).to_owned(), style, source, points });
            }
        }
    }
    let y = label(quantity, cells.first().map_or(Unit::Count, |cell| cell.unit));
    let plot = Plot::Lines(Lines {
        x: Axis { label: x.to_owned(), log: false },
        named: named.into_iter().map(str::to_owned).collect(),
        y: Axis { label: y, log },
        series,
    });
    Figure { title: title.to_owned(), caption: caption.to_owned(), plot, gaps: gaps(&cells) }
}

/// A row of two dots for each configuration in each group. All cells must have the same unit, and there must be one
/// cell per configuration and group.
pub fn dots(title: &str, caption: &str, cells: &[&Cell], group: Group, log: bool) -> Figure {
    let of_group = |cell: &Cell| match group {
        Group::Load if cell.table.is_empty() => cell.load.clone(),
        Group::Load => format!("{} {}", cell.table, cell.load).trim_end().to_owned(),
        Group::Quantity => cell.quantity.clone(),
    };
    let mut rows: Vec<DotRow> = Vec::new();
    let groups: Vec<String> = cells.iter().map(|cell| of_group(cell)).collect();
    let groups = names(groups.iter().map(String::as_str));
    for name in &groups {
        for cell in cells.iter().filter(|cell| of_group(cell) == *name) {
            let dot = |(kind, source)| {
                let interval = interval(cell, source);
                Some(Dot { kind, value: value(cell, source)?, interval })
            };
            let sources = [(0, Source::Published), (1, Source::Modelled)];
            let dots = sources.into_iter().filter_map(dot).collect();
            rows.push(DotRow { group: (*name).to_owned(), name: cell.config.clone(), dots });
        }
    }
    // If each group has a single row, merge its heading into the row's name.
    if rows.len() == groups.len() {
        let one = names(cells.iter().map(|cell| cell.config.as_str())).len() == 1;
        for row in &mut rows {
            let group = std::mem::take(&mut row.group);
            row.name = if one { group } else { format!("{} {group}", row.name) };
        }
    }
    let first = cells.first();
    let words = match group {
        Group::Load => first.map_or("", |cell| cell.quantity.as_str()),
        Group::Quantity => "",
    };
    let x = label(words, first.map_or(Unit::Count, |cell| cell.unit));
    let kinds = [("published", Source::Published), ("modelled", Source::Modelled)];
    let kinds = kinds.map(|(name, source)| Kind { name: name.to_owned(), style: 0, source });
    let plot = Plot::Dots(Dots { x: Axis { label: x, log }, kinds: kinds.into(), rows });
    Figure { title: title.to_owned(), caption: caption.to_owned(), plot, gaps: gaps(cells) }
}

/// The figures that were not modelled, with reasons.
fn gaps(cells: &[&Cell]) -> Vec<String> {
    let absent = cells.iter().filter(|cell| matches!(cell.modelled, Modelled::Absent { .. }));
    absent.map(|cell| cell.to_string()).collect()
}

fn interval(cell: &Cell, source: Source) -> Option<(f64, f64)> {
    let interval = cell.modelled.estimate().and_then(|it| it.low.zip(it.high));
    interval.filter(|_| source == Source::Modelled)
}

fn value(cell: &Cell, source: Source) -> Option<f64> {
    match source {
        Source::Published => cell.published,
        Source::Modelled | Source::Run => cell.model(),
    }
}

fn label(quantity: &str, unit: Unit) -> String {
    match (quantity, unit.suffix()) {
        (quantity, "") => quantity.to_owned(),
        ("", unit) => unit.to_owned(),
        (quantity, unit) => format!("{quantity}, {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(config: &str, load: f64, quantity: &str, published: f64, modelled: &[f64]) -> Cell {
        Cell {
            load_value: Some(load),
            published: Some(published),
            modelled: Modelled::of(modelled, "it failed"),
            ..Cell::new("2024", config, &load.to_string(), quantity, Unit::Us)
        }
    }

    fn of_lines(cells: &[Cell]) -> (Figure, Lines) {
        let cells: Vec<&Cell> = cells.iter().collect();
        let figure = lines("t", "c", &cells, "requests/s", "p99", true);
        let Plot::Lines(lines) = figure.plot.clone() else { panic!("lines") };
        (figure, lines)
    }

    fn of_dots(cells: &[Cell], group: Group) -> Vec<DotRow> {
        let cells: Vec<&Cell> = cells.iter().collect();
        let Plot::Dots(dots) = dots("t", "c", &cells, group, true).plot else { panic!("dots") };
        dots.rows
    }

    #[test]
    fn a_configuration_has_a_published_and_a_modelled_line_of_one_style() {
        let (figure, lines) = of_lines(&[
            cell("base", 1.0, "p99", 10.0, &[11.0, 13.0]),
            cell("base", 2.0, "p99", 20.0, &[]),
            cell("defer20", 1.0, "p99", 30.0, &[]),
        ]);
        assert_eq!((lines.x.label.as_str(), lines.y.label.as_str()), ("requests/s", "p99, us"));
        let shown: Vec<_> = lines.series.iter().map(|it| (it.style, it.source)).collect();
        let want = [(0, Source::Published), (0, Source::Modelled), (1, Source::Published)];
        assert_eq!(shown, want, "nothing was modelled for defer20, so it has no modelled line");
        let modelled: Vec<_> = lines.series[1].points.iter().map(|point| point.y).collect();
        assert_eq!(modelled, [Some(12.0), None], "the line is interrupted");
        assert!(lines.series[1].points[0].interval.is_some());
        assert_eq!(lines.series[0].points[0].interval, None, "a publication has none");
        assert_eq!(figure.gaps.len(), 2);
        assert!(figure.gaps[0].contains("not modelled (it failed)"), "{:?}", figure.gaps);
    }

    #[test]
    fn a_load_that_is_no_number_has_a_place_of_its_own() {
        let max =
            Cell { load_value: None, load: "MAX".into(), ..cell("base", 0.0, "p99", 5.0, &[6.0]) };
        let (_, lines) = of_lines(&[cell("base", 1.0, "p99", 10.0, &[11.0]), max]);
        assert_eq!(lines.named, ["MAX"]);
        let places: Vec<_> = lines.series[0].points.iter().map(|point| point.x).collect();
        assert_eq!(places, [At::Number(1.0), At::Name(0)]);
    }

    #[test]
    fn dots_are_grouped_by_quantity_or_by_load() {
        let cells = [
            cell("softirq", 1.0, "p50", 337.0, &[340.0]),
            cell("softirq", 1.0, "p99", 1040.0, &[]),
            cell("kthread", 1.0, "p99", 455.0, &[460.0]),
        ];
        let rows = of_dots(&cells, Group::Quantity);
        let shown: Vec<_> = rows
            .iter()
            .map(|row| (row.group.as_str(), row.name.as_str(), row.dots.len()))
            .collect();
        assert_eq!(shown, [("p50", "softirq", 2), ("p99", "softirq", 1), ("p99", "kthread", 2)]);
        let rows = of_dots(&cells[..2], Group::Load);
        assert!(rows.iter().all(|row| row.group == "1"), "{rows:?}");
    }

    #[test]
    fn a_group_of_one_row_needs_no_heading() {
        let alone = |row: &DotRow| (row.group.clone(), row.name.clone());
        let cells = [cell("A001", 1.0, "irqs", 1.0, &[1.0]), cell("A003", 2.0, "irqs", 1.0, &[])];
        let rows: Vec<_> = of_dots(&cells, Group::Load).iter().map(alone).collect();
        assert_eq!(rows, [(String::new(), "A001 1".into()), (String::new(), "A003 2".into())]);
        let rows: Vec<_> = of_dots(&cells[..1], Group::Load).iter().map(alone).collect();
        assert_eq!(rows, [(String::new(), "1".to_owned())], "of one configuration: the load");
    }
}
