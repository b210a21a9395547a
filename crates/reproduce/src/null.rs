//! Null models: predictions from some other row of a published table, and nothing else.
//!
//! A machine that is no better than these has learnt nothing from the proposals. Null models use the published
//! figures themselves, so they are strong opponents wherever a table varies little. If one makes no error at all,
//! the machine cannot be required to be better.

use serde::{Deserialize, Serialize};

use super::cell::{Cell, Unit, relative, with_unit};
use super::verdict::{self, Verdict, percent};
use napkin_measure::interleave::median;

/// The published figures that it knows, always within one table and one quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NullModel {
    /// For each load, the mean over its configurations (2024, 2020), or over the rows of a table with only one load
    /// (2007).
    MeanOfLoad,
    /// For each configuration, the mean over all loads (2018).
    MeanOfConfig,
    /// Each configuration's figure at its idle load (2025).
    IdleRow,
    /// The same configuration's figure at the next lower load; no prediction for the lowest (2024).
    NextLowerLoad,
    /// The mean of the configurations of the same family with the next smaller and the next larger number (defer10
    /// and defer50 for defer20) under the same load; no prediction for those without a number.
    Neighbours,
}

impl NullModel {
    /// What it knows, in words.
    pub fn known_figures(self) -> &'static str {
        match self {
            NullModel::MeanOfLoad => "the mean of each load",
            NullModel::MeanOfConfig => "the mean of each column",
            NullModel::IdleRow => "each configuration's idle row",
            NullModel::NextLowerLoad => "the same policy at the next lower load",
            NullModel::Neighbours => "the neighbouring policies at the same load",
        }
    }

    /// The factor of its error that the machine's must be below: one half for those that know a mean, 1 for those
    /// that know a similar row.
    fn error_factor(self) -> f64 {
        match self {
            NullModel::MeanOfLoad | NullModel::MeanOfConfig | NullModel::IdleRow => 0.5,
            NullModel::NextLowerLoad | NullModel::Neighbours => 1.0,
        }
    }

    /// The prediction for a figure; `idle` names the idle load, for the model that needs one. `None` if no
    /// published figure is available for it.
    pub fn predicts(self, cell: &Cell, cells: &[&Cell], idle: &str) -> Option<f64> {
        let same: Vec<&Cell> = cells
            .iter()
            .copied()
            .filter(|other| other.table == cell.table && other.quantity == cell.quantity)
            .collect();
        let of_load = same.iter().copied().filter(|other| other.load == cell.load);
        let of_config = same.iter().copied().filter(|other| other.config == cell.config);
        let known: Vec<f64> = match self {
            NullModel::MeanOfLoad => published(of_load),
            NullModel::MeanOfConfig => published(of_config),
            NullModel::IdleRow => published(of_config.filter(|other| other.load == idle)),
            NullModel::NextLowerLoad => {
                let lower = of_config.filter(|other| load(other) < load(cell));
                published(lower.max_by(|a, b| load(a).total_cmp(&load(b))))
            }
            NullModel::Neighbours => {
                let (family, number) = numbered(&cell.config)?;
                let relatives: Vec<(f64, &Cell)> = of_load
                    .filter_map(|other| {
                        let (of, number) = numbered(&other.config)?;
                        (of == family).then_some((number, other))
                    })
                    .collect();
                let nearest = |side: &dyn Fn(f64) -> bool| {
                    relatives
                        .iter()
                        .filter(|(other, _)| side(*other))
                        .min_by(|(a, _), (b, _)| (a - number).abs().total_cmp(&(b - number).abs()))
                        .map(|(_, cell)| *cell)
                };
                let (below, above) = (nearest(&|it| it < number), nearest(&|it| it > number));
                published(below.into_iter().chain(above))
            }
        };
        (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
    }
}

fn published<'a>(cells: impl IntoIterator<Item = &'a Cell>) -> Vec<f64> {
    cells.into_iter().filter_map(|cell| cell.published).collect()
}

/// A load for comparisons; one without a number (`MAX`) is above all others.
fn load(cell: &Cell) -> f64 {
    cell.load_value.unwrap_or(f64::INFINITY)
}

