//! One figure: published and modelled value, with the error.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::run::Run;
pub use napkin_measure::report::plot::axis::number;
use napkin_measure::uncertainty::Interval;

/// The unit of a figure, for both the published and the modelled value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// A time in nanoseconds.
    #[serde(rename = "ns")]
    Ns,
    /// A time in microseconds.
    #[serde(rename = "us")]
    Us,
    /// Per cent; differences are in percentage points.
    #[serde(rename = "%")]
    Percent,
    /// A rate per second.
    #[serde(rename = "/s")]
    PerS,
    /// A number of events.
    #[serde(rename = "count")]
    Count,
    /// A quotient of two figures.
    #[serde(rename = "ratio")]
    Ratio,
}

impl Unit {
    /// The unit's suffix after a number; may be empty.
    pub fn suffix(self) -> &'static str {
        match self {
            Unit::Ns => "ns",
            Unit::Us => "us",
            Unit::Percent => "%",
            Unit::PerS => "/s",
            Unit::Count | Unit::Ratio => "",
        }
    }
}

/// The machine's estimate of a figure, over its seeds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Mean of the runs.
    pub value: f64,
    /// Lower end of the 95 % confidence interval of the mean; `None` for a single run.
    pub low: Option<f64>,
    /// Upper end of the interval; `None` for a single run.
    pub high: Option<f64>,
    /// Number of runs, one per seed.
    pub runs: usize,
}

/// Two-sided 95 % quantiles of Student's distribution for 1 to 30 degrees of freedom.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// For more than 30 degrees of freedom: the largest of these quantiles, so that no interval is too narrow.
const STUDENT_BEYOND: f64 = 2.040;

impl Estimate {
    /// The estimate from some runs; `None` without runs, or if one is not finite.
    pub fn of(runs: &[f64]) -> Option<Estimate> {
        if runs.is_empty() || runs.iter().any(|run| !run.is_finite()) {
            return None;
        }
        let n = runs.len() as f64;
        let value = runs.iter().sum::<f64>() / n;
        let interval = runs.len().checked_sub(2).map(|index| {
            let squares: f64 = runs.iter().map(|run| (run - value) * (run - value)).sum();
            let quantile = STUDENT.get(index).copied().unwrap_or(STUDENT_BEYOND);
            quantile * (squares / (n - 1.0) / n).sqrt()
        });
        let (low, high) = (interval.map(|half| value - half), interval.map(|half| value + half));
        Some(Estimate { value, low, high, runs: runs.len() })
    }
}

/// The modelled value of a figure, or the reason why there is none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Modelled {
    /// The estimate; all runs have the figure.
    Value(Estimate),
    /// There is no value.
    Absent {
        /// The reason, in a few words.
        why: String,
    },
}

impl Modelled {
    /// The estimate from some values, or the reason if there is none.
    pub fn of(runs: &[f64], why_not: &str) -> Modelled {
        match Estimate::of(runs) {
            Some(estimate) => Modelled::Value(estimate),
            None => Modelled::absent(why_not),
        }
    }

    /// The estimate from the outcomes of some runs; otherwise `why_not`, or the reason of a failed run.
    pub fn of_runs<'r, T: 'r, O: 'r>(
        runs: impl IntoIterator<Item = &'r Run<T, O>>,
        value: impl Fn(&O) -> f64,
        why_not: &str,
    ) -> Modelled {
        let values = runs.into_iter().map(|run| run.outcome.as_ref().map(&value));
        match values.collect::<Result<Vec<f64>, &String>>() {
            Ok(values) => Modelled::of(&values, why_not),
            Err(why) => Modelled::absent(why),
        }
    }

    /// No value, for a reason in a few words.
    pub fn absent(why: &str) -> Modelled {
        Modelled::Absent { why: why.to_owned() }
    }

    /// Returns the estimate, if there is one.
    pub fn estimate(&self) -> Option<Estimate> {
        match self {
            Modelled::Value(estimate) => Some(*estimate),
            Modelled::Absent { .. } => None,
        }
    }
}

