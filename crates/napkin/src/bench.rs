//! `napkin bench`: workloads under policies, measured.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use napkin_bench::flood_ping::FloodPing;
use napkin_bench::report::table;
use napkin_bench::serve::CpuList;
use napkin_bench::udp_sink::{Offered, UdpSink, Waits};
use napkin_bench::xsk_rr::{PACES, Pace, XskRr};
use napkin_bench::{Options, Workload, run, short};
use napkin_core::Policy;

use crate::failure::{Failure, print, say};
use crate::units;

/// What to run, and how.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without a workload: a short round of all three on embedded devices, in about a minute.
Policies that are compared run interleaved (A B C A B C ...); the table shows medians, the JSON file
every repetition. On a shared machine trust ratios within one run, not microseconds.

Examples:
  napkin bench
  napkin bench flood-ping --policy base --policy hold1000
  sudo napkin bench flood-ping --device tap --policy base --policy hold1000 --json ping.json
  napkin bench udp-sink --policy base,ksoftirqd,feedback --offered 0.2,1,1.8,4
  napkin bench xsk-rr --policy interrupts --policy threaded-busy-poll --rate 12000 --delay 0us")]
pub(crate) struct Bench {
    #[command(subcommand)]
    workload: Option<Which>,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
struct Common {
    /// A policy to compare; give it several times, or a list of names with commas (see napkin
    /// policies). Without: those that tell the workload's story.
    #[arg(long = "policy", value_name = "POLICY", global = true)]
    policies: Vec<String>,
    /// How often each policy runs under each load.
    #[arg(long, default_value_t = 3, global = true)]
    repetitions: usize,
    /// The measured part of one run, as in 500ms or 2s. [default: 1s; 500-700ms in the short round]
    #[arg(long, value_name = "TIME", value_parser = units::duration, global = true)]
    window: Option<Duration>,
    /// Where all randomness comes from.
    #[arg(long, default_value_t = 1, global = true)]
    seed: u64,
    /// The CPUs to use; the first serves the queue, the second has the application or the client.
    /// Without, the last two that this process may use.
    #[arg(long, value_name = "LIST", global = true)]
    cpus: Option<CpuList>,
    /// Write the figures, with every repetition, to this file (FILE.flood-ping.json and so on in the
    /// short round).
    #[arg(long, value_name = "FILE", global = true)]
    json: Option<PathBuf>,
    /// Show no progress.
    #[arg(long, global = true)]
    quiet: bool,
}

#[derive(Debug, Subcommand)]
enum Which {
    /// 2007: echo requests as fast as replies come. What do interrupts cost, and what does hold save?
    FloodPing {
        /// The real ping -f through a TAP device (needs CAP_NET_ADMIN), or an embedded flood.
        #[arg(long, value_enum, default_value_t = Device::Synthetic)]
        device: Device,
    },
    /// 2018: a receiver on its queue's CPU, offered more than it can take. Who survives overload?
    UdpSink {
        /// Offered rates, as multiples of the rate at which the CPU is full.
        #[arg(long, value_name = "LIST", value_delimiter = ',')]
        offered: Vec<f64>,
        /// The document's corner (II) instead: each interrupt falls just after a softirq has ended.
        #[arg(long, conflicts_with = "offered")]
        corner: bool,
        /// How the application waits.
        #[arg(long, value_enum, default_value_t = Application::Blocking)]
        application: Application,
        /// What it costs to deliver a packet, as in 20us.
        #[arg(long, value_name = "TIME", value_parser = units::nanoseconds, default_value = "20us")]
        delivery: u64,
        /// What it costs the application to consume one.
        #[arg(long, value_name = "TIME", value_parser = units::nanoseconds, default_value = "20us")]
        consume: u64,
    },
    /// 2025: packets at a fixed rate, answered inline by a busy application. How low, how steady?
    XskRr {
        /// Packets a second instead of the document's five workloads.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
        rate: Option<u32>,
        /// For how long the application does not receive after a reply; goes with --rate.
        #[arg(long, value_name = "TIME", value_parser = units::nanoseconds, requires = "rate")]
        delay: Option<u64>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Device {
    /// A synthetic queue that floods by itself.
    Synthetic,
    /// A TAP device, and the operating system's ping.
    Tap,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Application {
    /// In a blocking receive call.
    Blocking,
    /// In an epoll wait.
    Epoll,
}

/// Runs it.
pub(crate) fn bench(args: &Bench) -> Result<(), Failure> {
    let options = options(&args.common)?;
    let Some(which) = &args.workload else {
        for (workload, mut of_its_own) in short::round(&options) {
            if !options.policies.is_empty() {
                of_its_own.policies.clone_from(&options.policies);
            }
            let json = args.common.json.as_ref().map(|path| {
                let mut name = path.as_os_str().to_owned();
                name.push(format!(".{}.json", workload.name()));
                PathBuf::from(name)
            });
            one(&*workload, &of_its_own, json.as_deref())?;
        }
        return Ok(());
    };
    let workload = workload(which)?;
    let mut options = options;
    if options.policies.is_empty() {
        options.policies = story(which);
    }
    one(&*workload, &options, args.common.json.as_deref())
}

fn options(common: &Common) -> Result<Options, Failure> {
    let mut policies = Vec::new();
    for text in &common.policies {
        // A list of names, or one policy that is spelled out (which has commas of its own).
        let texts: Vec<&str> =
            if text.contains('=') { vec![text] } else { text.split(',').collect() };
        for text in texts {
            policies.push(text.parse::<Policy>().map_err(|e| Failure::Usage(e.to_string()))?);
        }
    }
    for policy in policies.iter().filter(|policy| policy.name().is_none()) {
        for warning in policy.warnings() {
            say(&format!("warning: {policy}: {warning}"));
        }
    }
    let default = Options::default();
    Ok(Options {
        policies,
        repetitions: common.repetitions,
        window: common.window.unwrap_or(default.window),
        seed: common.seed,
        cpus: common.cpus.as_ref().map(|list| list.0.clone()).unwrap_or_default(),
        progress: !common.quiet,
        ..default
    })
}

fn workload(which: &Which) -> Result<Box<dyn Workload>, Failure> {
    Ok(match which {
        Which::FloodPing { device: Device::Synthetic } => Box::new(FloodPing::synthetic()),
        Which::FloodPing { device: Device::Tap } => Box::new(FloodPing::tap()),
        Which::UdpSink { offered, corner, application, delivery, consume } => {
            if let Some(bad) = offered.iter().find(|times| !(0.001..=1_000.0).contains(*times)) {
                return Err(Failure::Usage(format!(
                    "--offered {bad} is out of range: give multiples of the peak from 0.001 to 1000"
                )));
            }
            let default = UdpSink::default();
            Box::new(UdpSink {
                offered: match (corner, offered.as_slice()) {
                    (true, _) => vec![Offered::AfterSoftirq],
                    (false, []) => default.offered,
                    (false, times) => times.iter().copied().map(Offered::TimesPeak).collect(),
                },
                waits: match application {
                    Application::Blocking => Waits::Blocking,
                    Application::Epoll => Waits::Epoll,
                },
                delivery: *delivery,
                application: *consume,
            })
        }
        Which::XskRr { rate: None, .. } => Box::new(XskRr::default()),
        Which::XskRr { rate: Some(rate), delay } => {
            let delay = delay.unwrap_or(0);
            let published = PACES.iter().find(|pace| pace.name == *rate && pace.delay == delay);
            let pace = Pace { name: *rate, period: 1_000_000_000 / u64::from(*rate).max(1), delay };
            Box::new(XskRr { paces: vec![published.copied().unwrap_or(pace)] })
        }
    })
}

/// The policies that tell a workload's story.
fn story(which: &Which) -> Vec<Policy> {
    match which {
        Which::FloodPing { .. } => vec![Policy::BASE, Policy::hold(napkin_core::MILLISECOND)],
        Which::UdpSink { .. } => vec![Policy::BASE, Policy::KSOFTIRQD, Policy::FEEDBACK],
        Which::XskRr { .. } => vec![
            Policy::INTERRUPTS,
            Policy::BUSYPOLL,
            Policy::BUSYPOLL_SEPARATE,
            Policy::THREADED_BUSY_POLL,
        ],
    }
}

fn one(
    workload: &dyn Workload,
    options: &Options,
    json: Option<&std::path::Path>,
) -> Result<(), Failure> {
    let report = run(workload, options).map_err(Failure::of)?;
    print(&format!("{}\n{}", workload.name(), table::render(&report.rows, &workload.columns())))?;
    for note in &report.notes {
        print(&format!("note: {note}\n"))?;
    }
    print("\n")?;
    match json {
        Some(path) => report.write(path).map_err(Failure::of),
        None => Ok(()),
    }
}
