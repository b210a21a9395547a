//! `napkin swarm`: random machines, until one breaks an invariant.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use napkin_measure::report::length;
use napkin_workload::machine::swarm::{self, State};
use serde_json::json;

use crate::attempt::{self, Attempt};
use crate::failure::{Failure, print, print_failure, say};
use crate::units;

/// Real time to the first line of progress.
const FIRST_PROGRESS: Duration = Duration::from_secs(1);

/// Real time between two lines of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// One seed in this many is run twice and compared.
const REPEAT_EVERY: u64 = 16;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A seed determines everything: the machine, its costs, scheduler and driver, the
policies, the traffic, and the faults and their times (interrupts lost or late,
applications that stall, contexts that vanish, modes that change, a link that
flaps). All invariants of docs/design.md are checked after every event. One
seed in 16 is run twice and compared byte for byte. A seed that breaks an
invariant is printed and replays exactly; the exit code is then 1. Ctrl-C
prints how far the run came and leaves a file from which --resume continues,
also with more --minutes, or later --seeds.

Examples:
  napkin swarm --minutes 10
  napkin swarm --seeds 1..1000
  napkin swarm --seed 4711             replay one
  napkin swarm --minutes 60 --resume napkin-swarm-20261122-174512.partial")]
pub(crate) struct Swarm {
    /// How long to run, in minutes of real time, as in 10 or 0.5. [default: 1]
    #[arg(long, value_name = "N", conflicts_with_all = ["seeds", "seed"], value_parser = minutes)]
    minutes: Option<Duration>,
    /// These seeds, both ends included, as in 1..1000.
    #[arg(long, value_name = "A..B", value_parser = seeds, conflicts_with = "seed")]
    seeds: Option<Range<u64>>,
    /// One seed, run twice.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Runs at a time. [default: as many as there are CPUs]
    #[arg(long, value_name = "N", value_parser = units::jobs)]
    jobs: Option<NonZeroUsize>,
    /// Resume from the file that an interrupted swarm has left, with its totals.
    #[arg(long, value_name = "FILE", conflicts_with = "seed")]
    resume: Option<PathBuf>,
    /// Show no progress.
    #[arg(long)]
    quiet: bool,
}

fn minutes(text: &str) -> Result<Duration, String> {
    let minutes = text.parse::<f64>().ok().filter(|it| *it > 0.0 && *it <= 1e6);
    minutes.map(|minutes| Duration::from_secs_f64(minutes * 60.0)).ok_or_else(|| {
        "give minutes above 0 and at most 1000000 (two years), as in 10 or 0.5".to_owned()
    })
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let number = |text: &str| text.trim().parse::<u64>().ok().filter(|it| *it < u64::MAX);
    let ends =
        text.split_once("..").and_then(|(first, last)| Some((number(first)?, number(last)?)));
    match ends {
        Some((first, last)) if first <= last => Ok(first..last + 1),
        _ => Err("give two seeds, the lesser first, as in 1..1000".to_owned()),
    }
}

