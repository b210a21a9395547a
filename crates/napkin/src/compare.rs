//! `napkin compare`.

use std::path::PathBuf;
use std::time::Duration;

use napkin_compare::{
    CompareError, CompareEvent, Guard, Measure, Options, Report, Service, compare,
};
use napkin_measure::report::{Progress, Provenance, file, text};
use napkin_os::signals::Signals;
use napkin_policy::NamedPolicy;

use crate::failure::{Failure, print, print_failure, say};
use crate::policies::warn_in_linux;
use crate::{lifeline, outputs, table, units};

/// The arguments of `napkin compare`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each policy is put in force on the device and on the running program in turn,
as napkin apply and napkin attach do it, for a slice of time; all of them once
a round, each round in an order of its own. The first is the reference. At the
end, on Ctrl-C and on every failure everything is put back, and the results so
far are shown; after a kill -9, napkin restore puts it back. Ctrl-Z is ignored,
as the policy in force would not be watched. The policies are compared under
the load that the service has meanwhile.

The latency is the server's own part of a request, measured by programs in the
kernel (CAP_BPF and CAP_PERFMON), without the client's help and without a
change to the service:
  ring      in the receive ring: since the interrupt, or where there was none
            a part of the time since its last poll
  socket    from delivery to the program's read
  service   from the read to the answer, on the same connection
What the network and the client add is not included. Above 10000 requests a
second, requests are timed for a part of the time only.

Columns: answers a second; p50 and p99 of the whole, and of each part (ring99
...); /reference: the verdict's figure (p99, or p90 or p50 where that shows no
difference, or answers a second where policies differ in them) by the
reference's of the same round, its median and its confidence interval (97 %
with six rounds, the fewest that will do; for each interval by itself: with
several, a note says how likely one of them misses); cpu: CPUs in softirqs, in
the device's NAPI threads, and in the service. Those that fit on a line of the
terminal (of $COLUMNS, else of 120 characters in a pipe) are shown, the most
important first, and the others named; --json and --report have all.

A guard that breaks ends the slice at once, puts the policy back, and excludes
it from the remaining rounds:
  p99<2x, p99.9<500us     latency of the whole, against a multiple of the
                          reference's, or against a time; any percentile
  rate>0.9x, rate>5000    answers a second; not with --measure
  anything else           a command, run again and again: it breaks the guard
                          by an exit code other than 0, or by not ending for
                          10 s; a slice lasts until a running one has ended
A multiple (2x) needs requests in the two seconds before the rounds, ten of
them beyond the percentile (1000 in all for p99): if --measure brings the load,
give a time. Also without a guard, a slice ends if the service answers no
request, or none through the device, for half a second; with --measure only
while the command runs, once the reference has had a slice, and after twice the
longest silence of that slice. A starved queue ends a slice as well (napkin
attach --help). On a device with the default route or this terminal's own
connection a policy that can delay packets needs a guard, or --yes.

Examples:
  sudo napkin compare --dev eth0 --pid $(pidof memcached)
  sudo napkin compare --dev eth0 --pid 812 \\
      --policy base,defer20,suspend20,napibusy --guard 'p99<2x'
  sudo napkin compare --dev eth0 --pid 812 --slice 10s --rounds 12 \\
      --report ticket.html --json ticket.json
  sudo napkin compare --dev eth0 --pid 812 --policy base \\
      --policy suspend20,gro-flush-timeout=50us
  sudo napkin compare --dev eth0 --pid 812 \\
      --measure 'ssh client ./load --seconds 5 --print-p99'
Then: napkin run, attach or apply, to put the best policy in force")]
pub(crate) struct Compare {
    /// The device that the service's packets come from.
    #[arg(long, value_name = "DEV")]
    dev: String,
    /// The service: a running program, with its descendants.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pid: i32,
    /// Policies by name, separated by commas, the reference first; or one that is spelled out. May be given
    /// several times; NAME=POLICY gives a name (see napkin policies).
    #[arg(
        long = "policy",
        visible_alias = "policies",
        value_name = "POLICY",
        default_value = "base,defer20,suspend20"
    )]
    policies: Vec<String>,
    /// How long a policy is in force at a time.
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "5s")]
    slice: Duration,
    /// The time at the beginning of a slice that is not counted. [default: a fifth of the slice]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    settle: Option<Duration>,
    /// Slices of each policy; fewer than six cannot show a difference.
    #[arg(long, value_name = "N", default_value_t = 6)]
    rounds: usize,
    /// The seed of the order of each round.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A condition, as 'p99<2x', or a command; if it breaks, the slice ends at once, and its policy is excluded.
    #[arg(long, value_name = "CONDITION|CMD")]
    guard: Option<Guard>,
    /// Measure by this command, which prints a number, instead of timing requests. It is run once per slice, by
    /// sh, with NAPKIN_POLICY and NAPKIN_ROUND set, and the slice lasts as long as the command.
    #[arg(long, value_name = "CMD")]
    measure: Option<String>,
    /// Which of the command's numbers is better.
    #[arg(long, value_name = "WHICH", value_parser = ["lower", "higher"], default_value = "lower", requires = "measure")]
    better: String,
    /// The longest time that the command may run. [default: ten slices]
    #[arg(long, value_name = "TIME", value_parser = units::duration, requires = "measure")]
    measure_limit: Option<Duration>,
    /// Allow policies that can delay packets, without a guard, on a device that carries the default route or this
    /// terminal's own connection.
    #[arg(long)]
    yes: bool,
    /// Write the figures, with every slice, to this file; - is standard output, and the table then goes to
    /// standard error.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page with plots and the verdict to this file; - is standard output.
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Show no progress.
    #[arg(long)]
    quiet: bool,
}

