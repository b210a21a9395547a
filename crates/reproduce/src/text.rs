//! A reproduction as text: the table of cells, the criteria, and the misses.
//!
//! A line is a row of the published table. Each quantity has its published value, the modelled one and the error
//! and, if the publication's estimator is not what its name says, the true value. All values come from the cells.

use super::cell::{self, Cell, Modelled};
use super::grid::{FITTED, Grid, TextColumn, draw};
use super::json::Reproduction;
use napkin_measure::uncertainty::{Interval, Uncertainty};

/// Shown where there is no figure.
const ABSENT: &str = "-";

/// Most misses printed per criterion; the JSON has all.
const MISSES: usize = 5;

/// Mark of a figure that is shown but not judged.
pub const EXEMPT: char = '~';

/// The cells as grids, one per table, with rows and quantities in the order of the cells.
pub(super) fn grids(cells: &[Cell]) -> Vec<Grid> {
    in_order(cells.iter().map(|cell| cell.table.as_str()))
        .into_iter()
        .map(|table| grid(table, &cells.iter().filter(|c| c.table == table).collect::<Vec<_>>()))
        .collect()
}

fn grid(table: &str, cells: &[&Cell]) -> Grid {
    let rows = in_order(cells.iter().map(|cell| (cell.config.as_str(), cell.load.as_str())));
    let mut leading = vec![TextColumn {
        header: "row".into(),
        values: rows.iter().map(|(config, _)| (*config).to_owned()).collect(),
    }];
    if rows.iter().any(|(_, load)| !load.is_empty()) {
        let values = rows.iter().map(|(_, load)| (*load).to_owned()).collect();
        leading.push(TextColumn { header: "load".into(), values });
    }
    let quantities = in_order(cells.iter().map(|cell| cell.quantity.as_str()));
    let columns = quantities.into_iter().map(|quantity| {
        let of_row = |(config, load): &(&str, &str)| {
            let same =
                |c: &&&Cell| c.config == *config && c.load == *load && c.quantity == quantity;
            cells.iter().find(same).copied()
        };
        quantity_columns(quantity, &rows.iter().map(of_row).collect::<Vec<_>>())
    });
    Grid { table: table.to_owned(), quantities: columns.collect(), leading }
}

fn quantity_columns(quantity: &str, cells: &[Option<&Cell>]) -> Vec<TextColumn> {
    let column = |header: &str, value: &dyn Fn(&Cell) -> Option<String>| TextColumn {
        header: header.to_owned(),
        values: cells
            .iter()
            .map(|cell| cell.and_then(value).unwrap_or_else(|| ABSENT.to_owned()))
            .collect(),
    };
    let unit = cells.iter().flatten().next().map_or("", |cell| cell.unit.suffix());
    let header = if unit.is_empty() { quantity.to_owned() } else { format!("{quantity} {unit}") };
    let marks = |cell: &Cell| {
        let fitted = if cell.fitted { FITTED.to_string() } else { String::new() };
        if cell.exempt { format!("{fitted}{EXEMPT}") } else { fitted }
    };
    let modelled =
        |cell: &Cell| cell.model().map(|value| format!("{}{}", marks(cell), cell::number(value)));
    let published = cells.iter().flatten().any(|cell| cell.published.is_some());
    let mut columns = vec![column(&header, &modelled)];
    if published {
        columns = vec![
            column(&header, &|cell| cell.published.map(cell::number)),
            column("model", &modelled),
            column("error", &|cell| Some(cell::error(cell)).filter(|text| !text.is_empty())),
        ];
    }
    if cells.iter().flatten().any(|cell| cell.true_grows || cell.true_value.is_some()) {
        columns.push(column("true", &|cell| match cell.true_grows {
            true => Some("grows".to_owned()),
            false => cell.true_value.map(cell::number),
        }));
    }
    if cells.iter().flatten().any(|cell| cell.interval.is_some()) {
        columns.push(column("90 %", &|cell| {
            let Interval { low, high, .. } = cell.interval?;
            Some(format!("{}..{}", cell::number(low), cell::number(high)))
        }));
    }
    columns
}

