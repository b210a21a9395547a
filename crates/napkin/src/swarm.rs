//! `napkin swarm`: random machines, until one breaks an invariant.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::time::{Duration, Instant};

use napkin_bench::machine::swarm;

use crate::failure::{Failure, print, say};

/// Real time between two lines of progress.
const TELL: Duration = Duration::from_secs(10);

/// Of so many seeds one is run twice and compared.
const TWICE: u64 = 16;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A seed says everything: the machine, its costs, scheduler and driver, the policies, who sends what, and
which faults fall when (interrupts lost or late, applications that stall, contexts that vanish, modes
that change, a link that flaps). All invariants of docs/design.md are checked after every event. One
seed in 16 is run twice and compared byte for byte. A seed that breaks something is printed and
replays exactly; the exit code is then 1.

Examples:
  napkin swarm --minutes 10
  napkin swarm --seeds 1..1000
  napkin swarm --seed 4711             replay one")]
pub(crate) struct Swarm {
    /// How long, in minutes of real time. [default: 1]
    #[arg(long, value_name = "N", conflicts_with_all = ["seeds", "seed"], value_parser = minutes)]
    minutes: Option<Duration>,
    /// These seeds, both ends included, as in 1..1000.
    #[arg(long, value_name = "A..B", value_parser = seeds, conflicts_with = "seed")]
    seeds: Option<Range<u64>>,
    /// One seed, run twice.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Runs at a time. [default: as many as there are CPUs]
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Show no progress.
    #[arg(long)]
    quiet: bool,
}

fn minutes(text: &str) -> Result<Duration, String> {
    let minutes = text.parse::<f64>().ok().filter(|it| *it > 0.0 && *it <= 1e6);
    minutes
        .map(|minutes| Duration::from_secs_f64(minutes * 60.0))
        .ok_or_else(|| "give minutes above 0, as in 10 or 0.5".to_owned())
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
    let twice = if args.seed.is_some() { 1 } else { TWICE };
    let mut told = Instant::now();
    let result = swarm::run(range, limit, args.jobs, twice, |so_far| {
        if !args.quiet && told.elapsed() >= TELL {
            told = Instant::now();
            say(&line(so_far));
        }
    });
    match result {
        Ok(summary) => print(&format!("{}; every invariant held\n", line(&summary))),
        Err((failure, summary)) => {
            say(&line(&summary));
            let seed = failure.seed;
            Err(Failure::Failed(format!("{failure}\nreplay: napkin swarm --seed {seed}")))
        }
    }
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
