//! An experiment: what it runs, and how its outcomes become cells, verdicts and plots.
//!
//! An experiment is planned as tasks that know nothing of each other, one a published row and seed, so
//! that all cores can run them. Results are put back into the order of the plan: the output does not depend
//! on which thread ran what, or on how many there were. A task that fails, or panics, costs its own
//! figures only, and its cells say why.

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;
use thiserror::Error;

use super::cell::Cell;
use super::json::{Reproduction, RunRecord};
use super::plot::Figure;
use super::sheet::TableError;
use super::verdict::Verdict;
use crate::report::Progress;

/// How a reproduction runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Runs of each cell, each with a seed of its own; at least 1.
    pub repetitions: u64,
    /// The first seed; the others follow it.
    pub seed: u64,
    /// Virtual seconds a cell; `None` leaves each experiment its own.
    pub virtual_s: Option<f64>,
    /// A host profile in the place of the experiment's own.
    pub profile: Option<PathBuf>,
    /// A table of kernel scenarios in the place of the embedded one.
    pub table: Option<PathBuf>,
    /// Tasks at a time; `None` for as many as there are CPUs.
    pub jobs: Option<NonZeroUsize>,
    /// Fewer and shorter runs, to see that everything works.
    pub quick: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            repetitions: 3,
            seed: 1,
            virtual_s: None,
            profile: None,
            table: None,
            jobs: None,
            quick: false,
        }
    }
}

impl Options {
    /// The seeds of one cell: one if it is to be quick.
    pub fn seeds(&self) -> impl Iterator<Item = u64> + use<> {
        let repetitions = if self.quick { 1 } else { self.repetitions.max(1) };
        let first = self.seed;
        (0..repetitions).map(move |i| first.wrapping_add(i))
    }

    fn threads(&self, tasks: usize) -> usize {
        let cpus = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        self.jobs.unwrap_or_else(cpus).get().min(tasks)
    }
}

/// Why an experiment did not take place at all.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReproduceError {
    /// A table cannot be used.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Anything else that stands against it, such as a profile that does not fit.
    #[error("{0}")]
    Setup(String),
}

/// A step of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Task<T> {
    /// What is run, for the progress line and the JSON: `suspend20 at 200000/s`.
    pub label: String,
    /// With which seed.
    pub seed: u64,
    /// The experiment's own words for it.
    pub what: T,
}

/// A task that was run.
#[derive(Debug, Clone, PartialEq)]
pub struct Run<T, O> {
    /// The task.
    pub task: Task<T>,
    /// What came out, or why nothing did.
    pub outcome: Result<O, String>,
}

/// A published experiment.
pub trait Experiment: Sync {
    /// What a task runs: a policy under a load, a scenario.
    type Task: Send + Sync;
    /// What a run leaves: figures, and the counts that nobody published. It becomes part of the JSON.
    type Outcome: Serialize + Send;

    /// Its name on the command line: `2007`, `kernel`.
    fn name(&self) -> &str;

    /// A line for a heading.
    fn title(&self) -> &str;

    /// How the published figures were taken, and how the modelled ones are: a paragraph or more, for a
    /// reader who has not read the proposal.
    fn about(&self) -> &str;

    /// The host profiles that it runs on, by name.
    fn profiles(&self) -> Vec<String>;

    /// The tasks, the longest first where it is known: the order in which they start.
    ///
    /// # Errors
    /// If a table or a profile cannot be used.
    fn plan(&self, options: &Options) -> Result<Vec<Task<Self::Task>>, ReproduceError>;

    /// Runs one task. The same task must give the same outcome.
    ///
    /// # Errors
    /// If it has no outcome; the reason becomes that of its cells.
    fn run(&self, task: &Task<Self::Task>) -> Result<Self::Outcome, String>;

    /// The figures, in the order in which they are printed. Every published figure has a cell, with a
    /// value or with the reason why there is none.
    fn cells(&self, runs: &[Run<Self::Task, Self::Outcome>]) -> Vec<Cell>;

    /// What the experiment is asked to show.
    fn verdicts(&self, cells: &[Cell]) -> Vec<Verdict>;

    /// The plots.
    fn figures(&self, cells: &[Cell]) -> Vec<Figure>;

    /// What a reader should know before believing it, such as what was fitted to what.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}

/// An experiment of any kind, as the command line sees it.
pub trait Reproduce {
    /// See [`Experiment::name`].
    fn name(&self) -> &str;

    /// Runs all of it. `progress` makes the progress line for a number of steps.
    ///
    /// # Errors
    /// If it cannot be planned.
    fn reproduce(
        &self,
        options: &Options,
        progress: fn(u64) -> Progress,
    ) -> Result<Reproduction, ReproduceError>;
}

impl<E: Experiment> Reproduce for E {
    fn name(&self) -> &str {
        Experiment::name(self)
    }

