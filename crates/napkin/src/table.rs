//! Tables of text on the terminal.
//!
//! The tables of `napkin bench`, whose columns have units and absent values, are in `napkin_measure::report::table`.

use napkin_linux::apply::fold;
use napkin_linux::place::Change;
use napkin_measure::report::fit::{Abbreviations, fit, omitted_note};
use napkin_measure::report::{table, text};
use napkin_policy::text::escaped;

/// Longest line of wrapped text, in characters: longer ones are hard to read.
const WIDTH: usize = 100;

/// Line width of wrapped text, in characters: the terminal's, at most [`WIDTH`].
pub(crate) fn width() -> usize {
    text::line_width(std::io::stdout()).min(WIDTH)
}

/// Columns under their headers; long texts are wrapped.
pub(crate) fn wrapped(header: &[&str], rows: Vec<Vec<String>>) -> String {
    wrapped_lines(header, escape_cells(rows))
}

/// As [`wrapped`], for napkin's own texts, which may have several lines.
pub(crate) fn wrapped_lines(header: &[&str], rows: Vec<Vec<String>>) -> String {
    draw(header, rows, Some(width() as u16))
}

/// Columns under their headers, not wrapped, so that no number is broken.
pub(crate) fn columns(header: &[&str], rows: Vec<Vec<String>>) -> String {
    draw(header, escape_cells(rows), None)
}

/// As [`columns`], with only the columns that fit on a line, chosen by rank. Below the table: the names of the others,
/// and the long names of the first column, which are replaced by signs.
pub(crate) fn fitting(
    header: &[&str],
    rows: Vec<Vec<String>>,
    by_rank: &[usize],
    width: usize,
) -> String {
    let mut rows = escape_cells(rows);
    let mut signs = Abbreviations::new(width);
    for name in rows.iter_mut().filter_map(|row| row.first_mut()) {
        if let Some(sign) = signs.of(name, name) {
            *name = sign;
        }
    }
    let size = |place: usize| {
        let cells = rows.iter().map(|row| row[place].chars().count());
        cells.chain([header[place].chars().count()]).max().unwrap_or(0)
    };
    let chosen = fit(by_rank.iter().map(|place| (*place, size(*place))), width);
    let (shown, others): (Vec<usize>, Vec<usize>) =
        (0..header.len()).partition(|place| chosen.contains(place));
    let rows = rows.iter().map(|row| shown.iter().map(|place| row[*place].clone()).collect());
    let mut out =
        draw(&shown.iter().map(|place| header[*place]).collect::<Vec<_>>(), rows.collect(), None);
    let others: Vec<String> = others.iter().map(|place| header[*place].to_owned()).collect();
    for line in signs.lines().chain(omitted_note(&others)) {
        out.push_str(&text::wrap(&line, width));
        out.push('\n');
    }
    out
}

/// Escapes the cells: a name with a line end would look like another row.
fn escape_cells(rows: Vec<Vec<String>>) -> Vec<Vec<String>> {
    rows.into_iter().map(|row| row.iter().map(|cell| escaped(cell)).collect()).collect()
}

fn draw(header: &[&str], rows: Vec<Vec<String>>, width: Option<u16>) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_longer_than_asked_for_and_every_column_is_there_or_named() {
        let header = ["policy", "slices", "p99", "/reference"];
        let long = "suspend20,gro-flush-timeout=50us,irq-suspend-timeout=20ms";
        let row =
            |name: &str| [name, "6", "120 us", "0.41 [0.36,0.47]"].map(str::to_owned).to_vec();
        for width in 30..100 {
            let text = fitting(&header, vec![row("base"), row(long)], &[0, 3, 2, 1], width);
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}:\n{text}");
            assert!(text.replace("\n  ", "").contains(&format!("[1]: {long}\n")), "{text}");
            let unwrapped = text.replace("\n  ", " ");
            assert!(header.iter().all(|name| unwrapped.contains(name)), "{width}:\n{text}");
            // The verdict's figure takes precedence over the other columns, and is never cut.
            assert!(text.contains("0.41 [0.36,0.47]\n"), "{width}:\n{text}");
        }
        let narrow = fitting(&header, vec![row("base")], &[0, 3, 2, 1], 30);
        assert!(narrow.starts_with("policy  /reference\n"), "{narrow}");
        let wide = fitting(&header, vec![row("base")], &[0, 3, 2, 1], 120);
        assert_eq!(wide, columns(&header, vec![row("base")]));
    }
}
