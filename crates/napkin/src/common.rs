//! The options of `napkin bench` that apply in every world, and the settings of a run in one world.

use std::path::PathBuf;
use std::time::Duration;

use napkin_os::sched::CpuList;
use napkin_policy::NamedPolicy;
use napkin_workload::World;
use napkin_workload::options::REPETITIONS;

use crate::modelled::Modelled;
use crate::units;

#[derive(Debug, clap::Args)]
pub(crate) struct Common {
    #[arg(
        long,
        value_parser = units::world(),
        value_name = "WORLD",
        value_delimiter = ',',
        global = true,
        help = format!(
            "Where to run: napkin's engine on this machine, a model in virtual time, or the kernel's own NAPI. \
             With several, separated by commas, the tables come one after the other, and then side by side if the loads are the same. \
             [default: {}]",
            napkin_workload::default_worlds()
        )
    )]
    pub(crate) world: Vec<World>,
    /// A policy to compare, or a list of names, separated by commas; may be given several times. A value
    /// with a '=' is one policy, spelled out (see napkin policies), or NAME=POLICY, whose rows have that
    /// name. [default: the policies in the help of the workload]
    #[arg(long = "policy", value_name = "POLICY", global = true)]
    pub(crate) policies: Vec<String>,
    /// Runs of each policy under each load; in the machine, each with a seed of its own.
    #[arg(long, visible_alias = "seeds", value_name = "N", default_value_t = REPETITIONS, global = true)]
    pub(crate) repetitions: usize,
    /// The measured part of one run, as in 500ms or 2s. [default: 500ms; 200-300ms in the short round]
    #[arg(
        long,
        visible_alias = "virtual",
        value_name = "TIME",
        value_parser = units::duration,
        global = true
    )]
    pub(crate) window: Option<Duration>,
    /// The seed of all random numbers.
    #[arg(long, default_value_t = 1, global = true)]
    pub(crate) seed: u64,
    /// The CPUs to use: the first for the queue, the second for the application or the client, further ones
    /// for further queues (--queues). [default: the last two that this process may use]
    /// In the machine: how many CPUs the host has.
    #[arg(long, value_name = "LIST", global = true)]
    pub(crate) cpus: Option<CpuList>,
    /// Write the figures, with every repetition, to this file (FILE.flood-ping.json and so on in the
    /// short round). With - they go to standard output, one JSON document per workload, and the tables to
    /// standard error; the tables also if FILE is a pipe.
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) json: Option<PathBuf>,
    /// Write an HTML page with plots and tables of the runs to this file; - is standard output.
    #[arg(long, value_name = "FILE.html", global = true)]
    pub(crate) report: Option<PathBuf>,
    /// Resume from the file that an interrupted run has left; the other options must be the same.
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) resume: Option<PathBuf>,
    /// Show no progress.
    #[arg(long, global = true)]
    pub(crate) quiet: bool,
    // Must be last: options after it would appear under its help heading.
    #[command(flatten)]
    pub(crate) modelled: Modelled,
}

/// The settings of a run in one world.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) policies: Vec<NamedPolicy>,
    /// The loads; if empty, the defaults of the world.
    pub(crate) loads: Vec<String>,
    /// The JSON file.
    pub(crate) json: Option<PathBuf>,
    /// The world, if the command runs in several.
    pub(crate) of_several: Option<World>,
}