    fn reproduce(
        &self,
        options: &Options,
        progress: fn(u64) -> Progress,
    ) -> Result<Reproduction, ReproduceError> {
        let tasks = self.plan(options)?;
        let mut progress = progress(tasks.len() as u64);
        let runs = run_all(self, tasks, options, &mut progress);
        drop(progress);
        let cells = self.cells(&runs);
        Ok(Reproduction {
            experiment: Experiment::name(self).to_owned(),
            title: self.title().to_owned(),
            about: self.about().to_owned(),
            profiles: self.profiles(),
            quick: options.quick,
            notes: self.notes(),
            verdicts: self.verdicts(&cells),
            figures: self.figures(&cells),
            runs: runs.into_iter().map(record).collect(),
            cells,
        })
    }
}

/// Where the outcome of one task is put.
type Slot<O> = Mutex<Option<Result<O, String>>>;

/// Runs the tasks on all cores, and answers in the order of the plan.
fn run_all<E: Experiment>(
    experiment: &E,
    tasks: Vec<Task<E::Task>>,
    options: &Options,
    progress: &mut Progress,
) -> Vec<Run<E::Task, E::Outcome>> {
    let next = AtomicUsize::new(0);
    let progress = Mutex::new(progress);
    let outcomes: Vec<Slot<E::Outcome>> = tasks.iter().map(|_| Mutex::new(None)).collect();
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let (Some(task), Some(slot)) = (tasks.get(index), outcomes.get(index)) else { break };
            lock(&progress).step(&format!("{} {}", Experiment::name(experiment), task.label));
            // A panic is a broken invariant of the model: it must not take the other figures along.
            let outcome = catch_unwind(AssertUnwindSafe(|| experiment.run(task)))
                .unwrap_or_else(|panic| Err(format!("the run panicked: {}", words(&*panic))));
            *lock(slot) = Some(outcome);
        }
    };
    std::thread::scope(|scope| {
        // The calling thread only waits, so that its stack is no part of the measurement.
        for _ in 0..options.threads(tasks.len()) {
            scope.spawn(work);
        }
    });
    let finished = |slot: Slot<E::Outcome>| {
        let outcome = slot.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        outcome.unwrap_or_else(|| Err("it was not run".to_owned()))
    };
    tasks
        .into_iter()
        .zip(outcomes)
        .map(|(task, slot)| Run { task, outcome: finished(slot) })
        .collect()
}

/// No lock here is held across code that can panic, so a poisoned one is as good as any.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn words(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}

fn record<T, O: Serialize>(run: Run<T, O>) -> RunRecord {
    let Run { task, outcome } = run;
    let json = |outcome: O| serde_json::to_value(outcome).map_err(|error| error.to_string());
    let (outcome, failed) = match outcome.and_then(json) {
        Ok(value) => (Some(value), None),
        Err(why) => (None, Some(why)),
    };
    RunRecord { label: task.label, seed: task.seed, outcome, failed }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::fake::Fake;

    fn run(fake: &Fake, jobs: usize) -> Reproduction {
        let options = Options { jobs: NonZeroUsize::new(jobs), ..Options::default() };
        fake.reproduce(&options, Progress::hidden).unwrap()
    }

    #[test]
    fn the_result_does_not_depend_on_the_number_of_threads() {
        let one = serde_json::to_string(&run(&Fake::default(), 1)).unwrap();
        for jobs in [2, 7] {
            assert_eq!(serde_json::to_string(&run(&Fake::default(), jobs)).unwrap(), one);
        }
    }

    #[test]
    fn runs_stand_in_the_order_of_the_plan_with_their_seeds() {
        let reproduction = run(&Fake::default(), 3);
        let runs: Vec<_> = reproduction.runs.iter().map(|r| (r.label.as_str(), r.seed)).collect();
        assert_eq!(runs[..4], [("a at 1", 1), ("a at 1", 2), ("a at 1", 3), ("a at 2", 1)]);
    }

    #[test]
    fn a_task_that_fails_or_panics_costs_its_own_cells_only() {
        let fake = Fake { fails: Some("a at 2"), panics: Some("b at 1"), ..Fake::default() };
        let reproduction = run(&fake, 2);
        let absent: Vec<_> = reproduction
            .cells
            .iter()
            .filter(|cell| cell.model().is_none())
            .map(Cell::to_string)
            .collect();
        assert_eq!(absent.len(), 2, "{absent:?}");
        assert!(absent[0].contains("not modelled (no such load)"), "{absent:?}");
        assert!(absent[1].contains("not modelled (the run panicked: two owners)"), "{absent:?}");
        let failed = reproduction.runs.iter().filter(|run| run.failed.is_some()).count();
        assert_eq!(failed, 6, "three seeds each");
    }

    #[test]
    fn quick_runs_each_cell_once_and_no_repetition_is_one() {
        let quick = Options { quick: true, ..Options::default() };
        assert_eq!(quick.seeds().collect::<Vec<_>>(), [1]);
        let none = Options { repetitions: 0, seed: u64::MAX, ..Options::default() };
        assert_eq!(none.seeds().collect::<Vec<_>>(), [u64::MAX]);
        let two = Options { repetitions: 2, seed: 40, ..Options::default() };
        assert_eq!(two.seeds().collect::<Vec<_>>(), [40, 41]);
    }

    #[test]
    fn there_are_never_more_threads_than_tasks() {
        let options = Options { jobs: NonZeroUsize::new(8), ..Options::default() };
        assert_eq!((options.threads(3), options.threads(0), options.threads(99)), (3, 0, 8));
    }
}
