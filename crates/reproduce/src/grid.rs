//! A text table with groups of columns, printed in parts that fit a terminal.

use napkin_measure::report::table;
use napkin_measure::report::text::WIDTH;

/// Blanks between two columns.
const GAP: usize = 2;

/// Mark of a figure that the profile was fitted to.
pub(crate) const FITTED: char = '*';

/// A column of text.
#[derive(Debug, Clone)]
pub(super) struct TextColumn {
    pub(super) header: String,
    pub(super) values: Vec<String>,
}

/// The rows of one table, transposed into text columns.
#[derive(Debug)]
pub(super) struct Grid {
    /// Name of the table; empty if the experiment has only one.
    pub(super) table: String,
    /// Columns that identify the row.
    pub(super) leading: Vec<TextColumn>,
    /// Groups of columns, one per quantity.
    pub(super) quantities: Vec<Vec<TextColumn>>,
}

/// Prints a grid in parts of at most [`WIDTH`] characters. Each part starts with the leading columns; the columns
/// of a quantity are never split.
pub(super) fn draw(grid: &Grid) -> String {
    let width = |column: &TextColumn| {
        let texts = column.values.iter().chain([&column.header]);
        texts.map(|text| text.chars().count()).max().unwrap_or(0) + GAP
    };
    let of_all = |columns: &[TextColumn]| columns.iter().map(width).sum::<usize>();
    let lead = of_all(&grid.leading);
    let mut parts: Vec<Vec<&TextColumn>> = Vec::new();
    let mut used = usize::MAX;
    for quantity in &grid.quantities {
        let needed = of_all(quantity);
        if used.saturating_add(needed) > WIDTH + GAP {
            parts.push(grid.leading.iter().collect());
            used = lead;
        }
        used += needed;
        if let Some(part) = parts.last_mut() {
            part.extend(quantity);
        }
    }
    parts.iter().map(|part| draw_part(part, grid.leading.len())).collect::<Vec<_>>().join("\n")
}

fn draw_part(columns: &[&TextColumn], leading: usize) -> String {
    let header = columns.iter().map(|column| column.header.clone()).collect();
    let rows = columns.first().map_or(0, |column| column.values.len());
    let cells =
        |row: usize| columns.iter().filter_map(|column| column.values.get(row).cloned()).collect();
    table::draw(header, (0..rows).map(cells).collect(), None, |place| place >= leading) + "\n"
}
