//! `napkin profile measure`: what this host's own kernel costs, as a profile.

use std::path::{Path, PathBuf};

use napkin_host_costs::{self, Measured, Options, SECONDS};
use napkin_measure::report::file;
use napkin_os::sched::CpuList;
use napkin_workload::{BenchError, Interrupt};

use crate::attempt;
use crate::failure::{Failure, print, say};
use crate::outputs::check;
use crate::table;

/// What follows the options in its help.
const HELP: &str = "\
Runs rounds of a bounded load between two temporary network namespaces, and
times each step of delivery: system calls, switches and wake-ups by the clock;
polls, softirqs, timers and interrupts by the kernel's trace points (eBPF,
nothing is pinned). A cost is the median of the rounds, its range their minimum
and maximum, from which --uncertainty draws. Nothing on this host is changed.

As root everything is measured. Otherwise the veth, the trace points and
memcached's own work are left out, each with the capability that it needs;
system calls, switches and wake-ups need none. With memcached installed its own
work on a request is measured as well. Costs that are not measured are listed,
and taken from the built-in profile that the file is based on.

Two CPUs are kept busy meanwhile: on a machine that does other work the ranges
get wide.

Examples:
  sudo napkin profile measure --out mine.toml
  napkin profile check mine.toml
  sudo napkin bench memcached --world linux --policy base,defer20 \\
      --load 5k,20k
  napkin bench memcached --world machine --profile mine.toml \\
      --policy base,defer20 --load 5k,20k
  napkin bench memcached --world machine --profile mine.toml --load 20k \\
      --uncertainty 20
  sudo napkin profile measure --dev eth0 --out eth0.toml";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Measure {
    /// Take queues, ring, interrupt moderation and speed from this device instead of a veth. Nothing is sent
    /// over it: the costs of its driver and card stay those of the profile that the file is based on.
    #[arg(long, value_name = "IF")]
    dev: Option<String>,
    /// How long to measure, approximately, in seconds.
    #[arg(long, value_name = "N", default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(*SECONDS.start()..=*SECONDS.end()))]
    seconds: u64,
    /// Write the profile to this file. [default: standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The built-in profile from which constants that are not measured are taken. [default: of those with
    /// memcached, the one whose costs are nearest]
    #[arg(long, value_name = "NAME")]
    based_on: Option<String>,
    /// The CPUs to use: the first for the server, the second for the client. [default: the last two that
    /// this process may use]
    #[arg(long, value_name = "LIST")]
    cpus: Option<CpuList>,
    /// Show no progress.
    #[arg(long)]
    quiet: bool,
}

pub(crate) fn run(args: &Measure) -> Result<(), Failure> {
    check(args.out.as_deref())?;
    let interrupt = attempt::watch()?;
    let options = Options {
        seconds: args.seconds,
        cpus: args.cpus.clone().map(|list| list.0).unwrap_or_default(),
        based_on: args.based_on.clone(),
        device: args.dev.clone(),
        name: name(args.out.as_deref()),
    };
    let mut progress = |line: &str| {
        if !args.quiet {
            say(line);
        }
    };
    let measured = measure(&options, &interrupt, &mut progress)?;
    let text = summary(&measured);
    match &args.out {
        Some(path) => {
            file::write(path, &measured.toml).map_err(Failure::of)?;
            if file::is_stream(path) {
                say(text.trim_end());
                return Ok(());
            }
            print(&text)
        }
        None => {
            say(text.trim_end());
            print(&measured.toml)
        }
    }
}

fn measure(
    options: &Options,
    interrupt: &Interrupt,
    progress: &mut (dyn FnMut(&str) + Send),
) -> Result<Measured, Failure> {
    napkin_host_costs::measure(options, interrupt, progress).map_err(|error| match error {
        BenchError::Usage(_) | BenchError::Placement(_) => Failure::Usage(error.to_string()),
        BenchError::Interrupted(by) => {
            say("interrupted: nothing was written");
            Failure::Exit(by.exit_code())
        }
        error => Failure::of(error),
    })
}

/// The profile's name: the stem of a `.toml` file, else `measured`.
fn name(out: Option<&Path>) -> String {
    let stem = out.filter(|path| path.extension().is_some_and(|it| it == "toml"));
    let stem = stem.and_then(Path::file_stem).map(|it| it.to_string_lossy().into_owned());
    stem.unwrap_or_else(|| "measured".to_owned())
}

/// The measured costs as text.
fn summary(measured: &Measured) -> String {
    let rows = measured.constants.iter().filter_map(|it| {
        let (low, high) = it.range?;
        let takes = napkin_workload::schema().key(&it.key)?.takes;
        let show = |value: f64| takes.show((value * 1e4).round() / 1e4);
        let tenth = |value: f64| if value >= 10.0 { value.round() } else { value };
        let spread = format!("{} to {}", show(tenth(low)), show(tenth(high)));
        Some(vec![it.key.clone(), show(tenth(it.value)), spread])
    });
    let mut text = format!(
        "{} rounds\n{}",
        measured.rounds,
        table::columns(&["constant", "median", "least and most of the rounds"], rows.collect())
    );
    if !measured.idle.is_empty() {
        let times = measured.idle.iter().map(|(us, ns)| format!("{us} us: {:.1} us", ns / 1e3));
        text += &format!(
            "\nfrom a write to the return of the wait, by how long its CPU had been idle:\n  {}\n",
            times.collect::<Vec<_>>().join(", ")
        );
    }
    text += "\nnot measured here, and taken from the profile below:\n";
    for missing in &measured.missing {
        text += &format!("  {}: {}\n", missing.keys, missing.why);
    }
    let near = measured.nearest.iter().filter(|it| it.1.is_finite());
    let near: Vec<String> = near.map(|(name, ratio)| format!("{name} {ratio:.1}")).collect();
    if let Some(base) = measured.profile.based_on() {
        text += &format!(
            "\nbased on {base}; median factor between the measured costs and a profile's: {}\n",
            near.join(", ")
        );
    }
    text
}
