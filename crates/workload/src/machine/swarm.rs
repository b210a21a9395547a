//! A swarm of random machines on all cores, for as long as one likes.
//!
//! What a seed means, and what is checked, is `napkin-machine`'s. Here seeds are spread over cores,
//! counted, and a seed that breaks something is run once more, so that it is known to replay.

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

/// What a swarm went through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Summary {
    /// Seeds that ran.
    pub seeds: u64,
    /// Virtual time of all seeds together.
    pub virtual_ns: u64,
    /// Events and steps.
    pub steps: u64,
    /// Frames that were sent in them.
    pub frames: u64,
    /// Faults that fell.
    pub faults: u64,
    /// Time on the wall.
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

    /// Virtual hours that a real minute gets through.
    pub fn virtual_hours_per_minute(&self) -> f64 {
        self.per_minute(self.virtual_hours())
    }

    /// Events that a real minute gets through.
    pub fn events_per_minute(&self) -> f64 {
        self.per_minute(self.steps as f64)
    }
}

/// A seed that broke something.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("seed {seed}: {what}{}", if *replays { "" } else { " (and not when run again: the run is not a function of its seed)" })]
pub struct Failure {
    /// The least of the seeds that broke before the swarm stopped.
    pub seed: u64,
    /// What it broke.
    pub what: String,
    /// Whether it broke the same when it was run again.
    pub replays: bool,
}

/// How far a swarm came: from here it can go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct State {
    /// The first seed that has not run.
    pub next: u64,
    /// What those before it went through.
    pub summary: Summary,
}

impl State {
    /// At the beginning.
    pub fn new(first: u64) -> State {
        State { next: first, summary: Summary::default() }
    }
}

/// Runs seeds from `state.next` to `end`, until they are used up, time is up (what the state has used is
/// part of it), it is interrupted, or one breaks something; every `twice`th is run two times and
/// compared. `tell` hears of the progress.
///
/// # Errors
/// The first seed, in their order, that broke something before the swarm stopped; with what those
/// before the first that did not end went through.
pub fn run(
    mut state: State,
    end: u64,
    limit: Option<Duration>,
    jobs: Option<NonZeroUsize>,
    twice: u64,
    interrupt: &Interrupt,
    mut tell: impl FnMut(&State),
) -> Result<State, (Failure, Summary)> {
    let (start, before) = (Instant::now(), state.summary.elapsed);
    // Seeds that ended before one in front of them did.
    let mut ahead: BTreeMap<u64, Report> = BTreeMap::new();
    let mut failed: Option<(u64, String)> = None;
    let one = |seed: u64| {
        let once = swarm::run(seed).map_err(|broken| broken.what)?;
        if twice > 0 && seed.is_multiple_of(twice) {
            let again = swarm::run(seed).map_err(|broken| broken.what)?;
            if again.transcript != once.transcript {
                return Err("two runs of it differ".to_owned());
            }
        }
        Ok(once)
    };
    pool::each(pool::jobs(jobs), state.next..end, interrupt, one, |seed, result| {
        state.summary.elapsed = before + start.elapsed();
        match result.and_then(|result| result) {
            Ok(report) => {
                ahead.insert(seed, report);
                while let Some(report) = ahead.remove(&state.next) {
                    state.next += 1;
                    state.summary.add(&report);
                }
                tell(&state);
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
            let again = catch_unwind(AssertUnwindSafe(|| one(seed).is_err()));
            let replays = again.unwrap_or(true);
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
        let mut told = 0;
        let (never, jobs) = (Interrupt::default(), NonZeroUsize::new(2));
        let six = run(State::new(0), 6, None, jobs, 3, &never, |_| told += 1).unwrap();
        assert_eq!((six.next, six.summary.seeds, told), (6, 6, 6));
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
        // One thread: a second could run all of the others before the first is heard.
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
