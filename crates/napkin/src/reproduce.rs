//! `napkin reproduce`: options in, tables out.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use napkin_measure::report::{Progress, Provenance, file};
use napkin_policy::text::quoted;
use napkin_reproduce::all::{ALL, Known, find};
use napkin_reproduce::{Document, Options, ReproduceError, page, text};

use crate::attempt::{self, Attempt};
use crate::failure::{Failure, print, print_failure, say};
use crate::outputs::check;
use crate::units;

/// The default of `--causes`: draws of each change of the model that may explain why a row is off.
const CAUSES: u64 = 16;

/// The experiment that takes --table and --causes, and has no virtual time to set.
const KERNEL: &str = "kernel";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Prints the published beside the modelled figures, cell by cell, with the error.
Figures that the profile was fitted to are marked; if the publication's
estimator is not what its name says, the true figure is given as well. Below:
what the model was to show, and what it missed. A miss is not a failure of the
command. Ctrl-C prints the results so far and leaves a file from which --resume
continues, to the same bytes.

Examples:
  napkin reproduce
      all of them, in some minutes
  napkin reproduce 2024 2018 --report page.html
      two, with the plots people know
  napkin reproduce all --quick                      one short run of each cell
  napkin reproduce 2024 --quick --uncertainty 20
      how sure its figures and orders are
  napkin reproduce kernel --table scenarios.csv
      a table of your own, of the same form
  napkin reproduce kernel --causes 64
      which changes of the model correct the rows that are off")]
pub(crate) struct Reproduce {
    /// 2007, 2018, 2020, 2024, 2025, kernel, or all.
    #[arg(value_name = "EXPERIMENT", default_value = "all")]
    experiments: Vec<String>,
    /// Write every figure and every run to this file; with - to standard output, and the tables to
    /// standard error.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page with tables and plots to this file; - is standard output.
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// A table of kernel scenarios to use instead of napkin's own.
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
    /// A profile to use instead of the experiment's own; for one experiment.
    #[arg(long, value_name = "NAME|FILE")]
    profile: Option<PathBuf>,
    /// Runs of each cell, each with a seed of its own.
    #[arg(
        long,
        visible_alias = "seeds",
        value_name = "N",
        default_value_t = 3,
        value_parser = clap::value_parser!(u64).range(1..=10_000)
    )]
    repetitions: u64,
    /// The first seed.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Draw all fitted and assumed constants N times within their ranges, with seeds of their own: every
    /// figure with the interval of nine draws in ten, every order of two policies with the part of the
    /// draws that keeps it. Each draw takes as long as --repetitions 1.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    uncertainty: u64,
    /// Draws of each change of the model that may explain why a row is off, on every row; for 'kernel'. 0 for
    /// no explanations. [default: 16, or 0 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=10_000))]
    causes: Option<u64>,
    /// Virtual time of a cell, as in 1s. [default: each experiment's own]
    #[arg(long, visible_alias = "virtual", value_name = "TIME", value_parser = units::virtual_time)]
    window: Option<u64>,
    /// Runs at a time. [default: as many as there are CPUs]
    #[arg(long, value_name = "N", value_parser = units::jobs)]
    jobs: Option<NonZeroUsize>,
    /// Fewer and shorter runs, to see that everything works.
    #[arg(long)]
    quick: bool,
    /// Resume from the file that an interrupted reproduction has left; the other options must be the same.
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
    /// Show no progress.
    #[arg(long)]
    quiet: bool,
}

/// The experiments that were named, each once.
fn named(names: &[String]) -> Result<Vec<&'static Known>, Failure> {
    let mut chosen: Vec<&'static Known> = Vec::new();
    for name in names {
        let found: Vec<&Known> = match (name.as_str(), find(name)) {
            ("all", _) => ALL.iter().collect(),
            (_, Some(known)) => vec![known],
            (_, None) => {
                let known: Vec<&str> = ALL.iter().map(|known| known.name).collect();
                return Err(Failure::Usage(format!(
                    "no experiment is called '{}': there are {} and all",
                    quoted(name),
                    known.join(", ")
                )));
            }
        };
        for known in found {
            if !chosen.iter().any(|it| it.name == known.name) {
                chosen.push(known);
            }
        }
    }
    Ok(chosen)
}

