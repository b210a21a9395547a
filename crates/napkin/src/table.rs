//! Tables for people.
//!
//! Not the tables of `napkin bench`, whose columns know units and absences: those are the bench
//! crate's.

use comfy_table::{ContentArrangement, LineStyle, Table, TableStyle};
use napkin_linux::apply::fold;
use napkin_linux::place::Change;
use napkin_policy::text::escaped;

/// Characters in a line of text that is wrapped.
const WIDTH: u16 = 100;

/// Columns under their headers; long texts are wrapped.
pub(crate) fn wrapped(header: &[&str], rows: Vec<Vec<String>>) -> String {
    wrapped_lines(header, harmless(rows))
}

/// The same for texts of our own, which may have several lines.
pub(crate) fn wrapped_lines(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = plain(header, rows);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(WIDTH);
    finish(&mut table)
}

/// Columns under their headers, as wide as they are: nothing that could be a number is broken.
pub(crate) fn columns(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = plain(header, harmless(rows));
    table.set_content_arrangement(ContentArrangement::Disabled);
    finish(&mut table)
}

/// A name with a line end in it would look like another row.
fn harmless(rows: Vec<Vec<String>>) -> Vec<Vec<String>> {
    rows.into_iter().map(|row| row.iter().map(|cell| escaped(cell)).collect()).collect()
}

fn plain(header: &[&str], rows: Vec<Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(TableStyle::new().header_separator(LineStyle::none().fill('-')));
    table.set_header(header.iter().copied());
    table.add_rows(rows);
    table
}

fn finish(table: &mut Table) -> String {
    let last = table.column_count().saturating_sub(1);
    for (place, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, if place == last { 0 } else { 2 }));
    }
    table.trim_fmt() + "\n"
}

/// Changes as a table.
pub(crate) fn changed(ifname: &str, changes: &[Change]) -> String {
    let rows = fold(changes)
        .into_iter()
        .map(|it| vec![ifname.to_owned(), it.subject, it.what.to_owned(), it.from, it.to]);
    columns(&["dev", "instance", "setting", "from", "to"], rows.collect())
}
