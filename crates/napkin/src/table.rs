//! Tables for people.
//!
//! Not the tables of `napkin bench`, whose columns know units and absences: those are
//! `napkin_measure::report::table`'s.

use napkin_linux::apply::fold;
use napkin_linux::place::Change;
use napkin_measure::report::table;
use napkin_policy::text::escaped;

/// Characters in a line of text that is wrapped.
const WIDTH: u16 = 100;

/// Columns under their headers; long texts are wrapped.
pub(crate) fn wrapped(header: &[&str], rows: Vec<Vec<String>>) -> String {
    wrapped_lines(header, harmless(rows))
}

/// The same for texts of our own, which may have several lines.
pub(crate) fn wrapped_lines(header: &[&str], rows: Vec<Vec<String>>) -> String {
    drawn(header, rows, Some(WIDTH))
}

/// Columns under their headers, as wide as they are: nothing that could be a number is broken.
pub(crate) fn columns(header: &[&str], rows: Vec<Vec<String>>) -> String {
    drawn(header, harmless(rows), None)
}

/// A name with a line end in it would look like another row.
fn harmless(rows: Vec<Vec<String>>) -> Vec<Vec<String>> {
    rows.into_iter().map(|row| row.iter().map(|cell| escaped(cell)).collect()).collect()
}

fn drawn(header: &[&str], rows: Vec<Vec<String>>, width: Option<u16>) -> String {
    let header = header.iter().copied().map(str::to_owned).collect();
    table::draw(header, rows, width, |_| false) + "\n"
}

/// Changes as a table.
pub(crate) fn changed(ifname: &str, changes: &[Change]) -> String {
    let rows = fold(changes)
        .into_iter()
        .map(|it| vec![ifname.to_owned(), it.subject, it.what.to_owned(), it.from, it.to]);
    columns(&["dev", "instance", "setting", "from", "to"], rows.collect())
}