/// The distinct items, in order of first appearance.
fn in_order<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for item in items {
        if !seen.contains(&item) {
            seen.push(item);
        }
    }
    seen
}

/// The complete reproduction as text. Ends with a newline.
pub fn render(reproduction: &Reproduction) -> String {
    let Reproduction { experiment, title, profiles, quick, notes, cells, .. } = reproduction;
    let mut text = format!("{experiment}: {title}\n");
    if !profiles.is_empty() {
        text.push_str(&format!("on the host profile {}\n", profiles.join(", ")));
    }
    if *quick {
        text.push_str("a quick run: fewer and shorter runs than the figures need\n");
    }
    for grid in grids(cells) {
        text.push('\n');
        if !grid.table.is_empty() {
            text.push_str(&format!("{}\n", grid.table));
        }
        text.push_str(&draw(&grid));
    }
    text.push_str(&legend(cells));
    for reason in absences(cells) {
        text.push_str(&format!("{reason}\n"));
    }
    for note in notes {
        text.push_str(&format!("note: {note}\n"));
    }
    text.push('\n');
    for line in reproduction.uncertainty.iter().flat_map(orders) {
        text.push_str(&format!("{line}\n"));
    }
    if let Some(causes) = &reproduction.causes {
        for line in causes.about() {
            text.push_str(&format!("{line}\n"));
        }
        text.push_str(&format!("\n{}\n", draw(&causes.grid())));
        for line in causes.lines() {
            text.push_str(&format!("{line}\n"));
        }
        text.push('\n');
    }
    text.push_str(&verdicts(reproduction));
    text
}

/// Lines on the stability of the orders over the draws.
pub(super) fn orders(uncertainty: &Uncertainty) -> Vec<String> {
    let first = format!(
        "{} draws of all fitted and assumed constants within their ranges, and of seeds: 90 % of a figure's \
         draws lie in its interval.",
        uncertainty.draws
    );
    [first].into_iter().chain(uncertainty.lines()).chain([String::new()]).collect()
}

/// Explanations of the marks that were used.
fn legend(cells: &[Cell]) -> String {
    let mut text = String::new();
    if cells.iter().any(|cell| cell.fitted) {
        text.push_str(&format!(
            "{FITTED} the profile was fitted to this figure: it is no prediction\n"
        ));
    }
    if cells.iter().any(|cell| cell.exempt) {
        text.push_str(&format!("{EXEMPT} shown and not judged\n"));
    }
    text
}

/// The reasons of missing modelled figures, once per row.
pub(super) fn absences(cells: &[Cell]) -> Vec<String> {
    in_order(cells.iter().filter_map(|cell| match &cell.modelled {
        Modelled::Absent { why } => Some(format!("not modelled ({}): {why}", cell.row())),
        Modelled::Value(_) => None,
    }))
}

/// The criteria, each followed by its misses.
fn verdicts(reproduction: &Reproduction) -> String {
    let verdicts = &reproduction.verdicts;
    let mut text = String::new();
    for verdict in verdicts {
        let mark = if verdict.met { "met   " } else { "MISSED" };
        text.push_str(&format!(
            "{mark}  {}: {}; asked: {}\n",
            verdict.what, verdict.got, verdict.asked
        ));
        if !verdict.worst.is_empty() {
            text.push_str(&format!("          worst: {}\n", verdict.worst.join("; ")));
        }
        // Individual figures may miss although the criterion is met; it allows for that.
        let shown = if verdict.met { 0 } else { MISSES };
        for miss in verdict.misses.iter().take(shown) {
            text.push_str(&format!("          {miss}\n"));
        }
        let more = verdict.misses.len().saturating_sub(shown);
        if shown > 0 && more > 0 {
            text.push_str(&format!("          and {more} more, all of them in the JSON\n"));
        }
    }
    text.push_str(&summary(verdicts.iter().filter(|v| v.met).count(), verdicts.len()));
    text
}

