//! `napkin sweep`: a workload at every point of a cross product, into one CSV file.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use napkin_measure::report::{Progress, Provenance, file, provenance};
use napkin_workload::World;
use napkin_workload::sweep::{
    Axis, Event, PlotError, Shard, SheetError, Sweep as Points, SweepError, SweepPlot, merge,
};

use crate::attempt;
use crate::failure::{Failure, say};
use crate::machine::{host, scenario};
use crate::{outputs, units};

#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    subcommand_help_heading = "What to do with its files",
    after_help = "\
What can be varied: policy (names, or one that is spelled out a --vary), any
key of a policy (gro-flush-timeout, hold ...: on top of the policy), load,
seed (1..5 is five seeds) and any constant of the profile (cost.poll, nic.ring
...). draw=1..20 draws all fitted and assumed constants of the profile twenty
times within their ranges (0 is the profile as it is), as does --uncertainty
20. The cross product is run; the last --vary changes fastest.

First the size and the time that one point took are reported. Points are
appended to the file as they finish; at the end the file is sorted, and the
same sweep gives the same bytes on any number of CPUs. A sweep that was ended
continues with --resume, also with more values than before; Ctrl-C says how far
it came and how to continue. The columns: which sweep, which point of how many,
the program and its other settings, what was varied, the JSON report's figures
(neither its lists and histograms nor its bounds; grows is 0 or 1), and why a
point has none.

On several machines: --shard 3/64 runs the points whose own settings hash to
the third of 64 parts, so that a further value moves no other point; napkin
sweep merge makes one file of theirs, with the bytes of a single run.
docs/sweeps.md has the hash; examples/ runs shards by HyperQueue and by Slurm.

Examples:
  napkin sweep memcached --vary policy=base,suspend20 \\
      --vary load=200k,600k,max --out a.csv
  napkin sweep memcached --policy suspend20 \\
      --vary gro-flush-timeout=5us,20us,80us \\
      --vary seed=1..5 --load 600k --out timeout.csv --resume
  napkin sweep udp-sink --vary load=5000,13000,21000 \\
      --vary cost.interrupt-entry=1us,10us --out b.csv
  napkin sweep memcached --vary load=200k,600k --vary seed=1..500 \\
      --shard 3/64 --out part-3.csv --resume
  napkin sweep merge part-*.csv --out all.csv
  napkin sweep plot all.csv --x load --y p99,cpu_work --by policy \\
      --out all.html"
)]
pub(crate) struct Sweep {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    run: Option<Run>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Merge the files of all shards into the file of the whole sweep.
    ///
    /// The bytes are those of a single run. Files that do not fit together (other columns, settings,
    /// version, profile or seed), a point that is in two with different figures, and points that are
    /// missing are refused.
    Merge {
        /// The files of the shards, in any order.
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
        /// The CSV file of the whole; - is standard output.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Draw figures of a sweep over a parameter, as a page like those of the reports.
    ///
    /// Points that differ in seed or draw alone are repetitions: their median is drawn, with their range.
    /// Points that differ in anything that is neither along the axis nor a line of its own are refused.
    Plot {
        /// The CSV file.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// The parameter along the axis, as in load.
        #[arg(long, value_name = "COLUMN")]
        x: String,
        /// The columns of figures to draw, a plot for each; p99 is short for latency_p99_ns.
        #[arg(long, value_name = "COLUMNS", value_delimiter = ',', required = true)]
        y: Vec<String>,
        /// The parameters that have a line for each of their values.
        #[arg(long, value_name = "COLUMNS", value_delimiter = ',', default_value = "policy")]
        by: Vec<String>,
        /// The page; - is standard output.
        #[arg(long, value_name = "FILE.html")]
        out: PathBuf,
    },
}

#[derive(Debug, clap::Args)]
struct Run {
    #[arg(help = format!("The workload: {}", napkin_workload::names()))]
    workload: String,
    /// A parameter and its values; may be given several times.
    #[arg(long, value_name = "NAME=VALUES")]
    vary: Vec<String>,
    /// Draw the uncertain constants of the profile N times: the same as --vary draw=1..N.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    uncertainty: Option<u64>,
    /// The CSV file; - is standard output.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Resume from the file if it exists.
    #[arg(long)]
    resume: bool,
    /// Run the K-th of N parts of the points, as in 3/64.
    #[arg(long, value_name = "K/N")]
    shard: Option<Shard>,
    /// The maximum number of points to run; of a shard, on average.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    limit: u64,
    /// The policy where it is not varied. [default: the workload's first one]
    #[arg(long, value_name = "POLICY")]
    policy: Option<String>,
    /// The load where it is not varied. [default: the first published one]
    #[arg(long, value_name = "LOAD")]
    load: Option<String>,
    /// The seed where it is not varied.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The measured virtual time of a point.
    #[arg(
        long,
        visible_alias = "virtual",
        value_name = "TIME",
        value_parser = units::nanoseconds,
        default_value = "1s"
    )]
    window: u64,
    /// Virtual time before the window.
    #[arg(long, value_name = "TIME", value_parser = units::nanoseconds, default_value = "200ms")]
    warm_up: u64,
    /// The host: a profile's name (napkin profile list) or a TOML file. [default: the testbed that the
    /// workload was published with]
    #[arg(long, value_name = "NAME|FILE")]
    profile: Option<String>,
    /// CPUs of the host.
    #[arg(long, value_name = "N")]
    cpus: Option<u64>,
    /// Receive queues of the host.
    #[arg(long, value_name = "N")]
    queues: Option<u16>,
    /// Change a constant of the profile at all points, as in cost.poll=400ns.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Runs at a time. [default: as many as there are CPUs]
    #[arg(long, value_name = "N", value_parser = units::jobs)]
    jobs: Option<NonZeroUsize>,
    /// Show no progress.
    #[arg(long)]
    quiet: bool,
}

