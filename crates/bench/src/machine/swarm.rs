//! A swarm of random machines on all cores, for as long as one likes.
//!
//! What a seed means, and what is checked, is `napkin-machine`'s. Here seeds are spread over cores,
//! counted, and a seed that breaks something is run once more, so that it is known to replay.

use std::num::NonZeroUsize;
use std::ops::{ControlFlow, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use napkin_machine::swarm;
use thiserror::Error;

use super::pool;
use crate::interrupt::Interrupt;

/// What a swarm went through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Seeds that ran.
    pub seeds: u64,
    /// Virtual time.
    pub virtual_ns: u64,
    /// Events and steps.
    pub steps: u64,
    /// Frames.
    pub frames: u64,
    /// Faults that fell.
    pub faults: u64,
    /// Real time.
    pub elapsed: Duration,
}

impl Summary {
    fn per_minute(&self, of: f64) -> f64 {
        let minutes = self.elapsed.as_secs_f64() / 60.0;
        if minutes > 0.0 { of / minutes } else { 0.0 }
    }

    /// Virtual hours.
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

/// Runs seeds until they are used up, time is up, or one breaks something; every `twice`th is run
/// two times and compared. `tell` hears of the progress.
///
/// # Errors
/// The first seed, in their order, that broke something before the swarm stopped; with what all
/// went through.
pub fn run(
    seeds: Range<u64>,
    limit: Option<Duration>,
    jobs: Option<NonZeroUsize>,
    twice: u64,
    mut tell: impl FnMut(&Summary),
) -> Result<Summary, (Failure, Summary)> {
    let start = Instant::now();
    let mut summary = Summary::default();
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
    pool::each(pool::jobs(jobs), seeds, &Interrupt::default(), one, |seed, result| {
        summary.elapsed = start.elapsed();
        match result.and_then(|result| result) {
            Ok(report) => {
                summary.seeds += 1;
                summary.virtual_ns += report.virtual_ns;
                summary.steps += report.steps;
                summary.frames += report.frames;
                summary.faults += report.faults;
                tell(&summary);
            }
            Err(what) if failed.as_ref().is_none_or(|(least, _)| seed < *least) => {
                failed = Some((seed, what));
            }
            Err(_) => {}
        }
        let over = limit.is_some_and(|limit| summary.elapsed >= limit);
        if failed.is_some() || over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    match failed {
        None => Ok(summary),
        Some((seed, what)) => {
            let again = catch_unwind(AssertUnwindSafe(|| one(seed).is_err()));
            let replays = again.unwrap_or(true);
            Err((Failure { seed, what, replays }, summary))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_seeds_is_run_once_each_and_counted() {
        let mut told = 0;
        let summary = run(0..6, None, NonZeroUsize::new(2), 3, |_| told += 1).unwrap();
        assert_eq!((summary.seeds, told), (6, 6));
        assert!(summary.virtual_hours() > 0.0 && summary.steps > 0);
        let one = run(0..6, None, NonZeroUsize::new(1), 0, |_| ()).unwrap();
        assert_eq!(
            (one.steps, one.frames, one.faults),
            (summary.steps, summary.frames, summary.faults)
        );
    }

    #[test]
    fn no_seed_is_run_once_time_is_up() {
        let summary =
            run(0..u64::MAX, Some(Duration::ZERO), NonZeroUsize::new(1), 0, |_| ()).unwrap();
        assert!((1..10).contains(&summary.seeds), "the one under way ends: {}", summary.seeds);
    }
}
