//! An experiment: its tasks, and how their outcomes become cells, verdicts and plots.
//!
//! An experiment is planned as independent tasks, one per published row and seed, which run on all cores. Results
//! are put back into the order of the plan, so that the output does not depend on the number of threads or their
//! scheduling. A task that fails or panics affects only its own figures, whose cells give the reason.
//!
//! An experiment is not a [`Workload`](napkin_workload::Workload), and the two are kept apart. A workload's load is
//! a word from a user; a task is a published row, with settings of a profile and of the set-up that no such word
//! expresses. One experiment runs two workloads (2020), one runs none with a name (the kernel's counts). And
//! workloads must not know published values. They share one function: a task calls a workload's `run` with a
//! set-up.

mod options;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use super::causes::Causes;
use super::cell::Cell;
use super::json::{Reproduction, RunRecord};
use super::plot::Figure;
use super::sheet::TableError;
use super::verdict::Verdict;
use napkin_measure::report::Progress;
use napkin_measure::uncertainty::{Drawn, Interval, Uncertainty};
use napkin_policy::text::quoted;
use napkin_workload::interrupt::Interrupt;
use napkin_workload::machine::pool;
use napkin_workload::partial::Partial;

pub use super::run::{Run, Task};
pub use options::Options;

/// The reason of a run that was not started because of an interruption.
const NOT_RUN: &str = "interrupted before it was run";

/// The reason why an experiment did not take place.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReproduceError {
    /// A table cannot be used.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    File {
        /// The file that was to be read.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// Any other obstacle, such as an unsuitable profile.
    #[error("{0}")]
    Setup(String),
}

impl ReproduceError {
    /// Whether the request was invalid, as opposed to a file that cannot be read.
    pub fn is_usage(&self) -> bool {
        !matches!(self, ReproduceError::File { .. })
    }
}

/// Name and description of an experiment.
#[derive(Debug, Clone, Copy)]
pub struct About {
    /// Name on the command line: `2007`, `kernel`.
    pub name: &'static str,
    /// Heading.
    pub title: &'static str,
    /// Name of the host's profile.
    pub profile: &'static str,
    /// How the published and the modelled figures were taken: one or more paragraphs, for readers who have not read
    /// the proposal.
    pub about: &'static str,
}

/// A published experiment.
pub trait Experiment: Sync {
    /// The parameters of a task: a policy and a load, a scenario.
    type Task: Send + Sync;
    /// The result of a run: figures, and counts that were not published. It is stored in the JSON, and read back
    /// from there when an interrupted reproduction is resumed.
    type Outcome: Serialize + DeserializeOwned + Send;

    /// Name and description.
    const ABOUT: About;

    /// Plans the tasks, in the order in which they start: longest first, if known.
    ///
    /// # Errors
    /// If a table or a profile cannot be used.
    fn plan(&self, options: &Options) -> Result<Vec<Task<Self::Task>>, ReproduceError>;

    /// Relative amount of work of a task, to estimate the remaining time.
    fn work(&self, _task: &Task<Self::Task>) -> f64 {
        1.0
    }

    /// Runs one task. The same task must give the same outcome.
    ///
    /// # Errors
    /// If there is no outcome; the cells give the reason.
    fn run(&self, task: &Task<Self::Task>) -> Result<Self::Outcome, String>;

    /// Plans runs of changed models, to find out why rows miss: as many draws of each change as the options ask
    /// for.
    ///
    /// # Errors
    /// If they cannot be planned.
    fn trials(&self, _options: &Options) -> Result<Vec<Task<Self::Task>>, ReproduceError> {
        Ok(Vec::new())
    }

    /// Evaluates the trials.
    fn causes(
        &self,
        _options: &Options,
        _runs: &[Run<Self::Task, Self::Outcome>],
        _trials: &[Run<Self::Task, Self::Outcome>],
    ) -> Option<Causes> {
        None
    }

    /// Computes the cells, in the order in which they are printed. Every published figure has a cell, with a value
    /// or with the reason why there is none.
    fn cells(&self, runs: &[Run<Self::Task, Self::Outcome>]) -> Vec<Cell>;

    /// Evaluates the criteria of the experiment.
    fn verdicts(&self, cells: &[Cell]) -> Vec<Verdict>;

    /// Creates the plots of a report, each with published and modelled values.
    fn figures(&self, cells: &[Cell]) -> Vec<Figure>;

