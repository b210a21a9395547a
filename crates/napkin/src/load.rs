//! `napkin load`: sends requests, or the frames of a capture, through a packet device of its own, without the
//! kernel's sockets.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use napkin_load::{
    Event, LoadConfig, LoadError, Mac, Pace, Protocol, ReplayConfig, Rewrite, replay, run,
};
use napkin_measure::report::{file, text};
use napkin_serve::{DeviceSpec, Network};
use serde_json::{Value, json};

use crate::failure::{Failure, print, print_failure, say};
use crate::{outputs, units};

/// The kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum RequestKind {
    /// Datagrams to an echo server (or to a sink, which does not answer).
    Udp,
    /// Messages to an echo server over TCP.
    Tcp,
    /// Requests to memcached over TCP, 3 % of them sets; all records are set before.
    Memcached,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
One thread polls the device and never sleeps; give it a CPU that the service
does not use (--cpu). Datagrams keep their rate whatever the service does. A
connection has one request in flight: requests that fall due meanwhile wait,
or, if too many wait, are never sent. Latency counts from the time at which a
request was due: waiting, and delays on this side, are included and reported.
With --rate max datagrams are sent as fast as the device takes them, and each
connection sends its next request as soon as it is answered. Ctrl-C ends the
run early, with the results so far and exit code 130.

The service must be on the same network: there are no routers. Over IPv6 there
are datagrams only. An AF_XDP device has to take all traffic of its queue
(:all), as the service is found by ARP.

With --pcap the frames of a file (pcap or pcapng, Ethernet) are sent instead of
requests, at the intervals of the capture, or by --rate. They are sent
unchanged, unless other addresses are given: then checksums are updated. The
file is read as it is sent, so it may be larger than memory. Frames that the
device cannot take are left out and counted; a malformed file is refused, with
the offset of the error.

Examples (the first starts the service, in another terminal):
  napkin serve echo --device vhost:/tmp/nk0.sock --cpus 0
  napkin load udp --device virtio-user:/tmp/nk0.sock --to 10.99.0.1:7 \\
      --rate 1M --cpu 1
  napkin load udp --device virtio-user:/tmp/nk0.sock --to 10.99.0.1:7 \\
      --rate max --bytes 18 --flows 4
  sudo napkin load memcached --device tap:nk0 --address 10.99.0.1/24 \\
      --to 10.99.0.2:11211 --rate 50k
  sudo napkin load memcached --device xdp:veth1:0:all --address 10.1.0.9/24 \\
      --to 10.1.0.1:11211 --rate max
  napkin load --pcap morning.pcapng --device virtio-user:/tmp/nk0.sock
  sudo napkin load --pcap dns.pcap --device xdp:veth1:0:all --rate 100k \\
      --repeat 10 --dst-mac 02:00:00:00:00:01")]
pub(crate) struct Load {
    /// The kind of request.
    #[arg(required_unless_present = "pcap", conflicts_with = "pcap")]
    what: Option<RequestKind>,
    /// Send the frames of this capture (pcap or pcapng) instead of requests.
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// How often the file is sent.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "pcap")]
    repeat: u32,
    /// Put this Ethernet address into the file's frames as their destination.
    #[arg(long, value_name = "MAC", requires = "pcap")]
    dst_mac: Option<Mac>,
    /// Put this Ethernet address into the file's frames as their source.
    #[arg(long, value_name = "MAC", requires = "pcap")]
    src_mac: Option<Mac>,
    /// Put this address into the file's packets of its family as their destination.
    #[arg(long, value_name = "ADDRESS", requires = "pcap")]
    dst_ip: Option<IpAddr>,
    /// Put this address into the file's packets of its family as their source.
    #[arg(long, value_name = "ADDRESS", requires = "pcap")]
    src_ip: Option<IpAddr>,
    /// The device to send from: tap:NAME, xdp:IF:QUEUE:all, vhost:PATH or virtio-user:PATH, as for napkin
    /// serve.
    #[arg(long, value_name = "DEVICE")]
    device: DeviceSpec,
    // Not a doc comment: rustdoc takes the brackets for a link.
    #[arg(
        long,
        help = "The service's address and port, as in 10.99.0.1:7 or [fd00:99::1]:7 (IPv6: udp only)",
        value_name = "ADDRESS:PORT",
        value_parser = service,
        required_unless_present = "pcap",
        conflicts_with = "pcap"
    )]
    to: Option<SocketAddr>,
    /// The address to send from.
    #[arg(long, value_name = "ADDRESS/PREFIX", default_value = "10.99.0.2/24")]
    address: Network,
    /// Requests or frames a second, as in 20000, 20k or 1M, or max. [default: 10k; for a file, its own times]
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    rate: Option<units::Rate>,
    /// Bytes of a datagram (8 to 1452) or of a message.
    #[arg(long, value_name = "N", default_value_t = 18, conflicts_with = "pcap")]
    bytes: u32,
    /// Connections (16384 at most); for datagrams, source ports, which are used in turn (64 at most).
    #[arg(
        long,
        visible_alias = "connections",
        value_name = "N",
        default_value_t = 16,
        conflicts_with = "pcap"
    )]
    flows: u16,
    /// How long to measure, or the longest time for which a file is sent. [default: 5s; the whole file]
    #[arg(
        long = "for",
        value_name = "TIME",
        value_parser = units::within(Duration::from_nanos(1)..=Duration::MAX)
    )]
    time: Option<Duration>,
    /// The CPU of the sending thread. [default: any]
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
    /// The seed of all random numbers.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write the figures to this file; - is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print nothing until the end.
    #[arg(long)]
    quiet: bool,
}