/// One sentence with the number of criteria met, and a newline.
pub fn summary(met: usize, all: usize) -> String {
    match (met, all) {
        (_, 0) => "Nothing was asked of it.\n".to_owned(),
        _ if met == all => format!("All {all} criteria are met.\n"),
        _ => format!("{} of {all} criteria are not met.\n", all - met),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::Unit;
    use crate::fake::Fake;
    use napkin_measure::report::text::WIDTH;

    #[test]
    fn a_reproduction_reads_as_a_table_and_its_verdicts() {
        let text = render(&Fake::default().run());
        let want = "\
fake: An invented experiment
on the host profile nowhere

row  load  \"p99\" us   model    error   true
-------------------------------------------
a    1/s        100  *114.5  +14.5 %    229
a    2/s        200     227  +13.5 %    454
b    1/s        150   170.8  +13.8 %  341.5
b    2/s       1500    1690  +12.6 %   3379
* the profile was fitted to this figure: it is no prediction
note: Fitted to one row.

met     p99, 3 figures: 13.5 %, with its sign +13.5 %; 3 of 3 within 20 %; asked: median error at most 20 %
          worst: b, 1/s +14 %; a, 2/s +14 %; b, 2/s +13 %
MISSED  p99: 0 of 3 (0 %); asked: within 10 % in at least 90 % of the figures
          b, 1/s: \"p99\" published 150 us, modelled 170.8 us (+13.8 %)
          a, 2/s: \"p99\" published 200 us, modelled 227 us (+13.5 %)
          b, 2/s: \"p99\" published 1500 us, modelled 1690 us (+12.6 %)
1 of 2 criteria are not met.
";
        assert_eq!(text, want, "\n{text}");
    }

    #[test]
    fn a_figure_without_a_model_is_a_dash_and_its_reason_stands_below_once() {
        let text = render(&Fake { fails: Some("a at 2"), ..Fake::default() }.run());
        assert!(text.contains("a    2/s        200       -        -      -\n"), "{text}");
        assert_eq!(text.matches("\nnot modelled (a, 2/s): no such load\n").count(), 1, "{text}");
    }

    #[test]
    fn wide_tables_are_continued_below_and_no_quantity_is_parted() {
        let cells: Vec<Cell> = (0..20)
            .map(|i| Cell {
                published: Some(1e6),
                ..Cell::new("kernel", "A001", "", &format!("quantity {i}"), Unit::Count)
            })
            .collect();
        let text = draw(&grids(&cells)[0]);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.matches("A001").count() > 1, "the row is named again:\n{text}");
        for line in text.lines().filter(|line| line.starts_with("row")) {
            let parts = ["quantity", "model", "error"].map(|name| line.matches(name).count());
            assert!(parts.iter().all(|count| *count == parts[0]), "{line}");
        }
    }

    #[test]
    fn tables_of_one_experiment_stand_apart_and_a_hole_in_one_is_a_dash() {
        let cell = |table: &str, config: &str, quantity: &str| Cell {
            table: table.into(),
            published: Some(1.0),
            ..Cell::new("2020", config, "1B", quantity, Unit::Us)
        };
        let cells = [cell("tcp_rr", "a", "p50"), cell("ssd", "a", "p50"), cell("ssd", "b", "p95")];
        let grids = grids(&cells);
        assert_eq!(grids.len(), 2);
        assert_eq!(grids[1].quantities[0][0].values, ["1", "-"], "b has no p50");
    }

    #[test]
    fn a_quick_run_says_so_and_an_empty_one_does_not_panic() {
        let mut reproduction = Fake::default().run();
        reproduction.quick = true;
        assert!(render(&reproduction).contains("a quick run"));
        reproduction.cells.clear();
        reproduction.verdicts.clear();
        assert!(render(&reproduction).ends_with("Nothing was asked of it.\n"));
    }
}