/// One figure of one row of a published table. Create it with [`Cell::new`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// The experiment: `2007`, `2018`, `2020`, `2024`, `2025` or `kernel`.
    pub experiment: String,
    /// The table, if the experiment has several.
    pub table: String,
    /// The policy, mode, configuration or scenario of the row, by its name in the table.
    pub config: String,
    /// The load, in words; empty if the table has only one.
    pub load: String,
    /// The load as a number, for the axis of a plot; `None` if it is not a number (`MAX`).
    pub load_value: Option<f64>,
    /// The quantity: `p99`, `achieved`, `CPU`.
    pub quantity: String,
    /// Unit of the published and the modelled value.
    pub unit: Unit,
    /// The published value; `None` for a prediction without a published counterpart.
    pub published: Option<f64>,
    /// The modelled value, computed like the published one.
    pub modelled: Modelled,
    /// The modelled value of what the quantity's name says, if the publication's estimator is something else.
    pub true_value: Option<f64>,
    /// Whether there is no such value because less than 99 % of the due requests were answered, so that latency
    /// from the intended time grows with the length of the run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub true_grows: bool,
    /// Whether the profile was fitted to this figure.
    pub fitted: bool,
    /// Whether it is shown but not judged: for example the empty polls of a busy poller, or a figure on which no
    /// constant of a profile has an effect.
    pub exempt: bool,
    /// The interval over draws of unmeasured constants; `None` without draws.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Interval>,
    /// A note for the reader: why it is exempt, or which invariant explains its deviation.
    pub note: Option<String>,
}

impl Cell {
    /// A figure without a published and a modelled value.
    pub fn new(experiment: &str, config: &str, load: &str, quantity: &str, unit: Unit) -> Cell {
        Cell {
            experiment: experiment.to_owned(),
            table: String::new(),
            config: config.to_owned(),
            load: load.to_owned(),
            load_value: None,
            quantity: quantity.to_owned(),
            unit,
            published: None,
            modelled: Modelled::absent("it was not run"),
            true_value: None,
            true_grows: false,
            fitted: false,
            exempt: false,
            interval: None,
            note: None,
        }
    }

    /// The modelled value, if there is one.
    pub fn model(&self) -> Option<f64> {
        self.modelled.estimate().map(|estimate| estimate.value)
    }

    /// The modelled minus the published value, in the cell's unit; `None` unless both are known.
    pub fn difference(&self) -> Option<f64> {
        Some(self.model()? - self.published?)
    }

    /// The difference as a fraction of the published value; `None` unless both are known, or if only the published
    /// value is zero.
    pub fn relative(&self) -> Option<f64> {
        relative(self.model()?, self.published?)
    }

    /// Whether it has a published value and is not exempt.
    pub fn is_informative(&self) -> bool {
        self.published.is_some() && !self.exempt
    }

    /// Whether it counts in a verdict: it is informative, and the profile was not fitted to it.
    pub fn is_judged(&self) -> bool {
        self.is_informative() && !self.fitted
    }

    /// Its row, in words.
    pub fn row(&self) -> String {
        let mut row = String::new();
        for part in [&self.table, &self.config, &self.load] {
            if !part.is_empty() {
                let gap = if row.is_empty() { "" } else { ", " };
                row.push_str(gap);
                row.push_str(part);
            }
        }
        row
    }
}

/// The relative error of a value; 0 if both values are zero, and `None` if only the reference `meant` is zero.
pub fn relative(value: f64, meant: f64) -> Option<f64> {
    match (value, meant) {
        (0.0, 0.0) => Some(0.0),
        (_, 0.0) => None,
        _ => Some((value - meant) / meant.abs()),
    }
}

/// Formats a number with its unit.
pub fn with_unit(value: f64, unit: Unit) -> String {
    let gap = if matches!(unit, Unit::PerS | Unit::Count | Unit::Ratio) { "" } else { " " };
    format!("{}{gap}{}", number(value), unit.suffix())
}

