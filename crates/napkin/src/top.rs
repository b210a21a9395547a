//! `napkin top`: options in, a view or tables out.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use napkin_top::screen::{self, Options, SHORTEST, ScreenError};
use napkin_top::{Column, View, batch};
use napkin_watch::{CountOptions, EngineSource, LinuxSource, Often, Source};

use crate::failure::Failure;
use crate::units;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each line is a NAPI instance: what a device's queue is polled by. Rates are
per second.
  rx irq cpu           its receive queues, its interrupt, the CPU of its last
                       poll (or its thread)
  packets intr polls   packets, interrupts, polls
  softirq thread app   polls by who polled: a softirq, a thread, an
                       application that busy polls
  empty full           of all polls, those that found nothing; polls that used
                       their whole budget
  defer wdog           timers armed in the place of an interrupt, and timers
                       that fired
  suspend              waits of applications that suspended the interrupt
  squeeze              softirq rounds that were cut short on that CPU, of any
                       instance
  thr-cpu              CPU that its thread uses
  ring99               with --latency: the time in its ring that 99 of 100
                       requests did not exceed
  socket99 service99   the same from delivery to the program's read, and from
                       there to the answer
  policy owners        the policy in force; the programs whose sockets it
                       serves
A dash is an unknown value; a note says why, and which capability it needs. A
dash also stands for the empty polls of an instance that was not polled, and
the CPU of one without a thread.
On a narrow terminal the less important columns are left out: select a line
with the arrows to read them. Keys: h lists them all; q quits.

--latency times the requests of all programs that serve in this network
namespace, on the server's side, as napkin compare does (its help says what is
seen and what is not): all of them up to 10 000 a second, above that for a part
of the time. A percentile needs 1000 timed requests in an interval: at low
rates use --interval 10s.

Only the network namespace in which napkin top runs is watched. Counting polls
needs CAP_BPF and CAP_PERFMON, and costs every poll in it some 0.1 us while it
runs (--no-poll-count); other users' programs need CAP_SYS_PTRACE and
CAP_DAC_READ_SEARCH. Without them the rest is shown; --latency needs the first
two and is refused without them.

Examples:
  sudo napkin top
      the kernel's instances
  sudo napkin top --filter 'eth0 memcached'
      those of a device that serve a program
  sudo ip netns exec NAME napkin top
      those of another network namespace
  napkin top --engine
      the only engine that runs (see napkin serve)
  sudo napkin top --latency --sort socket99
      which queue's requests wait longest for their program
  napkin top --sort empty --interval 500ms
  sudo napkin top --batch --json -n 5 |
      jq '.napis[] | {id, policy, polls_per_s}'")]
pub(crate) struct Top {
    /// Watch an engine instead of the kernel: its control socket, or the only engine that runs.
    #[arg(long, value_name = "SOCKET", num_args = 0..=1)]
    engine: Option<Option<PathBuf>>,
    /// The time from one sample to the next, as in 500ms; at least 100ms.
    #[arg(
        long,
        value_name = "TIME",
        default_value = "1s",
        value_parser = units::within(SHORTEST..=Duration::MAX)
    )]
    interval: Duration,
    /// Only instances that have each of these words in device, id, policy or programs.
    #[arg(long, value_name = "WORDS")]
    filter: Option<String>,
    /// The column to sort by; the largest number, or the first name, comes first.
    #[arg(long, value_name = "COLUMN", default_value = "packets", value_parser = column)]
    sort: Column,
    /// Do not count polls. All other columns cost the kernel's polls nothing.
    #[arg(long = "no-poll-count", alias = "no-count", conflicts_with = "engine")]
    no_count: bool,
    /// Time a sample of the requests: in the ring, in the socket, in the program.
    #[arg(long, conflicts_with = "engine")]
    latency: bool,
    /// Print tables instead of a live view: one at the end of each interval.
    #[arg(long)]
    batch: bool,
    /// With --batch: one JSON object a line.
    #[arg(long, requires = "batch")]
    json: bool,
    /// End after N intervals, not counting the short first one of a live view.
    #[arg(
        short = 'n',
        long = "intervals",
        alias = "count",
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    count: Option<u64>,
}

pub(crate) fn run(args: &Top) -> Result<(), Failure> {
    let mut source: Box<dyn Source + Send> = match &args.engine {
        Some(named) => Box::new(engine(named.clone())?),
        None => Box::new(
            LinuxSource::open(
                (!args.no_count).then(CountOptions::default),
                args.latency.then_some(Often::Second),
            )
            .map_err(Failure::of)?,
        ),
    };
    let view = View::new().sorted(args.sort).filtered(args.filter.as_deref().unwrap_or(""));
    let options = Options { interval: args.interval, count: args.count };
    if args.batch {
        let mut out = io::stdout().lock();
        return batch::run(&mut *source, &view, &options, args.json, &mut out).map_err(Failure::of);
    }
    match screen::run(source, view, &options) {
        Ok(()) => Ok(()),
        Err(error @ ScreenError::NoTerminal { .. }) => Err(Failure::Usage(error.to_string())),
        Err(error) => Err(Failure::of(error)),
    }
}

/// Opens the engine of `--engine`: the socket given, else that of NAPKIN_CONTROL, else the only engine that runs.
pub(crate) fn engine(named: Option<PathBuf>) -> Result<EngineSource, Failure> {
    let named = named.or_else(|| std::env::var_os("NAPKIN_CONTROL").map(Into::into));
    EngineSource::open(named.as_deref()).map_err(Failure::of)
}

fn column(text: &str) -> Result<Column, String> {
    text.parse()
}
