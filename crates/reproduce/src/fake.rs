//! An invented experiment, for tests of the common code.

use serde::{Deserialize, Serialize};

use super::cell::{Cell, Modelled, Unit};
use super::experiment::{About, Experiment, Options, Reproduce, ReproduceError, Run, Task};
use super::json::Reproduction;
use super::plot::{self, Figure};
use super::verdict::{self, Verdict};
use napkin_measure::report::Progress;

/// Two configurations at two loads; the modelled value is too high by an eighth, and by the seed.
#[derive(Debug, Default)]
pub(super) struct Fake {
    /// Label of the task that fails.
    pub(super) fails: Option<&'static str>,
    /// Label of the task that panics.
    pub(super) panics: Option<&'static str>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Outcome {
    p99_us: f64,
    interrupts: u64,
}

const ROWS: [(&str, f64, f64); 4] =
    [("a", 1.0, 100.0), ("a", 2.0, 200.0), ("b", 1.0, 150.0), ("b", 2.0, 1500.0)];

impl Fake {
    /// Runs it with default options.
    pub(super) fn run(&self) -> Reproduction {
        self.reproduce(&Options::default(), Progress::hidden).expect("a fake has no table to fail")
    }
}

impl Experiment for Fake {
    type Task = (&'static str, f64, f64);
    type Outcome = Outcome;

    const ABOUT: About = About {
        name: "fake",
        title: "An invented experiment",
        profile: "nowhere",
        about: "Nothing was measured.\n\nEverything is invented.",
    };

    fn plan(&self, options: &Options) -> Result<Vec<Task<Self::Task>>, ReproduceError> {
        let task = |what: Self::Task, seed| Task {
            label: format!("{} at {}", what.0, what.1),
            seed,
            what,
        };
        Ok(ROWS.iter().flat_map(|row| options.seeds().map(move |seed| task(*row, seed))).collect())
    }

    fn run(&self, task: &Task<Self::Task>) -> Result<Outcome, String> {
        if self.fails == Some(task.label.as_str()) {
            return Err("no such load".into());
        }
        assert!(self.panics != Some(task.label.as_str()), "two owners");
        Ok(Outcome { p99_us: task.what.2 * 1.125 + task.seed as f64, interrupts: 7 })
    }

    fn cells(&self, runs: &[Run<Self::Task, Outcome>]) -> Vec<Cell> {
        let cell = |row: &Self::Task| {
            let of_row = runs.iter().filter(|run| run.task.what == *row);
            let modelled = Modelled::of_runs(of_row, |outcome| outcome.p99_us, "no run");
            Cell {
                load_value: Some(row.1),
                published: Some(row.2),
                true_value: modelled.estimate().map(|e| e.value * 2.0),
                modelled,
                fitted: *row == ROWS[0],
                ..Cell::new("fake", row.0, &format!("{}/s", row.1), "\"p99\"", Unit::Us)
            }
        };
        ROWS.iter().map(cell).collect()
    }

    fn verdicts(&self, cells: &[Cell]) -> Vec<Verdict> {
        let cells: Vec<&Cell> = cells.iter().collect();
        vec![
            verdict::median_error("p99", &cells, 0.2),
            verdict::share_within("p99", &cells, verdict::Tolerance::Relative(0.1), 0.9),
        ]
    }

    fn figures(&self, cells: &[Cell]) -> Vec<Figure> {
        let cells: Vec<&Cell> = cells.iter().collect();
        vec![
            plot::lines("Latency <p99>", "What it shows.", &cells, "packets/s", "\"p99\"", true),
            plot::dots("Bars & more", "What it shows.", &cells, plot::Group::Load, true),
        ]
    }

    fn notes(&self) -> Vec<String> {
        vec!["Fitted to one row.".into()]
    }
}
