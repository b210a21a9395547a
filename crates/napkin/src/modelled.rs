//! The options of a modelled host.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use crate::units;

/// The options of a modelled host.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Load and modelled host")]
pub(crate) struct Modelled {
    /// The host: a profile's name (napkin profile list) or a TOML file. [default: the testbed that the
    /// workload was published with]
    #[arg(long, value_name = "NAME|FILE", global = true)]
    pub(crate) profile: Option<String>,
    /// Receive queues of the modelled host. On the engine, of tcp-rr, ssd and memcached: queues of the
    /// server, each with a thread of the program. [default: the profile's; on the engine 1]
    #[arg(long, value_name = "N", global = true)]
    pub(crate) queues: Option<u16>,
    /// Change a constant of the profile, as in cost.poll=400ns; may be given several times.
    #[arg(long, value_name = "KEY=VALUE", global = true)]
    pub(crate) set: Vec<String>,
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        global = true,
        help = format!(
            "Loads, separated by commas. {}. [default: published ones] Also on the engine: tcp-rr, ssd and memcached, \
             as here. Also in linux: memcached, as here; udp-sink, or max; flood-ping: flood",
            napkin_workload::load_forms()
        )
    )]
    pub(crate) load: Vec<String>,
    /// Instead of repetitions, draw all fitted and assumed constants of the profile N times within their
    /// ranges: shows which orders of two policies remain.
    #[arg(long, value_name = "N", conflicts_with = "repetitions", global = true)]
    pub(crate) uncertainty: Option<u64>,
    /// Virtual time before the window. [default: 200ms]
    #[arg(long, value_name = "TIME", value_parser = units::nanoseconds, global = true)]
    pub(crate) warm_up: Option<u64>,
    /// Runs at a time. [default: as many as there are CPUs]
    #[arg(long, value_name = "N", value_parser = units::jobs, global = true)]
    pub(crate) jobs: Option<NonZeroUsize>,
    /// Write a timeline of the first part of each row's window, for ui.perfetto.dev; - is standard
    /// output, and the tables then go to standard error.
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) trace: Option<PathBuf>,
    /// How much of the window the timeline shows. [default: 20ms]
    #[arg(
        long,
        value_name = "TIME",
        value_parser = units::nanoseconds,
        requires = "trace",
        global = true
    )]
    pub(crate) trace_window: Option<u64>,
}

impl Modelled {
    /// The first option that was given.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let queues = || self.queues.is_some().then_some("queues");
        let load = || (!self.load.is_empty()).then_some("load");
        self.given_beside_load().or_else(queues).or_else(load)
    }

    /// The first option that was given, without --load and --queues, which other worlds take as well.
    pub(crate) fn given_beside_load(&self) -> Option<&'static str> {
        let options = [
            ("profile", self.profile.is_some()),
            ("uncertainty", self.uncertainty.is_some()),
            ("set", !self.set.is_empty()),
            ("warm-up", self.warm_up.is_some()),
            ("jobs", self.jobs.is_some()),
            ("trace", self.trace.is_some()),
        ];
        options.into_iter().find_map(|(name, given)| given.then_some(name))
    }
}
