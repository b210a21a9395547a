//! A table of runs: policies under loads on one modelled host, several seeds each.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;

use crate::list::rule;
use crate::machine::run::{Outcome, Run};
use napkin_machine::Trace;
use napkin_machine::profile::{Profile, ProfileError};
use napkin_policy::text::quoted;
use napkin_policy::{MILLISECOND, Ns, Policy, Time};
use serde_json::{Map, Value, json};
use thiserror::Error;

use super::perfetto::{MOST_EVENTS, Recorder, Timeline, TraceError};
use super::scenario::{LoadError, Scenario};
use super::{host, measurement, pool};
use crate::interrupt::{Interrupt, Interrupted};
use crate::options::MOST_REPETITIONS;
use crate::partial::Partial;
use napkin_measure::conclusion;
use napkin_measure::report::{
    Column, Measurement, Progress, Repetition, Report, Row, column, ties,
};
use napkin_measure::uncertainty::{Drawn, Uncertainty};
use napkin_policy::NamedPolicy;

/// Longest virtual time of one run, warm-up included: one hour.
pub const MAX_VIRTUAL_TIME: Ns = 3_600_000 * MILLISECOND;

/// What a reader must know about interrupts if transmissions raise them, too.
const BOTH_KINDS: &str = "irqs/pkt, and interrupts in the JSON, are of both kinds, receive and transmit: this \
                          profile's card raises both on one line (nic.tx-interrupts = on)";

/// Why a table was not run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The profile is invalid, or not for this workload.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A load is invalid.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Two loads are equal, however they were written, so their rows could not be distinguished.
    #[error("--load: '{0}' stands twice")]
    LoadTwice(String),
    /// One of the lists is empty.
    #[error("nothing to run: give at least one {0}")]
    Nothing(&'static str),
    /// Two policies could not be distinguished.
    #[error("{0}")]
    Policies(String),
    /// The window is empty or too long.
    #[error("a run of {time} of virtual time: give a window above 0 and at most an hour in all", time = Time(*.0))]
    Window(Ns),
    /// More repetitions than the limit.
    #[error("{0} repetitions: give at most {MOST_REPETITIONS}")]
    Repetitions(u64),
    /// The timeline would be too large.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The run was interrupted.
    #[error("{interrupted}")]
    Interrupted {
        /// The signal.
        interrupted: Interrupted,
        /// The measurements up to then, if any.
        report: Option<Box<Report>>,
    },
    /// A run failed.
    #[error("{what}: {why}")]
    Run {
        /// The policy and load, or whatever else failed.
        what: String,
        /// The reason.
        why: String,
    },
}

impl PlanError {
    /// Whether the request was invalid, as opposed to a failure of a run.
    pub fn is_usage(&self) -> bool {
        !matches!(self, PlanError::Run { .. } | PlanError::Interrupted { .. })
    }
}

/// One run: a workload on a host, under a policy and a load, with a seed.
#[derive(Debug, Clone, Copy)]
pub struct Point<'a> {
    /// The workload.
    pub scenario: &'a dyn Scenario,
    /// The host, its card and its link.
    pub profile: &'a Profile,
    /// How the host delivers packets.
    pub policy: Policy,
    /// The load, in the workload's own form (`200k`).
    pub load: &'a str,
    /// The seed of all randomness.
    pub seed: u64,
    /// Virtual time before the window.
    pub warm_up: Ns,
    /// The measured virtual time.
    pub window: Ns,
}

impl Point<'_> {
    /// Runs the point.
    ///
    /// # Errors
    /// Any error of [`Scenario::run`].
    pub fn run(&self, trace: Option<Box<dyn Trace>>) -> Result<Outcome, String> {
        let Point { scenario, profile, policy, load, seed, warm_up, window } = *self;
        // A trace must show each empty poll. Skipping them affects nothing else.
        let skip = trace.is_none();
        scenario.run(load, Run { profile, policy, seed, warm_up, window, skip, trace })
    }
}

/// A table to run: policies by loads, with several repetitions each.
#[derive(Debug, Clone)]
pub struct Plan<'a> {
    /// The workload.
    pub scenario: &'a dyn Scenario,
    /// The host, its card and its link.
    pub profile: Profile,
    /// The origin of the profile: `built-in`, or a path.
    pub source: String,
    /// The policies to compare.
    pub policies: Vec<NamedPolicy>,
    /// The loads, each in the scenario's form.
    pub loads: Vec<String>,
    /// Seeds of each policy under each load.
    pub repetitions: u64,
    /// Whether each repetition draws all uncertain constants of the profile; all policies get the same draws.
    pub drawn: bool,
    /// The first seed; the others follow it. All policies have the same ones.
    pub seed: u64,
    /// Virtual time before the window.
    pub warm_up: Ns,
    /// The measured virtual time.
    pub window: Ns,
    /// Number of threads; `None` for one per CPU.
    pub jobs: Option<NonZeroUsize>,
}