/// Splits a configuration's name, such as `defer20`, into its family and its number.
pub(super) fn numbered(config: &str) -> Option<(&str, f64)> {
    let family = config.trim_end_matches(|c: char| c.is_ascii_digit());
    Some((family, config[family.len()..].parse().ok()?))
}

/// Median absolute relative errors of the machine and of a null model on the same figures.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Number of figures compared: those that count in a verdict, and that the null model predicts.
    pub figures: usize,
    /// The machine's error; a figure that was not modelled counts as infinitely wrong, so that the median may be
    /// `None`.
    pub machine: Option<f64>,
    /// The null model's error.
    pub null: Option<f64>,
}

/// Compares the machine with the null model on all judged figures of the cells. The null model knows all published
/// values, including those that the profile was fitted to.
pub fn compare(cells: &[&Cell], model: NullModel, idle: &str) -> Comparison {
    let errors = cells.iter().copied().filter(|cell| cell.is_judged()).filter_map(|cell| {
        Some((cell, relative(model.predicts(cell, cells, idle)?, cell.published?)))
    });
    let errors: Vec<(&Cell, Option<f64>)> = errors.collect();
    let size = |error: Option<f64>| error.map_or(f64::MAX, f64::abs);
    let finite = |error: f64| (error < f64::MAX / 4.0).then_some(error);
    Comparison {
        figures: errors.len(),
        machine: median(errors.iter().map(|(cell, _)| size(cell.relative()))).and_then(finite),
        null: median(errors.iter().map(|(_, error)| size(*error))).and_then(finite),
    }
}

/// Judges whether the machine's error is small enough relative to the null model's; `None` if the latter is zero,
/// so that nothing can be required.
pub fn beats(what: &str, cells: &[&Cell], model: NullModel, idle: &str) -> Option<Verdict> {
    let Comparison { figures, machine, null } = compare(cells, model, idle);
    if null == Some(0.0) {
        return None;
    }
    let shown = |error: Option<f64>| error.map_or("not to be had".to_owned(), percent);
    let judged: Vec<&Cell> = cells.iter().copied().filter(|cell| cell.is_judged()).collect();
    let factor = model.error_factor();
    let asked = if factor < 1.0 { "at most half of" } else { "less than" };
    let below = |machine: f64, null: f64| {
        if factor < 1.0 { machine <= null * factor } else { machine < null }
    };
    Some(Verdict {
        what: format!("{what}: median error, {figures} figures"),
        asked: format!("{asked} a null model's that knows {}", model.known_figures()),
        got: format!("machine {}, null model {}", shown(machine), shown(null)),
        met: matches!((machine, null), (Some(machine), Some(null)) if below(machine, null)),
        worst: verdict::worst(&judged),
        ..Verdict::default()
    })
}