    /// Caveats for the reader, such as what was fitted to what.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}

/// An experiment of any type, as used by the command line.
pub trait Reproduce {
    /// Name on the command line: [`About::name`].
    fn name(&self) -> &str;

    /// The number of runs.
    ///
    /// # Errors
    /// If it cannot be planned.
    fn size(&self, options: &Options) -> Result<u64, ReproduceError>;

    /// Runs the experiment. `progress` creates a progress line for a number of steps.
    ///
    /// # Errors
    /// If it cannot be planned.
    fn reproduce(
        &self,
        options: &Options,
        progress: fn(u64) -> Progress,
    ) -> Result<Reproduction, ReproduceError> {
        self.resumable(options, progress, &Interrupt::default(), &mut Partial::default())
    }

    /// As [`reproduce`](Self::reproduce), but takes finished runs from `partial`, stores all others there, and
    /// stops if interrupted: the result is then partial, has no verdicts, and says so in a note.
    ///
    /// # Errors
    /// If it cannot be planned.
    fn resumable(
        &self,
        options: &Options,
        progress: fn(u64) -> Progress,
        interrupt: &Interrupt,
        partial: &mut Partial,
    ) -> Result<Reproduction, ReproduceError>;
}

impl<E: Experiment> Reproduce for E {
    fn name(&self) -> &str {
        E::ABOUT.name
    }

    fn size(&self, options: &Options) -> Result<u64, ReproduceError> {
        let of = |options: &Options| Ok::<_, ReproduceError>(self.plan(options)?.len() as u64);
        let trials = self.trials(options)?.len() as u64;
        Ok(of(options)? + trials + options.uncertainty * of(&options.drawn(0))?)
    }