pub(crate) fn run(args: &Compare) -> Result<(), Failure> {
    let signals = Signals::block_termination_and_stop().map_err(Failure::of)?;
    let options = args.options()?;
    options.check().map_err(failure)?;
    outputs::check(args.json.iter().chain(&args.report).map(PathBuf::as_path))?;
    let service = Service::find(args.pid, &args.dev).map_err(failure)?;
    args.check_lifelines(&options)?;
    // The reference has one slice more, before the rounds.
    let mut progress = match args.quiet {
        true => Progress::hidden(0),
        false => Progress::new(options.slices() as u64 + 1),
    };
    if !args.quiet && options.measure.is_none() {
        let time = napkin_measure::report::length(options.time().as_secs_f64());
        let (slices, rounds) = (options.slices(), options.rounds);
        say(&format!(
            "{service} on {}: {slices} slices in {rounds} rounds, about {time}; Ctrl-C puts everything back",
            args.dev
        ));
    }
    let mut on_event = |event: CompareEvent<'_>| match event {
        CompareEvent::Slice(name) => progress.step(name),
        CompareEvent::Excluded { name, why } => progress.print(&format!("{name} is out: {why}")),
        CompareEvent::Note(note) => progress.print(&format!("note: {note}")),
    };
    let compared = compare(&service, &options, &signals, &mut on_event);
    drop(progress);
    let report = compared.map_err(failure)?;
    let shown = args.show(&report);
    match (report.signal, &report.failed) {
        (Some(signal), _) => {
            print_failure(shown);
            say("interrupted: everything was put back");
            Err(Failure::by_signal(signal))
        }
        (None, Some(_)) => {
            print_failure(shown);
            Err(Failure::Exit(1))
        }
        (None, None) => shown,
    }
}

fn failure(error: CompareError) -> Failure {
    match error {
        CompareError::Usage(why) => Failure::Usage(why),
        error => Failure::of(error),
    }
}

impl Compare {
    fn options(&self) -> Result<Options, Failure> {
        let mut policies = Vec::new();
        for text in &self.policies {
            policies.extend(NamedPolicy::read(text).map_err(Failure::Usage)?);
        }
        warn_in_linux(&policies);
        Ok(Options {
            policies: policies.into_iter().map(|it| (it.name, it.policy)).collect(),
            slice: self.slice,
            settle: self.settle.unwrap_or(self.slice / 5),
            rounds: self.rounds,
            seed: self.seed,
            guard: self.guard.clone(),
            measure: self.measure.clone().map(|command| Measure {
                command,
                higher: self.better == "higher",
                limit: self.measure_limit.unwrap_or(self.slice * 10),
            }),
        })
    }

    /// Refuses policies that could delay the default route or this terminal's own connection, without a guard or
    /// --yes.
    fn check_lifelines(&self, options: &Options) -> Result<(), Failure> {
        if self.yes || options.guard.is_some() {
            return Ok(());
        }
        let policies = options.policies.iter().map(|(name, policy)| (name.as_str(), policy));
        lifeline::check(&self.dev, policies, "a --guard, as 'p99<3x'")
    }

    fn show(&self, report: &Report) -> Result<(), Failure> {
        let stream = self.json.iter().chain(&self.report).any(|path| file::is_stream(path));
        let width = match stream {
            true => text::line_width(std::io::stderr()),
            false => text::line_width(std::io::stdout()),
        };
        // The files come first: a closed output must not prevent them. The table is printed even if they fail, as its
        // figures are nowhere else.
        let json = self.json.as_ref().map_or(Ok(()), |path| {
            file::write(path, &format!("{:#}\n", report.json())).map_err(Failure::of)
        });
        let page = self.report.as_ref().map_or(Ok(()), |path| {
            file::write(path, &report.page(&Provenance::now(crate::COMMIT))).map_err(Failure::of)
        });
        let (header, by_rank) = (report.header(), report.by_rank());
        let mut out = table::fitting(&header, report.table(), &by_rank, width);
        for line in report.lines(width) {
            out.push_str(&line);
            out.push('\n');
        }
        let printed = match stream {
            true => {
                say(out.trim_end());
                Ok(())
            }
            false => print(&out),
        };
        if page.is_err() {
            print_failure(json);
            return page;
        }
        json.and(printed)
    }
}
