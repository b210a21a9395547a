//! `napkin load`: a service is asked by a device of one's own.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use napkin_load::{Ask, Event, LoadConfig, run};
use napkin_measure::report::{file, text};
use napkin_serve::{DeviceSpec, Network};
use serde_json::json;

use crate::failure::{Failure, print, say};
use crate::units;

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Asked {
    /// Datagrams of an echo server (or of a sink, which answers nothing).
    Udp,
    /// Messages of an echo server over TCP.
    Tcp,
    /// Records of a memcached over TCP, 3 % of the requests being sets; all are set before.
    Memcached,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
One thread polls the device and never sleeps; give it a CPU that the service does not use (--cpu). A rate is
kept whatever the service does, and a latency begins when a request was due: what is late on this side is
told and charged. With --rate max datagrams go as fast as the device takes them, and each connection asks
again as soon as it was answered. Ctrl-C ends it early, with what was measured.

The service is on the same network: there are no routers. On an AF_XDP device all traffic of the queue has
to be ours (:all), for somebody has to be found by ARP.

Examples:
  napkin serve echo --device vhost:/run/nk0.sock --cpus 0
  napkin load udp --device virtio-user:/run/nk0.sock --to 10.99.0.1:7 --rate 1M --cpu 1
  napkin load udp --device virtio-user:/run/nk0.sock --to 10.99.0.1:7 --rate max --bytes 18 --flows 4
  sudo napkin load memcached --device tap:nk0 --address 10.99.0.1/24 --to 10.99.0.2:11211 --rate 50k
  sudo napkin load memcached --device xdp:veth1:0:all --address 10.1.0.9/24 --to 10.1.0.1:11211 --rate max")]
pub(crate) struct Load {
    /// What is asked.
    what: Asked,
    /// The device by which it is asked: tap:NAME, xdp:IF:QUEUE:all, vhost:PATH or virtio-user:PATH, as of
    /// napkin serve.
    #[arg(long, value_name = "DEVICE")]
    device: DeviceSpec,
    /// Who is asked.
    #[arg(long, value_name = "ADDRESS:PORT")]
    to: SocketAddr,
    /// Our address on the device.
    #[arg(long, value_name = "ADDRESS/PREFIX", default_value = "10.99.0.2/24")]
    address: Network,
    /// Requests a second, as in 20000, 20k or 1M, or max.
    #[arg(long, value_name = "RATE", value_parser = units::rate, default_value = "10k")]
    rate: units::Rate,
    /// Bytes of a datagram (8 to 1452) or of a message.
    #[arg(long, value_name = "N", default_value_t = 18)]
    bytes: u32,
    /// Connections; of datagrams the ports from which they come in turn (64 at most).
    #[arg(long, visible_alias = "connections", value_name = "N", default_value_t = 16)]
    flows: u16,
    /// How long it is measured.
    #[arg(long = "for", value_name = "TIME", value_parser = units::duration, default_value = "5s")]
    time: Duration,
    /// The CPU of the thread that asks. [default: any]
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
    /// Where all randomness comes from.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write the figures to this file; - is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Say nothing while it lasts.
    #[arg(long)]
    quiet: bool,
}

/// Asks, and prints what was seen.
pub(crate) fn load(args: &Load) -> Result<(), Failure> {
    let config = LoadConfig {
        ask: match args.what {
            Asked::Udp => Ask::Udp,
            Asked::Tcp => Ask::Tcp,
            Asked::Memcached => Ask::Memcached,
        },
        device: args.device.clone(),
        network: args.address,
        to: args.to,
        per_second: args.rate.0,
        bytes: args.bytes,
        flows: args.flows,
        time: args.time,
        cpu: args.cpu,
        seed: args.seed,
    };
    let figures = run(&config, &mut |event| match event {
        _ if args.quiet => {}
        Event::Open(note) => say(&note),
        Event::Second { sent, answered } => say(&format!(
            "sent {}, answered {}",
            text::rate(sent as f64),
            text::rate(answered as f64)
        )),
    });
    let figures = figures.map_err(|error| match error {
        error if error.is_usage() => Failure::Usage(error.to_string()),
        error => Failure::of(error),
    })?;
    if let Some(path) = &args.json {
        let whole = json!({ "to": config.to.to_string(), "bytes": config.bytes, "flows": config.flows, "figures": figures });
        file::write(path, &format!("{whole:#}\n")).map_err(Failure::of)?;
        if file::is_stdout(path) {
            say(&figures.to_string());
            return Ok(());
        }
    }
    print(&format!("{figures}\n"))
}
