//! A swarm of random machines on all cores, for any length of time.
//!
//! `napkin-machine` defines what a seed stands for and what is checked. This module distributes seeds over the
//! cores and counts them. It runs a seed that breaks an invariant once more, to verify that it replays.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use napkin_machine::swarm::{self, Report};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::pool;
use crate::interrupt::Interrupt;

/// The totals of a swarm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Summary {
    /// Seeds that finished.
    pub seeds: u64,
    /// Virtual time of all seeds together.
    pub virtual_ns: u64,
    /// Events and steps of the model.
    pub steps: u64,
    /// Frames sent.
    pub frames: u64,
    /// Faults injected.
    pub faults: u64,
    /// Real time.
    pub elapsed: Duration,
}

impl Summary {
    fn add(&mut self, report: &Report) {
        self.seeds += 1;
        self.virtual_ns += report.virtual_ns;
        self.steps += report.steps;
        self.frames += report.frames;
        self.faults += report.faults;
    }

    fn per_minute(&self, of: f64) -> f64 {
        let minutes = self.elapsed.as_secs_f64() / 60.0;
        if minutes > 0.0 { of / minutes } else { 0.0 }
    }

    /// The virtual time, in hours.
    pub fn virtual_hours(&self) -> f64 {
        self.virtual_ns as f64 / 3.6e12
    }

    /// Virtual hours per real minute.
    pub fn virtual_hours_per_minute(&self) -> f64 {
        self.per_minute(self.virtual_hours())
    }

    /// Events per real minute.
    pub fn events_per_minute(&self) -> f64 {
        self.per_minute(self.steps as f64)
    }
}

/// A seed that broke an invariant.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("seed {seed}: {what}{}", if *replays { "" } else { " (and not when run again: the run is not a function of its seed)" })]
pub struct Failure {
    /// The lowest of the seeds that failed before the swarm stopped.
    pub seed: u64,
    /// The invariant that it broke.
    pub what: String,
    /// Whether it failed again when it was run once more.
    pub replays: bool,
}

/// The progress of a swarm, from which it can resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct State {
    /// The lowest seed that has not finished.
    pub next: u64,
    /// The totals of the seeds before it.
    pub summary: Summary,
}

impl State {
    /// The state before the first seed.
    pub fn new(first: u64) -> State {
        State { next: first, summary: Summary::default() }
    }
}

/// Runs seeds from `state.next` to `end`, until none are left, the time limit is reached (it includes the time that
/// the state has used already), the swarm is interrupted, or a seed fails. Every `twice`th seed is run twice, and
/// the two transcripts are compared. `on_progress` receives the progress.
///
/// # Errors
/// The lowest seed that failed before the swarm stopped, with the totals of the seeds before the first unfinished
/// one.
pub fn run(
    mut state: State,
    end: u64,
    limit: Option<Duration>,
    jobs: Option<NonZeroUsize>,
    twice: u64,
    interrupt: &Interrupt,
    mut on_progress: impl FnMut(&State),
) -> Result<State, (Failure, Summary)> {
    let (start, before) = (Instant::now(), state.summary.elapsed);
    // Seeds that finished before a lower one did.
    let mut ahead: BTreeMap<u64, Report> = BTreeMap::new();
    let mut failed: Option<(u64, String)> = None;
    let one = |seed: u64| {
        let once = swarm::run(seed).map_err(|broken| broken.what)?;
        if twice > 0 && seed.is_multiple_of(twice) {
            let second = swarm::run(seed).map_err(|broken| broken.what)?;
            if second.transcript != once.transcript {
                return Err("two runs of it differ".to_owned());
            }
        }
        Ok(once)
    };
    pool::run_each(pool::jobs(jobs), state.next..end, interrupt, one, |seed, result| {
        state.summary.elapsed = before + start.elapsed();
        match result.and_then(|result| result) {
            Ok(report) => {
                ahead.insert(seed, report);
                while let Some(report) = ahead.remove(&state.next) {
                    state.next += 1;
                    state.summary.add(&report);
                }
                on_progress(&state);
            }
            Err(what) if failed.as_ref().is_none_or(|(least, _)| seed < *least) => {
                failed = Some((seed, what));
            }
            Err(_) => {}
        }
        let over = limit.is_some_and(|limit| state.summary.elapsed >= limit);
        if failed.is_some() || over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    match failed {
        None => Ok(state),
        Some((seed, what)) => {
            let second = catch_unwind(AssertUnwindSafe(|| one(seed).is_err()));
            let replays = second.unwrap_or(true);
            Err((Failure { seed, what, replays }, state.summary))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seeds(from: State, end: u64, jobs: usize, interrupt: &Interrupt) -> State {
        run(from, end, None, NonZeroUsize::new(jobs), 3, interrupt, |_| ()).unwrap()
    }

    #[test]
    fn a_range_of_seeds_is_run_once_each_and_counted() {
        let mut reports = 0;
        let (never, jobs) = (Interrupt::default(), NonZeroUsize::new(2));
        let six = run(State::new(0), 6, None, jobs, 3, &never, |_| reports += 1).unwrap();
        assert_eq!((six.next, six.summary.seeds, reports), (6, 6, 6));
        assert!(six.summary.virtual_hours() > 0.0 && six.summary.steps > 0);
        let mut one = seeds(State::new(0), 6, 1, &never);
        one.summary.elapsed = six.summary.elapsed;
        assert_eq!(one, six);
    }

    #[test]
    fn a_swarm_that_was_interrupted_goes_on_to_the_same_totals() {
        let asked = Interrupt::default();
        let end_after_two = |state: &State| {
            if state.summary.seeds == 2 {
                asked.note(2);
            }
        };
        let first = State::new(10);
        // One thread: a second one could run all the others before the first result arrives.
        let jobs = NonZeroUsize::new(1);
        let some = run(first, 18, None, jobs, 0, &asked, end_after_two).unwrap();
        assert!((12..18).contains(&some.next), "{some:?}");
        assert_eq!(some.summary.seeds, some.next - 10);
        let text = serde_json::to_string(&some).unwrap();
        let some = serde_json::from_str(&text).unwrap();
        let never = Interrupt::default();
        let mut all = seeds(some, 18, 2, &never);
        let whole = seeds(first, 18, 1, &never);
        assert!(all.summary.elapsed > some.summary.elapsed);
        all.summary.elapsed = whole.summary.elapsed;
        assert_eq!(all, whole);
    }

    #[test]
    fn no_seed_is_run_once_time_is_up() {
        let (never, jobs, first) = (Interrupt::default(), NonZeroUsize::new(1), State::new(0));
        let run = |from| run(from, u64::MAX, Some(Duration::ZERO), jobs, 0, &never, |_| ());
        let state = run(first).unwrap();
        assert!((1..10).contains(&state.next), "the one under way ends: {}", state.next);
    }
}
