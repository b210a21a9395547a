//! The null model: what somebody would say who knows the mean row of a table and nothing else.
//!
//! A machine that is no better than it has learnt nothing from the proposals. The null model is given
//! the published figures themselves, so it is a strong opponent wherever a table hardly varies.

use serde::{Deserialize, Serialize};

use super::cell::{Cell, Unit, relative, with_unit};
use super::verdict::{self, Verdict, percent};
use crate::measure::interleave::median;

/// Which mean of the published figures it knows. All are taken within one table and one quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NullModel {
    /// For each load the mean over its configurations (2024, 2020), or over the rows of a table with one
    /// load (2007).
    MeanOfLoad,
    /// For each configuration the mean over all loads (2018).
    MeanOfConfig,
    /// Each configuration's figure at the load at which it is idle (2025).
    IdleRow,
}

impl NullModel {
    /// What it knows, in words.
    pub fn knows(self) -> &'static str {
        match self {
            NullModel::MeanOfLoad => "the mean of each load",
            NullModel::MeanOfConfig => "the mean of each column",
            NullModel::IdleRow => "each configuration's idle row",
        }
    }

    /// What it says of a figure; `idle` names the idle load, for the model that needs one. `None` where
    /// nothing was published that it could know.
    pub fn says(self, cell: &Cell, cells: &[&Cell], idle: &str) -> Option<f64> {
        let known: Vec<f64> = cells
            .iter()
            .filter(|other| other.table == cell.table && other.quantity == cell.quantity)
            .filter(|other| match self {
                NullModel::MeanOfLoad => other.load == cell.load,
                NullModel::MeanOfConfig => other.config == cell.config,
                NullModel::IdleRow => other.config == cell.config && other.load == idle,
            })
            .filter_map(|other| other.published)
            .collect();
        (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
    }
}

/// Median absolute relative errors of a table, beside the null model's on the same figures.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Figures that were compared.
    pub figures: usize,
    /// The machine's error; a figure that was not modelled counts as wrong without limit, and the median
    /// may then be `None`.
    pub machine: Option<f64>,
    /// The machine's error on the figures that it was not fitted to; `None` if there are none.
    pub predicted: Option<f64>,
    /// The null model's error.
    pub null: Option<f64>,
}

/// Compares the machine with the null model on all judged figures of the cells.
pub fn compare(cells: &[&Cell], model: NullModel, idle: &str) -> Comparison {
    let judged: Vec<&Cell> = cells.iter().copied().filter(|cell| cell.is_judged()).collect();
    let machine = |cell: &&Cell| cell.relative().map_or(f64::MAX, f64::abs);
    let finite = |error: f64| (error < f64::MAX / 4.0).then_some(error);
    let null = judged.iter().filter_map(|cell| {
        Some(relative(model.says(cell, &judged, idle)?, cell.published?).map_or(f64::MAX, f64::abs))
    });
    Comparison {
        figures: judged.len(),
        machine: median(judged.iter().map(machine)).and_then(finite),
        predicted: median(judged.iter().filter(|cell| !cell.fitted).map(machine)).and_then(finite),
        null: median(null).and_then(finite),
    }
}

/// Whether the machine's error is at most half of the null model's.
pub fn beats(what: &str, cells: &[&Cell], model: NullModel, idle: &str) -> Verdict {
    let Comparison { figures, machine, predicted, null } = compare(cells, model, idle);
    let shown = |error: Option<f64>| error.map_or("not to be had".to_owned(), percent);
    let mut got = format!("machine {}, null model {}", shown(machine), shown(null));
    let judged: Vec<&Cell> = cells.iter().copied().filter(|cell| cell.is_judged()).collect();
    let fitted = judged.iter().filter(|cell| cell.fitted).count();
    if fitted > 0 {
        got.push_str(&format!(
            "; on the {} figures not fitted {}",
            figures - fitted,
            shown(predicted)
        ));
    }
    Verdict {
        what: format!("{what}: median error, {figures} figures"),
        asked: format!("at most half of a null model's that knows {}", model.knows()),
        got,
        met: matches!((machine, null), (Some(machine), Some(null)) if machine <= null / 2.0),
        worst: verdict::worst(&judged),
        ..Verdict::default()
    }
}

