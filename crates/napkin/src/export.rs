//! `napkin export`: options in, metrics out.

use std::path::PathBuf;
use std::time::Duration;

use napkin_export::textfile::TextFile;
use napkin_export::{Address, Drift, Exporter, Format, Listener, Server};
use napkin_os::clock;
use napkin_os::rights::{Right, keep_only};
use napkin_os::signals::Signals;
use napkin_watch::{CountOptions, LinuxSource, Often, Source};

use crate::failure::{Failure, print, say};
use crate::top::engine;
use crate::units;

/// The arguments of `napkin export`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Metrics of each NAPI instance, by device and NAPI id. Their counters start when
napkin export does, except the CPU time of a thread, which counts from the
thread's start, and those of an engine, which count from its instances' start:
  napkin_instance_info              1, with the policy in force, receive
                                    queues and interrupt as labels
  napkin_packets_total napkin_interrupts_total
  napkin_polls_total                by=\"softirq\", \"thread\" or \"application\"
  napkin_empty_polls_total napkin_full_polls_total
  napkin_deferrals_total napkin_watchdogs_total napkin_suspensions_total
  napkin_thread_cpu_seconds_total   of the instance's own thread
and with --latency histograms of the requests that were timed on the server's
side (see napkin compare):
  napkin_ring_wait_seconds          in the receive ring
  napkin_socket_wait_seconds        from delivery to the program's read
  napkin_service_seconds            from there to the answer
  napkin_request_seconds            all three
and of the host:
  napkin_time_squeezes_total        by cpu; of an engine by device and napi
  napkin_cpu_seconds_total          by cpu and mode
  napkin_changed_settings           by=\"napkin\": as napkin set them; \"other\":
                                    set by another program since
  napkin_wishes                     state=\"held\", \"not_held\", \"refused\" or
                                    \"bad\": the states of wishes (napkin keep)
  napkin_notes                      reasons why something is unknown (napkin
                                    top shows them)
  napkin_build_info                 1, with the version of napkin as a label
An unknown metric is left out. Only GET /metrics is answered, in the OpenMetrics
form if the scraper asks for it; 16 connections at once, each for 5 seconds at
most.

At the start it drops all capabilities except CAP_BPF and CAP_PERFMON, which
counting polls needs: it can change nothing (for a --textfile in another user's
directory it keeps CAP_DAC_OVERRIDE as well). Without CAP_SYS_PTRACE programs'
epoll parameters are not seen, and the policy is named by the settings of the
instance alone.

Examples:
  sudo napkin export
      http://127.0.0.1:9917/metrics
  sudo napkin export --listen unix:/run/napkin.sock
      then: curl --unix-socket /run/napkin.sock http://napkin/metrics
  sudo napkin export --latency
      then: histogram_quantile(0.99,
        sum by (le) (rate(napkin_socket_wait_seconds_bucket[5m])))
  sudo napkin export \\
      --textfile /var/lib/prometheus/node-exporter/napkin.prom \\
      --interval 15s
  napkin export --engine
      the only engine that runs (see napkin serve)
  sudo napkin export --once | promtool check metrics")]
pub(crate) struct Export {
    /// Where to answer scrapes: IP:PORT or unix:PATH. Other hosts reach it only if the address is not
    /// the loopback's.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9917")]
    listen: Address,
    /// Write a file for node_exporter's textfile collector instead; it is removed at the end.
    #[arg(long, value_name = "FILE", conflicts_with = "listen")]
    textfile: Option<PathBuf>,
    /// With --textfile: how often it is written, at least 1s.
    #[arg(
        long,
        value_name = "TIME",
        default_value = "15s",
        value_parser = units::within(Duration::from_secs(1)..=Duration::MAX),
        requires = "textfile"
    )]
    interval: Duration,
    /// Print the metrics once and end.
    #[arg(long, conflicts_with_all = ["listen", "textfile"])]
    once: bool,
    /// Export an engine instead of the kernel: its control socket, or the only engine that runs.
    #[arg(long, value_name = "SOCKET", num_args = 0..=1)]
    engine: Option<Option<PathBuf>>,
    /// Do not count polls. All other metrics cost the kernel's polls nothing.
    #[arg(long = "no-poll-count", alias = "no-count", conflicts_with = "engine")]
    no_count: bool,
    /// Also time the requests of all programs that serve in this network namespace: up to 2000 a second all of
    /// them, above that a sample. Needs CAP_BPF and CAP_PERFMON.
    #[arg(long, conflicts_with = "engine")]
    latency: bool,
}

pub(crate) fn run(args: &Export) -> Result<(), Failure> {
    let signals = Signals::block_termination().map_err(Failure::of)?;
    // Bind before capabilities are dropped: a port below 1024 needs one.
    let listens = args.textfile.is_none() && !args.once;
    let listener =
        listens.then(|| Listener::bind(&args.listen)).transpose().map_err(Failure::of)?;
    let textfile = args.textfile.as_deref().map(TextFile::new).transpose();
    let mut textfile = textfile.map_err(|error| Failure::Usage(error.to_string()))?;
    if let Some(textfile) = &mut textfile {
        textfile.lock().map_err(Failure::of)?;
    }
    let mut rights = vec![Right::Bpf, Right::Perfmon];
    // Each update replaces the file by a new one in its directory.
    rights.extend(textfile.as_ref().filter(|it| it.is_elsewhere()).map(|_| Right::DacOverride));
    keep_only(&rights).map_err(Failure::of)?;
    let (source, drift): (Box<dyn Source>, Option<Drift>) = match &args.engine {
        Some(named) => (Box::new(engine(named.clone())?), None),
        None => {
            let source = LinuxSource::open(
                // It runs all day: count in the cheaper way, less exact under suspension on Linux 7.2 and later.
                (!args.no_count).then(|| CountOptions { exact: false, ..CountOptions::default() }),
                args.latency.then_some(Often::FiveSeconds),
            )
            .map_err(Failure::of)?;
            (Box::new(source), Some(Drift::open()))
        }
    };
    let title = source.title();
    let mut exporter = Exporter::new(source, drift);
    if let Some(textfile) = &mut textfile {
        say(&format!("{title}: {} every {:?}", textfile.path().display(), args.interval));
        textfile.keep(&mut exporter, args.interval, &signals).map_err(Failure::of)?;
        return Ok(());
    }
    let Some(listener) = listener else {
        let text = exporter.text(Format::Prometheus, clock::now()).map_err(Failure::of)?;
        return print(&text);
    };
    say(&format!("{title}: {}", listener.address()));
    Server::new(listener, exporter).run(&signals).map_err(Failure::of)?;
    Ok(())
}
