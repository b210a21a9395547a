//! Evaluates which changes of the model cure which rows, with the controls.

use std::collections::BTreeMap;

use super::change::{CHANGES, Change};
use super::counts::{Counted, judged, within_tolerance};
use super::{FITTED, Point, load};
use crate::causes::{Causes, Cure, Missed, Tried};
use crate::experiment::Run;
use crate::oracle::OracleRow;

/// A run of a row.
type RowRun = Run<Point, Counted>;

/// The effect of a change's draws on a row, compared with some published counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Effect {
    /// Number of draws that meet all counts.
    whole: u64,
    /// Whether each count lies within the range of the draws, or within the tolerance of either end.
    spanned: bool,
}

/// The counts of a row that a run misses: name, published and modelled.
fn missed_counts(row: &OracleRow, counted: &Counted) -> Vec<(&'static str, u64, u64)> {
    judged(row)
        .map(|(quantity, published)| (quantity, published, counted.count(quantity)))
        .filter(|(_, published, modelled)| !within_tolerance(*published, *modelled))
        .collect()
}

fn effect(row: &OracleRow, draws: &[&Counted]) -> Effect {
    let whole =
        draws.iter().filter(|counted| missed_counts(row, counted).is_empty()).count() as u64;
    let spanned = !draws.is_empty()
        && judged(row).all(|(quantity, published)| {
            let counts = || draws.iter().map(|counted| counted.count(quantity));
            let (least, most) = (counts().min().unwrap_or(0), counts().max().unwrap_or(0));
            (least..=most).contains(&published)
                || within_tolerance(published, least)
                || within_tolerance(published, most)
        });
    Effect { whole, spanned }
}

/// The difference in what two rows send, as a number; 0 if they send the same.
fn dissimilarity(one: &OracleRow, other: &OracleRow) -> u32 {
    let differ = [
        (one.burst, one.gap_ns, one.train_bursts, one.off_ns)
            != (other.burst, other.gap_ns, other.train_bursts, other.off_ns),
        one.sent != other.sent,
        one.spin_ns != other.spin_ns,
        one.echo != other.echo,
        one.event != other.event,
    ];
    differ.into_iter().zip([16, 8, 4, 2, 1]).filter(|(it, _)| *it).map(|(_, weight)| weight).sum()
}

/// The row most similar in what it sends whose published counts this run does not meet; of several, the one whose
/// counts it misses the fewest of.
fn control_row<'a>(
    run: &RowRun,
    counted: &Counted,
    rows: &[&'a OracleRow],
) -> Option<&'a OracleRow> {
    let row = &run.task.what.row;
    let others = rows.iter().filter(|other| other.id != row.id);
    let wrong = others
        .map(|other| (missed_counts(other, counted).len(), *other))
        .filter(|(off, _)| *off > 0);
    wrong.min_by_key(|(off, other)| (dissimilarity(row, other), *off)).map(|(_, other)| other)
}

