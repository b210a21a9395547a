//! Tests of why rows miss: changes of the model, each tried on all rows.
//!
//! A change varies something that the model takes as fixed although it is not: arrival times, or the length of an
//! emulator's turn. It is drawn many times, and each draw is compared with the published counts. If some draw meets
//! a row, the varied quantity explains its miss. That does not make the row pass: no verdict changes. A
//! sufficiently wide change explains anything, so there are two controls: how many rows that are met stay met, and
//! how many rows meet the published counts of a different row.

use serde::{Deserialize, Serialize};

use super::cell::{Cell, Unit};
use super::grid::{FITTED, Grid, TextColumn};

/// Results of trying the changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Causes {
    /// Draws of each change.
    pub draws: u64,
    /// The changes, with their effects on the rows.
    pub changes: Vec<Tried>,
    /// The rows that miss without any change.
    pub rows: Vec<Missed>,
}

/// A change, and its effects on all rows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tried {
    /// A short name: `phase`.
    pub name: String,
    /// What is drawn, and from which range.
    pub what: String,
    /// Draws that failed, over all rows.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failed: u64,
    /// Rows that are met without it.
    pub met: usize,
    /// Of those, the rows that at least half of the draws still meet.
    pub stay: usize,
    /// Rows that miss without it, and that at least one draw meets completely.
    pub cured: usize,
    /// Rows that miss without it, and whose published counts each lie within the range of the draws.
    pub spanned: usize,
    /// Rows that were compared with the published counts of another row, which they do not meet.
    pub others: usize,
    /// Of those, the rows for which at least one draw meets the other row's counts completely.
    pub others_cured: usize,
    /// Of those, the rows for which each of these counts lies within the range of the draws.
    pub others_spanned: usize,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// A row that misses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missed {
    /// Name of the row in the table.
    pub row: String,
    /// Its load, in words.
    pub load: String,
    /// Whether the profile was fitted to it.
    pub fitted: bool,
    /// The counts that miss, in words: `interrupts 16, modelled 6`.
    pub off: Vec<String>,
    /// The changes that meet it completely, by descending number of draws.
    pub cured: Vec<Cure>,
    /// The changes that span each of its counts, but meet it completely in no draw.
    pub spanned: Vec<String>,
}

/// A change that meets a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cure {
    /// Name of the change, as in [`Tried::name`].
    pub change: String,
    /// Number of draws that meet the row.
    pub draws: u64,
}

impl Missed {
    /// The changes that cure it, in words.
    pub fn words(&self, draws: u64) -> String {
        let cures = self.cured.iter().map(|it| format!("{} ({} of {draws})", it.change, it.draws));
        let cured = (!self.cured.is_empty())
            .then(|| format!("cured by {}", cures.collect::<Vec<_>>().join(", ")));
        let spanned = (!self.spanned.is_empty())
            .then(|| format!("spanned, and met in no draw, by {}", self.spanned.join(", ")));
        match (cured, spanned) {
            (None, None) => "cured by none of the changes".to_owned(),
            (Some(one), None) | (None, Some(one)) => one,
            (Some(cured), Some(spanned)) => format!("{cured}; {spanned}"),
        }
    }
}

impl Causes {
    /// Texts above the table of changes: an explanation, and a description of each change.
    pub fn about(&self) -> Vec<String> {
        let first = format!(
            "Why {} rows are off: {} changes of the model, {} draws of each on every row. A change cures a row \
             if a draw meets all its counts, and spans it if each published count lies among those of the \
             draws. That explains a row and passes none. \"stay met\" are the rows met without the change \
             that at least half of its draws meet; \"other's counts\" are rows held against what was published \
             of the row most like them that they do not meet: a change that keeps few of the former or cures \
             many of the latter explains nothing.",
            self.rows.len(),
            self.changes.len(),
            self.draws
        );
        let each = self.changes.iter().map(|it| {
            let failed = match it.failed {
                0 => String::new(),
                failed => format!(" ({failed} runs failed)"),
            };
            format!("{}: {}{failed}", it.name, it.what)
        });
        [first].into_iter().chain(each).collect()
    }

    /// The table of changes, one row each.
    pub(super) fn grid(&self) -> Grid {
        let column = |header: &str, value: &dyn Fn(&Tried) -> String| TextColumn {
            header: header.to_owned(),
            values: self.changes.iter().map(value).collect(),
        };
        let off = self.rows.len();
        Grid {
            table: String::new(),
            leading: vec![column("change", &|it| it.name.clone())],
            quantities: vec![
                vec![
                    column("cures", &|it| format!("{} of {off}", it.cured)),
                    column("spans", &|it| format!("{} of {off}", it.spanned)),
                ],
                vec![column("stay met", &|it| format!("{} of {}", it.stay, it.met))],
                vec![
                    column("cures other's counts", &|it| {
                        format!("{} of {}", it.others_cured, it.others)
                    }),
                    column("spans them", &|it| format!("{} of {}", it.others_spanned, it.others)),
                ],
            ],
        }
    }

    /// Adds a note about the cures to the figures of each row that misses.
    pub(super) fn note(&self, cells: &mut [Cell]) {
        for cell in cells.iter_mut().filter(|cell| cell.note.is_none() && cell.unit == Unit::Count)
        {
            let missed = self.rows.iter().find(|it| it.row == cell.config && it.load == cell.load);
            cell.note = missed.map(|it| it.words(self.draws));
        }
    }

    /// One line of text for each row that misses.
    pub fn lines(&self) -> Vec<String> {
        let line = |it: &Missed| {
            let mark = if it.fitted { FITTED.to_string() } else { String::new() };
            let off = it.off.join("; ");
            format!("{mark}{}, {}: {off}: {}", it.row, it.load, it.words(self.draws))
        };
        self.rows.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missed(cured: &[(&str, u64)], spanned: &[&str]) -> Missed {
        let cure = |&(change, draws): &(&str, u64)| Cure { change: change.to_owned(), draws };
        Missed {
            row: "A015".into(),
            load: "threadedbusy P50us".into(),
            fitted: false,
            off: vec!["interrupts 16, modelled 6".into()],
            cured: cured.iter().map(cure).collect(),
            spanned: spanned.iter().map(|it| (*it).to_owned()).collect(),
        }
    }

    #[test]
    fn a_row_lists_the_changes_that_cure_it_and_those_that_only_span_it() {
        let say = |missed: Missed| missed.words(64);
        assert_eq!(say(missed(&[], &[])), "cured by none of the changes");
        assert_eq!(say(missed(&[("phase", 31)], &[])), "cured by phase (31 of 64)");
        let both = missed(&[("turns", 3), ("phase", 1)], &["costs"]);
        let want =
            "cured by turns (3 of 64), phase (1 of 64); spanned, and met in no draw, by costs";
        assert_eq!(say(both), want);
    }

    #[test]
    fn a_change_stands_beside_its_controls() {
        let tried = Tried {
            name: "phase".into(),
            met: 28,
            stay: 25,
            cured: 9,
            others: 50,
            others_cured: 2,
            ..Tried::default()
        };
        let causes = Causes { draws: 8, changes: vec![tried], rows: vec![missed(&[], &[])] };
        let values: Vec<_> = causes.grid().quantities.into_iter().flatten().collect();
        let values: Vec<_> = values.iter().map(|it| it.values[0].as_str()).collect();
        assert_eq!(values, ["9 of 1", "0 of 1", "25 of 28", "2 of 50", "0 of 50"]);
        let line =
            "A015, threadedbusy P50us: interrupts 16, modelled 6: cured by none of the changes";
        assert_eq!(causes.lines(), [line]);
    }
}
