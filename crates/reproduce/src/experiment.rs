//! An experiment: what it runs, and how its outcomes become cells, verdicts and plots.
//!
//! An experiment is planned as tasks that know nothing of each other, one a published row and seed, so
//! that all cores can run them. Results are put back into the order of the plan: the output does not depend
//! on which thread ran what, or on how many there were. A task that fails, or panics, costs its own
//! figures only, and its cells say why.
//!
//! It is no [`Workload`](napkin_workload::Workload) and not joined with one. A workload's load is a word that a
//! user may give; a task is a published row, with settings of a profile and of the set-up that no word has. One
//! experiment runs two workloads (2020), one runs none that has a name (the kernel's counts). And a workload must
//! not know what was published. What they share is a function: a task calls a workload's `run` with a set-up.

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

/// Why a run that an interruption came before has no outcome.
const NOT_RUN: &str = "interrupted before it was run";

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
        /// The file that was to be read.
        path: PathBuf,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// Anything else that stands against it, such as a profile that does not fit.
    #[error("{0}")]
    Setup(String),
}

impl ReproduceError {
    /// Whether it is the fault of what was asked for, and not of a file that cannot be read.
    pub fn is_usage(&self) -> bool {
        !matches!(self, ReproduceError::File { .. })
    }
}

/// What an experiment is called, and what was done in it.
#[derive(Debug, Clone, Copy)]
pub struct About {
    /// Its name on the command line: `2007`, `kernel`.
    pub name: &'static str,
    /// A line for a heading.
    pub title: &'static str,
    /// The profile of the host that it runs on.
    pub profile: &'static str,
    /// How the published figures were taken, and how the modelled ones are: a paragraph or more, for a
    /// reader who has not read the proposal.
    pub about: &'static str,
}

/// A published experiment.
pub trait Experiment: Sync {
    /// What a task runs: a policy under a load, a scenario.
    type Task: Send + Sync;
    /// What a run leaves: figures, and the counts that nobody published. It becomes part of the JSON, and
    /// is read back from there when an interrupted reproduction goes on.
    type Outcome: Serialize + DeserializeOwned + Send;

    /// Which experiment it is.
    const ABOUT: About;

    /// The tasks, the longest first where it is known: the order in which they start.
    ///
    /// # Errors
    /// If a table or a profile cannot be used.
    fn plan(&self, options: &Options) -> Result<Vec<Task<Self::Task>>, ReproduceError>;

    /// How much work a task is, beside the others: for an estimate of the time.
    fn work(&self, _task: &Task<Self::Task>) -> f64 {
        1.0
    }

    /// Runs one task. The same task must give the same outcome.
    ///
    /// # Errors
    /// If it has no outcome; the reason becomes that of its cells.
    fn run(&self, task: &Task<Self::Task>) -> Result<Self::Outcome, String>;

    /// Runs of changed models, that are to tell why rows are off: as many draws of each change as the
    /// options ask for.
    ///
    /// # Errors
    /// If they cannot be planned.
    fn trials(&self, _options: &Options) -> Result<Vec<Task<Self::Task>>, ReproduceError> {
        Ok(Vec::new())
    }

    /// What they tell.
    fn causes(
        &self,
        _options: &Options,
        _runs: &[Run<Self::Task, Self::Outcome>],
        _trials: &[Run<Self::Task, Self::Outcome>],
    ) -> Option<Causes> {
        None
    }

    /// The figures, in the order in which they are printed. Every published figure has a cell, with a
    /// value or with the reason why there is none.
    fn cells(&self, runs: &[Run<Self::Task, Self::Outcome>]) -> Vec<Cell>;

    /// What the experiment is asked to show.
    fn verdicts(&self, cells: &[Cell]) -> Vec<Verdict>;

    /// The plots of a report: published and modelled in one.
    fn figures(&self, cells: &[Cell]) -> Vec<Figure>;

    /// What a reader should know before believing it, such as what was fitted to what.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}

/// An experiment of any kind, as the command line sees it.
pub trait Reproduce {
    /// Its name on the command line: [`About::name`].
    fn name(&self) -> &str;

    /// How many runs it takes.
    ///
    /// # Errors
    /// If it cannot be planned.
    fn size(&self, options: &Options) -> Result<u64, ReproduceError>;

    /// Runs all of it. `progress` makes the progress line for a number of steps.
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

    /// The same, but that runs which `partial` has are taken from there, all others are kept there, and
    /// it ends when asked to: with what there is, without a verdict on it, and with a note.
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
            let (there, all) = (runs.len() - not_run, runs.len());
            notes.push(format!(
                "interrupted, with {there} of {all} runs: no verdict is given on a part of them"
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

/// The name of the profile that an experiment runs on, and what a reader should know if it is another than
/// its own.
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

/// Gives each cell its interval, and says which orders the draws keep. Each of `draws` are the cells of one
/// draw, in the order of `cells`.
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

/// The runs that are to tell why rows are off; `None` if not all of them were run.
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

/// The cells of each draw, as far as nobody interrupts.
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

/// Runs the tasks on all cores, but for those that `partial` has under this name, and answers in the order
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
        found.iter().for_each(|_| progress.past());
        outcomes.push(found.map(Ok));
    }
    let left: Vec<usize> = (0..tasks.len()).filter(|index| outcomes[*index].is_none()).collect();
    let jobs = pool::jobs(options.jobs);
    let work: f64 = left.iter().map(|index| experiment.work(&tasks[*index])).sum();
    pool::each(
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