/// Whether the machine's error of what each row has above its configuration's idle row is at most half
/// of the null model's, which knows the idle rows and says 0: the mean error, and the median. The
/// idle rows themselves, where both are right by definition, are left out.
pub fn beats_on_excess(what: &str, cells: &[&Cell], idle: &str) -> [Verdict; 2] {
    let mut excesses = verdict::excesses(cells, idle);
    excesses.retain(|cell| cell.load != idle);
    let unit = excesses.first().map_or(Unit::Count, |cell| cell.unit);
    // As in the comparison above, a figure that was not modelled is wrong without limit.
    let machine = |cell: &Cell| cell.difference().map_or(f64::MAX, f64::abs);
    let null = |cell: &Cell| cell.published.map_or(f64::MAX, f64::abs);
    let all = |error: &dyn Fn(&Cell) -> f64| excesses.iter().map(error).collect::<Vec<f64>>();
    let mean = |errors: Vec<f64>| {
        let count = errors.len() as f64;
        (count > 0.0).then(|| errors.iter().map(|error| error / count).sum::<f64>())
    };
    let judge = |name: &str, of: &dyn Fn(Vec<f64>) -> Option<f64>| {
        let finite = |error: &f64| *error < f64::MAX / 1e6;
        let machine = of(all(&machine)).filter(finite);
        let null = of(all(&null)).filter(finite);
        let shown = |error: Option<f64>| {
            error.map_or("not to be had".to_owned(), |error| with_unit(error, unit))
        };
        Verdict {
            what: format!("{what}: {name} error, {} figures", excesses.len()),
            asked: "at most half of a null model's that says no excess over the idle row"
                .to_owned(),
            got: format!("machine {}, null model {}", shown(machine), shown(null)),
            met: matches!((machine, null), (Some(machine), Some(null)) if machine <= null / 2.0),
            worst: verdict::worst_by_difference(&excesses.iter().collect::<Vec<_>>(), unit),
            ..Verdict::default()
        }
    };
    [judge("mean", &mean), judge("median", &|errors| median(errors))]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::cell::{Modelled, Unit};

    /// Two configurations at two loads; the machine is 10 % too high everywhere.
    fn table() -> Vec<Cell> {
        let rows = [("a", "1", 100.0), ("a", "2", 200.0), ("b", "1", 300.0), ("b", "2", 400.0)];
        rows.into_iter()
            .map(|(config, load, published)| Cell {
                published: Some(published),
                modelled: Modelled::of(&[published * 1.1], ""),
                ..Cell::new("x", config, load, "p99", Unit::Us)
            })
            .collect()
    }

    fn said(model: NullModel) -> Vec<f64> {
        let cells = table();
        let all: Vec<&Cell> = cells.iter().collect();
        cells.iter().filter_map(|cell| model.says(cell, &all, "1")).collect()
    }

    #[test]
    fn each_null_model_says_the_mean_that_it_knows() {
        assert_eq!(said(NullModel::MeanOfLoad), [200.0, 300.0, 200.0, 300.0]);
        assert_eq!(said(NullModel::MeanOfConfig), [150.0, 150.0, 350.0, 350.0]);
        assert_eq!(said(NullModel::IdleRow), [100.0, 100.0, 300.0, 300.0]);
    }

    #[test]
    fn other_quantities_and_tables_are_not_mixed_in() {
        let mut cells = table();
        cells[2].quantity = "p50".into();
        cells[3].table = "another".into();
        let all: Vec<&Cell> = cells.iter().collect();
        assert_eq!(NullModel::MeanOfLoad.says(&cells[0], &all, ""), Some(100.0));
    }

    #[test]
    fn the_machine_must_halve_the_null_model_s_error() {
        let mut cells = table();
        let verdict = |cells: &[Cell]| {
            beats("p99", &cells.iter().collect::<Vec<_>>(), NullModel::MeanOfLoad, "")
        };
        // Errors of the null model: 100 %, 50 %, 33 %, 25 %; their median 41.7 %.
        let met = verdict(&cells);
        assert!(met.met, "{met:?}");
        assert_eq!(met.got, "machine 10 %, null model 41.7 %");
        for cell in &mut cells {
            cell.modelled = Modelled::of(&[cell.published.unwrap() * 1.25], "");
        }
        assert!(!verdict(&cells).met, "25 % is more than half of 41.7 %");
    }

    #[test]
    fn a_figure_that_was_not_modelled_is_wrong_without_limit() {
        let mut cells = table();
        for cell in &mut cells[..3] {
            cell.modelled = Modelled::absent("it failed");
        }
        let all: Vec<&Cell> = cells.iter().collect();
        assert_eq!(compare(&all, NullModel::MeanOfLoad, "").machine, None);
        let verdict = beats("p99", &all, NullModel::MeanOfLoad, "");
        assert!(!verdict.met && verdict.got.starts_with("machine not to be had"), "{verdict:?}");
    }

    #[test]
    fn on_the_excess_the_null_model_says_nothing_and_an_offset_costs_the_machine_nothing() {
        let mut cells = table();
        for cell in &mut cells {
            let excess = if cell.load == "1" { 0.0 } else { 30.0 };
            cell.modelled = Modelled::of(&[cell.published.unwrap() + 1_000.0 + excess], "");
        }
        let verdicts =
            |cells: &[Cell]| beats_on_excess("x", &cells.iter().collect::<Vec<_>>(), "1");
        let [mean, median] = verdicts(&cells);
        // Both rows have an excess of 100, of which the machine says 130.
        assert!(mean.met && median.met, "{mean:?} {median:?}");
        assert_eq!(mean.got, "machine 30 us, null model 100 us");
        assert_eq!(mean.what, "x: mean error, 2 figures");
        cells[3].modelled = Modelled::of(&[cells[3].published.unwrap() + 2_000.0], "");
        let [mean, median] = verdicts(&cells);
        assert!(!mean.met && !median.met, "{mean:?} {median:?}");
        cells[3].modelled = Modelled::absent("it failed");
        let [mean, _] = verdicts(&cells);
        assert_eq!(mean.got, "machine not to be had, null model 100 us");
        assert!(!verdicts(&[])[0].met, "nothing to judge is no success");
    }

    #[test]
    fn fitted_and_predicted_figures_are_told_apart() {
        let mut cells = table();
        cells[0].fitted = true;
        cells[0].modelled = Modelled::of(&[100.0], "");
        let verdict = beats("p99", &cells.iter().collect::<Vec<_>>(), NullModel::MeanOfLoad, "");
        assert!(verdict.got.ends_with("; on the 3 figures not fitted 10 %"), "{}", verdict.got);
    }

    #[test]
    fn nothing_to_compare_is_not_met() {
        let verdict = beats("p99", &[], NullModel::IdleRow, "");
        assert!(!verdict.met && verdict.got.contains("null model not to be had"), "{verdict:?}");
    }
}