impl Plan<'_> {
    /// Refuses an invalid table before anything runs.
    ///
    /// # Errors
    /// The first problem.
    pub fn check(&self) -> Result<(), PlanError> {
        self.scenario.require(&self.profile)?;
        for (none, what) in [
            (self.policies.is_empty(), "policy"),
            (self.loads.is_empty(), "load"),
            (self.repetitions == 0, "repetition"),
        ] {
            if none {
                return Err(PlanError::Nothing(what));
            }
        }
        if self.window == 0 || self.window.saturating_add(self.warm_up) > MAX_VIRTUAL_TIME {
            return Err(PlanError::Window(self.window.saturating_add(self.warm_up)));
        }
        if self.repetitions > MOST_REPETITIONS as u64 {
            return Err(PlanError::Repetitions(self.repetitions));
        }
        NamedPolicy::distinct(&self.policies).map_err(PlanError::Policies)?;
        let mut loads = Vec::new();
        for text in &self.loads {
            let load = self.scenario.load(text, &self.profile)?;
            if loads.contains(&load) {
                return Err(PlanError::LoadTwice(quoted(text)));
            }
            loads.push(load);
        }
        Ok(())
    }

    /// The number of rows: loads in the outer loop, policies in the inner one, as in the other worlds.
    fn rows(&self) -> usize {
        self.loads.len() * self.policies.len()
    }

    fn policy(&self, row: usize) -> &NamedPolicy {
        &self.policies[row % self.policies.len()]
    }

    fn point(&self, row: usize, repetition: u64) -> Point<'_> {
        Point {
            scenario: self.scenario,
            profile: &self.profile,
            policy: self.policy(row).policy,
            load: &self.loads[row / self.policies.len()],
            seed: self.seed.wrapping_add(repetition),
            warm_up: self.warm_up,
            window: self.window,
        }
    }

    fn name(&self, row: usize) -> String {
        let load = self.point(row, 0).load;
        format!("{} {} at {load}", self.scenario.name(), self.policy(row))
    }

    /// Returns the number of runs.
    pub fn size(&self) -> u64 {
        (self.rows() as u64).saturating_mul(self.repetitions)
    }

    /// Returns everything that the results depend on. A resumed table must have the same identity.
    pub fn identity(&self) -> Value {
        let constants = self.profile.constants().map(|it| (it.key.path(), Value::from(it.value)));
        let policies = self.policies.iter();
        // A draw depends on the ranges of all of them.
        let ranges = self.profile.uncertain().filter(|_| self.drawn);
        let ranges = ranges.map(|it| (it.key.path(), json!([it.low, it.high])));
        json!({
            "workload": self.scenario.name(),
            "world": "machine",
            "profile": self.profile.name(),
            "constants": constants.collect::<Map<_, _>>(),
            "loads": self.loads,
            "policies": policies
                .map(|it| json!({ "name": it.name, "policy": it.policy.to_string() }))
                .collect::<Vec<_>>(),
            "repetitions": self.repetitions,
            "drawn": self.drawn,
            "ranges": ranges.collect::<Map<_, _>>(),
            "window_ns": self.window,
            "warm_up_ns": self.warm_up,
            "seed": self.seed,
        })
    }

    /// Runs the table. A run that fails leaves a note in its row instead of values.
    ///
    /// # Errors
    /// Any error of [`Plan::check`], or the first failure if every run failed.
    pub fn run(&self, progress: fn(u64) -> Progress) -> Result<Report, PlanError> {
        self.resumable(progress, &Interrupt::default(), &mut Partial::default())
    }

    /// Runs the table as [`Plan::run`] does, but takes the runs that `partial` already has from there, stores all
    /// others in it, and ends when interrupted.
    ///
    /// # Errors
    /// Any error of [`Plan::run`], and [`PlanError::Interrupted`].
    pub fn resumable(
        &self,
        progress: fn(u64) -> Progress,
        interrupt: &Interrupt,
        partial: &mut Partial,
    ) -> Result<Report, PlanError> {
        self.check()?;
        let (rows, count) = (self.rows() as u64, self.size());
        let draws = (1..=self.repetitions).filter(|_| self.drawn);
        let hosts = draws.map(|draw| self.profile.drawn(draw)).collect::<Result<Vec<_>, _>>()?;
        let mut progress = progress(count);
        let mut results: Vec<Vec<(u64, Result<_, String>)>> = vec![Vec::new(); rows as usize];
        let mut left = Vec::new();
        for place in 0..count {
            match partial.found(self.scenario.name(), place) {
                Some(figures) => {
                    progress.skip();
                    results[(place % rows) as usize].push((place, Ok(figures)));
                }
                None => left.push(place),
            }
        }
        let jobs = pool::jobs(self.jobs);
        pool::run_each(
            jobs,
            0..left.len() as u64,
            interrupt,
            |index| {
                let place = left[index as usize];
                let (row, repetition) = ((place % rows) as usize, place / rows);
                let profile = hosts.get(repetition as usize).unwrap_or(&self.profile);
                let point = Point { profile, ..self.point(row, repetition) };
                point.run(None).map(|outcome| measurement::measurement(&outcome))
            },
            |index, result| {
                let place = left[index as usize];
                let row = (place % rows) as usize;
                progress.ended(&self.name(row), jobs);
                let result = result.and_then(|result| result);
                match &result {
                    Ok(figures) => partial.keep(self.scenario.name(), place, figures),
                    Err(_) => partial.pass(),
                }
                results[row].push((place, result));
                ControlFlow::Continue(())
            },
        );
        drop(progress);
        let done: usize = results.iter().map(Vec::len).sum();
        let interrupted = interrupt.check().err().filter(|_| (done as u64) < count);
        let mut failure = None;
        let mut table = Vec::new();
        for (row, mut results) in results.into_iter().enumerate() {
            results.sort_by_key(|(place, _)| *place);
            let (mut repetitions, mut notes) = (Vec::new(), Vec::new());
            for (step, result) in results {
                match result {
                    Ok(figures) => repetitions.push(Repetition { step, figures }),
                    Err(why) => {
                        let seed = self.seed.wrapping_add(step / rows);
                        failure.get_or_insert((self.name(row), format!("seed {seed}: {why}")));
                        notes.push(format!("seed {seed}: {why}"));
                    }
                }
            }
            let load = self.scenario.load(self.point(row, 0).load, &self.profile)?;
            if interrupted.is_some() && repetitions.is_empty() && notes.is_empty() {
                continue;
            }
            table.push(Row::of(self.policy(row), load, repetitions, notes));
        }
        let nothing = table.iter().all(|it: &Row| it.repetitions.is_empty());
        if let (Some((what, why)), true, None) = (failure, nothing, interrupted) {
            return Err(PlanError::Run { what, why });
        }
        let early = |interrupted| {
            format!("the run ended early, with {done} of {count} runs: {interrupted}")
        };
        let known = self.policies.iter().filter_map(NamedPolicy::note);
        let ran = |it: &&NamedPolicy| {
            table.iter().any(|row| row.name == it.name && !row.repetitions.is_empty())
        };
        let left_out = self.scenario.waiting().note(self.policies.iter().filter(ran));
        let both = self.profile.on("nic.tx-interrupts").then(|| BOTH_KINDS.to_owned());
        let mut report = Report {
            workload: self.scenario.name().to_owned(),
            world: "machine".to_owned(),
            host: host::host(&self.profile, &self.source),
            conclusion: None,
            rows: table,
            notes: known.chain(left_out).chain(both).chain(interrupted.map(early)).collect(),
            extra: Map::from_iter([
                ("seed".to_owned(), Value::from(self.seed)),
                ("window_ns".to_owned(), Value::from(self.window)),
                ("warm_up_ns".to_owned(), Value::from(self.warm_up)),
            ]),
        };
        ties::mark(&mut report.rows);
        if self.drawn {
            let uncertainty = self.uncertainty(&report.rows);
            report.notes.push(format!(
                "{} draws of all fitted and assumed constants of the profile within their ranges, with seeds of \
                 their own: what p99 reaches from and to is that of the draws",
                uncertainty.draws
            ));
            report.notes.extend(uncertainty.lines());
            let json = serde_json::to_value(uncertainty).unwrap_or_default();
            report.extra.insert("uncertainty".to_owned(), json);
        }
        report.conclusion = conclusion::conclude(&report, rule(&report.workload));
        match interrupted {
            None => Ok(report),
            Some(interrupted) => {
                let report = (done > 0).then(|| Box::new(report));
                Err(PlanError::Interrupted { interrupted, report })
            }
        }
    }

    /// Returns which orders of two policies, by their p99, the draws keep. A p99 that is unknown in a draw, because
    /// requests were not answered, counts as larger than any known one. So does a policy's own unknown p99, if that
    /// happens in at least half of its draws.
    fn uncertainty(&self, rows: &[Row]) -> Uncertainty {
        let p99 = |figures: &Measurement| {
            let Some(latency) = &figures.latency_ns else { return Some(f64::INFINITY) };
            let beyond = latency.above.and_then(|above| above.p99).map(|_| f64::INFINITY);
            latency.at.p99.map(|ns| ns as f64).or(beyond)
        };
        let load = |row: &Row| {
            let texts = row.load.values().map(|value| match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            });
            texts.collect::<Vec<_>>().join(" ")
        };
        let loads: Vec<String> = rows.iter().map(load).collect();
        let figures: Vec<Drawn<'_>> = rows
            .iter()
            .zip(&loads)
            .map(|(row, load)| {
                let of_draw = |draw: u64| {
                    let is_of = |it: &&Repetition| it.step / self.rows() as u64 == draw;
                    p99(&row.repetitions.iter().find(is_of)?.figures)
                };
                let draws: Vec<Option<f64>> = (0..self.repetitions).map(of_draw).collect();
                let beyond = draws.iter().flatten().filter(|p99| p99.is_infinite()).count();
                let half = beyond > 0 && 2 * beyond >= row.repetitions.len();
                let value = p99(&row.figures).or(half.then_some(f64::INFINITY));
                Drawn { table: "", quantity: "p99", load, config: &row.name, value, draws }
            })
            .collect();
        Uncertainty::of(&figures, self.repetitions as usize)
    }

    /// Records the first part of each row's measured window, with its first seed. Up to its end, it is identical to
    /// what [`Plan::run`] runs.
    ///
    /// # Errors
    /// Any error of [`Plan::check`], a timeline that would be too large, the first run that failed, or the
    /// interruption.
    pub fn timelines(&self, window: Ns, interrupt: &Interrupt) -> Result<Vec<Timeline>, PlanError> {
        self.recorded(window, MOST_EVENTS, interrupt)
    }

    /// Records timelines of at most `most` events together.
    fn recorded(
        &self,
        window: Ns,
        most: usize,
        interrupt: &Interrupt,
    ) -> Result<Vec<Timeline>, PlanError> {
        self.check()?;
        let window = window.min(self.window);
        if window == 0 {
            return Err(PlanError::Window(window));
        }
        let rows = self.rows();
        let most = most / rows.max(1);
        let mut found: Vec<Option<Result<Timeline, PlanError>>> = (0..rows).map(|_| None).collect();
        let record = |place: u64| {
            let row = place as usize;
            let point = Point { window, ..self.point(row, 0) };
            let begin = self.warm_up;
            let recorder = Recorder::new(&self.name(row), begin, begin + window, most);
            let timeline = recorder.timeline();
            let failed = |why| PlanError::Run { what: self.name(row), why };
            let outcome = point.run(Some(Box::new(recorder))).map_err(failed)?;
            drop(outcome);
            let timeline = timeline.take();
            timeline.check()?;
            Ok(timeline)
        };
        let jobs = pool::jobs(self.jobs);
        pool::run_each(jobs, 0..rows as u64, interrupt, record, |place, result| {
            let row = place as usize;
            let panicked = |why| Err(PlanError::Run { what: self.name(row), why });
            found[row] = Some(result.unwrap_or_else(panicked));
            ControlFlow::Continue(())
        });
        if let Err(interrupted) = interrupt.check() {
            return Err(PlanError::Interrupted { interrupted, report: None });
        }
        found.into_iter().flatten().collect()
    }

    /// Returns the columns of the printed table.
    pub fn columns(&self) -> Vec<&'static Column> {
        let first = self.loads.first().and_then(|it| self.scenario.load(it, &self.profile).ok());
        let load = first.unwrap_or_default();
        let mut columns = vec![column::POLICY];
        columns.extend(load.keys().filter_map(|key| Column::of_load(key)));
        columns.extend([
            column::OFFERED,
            column::ACHIEVED,
            column::P50,
            column::P99,
            column::P999,
            column::WORK,
            column::POLL,
            column::WAITING,
            column::ASLEEP,
            column::UNANSWERED,
            column::INTERRUPTS_PER_PACKET,
            column::POLLS,
            column::DROPS,
            column::SWITCHES_PER_PACKET,
        ]);
        columns
    }
}

#[cfg(test)]
mod tests;