/// Judges whether the machine's error in the excess over the idle row is at most half of that of a null model that
/// knows the idle rows and predicts no excess: the mean error, and the median. The idle rows themselves, for which
/// both are right by definition, are left out.
pub fn beats_on_excess(what: &str, cells: &[&Cell], idle: &str) -> [Verdict; 2] {
    let mut excesses = verdict::excesses(cells, idle);
    excesses.retain(|cell| cell.load != idle && cell.is_judged());
    let unit = excesses.first().map_or(Unit::Count, |cell| cell.unit);
    // As above, a figure that was not modelled is infinitely wrong.
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
    use crate::cell::{Modelled, Unit};

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

    fn predictions(model: NullModel) -> Vec<f64> {
        let cells = table();
        let all: Vec<&Cell> = cells.iter().collect();
        cells.iter().filter_map(|cell| model.predicts(cell, &all, "1")).collect()
    }

    #[test]
    fn each_null_model_predicts_its_mean() {
        assert_eq!(predictions(NullModel::MeanOfLoad), [200.0, 300.0, 200.0, 300.0]);
        assert_eq!(predictions(NullModel::MeanOfConfig), [150.0, 150.0, 350.0, 350.0]);
        assert_eq!(predictions(NullModel::IdleRow), [100.0, 100.0, 300.0, 300.0]);
    }

    #[test]
    fn other_quantities_and_tables_are_not_mixed_in() {
        let mut cells = table();
        cells[2].quantity = "p50".into();
        cells[3].table = "another".into();
        let all: Vec<&Cell> = cells.iter().collect();
        assert_eq!(NullModel::MeanOfLoad.predicts(&cells[0], &all, ""), Some(100.0));
    }

    #[test]
    fn the_machine_must_halve_the_null_model_s_error() {
        let mut cells = table();
        let verdict = |cells: &[Cell]| {
            beats("p99", &cells.iter().collect::<Vec<_>>(), NullModel::MeanOfLoad, "").unwrap()
        };
        // Errors of the null model: 100 %, 50 %, 33 %, 25 %; the median is 41.7 %.
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
        let verdict = beats("p99", &all, NullModel::MeanOfLoad, "").unwrap();
        assert!(!verdict.met && verdict.got.starts_with("machine not to be had"), "{verdict:?}");
    }

    #[test]
    fn on_the_excess_the_null_model_predicts_zero_and_a_constant_offset_does_not_count() {
        let mut cells = table();
        for cell in &mut cells {
            let excess = if cell.load == "1" { 0.0 } else { 30.0 };
            cell.modelled = Modelled::of(&[cell.published.unwrap() + 1_000.0 + excess], "");
        }
        let verdicts =
            |cells: &[Cell]| beats_on_excess("x", &cells.iter().collect::<Vec<_>>(), "1");
        let [mean, median] = verdicts(&cells);
        // Both rows have an excess of 100; the machine predicts 130.
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
    fn what_was_fitted_is_known_and_not_judged() {
        let mut cells = table();
        cells[0].fitted = true;
        let all: Vec<&Cell> = cells.iter().collect();
        let comparison = compare(&all, NullModel::MeanOfLoad, "");
        assert_eq!(comparison.figures, 3);
        assert_eq!(
            NullModel::MeanOfLoad.predicts(&cells[2], &all, ""),
            Some(200.0),
            "of both rows"
        );
    }

    #[test]
    fn the_next_lower_load_does_not_predict_the_lowest() {
        let mut cells = table();
        for cell in &mut cells {
            cell.load_value = cell.load.parse().ok();
        }
        // A load without a number is above all others.
        cells[3].load = "MAX".into();
        cells[3].load_value = None;
        let all: Vec<&Cell> = cells.iter().collect();
        let predicts = |cell: &Cell| NullModel::NextLowerLoad.predicts(cell, &all, "");
        assert_eq!(
            [0, 1, 2, 3].map(|i| predicts(&cells[i])),
            [None, Some(100.0), None, Some(300.0)]
        );
        let comparison = compare(&all, NullModel::NextLowerLoad, "");
        assert_eq!(comparison.figures, 2, "on the same figures for both");
    }

    #[test]
    fn neighbours_are_of_one_family() {
        let config = |name: &str, published| Cell {
            config: name.into(),
            published: Some(published),
            ..table()[0].clone()
        };
        let cells = [
            config("defer10", 1.0),
            config("defer20", 2.0),
            config("defer50", 7.0),
            config("suspend20", 100.0),
            config("base", 50.0),
        ];
        let all: Vec<&Cell> = cells.iter().collect();
        let predicts = |cell: &Cell| NullModel::Neighbours.predicts(cell, &all, "");
        let predictions = [0, 1, 2, 3, 4].map(|i| predicts(&cells[i]));
        assert_eq!(predictions, [Some(2.0), Some(4.0), Some(2.0), None, None]);
    }

    #[test]
    fn beside_a_null_model_without_an_error_nothing_is_asked() {
        let mut cells = table();
        for cell in &mut cells {
            cell.published = Some(100.0);
        }
        assert_eq!(
            beats("p99", &cells.iter().collect::<Vec<_>>(), NullModel::MeanOfLoad, ""),
            None
        );
    }

    #[test]
    fn nothing_to_compare_is_not_met() {
        let verdict = beats("p99", &[], NullModel::IdleRow, "").unwrap();
        assert!(!verdict.met && verdict.got.contains("null model not to be had"), "{verdict:?}");
    }
}