/// Requests a second without `--rate`.
const DEFAULT_RATE: u64 = 10_000;
/// Measured time without `--for`.
const DEFAULT_TIME: Duration = Duration::from_secs(5);

fn service(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "give ADDRESS:PORT, as in 10.99.0.1:7 or [fd00:99::1]:7")
}

/// Sends requests, or replays a capture, and prints the figures.
pub(crate) fn load(args: &Load) -> Result<(), Failure> {
    let mut on_event = |event| match event {
        _ if args.quiet => {}
        Event::Open(note) => say(&note),
        Event::Second { sent, answered } => {
            let back = if args.pcap.is_some() { "received" } else { "answered" };
            let (sent, answered) = (text::rate(sent as f64), text::rate(answered as f64));
            say(&format!("sent {sent}, {back} {answered}"));
        }
    };
    let failure = |error: LoadError| match error.is_usage() {
        true => Failure::Usage(error.to_string()),
        false => Failure::of(error),
    };
    outputs::check(args.json.as_deref())?;
    if let Some(path) = &args.pcap {
        args.json.as_ref().map_or(Ok(()), |json| outputs::check_not_input(path, json))?;
        let figures = replay(&replay_config(args, path), &mut on_event).map_err(failure)?;
        if figures.sent == 0 && figures.signal.is_some() {
            say(&figures.to_string());
            return ended(figures.signal, Ok(()));
        }
        let whole = json!({ "file": path.display().to_string(), "figures": figures });
        return ended(figures.signal, show(args, &whole, &figures));
    }
    // clap does not ask for --pcap where a kind of request is given, which conflicts with it: check here.
    if replay_config(args, Path::new("")).rewrite != Rewrite::default() || args.repeat != 1 {
        let why = "--repeat, --dst-mac, --src-mac, --dst-ip and --src-ip are for the frames of a file: give --pcap FILE";
        return Err(Failure::Usage(why.into()));
    }
    // clap requires both unless --pcap is given.
    let (Some(what), Some(to)) = (args.what, args.to) else {
        return Err(Failure::Usage(
            "give udp, tcp or memcached, and --to ADDRESS:PORT, or --pcap FILE".into(),
        ));
    };
    let config = LoadConfig {
        ask: match what {
            RequestKind::Udp => Protocol::Udp,
            RequestKind::Tcp => Protocol::Tcp,
            RequestKind::Memcached => Protocol::Memcached,
        },
        device: args.device.clone(),
        network: args.address,
        to,
        per_second: args.rate.as_ref().map_or(Some(DEFAULT_RATE), |rate| rate.0),
        bytes: args.bytes,
        flows: args.flows,
        time: args.time.unwrap_or(DEFAULT_TIME),
        cpu: args.cpu,
        seed: args.seed,
    };
    let figures = run(&config, &mut on_event).map_err(failure)?;
    if figures.seconds == 0.0 && figures.signal.is_some() {
        // Interrupted before the measurement began: do not write a file of zeros.
        say(&figures.to_string());
        return ended(figures.signal, Ok(()));
    }
    let whole = json!({ "to": to.to_string(), "bytes": config.bytes, "flows": config.flows, "figures": figures });
    ended(figures.signal, show(args, &whole, &figures))
}

/// The result of the command once its figures are shown: after a signal, 128 and its number.
fn ended(signal: Option<i32>, shown: Result<(), Failure>) -> Result<(), Failure> {
    let Some(signal) = signal else { return shown };
    print_failure(shown);
    say("interrupted: ended early");
    Err(Failure::by_signal(signal))
}

fn replay_config(args: &Load, path: &Path) -> ReplayConfig {
    ReplayConfig {
        file: path.to_owned(),
        device: args.device.clone(),
        network: args.address,
        pace: match &args.rate {
            None => Pace::File,
            Some(units::Rate(Some(rate))) => Pace::PerSecond(*rate),
            Some(units::Rate(None)) => Pace::Max,
        },
        times: args.repeat,
        rewrite: Rewrite {
            to_mac: args.dst_mac,
            from_mac: args.src_mac,
            to_ip: args.dst_ip,
            from_ip: args.src_ip,
        },
        limit: args.time,
        cpu: args.cpu,
    }
}

/// Writes the figures to the JSON file, if any, and prints them.
fn show(args: &Load, whole: &Value, figures: &impl Display) -> Result<(), Failure> {
    let written = args
        .json
        .as_deref()
        .map_or(Ok(()), |path| file::write(path, &format!("{whole:#}\n")).map_err(Failure::of));
    // Also if the file could not be written: the figures are nowhere else.
    let printed = match args.json.as_deref().is_some_and(file::is_stream) {
        true => {
            say(&figures.to_string());
            Ok(())
        }
        false => print(&format!("{figures}\n")),
    };
    written.and(printed)
}