/// Evaluates the trials, whose tasks have the change and the seed of the draw. `None` without trials.
pub(super) fn causes(runs: &[RowRun], trials: &[RowRun], draws: u64) -> Option<Causes> {
    if trials.is_empty() {
        return None;
    }
    let rows: Vec<&OracleRow> = runs.iter().map(|run| &run.task.what.row).collect();
    let mut of: BTreeMap<(&str, &str), Vec<&Counted>> = BTreeMap::new();
    let mut failed: BTreeMap<&str, u64> = BTreeMap::new();
    for trial in trials {
        let Some(change) = trial.task.what.change else { continue };
        let Ok(counted) = &trial.outcome else {
            *failed.entry(change.name).or_default() += 1;
            continue;
        };
        of.entry((change.name, &trial.task.what.row.id)).or_default().push(counted);
    }
    let effect_of = |change: &Change, row: &str, published: &OracleRow| {
        of.get(&(change.name, row)).map_or(Effect::default(), |draws| effect(published, draws))
    };
    let mut tried = CHANGES.map(|change| Tried {
        name: change.name.to_owned(),
        what: change.what.to_owned(),
        failed: failed.get(change.name).copied().unwrap_or(0),
        ..Tried::default()
    });
    let mut missed = Vec::new();
    for run in runs {
        let row = &run.task.what.row;
        let Ok(counted) = &run.outcome else { continue };
        let off = missed_counts(row, counted);
        let control = control_row(run, counted, &rows);
        let (mut cured, mut spanned) = (Vec::new(), Vec::new());
        for (change, tried) in CHANGES.iter().zip(&mut tried) {
            let effect = effect_of(change, &row.id, row);
            if off.is_empty() {
                tried.met += 1;
                tried.stay += usize::from(2 * effect.whole >= draws);
            } else if effect.whole > 0 {
                cured.push(Cure { change: change.name.to_owned(), draws: effect.whole });
            } else if effect.spanned {
                spanned.push(change.name.to_owned());
            }
            if !off.is_empty() {
                tried.cured += usize::from(effect.whole > 0);
                tried.spanned += usize::from(effect.spanned);
            }
            if let Some(other) = control {
                let effect = effect_of(change, &row.id, other);
                tried.others += 1;
                tried.others_cured += usize::from(effect.whole > 0);
                tried.others_spanned += usize::from(effect.spanned);
            }
        }
        if off.is_empty() {
            continue;
        }
        cured.sort_by_key(|cure| std::cmp::Reverse(cure.draws));
        missed.push(Missed {
            row: row.id.clone(),
            load: load(row),
            fitted: FITTED.contains(&row.id.as_str()),
            off: off
                .iter()
                .map(|(quantity, published, modelled)| {
                    format!("{quantity} {published}, modelled {modelled}")
                })
                .collect(),
            cured,
            spanned,
        });
    }
    Some(Causes { draws, changes: tried.into(), rows: missed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Task;
    use crate::oracle::scenarios;
    use napkin_machine::profile::Profile;

    fn row(id: &str) -> OracleRow {
        scenarios().unwrap().into_iter().find(|row| row.id == id).unwrap()
    }

    /// A run that counted exactly a row's published counts, but `interrupts` more interrupts.
    fn counted(row: &OracleRow, interrupts: u64) -> Counted {
        let mut counted = Counted::default();
        for (quantity, count) in judged(row) {
            let more = if quantity == "interrupts" { interrupts } else { 0 };
            counted.counts.insert(quantity.to_owned(), count + more);
        }
        counted
    }

    fn run(id: &str, interrupts: u64, change: Option<Change>) -> RowRun {
        let row = row(id);
        let outcome = Ok(counted(&row, interrupts));
        let profile = Profile::named(napkin_workload::schema(), super::super::PROFILE).unwrap();
        let task = Task { label: id.to_owned(), seed: 1, what: Point { row, profile, change } };
        Run { task, outcome }
    }

    #[test]
    fn a_row_is_met_by_draws_that_are_near_and_spanned_by_draws_around_it() {
        let row = row("A003");
        let [near, far] = [3, 50].map(|more| counted(&row, more));
        assert_eq!(effect(&row, &[&far]), Effect { whole: 0, spanned: false });
        assert_eq!(effect(&row, &[&near, &far, &near]), Effect { whole: 2, spanned: true });
        let mut fewer = counted(&row, 0);
        fewer.counts.insert("interrupts".to_owned(), 50);
        assert_eq!(effect(&row, &[&fewer, &far]), Effect { whole: 0, spanned: true });
        assert_eq!(effect(&row, &[]), Effect::default());
    }

    #[test]
    fn a_change_is_reported_as_cure_as_break_or_as_match_of_another_row() {
        let change = CHANGES[0];
        // A003 misses and A010 is met; of the draws, one meets A003 and none meets A010.
        let runs = [run("A003", 50, None), run("A010", 0, None)];
        let drawn = |id, more| run(id, more, Some(change));
        let trials = [drawn("A003", 50), drawn("A003", 0), drawn("A010", 50), drawn("A010", 50)];
        let causes = causes(&runs, &trials, 2).expect("there are trials");
        let tried = &causes.changes[0];
        assert_eq!((tried.cured, tried.met, tried.stay), (1, 1, 0));
        assert_eq!((tried.others, tried.others_cured), (2, 0));
        assert_eq!(causes.rows.len(), 1);
        assert_eq!(causes.rows[0].off, ["interrupts 100, modelled 150"]);
        assert_eq!(causes.rows[0].words(2), format!("cured by {} (1 of 2)", change.name));
        assert_eq!(causes.changes[1].cured, 0);
        // Draws that meet the published counts of the other row count as a cure in the control.
        let mut wrong = drawn("A003", 0);
        wrong.outcome = Ok(counted(&row("A010"), 0));
        let causes = super::causes(&runs, &[wrong], 1).expect("there is a trial");
        assert_eq!(causes.changes[0].others_cured, 1);
    }

    #[test]
    fn a_row_is_held_against_the_one_most_like_it_that_it_does_not_meet() {
        let all = scenarios().unwrap();
        let rows: Vec<&OracleRow> = all.iter().collect();
        let run = run("A037", 0, None);
        let counted = run.outcome.as_ref().unwrap();
        let other = control_row(&run, counted, &rows).expect("there are others");
        assert_eq!((other.pattern.as_str(), other.sent), ("P200us", 300));
        // A066 has the same counts as A037, so that meeting it would say nothing.
        assert_ne!(other.id, "A066");
        assert!(!missed_counts(other, counted).is_empty());
    }
}