pub(crate) fn run(args: &Swarm) -> Result<(), Failure> {
    let default = Duration::from_secs(60);
    let (range, limit) = match (&args.seeds, args.seed) {
        (Some(seeds), _) => (seeds.clone(), None),
        (None, Some(seed)) => (seed..seed.saturating_add(1), None),
        (None, None) => (0..u64::MAX, Some(args.minutes.unwrap_or(default))),
    };
    let twice = if args.seed.is_some() { 1 } else { REPEAT_EVERY };
    let plan = json!({ "first": range.start, "twice": twice });
    let (interrupt, resume) = (attempt::watch()?, args.resume.as_deref());
    let mut attempt = Attempt::new(interrupt, resume, "swarm", plan, 0)?;
    let from = attempt.partial.last("swarm").unwrap_or(State::new(range.start));
    if !args.quiet {
        say(&size(&from, range.end, limit));
    }
    let (began, mut next) = (Instant::now(), FIRST_PROGRESS);
    let Attempt { interrupt, partial, .. } = &mut attempt;
    let result = swarm::run(from, range.end, limit, args.jobs, twice, interrupt, |state| {
        if began.elapsed() < next {
            return;
        }
        next = began.elapsed() + PROGRESS_INTERVAL;
        partial.keep("swarm", state.next, state);
        if !args.quiet {
            let left = left(&from, state, range.end, limit).filter(|left| *left >= 1.0);
            let left = left.map(|left| format!("; about {} left", length(left)));
            say(&format!("{}{}", line(&state.summary), left.unwrap_or_default()));
        }
    });
    let state = match result {
        Ok(state) => state,
        Err((failure, summary)) => {
            say(&line(&summary));
            let seed = failure.seed;
            attempt.end();
            let text = format!("{failure}\nreplay: napkin swarm --seed {seed}");
            return Err(Failure::Failed(text));
        }
    };
    let over = limit.is_some_and(|limit| state.summary.elapsed >= limit);
    if let (Err(interrupted), false, true) = (interrupt.check(), over, state.next < range.end) {
        if state.next > from.next {
            partial.keep("swarm", state.next, &state);
        }
        print_failure(print(&format!("{}; every invariant held so far\n", line(&state.summary))));
        return Err(
            attempt.interrupted_at(interrupted, &format!("the next seed is {}", state.next))
        );
    }
    let printed = print(&format!("{}; every invariant held\n", line(&state.summary)));
    attempt.end();
    printed
}

/// The size of a swarm: its seeds, or its time.
fn size(from: &State, end: u64, limit: Option<Duration>) -> String {
    match limit {
        Some(limit) => {
            let left = limit.saturating_sub(from.summary.elapsed).as_secs_f64();
            format!("seeds from {} on, for {}", from.next, length(left))
        }
        None => {
            let left = end.saturating_sub(from.next);
            format!(
                "{left} seed{}; every {} s: how far, and the time that is left",
                if left == 1 { "" } else { "s" },
                PROGRESS_INTERVAL.as_secs()
            )
        }
    }
}

/// Estimated seconds left, if the other seeds take as long as those that ran since `from`.
fn left(from: &State, state: &State, end: u64, limit: Option<Duration>) -> Option<f64> {
    if let Some(limit) = limit {
        return Some(limit.saturating_sub(state.summary.elapsed).as_secs_f64());
    }
    let seeds = state.next - from.next;
    let elapsed = state.summary.elapsed.saturating_sub(from.summary.elapsed).as_secs_f64();
    (seeds > 0).then(|| elapsed / seeds as f64 * end.saturating_sub(state.next) as f64)
}

fn line(summary: &swarm::Summary) -> String {
    let plural = if summary.seeds == 1 { "" } else { "s" };
    format!(
        "{} seed{plural}, {:.3} virtual hours, {} events, {} frames, {} faults in {:.1} s \
         ({:.2} virtual hours and {:.1} M events a minute)",
        summary.seeds,
        summary.virtual_hours(),
        summary.steps,
        summary.frames,
        summary.faults,
        summary.elapsed.as_secs_f64(),
        summary.virtual_hours_per_minute(),
        summary.events_per_minute() / 1e6,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_have_both_ends_and_minutes_are_above_zero() {
        assert_eq!(seeds("1..3"), Ok(1..4));
        assert_eq!(seeds("7..7"), Ok(7..8));
        for wrong in ["3..1", "1", "..", "a..b", "0..18446744073709551615"] {
            assert!(seeds(wrong).is_err(), "{wrong}");
        }
        assert_eq!(minutes("0.5"), Ok(Duration::from_secs(30)));
        for wrong in ["0", "-1", "nan", "inf", "1e9", "x"] {
            assert!(minutes(wrong).is_err(), "{wrong}");
        }
    }
}