fn failure(error: ReproduceError) -> Failure {
    match error.is_usage() {
        true => Failure::Usage(error.to_string()),
        false => Failure::of(error),
    }
}

pub(crate) fn run(args: &Reproduce) -> Result<(), Failure> {
    let chosen = named(&args.experiments)?;
    if args.table.is_some() && !chosen.iter().any(|known| known.name == KERNEL) {
        return Err(Failure::Usage("--table is for the experiment 'kernel'".to_owned()));
    }
    if args.causes.is_some() && !chosen.iter().any(|known| known.name == KERNEL) {
        return Err(Failure::Usage("--causes is for the experiment 'kernel'".to_owned()));
    }
    if args.window.is_some() && chosen.iter().all(|known| known.name == KERNEL) {
        return Err(Failure::Usage(
            "the scenarios of the experiment 'kernel' have a length of their own: it takes no virtual time"
                .to_owned(),
        ));
    }
    if args.profile.is_some() && chosen.len() != 1 {
        return Err(Failure::Usage("--profile is for one experiment: name it".to_owned()));
    }
    let files = || args.json.as_deref().into_iter().chain(args.report.as_deref());
    check(files())?;
    let stream = files().any(file::is_stream);
    let options = Options {
        repetitions: args.repetitions,
        seed: args.seed,
        virtual_s: args.window.map(|window| window as f64 / 1e9),
        profile: args.profile.clone(),
        table: args.table.clone(),
        uncertainty: args.uncertainty,
        causes: args.causes.unwrap_or(if args.quick { 0 } else { CAUSES }),
        draw: None,
        jobs: args.jobs,
        quick: args.quick,
    };
    let mut runs = 0;
    for known in &chosen {
        runs += (known.make)().size(&options).map_err(failure)?;
    }
    let names: Vec<&str> = chosen.iter().map(|known| known.name).collect();
    let plan = options.identity(&names).map_err(failure)?;
    let interrupt = attempt::watch()?;
    let mut attempt = Attempt::new(interrupt, args.resume.as_deref(), "reproduce", plan, runs)?;
    if !args.quiet {
        say(&attempt.runs());
    }
    let progress = if args.quiet { Progress::hidden } else { Progress::new };
    let mut experiments = Vec::new();
    // A closed output does not end the runs: the files are still wanted.
    let mut printed = Ok(());
    for known in chosen {
        let Attempt { interrupt, partial, .. } = &mut attempt;
        let reproduction = (known.make)().resumable(&options, progress, interrupt, partial);
        let reproduction = reproduction.map_err(|error| attempt.failed(failure(error)))?;
        let over = attempt.interrupt.check().is_err();
        if over && reproduction.runs.iter().all(|run| run.outcome.is_none()) {
            break;
        }
        let text = text::render(&reproduction);
        if stream {
            say(&text);
        } else if printed.is_ok() {
            printed = print(&format!("{text}\n"));
        }
        experiments.push(reproduction);
        if over {
            break;
        }
    }
    let written = write(args, &Document::new(experiments));
    if let Some(interrupted) = attempt.unfinished() {
        print_failure(written);
        return Err(attempt.interrupted(interrupted));
    }
    let printed = written.and(printed);
    if Failure::is_failure(&printed) {
        return printed.map_err(|failure| attempt.failed(failure));
    }
    attempt.end();
    printed
}

/// Writes the figures and the page, as far as they were asked for. A failure of one does not prevent the other.
fn write(args: &Reproduce, document: &Document) -> Result<(), Failure> {
    let figures = args.json.as_ref().map_or(Ok(()), |path| {
        let text = document.to_json().map_err(Failure::of)?;
        file::write(path, &text).map_err(Failure::of)
    });
    let page = args.report.as_ref().map_or(Ok(()), |path| {
        let page = page::render(document, &Provenance::now(crate::COMMIT));
        file::write(path, &page).map_err(Failure::of)
    });
    match (figures, page) {
        (Err(figures), page) => {
            print_failure(page);
            Err(figures)
        }
        (Ok(()), page) => page,
    }
}