    fn resumable(
        &self,
        options: &Options,
        progress: fn(u64) -> Progress,
        interrupt: &Interrupt,
        partial: &mut Partial,
    ) -> Result<Reproduction, ReproduceError> {
        let tasks = self.plan(options)?;
        let (profile, another) = profile_of(E::ABOUT.profile, options)?;
        let name = E::ABOUT.name;
        let mut line = progress(tasks.len() as u64);
        let runs = run_all(self, name, tasks, options, &mut line, interrupt, partial);
        drop(line);
        let mut cells = self.cells(&runs);
        let not_run =
            runs.iter().filter(|run| matches!(&run.outcome, Err(why) if why == NOT_RUN)).count();
        let mut notes: Vec<String> = another.into_iter().chain(self.notes()).collect();
        let mut verdicts = Vec::new();
        let (mut uncertainty, mut causes) = (None, None);
        if not_run == 0 {
            match trials(self, options, progress, interrupt, partial)? {
                Some(trials) => causes = self.causes(options, &runs, &trials),
                None => notes.push("interrupted before it was known why rows are off".to_owned()),
            }
            if let Some(causes) = &causes {
                causes.note(&mut cells);
            }
            verdicts = self.verdicts(&cells);
            let draws = draws(self, options, progress, interrupt, partial)?;
            if !draws.is_empty() {
                uncertainty = Some(uncertainty_of(&mut cells, &draws));
            }
            if (draws.len() as u64) < options.uncertainty {
                notes.push(format!(
                    "interrupted, with {} of {} draws",
                    draws.len(),
                    options.uncertainty
                ));
            }
        } else {
            let (done, all) = (runs.len() - not_run, runs.len());
            notes.push(format!(
                "interrupted, with {done} of {all} runs: no verdict is given on a part of them"
            ));
        }
        Ok(Reproduction {
            experiment: E::ABOUT.name.to_owned(),
            title: E::ABOUT.title.to_owned(),
            about: E::ABOUT.about.to_owned(),
            profiles: vec![profile],
            quick: options.quick,
            notes,
            verdicts,
            uncertainty,
            causes,
            figures: self.figures(&cells),
            runs: runs.into_iter().map(record).collect(),
            cells,
        })
    }
}

/// The name of the profile used, and a note if it is not the experiment's own.
fn profile_of(own: &str, options: &Options) -> Result<(String, Option<String>), ReproduceError> {
    let Some(given) = options.profile.as_deref().filter(|given| *given != Path::new(own)) else {
        return Ok((own.to_owned(), None));
    };
    let note = format!(
        "run on {} in the place of {own}: what is called fitted was fitted in {own}",
        quoted(&given.to_string_lossy())
    );
    Ok((options.host(own)?.name().to_owned(), Some(note)))
}

/// Sets the interval of each cell, and evaluates the orders. Each of `draws` has the cells of one draw, in the
/// order of `cells`.
fn uncertainty_of(cells: &mut [Cell], draws: &[Vec<Cell>]) -> Uncertainty {
    let of = |index: usize| draws.iter().map(move |draw| draw.get(index)?.model());
    for (index, cell) in cells.iter_mut().enumerate() {
        cell.interval = Interval::of(of(index).flatten().collect());
    }
    let judged = cells.iter().enumerate().filter(|(_, cell)| cell.is_informative());
    let figures: Vec<Drawn<'_>> = judged
        .map(|(index, cell)| Drawn {
            table: &cell.table,
            quantity: &cell.quantity,
            load: &cell.load,
            config: &cell.config,
            value: cell.model(),
            draws: of(index).collect(),
        })
        .collect();
    Uncertainty::of(&figures, draws.len())
}

/// Runs of an experiment's tasks.
type RunsOf<E> = Vec<Run<<E as Experiment>::Task, <E as Experiment>::Outcome>>;

/// Runs the trials; `None` if they were interrupted.
fn trials<E: Experiment>(
    experiment: &E,
    options: &Options,
    progress: fn(u64) -> Progress,
    interrupt: &Interrupt,
    partial: &mut Partial,
) -> Result<Option<RunsOf<E>>, ReproduceError> {
    let tasks = experiment.trials(options)?;
    if tasks.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let name = format!("{} causes", E::ABOUT.name);
    let mut line = progress(tasks.len() as u64);
    let runs = run_all(experiment, &name, tasks, options, &mut line, interrupt, partial);
    let whole = runs.iter().all(|run| !matches!(&run.outcome, Err(why) if why == NOT_RUN));
    Ok(whole.then_some(runs))
}

/// Runs the draws and returns the cells of each, up to an interruption.
fn draws<E: Experiment>(
    experiment: &E,
    options: &Options,
    progress: fn(u64) -> Progress,
    interrupt: &Interrupt,
    partial: &mut Partial,
) -> Result<Vec<Vec<Cell>>, ReproduceError> {
    let mut draws = Vec::new();
    for draw in 0..options.uncertainty {
        let options = options.drawn(draw);
        let tasks = experiment.plan(&options)?;
        let name = format!("{} draw {draw}", E::ABOUT.name);
        let mut line = progress(tasks.len() as u64);
        let runs = run_all(experiment, &name, tasks, &options, &mut line, interrupt, partial);
        if runs.iter().any(|run| matches!(&run.outcome, Err(why) if why == NOT_RUN)) {
            break;
        }
        draws.push(experiment.cells(&runs));
    }
    Ok(draws)
}

/// Runs the tasks on all cores, except those that `partial` has under this name, and returns the runs in the order
/// of the plan.
fn run_all<E: Experiment>(
    experiment: &E,
    name: &str,
    tasks: Vec<Task<E::Task>>,
    options: &Options,
    progress: &mut Progress,
    interrupt: &Interrupt,
    partial: &mut Partial,
) -> Vec<Run<E::Task, E::Outcome>> {
    let mut outcomes: Vec<Option<Result<E::Outcome, String>>> = Vec::new();
    for index in 0..tasks.len() as u64 {
        let found = partial.found(name, index);
        found.iter().for_each(|_| progress.skip());
        outcomes.push(found.map(Ok));
    }
    let left: Vec<usize> = (0..tasks.len()).filter(|index| outcomes[*index].is_none()).collect();
    let jobs = pool::jobs(options.jobs);
    let work: f64 = left.iter().map(|index| experiment.work(&tasks[*index])).sum();
    pool::run_each(
        jobs,
        0..left.len() as u64,
        interrupt,
        |place| experiment.run(&tasks[left[place as usize]]),
        |place, outcome| {
            let index = left[place as usize];
            let share = experiment.work(&tasks[index]) / work;
            progress.ended_of(&format!("{name} {}", tasks[index].label), jobs, share);
            let outcome = outcome.and_then(|outcome| outcome);
            match &outcome {
                Ok(outcome) => partial.keep(name, index as u64, outcome),
                Err(_) => partial.pass(),
            }
            outcomes[index] = Some(outcome);
            ControlFlow::Continue(())
        },
    );
    let finished = |outcome: Option<Result<E::Outcome, String>>| {
        outcome.unwrap_or_else(|| Err(NOT_RUN.to_owned()))
    };
    tasks
        .into_iter()
        .zip(outcomes)
        .map(|(task, outcome)| Run { task, outcome: finished(outcome) })
        .collect()
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
mod tests;