pub(crate) fn run(args: &Sweep) -> Result<(), Failure> {
    match (&args.what, &args.run) {
        (Some(What::Merge { files, out }), _) => merge_files(files, out),
        (Some(What::Plot { file, x, y, by, out }), _) => {
            plot(file, &SweepPlot { x: x.clone(), y: y.clone(), by: by.clone() }, out)
        }
        (None, Some(run)) => points(run),
        // clap requires one of the two.
        (None, None) => Err(Failure::Usage("name a workload".into())),
    }
}

fn merge_files(files: &[PathBuf], out: &Path) -> Result<(), Failure> {
    let merged = merge(files, out).map_err(|error| match error.is_usage() {
        true => Failure::Usage(error.to_string()),
        false => Failure::of(error),
    })?;
    let failed = match merged.failed {
        0 => String::new(),
        failed => format!("; {failed} of them have no figures, as the column 'error' says"),
    };
    say(&format!("{} points in {}{failed}", merged.points, out.display()));
    Ok(())
}

fn plot(path: &Path, plot: &SweepPlot, out: &Path) -> Result<(), Failure> {
    outputs::check_not_input(path, out)?;
    outputs::check([out])?;
    let page = plot.page(path, &Provenance::now(crate::COMMIT)).map_err(|error| match error {
        PlotError::Sheet(SheetError::Io { .. }) => Failure::of(error),
        error => Failure::Usage(error.to_string()),
    })?;
    file::write(out, &page).map_err(Failure::of)
}

fn points(args: &Run) -> Result<(), Failure> {
    let (workload, scenario) = scenario(&args.workload)?;
    let name = args.profile.as_deref().unwrap_or(scenario.profile());
    let (profile, _) = host(name, &args.set, args.cpus, args.queues)?;
    let draws = args.uncertainty.map(|draws| format!("draw=1..{draws}"));
    let axes = Axis::parse_all(args.vary.iter().chain(&draws).map(String::as_str));
    let first = |all: Vec<String>| all.into_iter().next().unwrap_or_default();
    let sweep = Points {
        scenario,
        profile,
        policy: args.policy.clone().unwrap_or_else(|| {
            first(workload.policies(World::Machine).iter().map(ToString::to_string).collect())
        }),
        load: args.load.clone().unwrap_or_else(|| first(scenario.loads())),
        seed: args.seed,
        warm_up: args.warm_up,
        window: args.window,
        axes: axes.map_err(|error| Failure::Usage(error.to_string()))?,
        shard: args.shard,
        version: provenance::version(crate::COMMIT),
        limit: args.limit,
        jobs: args.jobs,
    };
    sweep.warnings().iter().for_each(|warning| say(&format!("warning: {warning}")));
    let interrupt = attempt::watch()?;
    let mut progress = None;
    let totals = sweep.run(&args.out, args.resume, &interrupt, |event| match event {
        Event::Size { text, left } => {
            say(&text);
            progress = Some(if args.quiet { Progress::hidden(left) } else { Progress::new(left) });
        }
        Event::Point(name) => {
            if let Some(progress) = &mut progress {
                progress.step(&name);
            }
        }
    });
    drop(progress);
    let totals = totals.map_err(|error| match error {
        SweepError::Interrupted(interrupted) => Failure::Exit(interrupted.exit_code()),
        // A closed output must not hide an interruption.
        error if error.is_closed() => match interrupt.check() {
            Err(interrupted) => Failure::Exit(interrupted.exit_code()),
            Ok(()) => Failure::Closed,
        },
        error if error.is_usage() => Failure::Usage(error.to_string()),
        error => Failure::of(error),
    })?;
    if let (Err(interrupted), 1..) = (interrupt.check(), totals.left) {
        let done = format!("{} of {} points done", totals.points - totals.left, totals.points);
        let hint = match file::is_stdout(&args.out) {
            true => String::new(),
            false => format!("; go on with: {}", attempt::resume_command(None)),
        };
        say(&format!("interrupted: {done}{hint}"));
        return Err(Failure::Exit(interrupted.exit_code()));
    }
    match file::is_stdout(&args.out) {
        true => say(&format!("{} points", totals.points)),
        false => say(&format!("{} points in {}", totals.points, args.out.display())),
    }
    if totals.failed > 0 {
        return Err(Failure::Failed(format!(
            "{} points have no figures; their lines say why in the column 'error'",
            totals.failed
        )));
    }
    Ok(())
}