impl fmt::Display for Cell {
    /// One sentence, as in a list of misses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.row(), self.quantity)?;
        match self.published {
            Some(published) => write!(f, " published {}", with_unit(published, self.unit))?,
            None => f.write_str(" not published")?,
        }
        match &self.modelled {
            Modelled::Value(estimate) => {
                write!(f, ", modelled {}", with_unit(estimate.value, self.unit))?;
            }
            Modelled::Absent { why } => write!(f, ", not modelled ({why})")?,
        }
        let error = error(self);
        if error.is_empty() { Ok(()) } else { write!(f, " ({error})") }
    }
}

/// Formats a cell's error: in points for percentages, as an absolute difference if the published value is zero, and
/// otherwise in per cent; empty if there is none.
pub fn error(cell: &Cell) -> String {
    let Some(difference) = cell.difference() else { return String::new() };
    match (cell.unit, cell.relative()) {
        (Unit::Percent, _) => format!("{difference:+.1} pt"),
        (_, Some(relative)) => format!("{:+.1} %", relative * 100.0),
        (_, None) => {
            let sign = if difference > 0.0 { "+" } else { "" };
            format!("{sign}{}", number(difference))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(published: f64, modelled: &[f64], unit: Unit) -> Cell {
        Cell {
            published: Some(published),
            modelled: Modelled::of(modelled, "no run"),
            ..Cell::new("2024", "suspend20", "200000/s", "p99", unit)
        }
    }

    #[test]
    fn the_interval_of_two_and_of_many_runs_is_student_s() {
        let two = Estimate::of(&[9.0, 11.0]).unwrap();
        assert_eq!((two.value, two.low, two.high), (10.0, Some(10.0 - 12.706), Some(22.706)));
        let many: Vec<f64> = (0..40).map(|i| f64::from(i % 2)).collect();
        let many = Estimate::of(&many).unwrap();
        let half = 2.040 * (40.0 * 0.25 / 39.0_f64 / 40.0).sqrt();
        assert!((many.high.unwrap() - 0.5 - half).abs() < 1e-12, "{many:?}");
    }

    #[test]
    fn one_run_has_no_interval_and_no_run_or_a_broken_one_no_estimate() {
        assert_eq!(Estimate::of(&[5.0]).map(|e| (e.low, e.runs)), Some((None, 1)));
        assert_eq!(Estimate::of(&[]), None);
        assert_eq!(Estimate::of(&[1.0, f64::NAN]), None);
        assert_eq!(Modelled::of(&[], "too quick"), Modelled::absent("too quick"));
    }

    #[test]
    fn errors_are_formatted_by_unit() {
        assert_eq!(error(&cell(200.0, &[250.0], Unit::Us)), "+25.0 %");
        assert_eq!(error(&cell(28.0, &[25.5], Unit::Percent)), "-2.5 pt");
        assert_eq!(error(&cell(0.0, &[3.0], Unit::Count)), "+3");
        assert_eq!(error(&cell(0.0, &[0.0], Unit::Count)), "+0.0 %");
        assert_eq!(error(&cell(1.0, &[], Unit::Count)), "", "no model, no error");
    }

    #[test]
    fn a_cell_is_formatted_as_one_sentence() {
        let mut cell = cell(146.0, &[180.0, 180.0], Unit::Us);
        let want = "suspend20, 200000/s: p99 published 146 us, modelled 180 us (+23.3 %)";
        assert_eq!(cell.to_string(), want);
        cell.modelled = Modelled::absent("the run failed");
        let want = "suspend20, 200000/s: p99 published 146 us, not modelled (the run failed)";
        assert_eq!(cell.to_string(), want);
        cell.published = None;
        assert!(!cell.is_judged() && cell.to_string().contains("not published"));
    }

    #[test]
    fn a_cell_is_read_back_from_json_as_it_was_with_or_without_a_model() {
        for modelled in [Modelled::of(&[1.0, 2.0], ""), Modelled::absent("not run")] {
            let cell = Cell { modelled, ..cell(1.5, &[], Unit::PerS) };
            let text = serde_json::to_string(&cell).unwrap();
            assert_eq!(serde_json::from_str::<Cell>(&text).unwrap(), cell, "{text}");
        }
    }
}
