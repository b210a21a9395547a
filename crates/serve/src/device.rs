//! The devices: TAP interfaces with their kernel side set up, and synthetic sources.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use napkin_kernel::netlink::{NetlinkError, Route};
use napkin_nic::capture::Capture;
use napkin_nic::faulty::{FaultCounters, Faults, FaultyQueue};
use napkin_nic::synthetic::{Arrivals, Flows, SyntheticConfig, SyntheticQueue, Template};
use napkin_nic::tap::{Tap, TapConfig, TapError};
use napkin_nic::{PacketQueue, Pool};
use napkin_policy::{MILLISECOND, Ns};
use napkin_stack::{Address, FrameBuilder};

use super::config::{DeviceKind, Network, ServeConfig};
use super::error::ServeError;

/// Frame buffers of each device: more than its ring and its socket hold together.
const FRAMES: usize = 4_096;

/// Time for the engine to start and the socket to be bound before a synthetic source begins.
const HEAD_START: Ns = 100 * MILLISECOND;

/// A device, not yet served.
pub(super) struct Made {
    pub(super) name: String,
    pub(super) address: Address,
    pub(super) queues: Vec<Box<dyn PacketQueue>>,
    pub(super) note: String,
    pub(super) faults: Vec<Arc<FaultCounters>>,
}

/// Makes one device; `place` is its number, from 0. Faults come between it and the capture, so that the
/// file has what the stack receives.
pub(super) fn make(
    config: &ServeConfig,
    kind: &DeviceKind,
    network: Network,
    place: usize,
    capture: Option<&Capture>,
) -> Result<Made, ServeError> {
    let address = Address {
        mac: [2, b'n', b'k', 0, 0, place as u8],
        ipv4: network.ipv4,
        prefix: network.prefix,
    };
    let pool = Pool::new(FRAMES);
    let made = match kind {
        DeviceKind::Tap(name) => tap(config, name, network, address, &pool)?,
        DeviceKind::Synthetic => synthetic(config, network, address, &pool, place)?,
    };
    let mut faults = Vec::new();
    let around = |(seed, mut queue): (u64, Box<dyn PacketQueue>)| {
        if config.faults != Faults::default() {
            let faulty = FaultyQueue::new(queue, config.faults, seed, pool.clone());
            faults.push(faulty.fault_counters());
            queue = Box::new(faulty.with_transmit(config.faults));
        }
        match capture {
            Some(capture) => Box::new(capture.around(queue)),
            None => queue,
        }
    };
    let seeds = (place as u64) << 32..;
    let queues = seeds.zip(made.queues).map(around).collect();
    Ok(Made { queues, faults, ..made })
}

fn tap(
    config: &ServeConfig,
    name: &str,
    network: Network,
    address: Address,
    pool: &Pool,
) -> Result<Made, ServeError> {
    if in_use(name) {
        return Err(TapError::Busy { name: name.to_owned() }.into());
    }
    free(name, network)?;
    let host = network.neighbour();
    // Whoever may not set addresses may still own an interface that somebody set up for him.
    let privileged = napkin_os::rights::Right::NetAdmin.held();
    let tap = TapConfig {
        name: name.to_owned(),
        queues: config.queues,
        address: privileged.then_some((host, network.prefix)),
        up: privileged,
        ..TapConfig::default()
    };
    let opened = Tap::open(&tap, pool).map_err(|error| match error {
        source @ TapError::Permission { .. } => {
            let uid = rustix::process::geteuid().as_raw();
            ServeError::TapRights { name: name.to_owned(), uid, source }
        }
        error => error.into(),
    });
    let Tap { name, queues } = opened?;
    let prefix = network.prefix;
    let note = if privileged {
        format!("the operating system's side of {name} is {host}/{prefix}")
    } else {
        format!(
            "the operating system's side of {name} is as it was found, for without CAP_NET_ADMIN \
             it cannot be set up from here: ip addr add {host}/{prefix} dev {name}; ip link set \
             {name} up"
        )
    };
    let queues = queues.into_iter().map(|queue| Box::new(queue) as Box<dyn PacketQueue>);
    Ok(Made { name, address, queues: queues.collect(), note, faults: Vec::new() })
}

/// Whether another process has a queue of a TAP interface. The kernel would give this one another,
/// and a share of the flows with it, which neither wants. An interface that does not outlive its
/// queues has one; of one that does, a queue makes the carrier.
fn in_use(name: &str) -> bool {
    /// `IFF_PERSIST`, in hexadecimal as sysfs shows it.
    const PERSIST: u32 = 0x0800;
    // Another name's files, should this one not be a name: opening it says so.
    let read = |file: &str| std::fs::read_to_string(format!("/sys/class/net/{name}/{file}"));
    let Ok(flags) = read("tun_flags") else { return false };
    let flags = u32::from_str_radix(flags.trim().trim_start_matches("0x"), 16).unwrap_or(0);
    flags & PERSIST == 0 || read("carrier").is_ok_and(|carrier| carrier.trim() == "1")
}

/// Refuses a network in which another interface of this host has an address, be it another server's.
/// Where the kernel does not list addresses, nothing is known of them.
fn free(name: &str, network: Network) -> Result<(), ServeError> {
    let addresses = || {
        let mut route = Route::open()?;
        let links = route.links()?;
        let others = links.into_iter().filter(|link| link.name != name);
        let names: BTreeMap<u32, String> = others.map(|link| (link.ifindex, link.name)).collect();
        let addresses = route.addresses()?.into_iter().filter_map(|it| match it.ip {
            IpAddr::V4(ipv4) => Some((ipv4, names.get(&it.ifindex)?.clone())),
            IpAddr::V6(_) => None,
        });
        Ok::<Vec<(Ipv4Addr, String)>, NetlinkError>(addresses.collect())
    };
    let Ok(addresses) = addresses() else { return Ok(()) };
    let taken = |network: Network| addresses.iter().find(|(ipv4, _)| network.contains(*ipv4));
    let Some((theirs, other)) = taken(network) else { return Ok(()) };
    let free = (1..=255).filter_map(|places| network.later(places));
    Err(ServeError::SameNetwork {
        name: name.to_owned(),
        ours: network.ipv4,
        prefix: network.prefix,
        other: other.clone(),
        theirs: *theirs,
        free: { free }.find(|network| taken(*network).is_none()).map(|it| it.ipv4),
    })
}

fn synthetic(
    config: &ServeConfig,
    network: Network,
    address: Address,
    pool: &Pool,
    place: usize,
) -> Result<Made, ServeError> {
    let peer = Address {
        mac: [2, b'n', b'k', 1, 0, place as u8],
        ipv4: network.neighbour(),
        prefix: network.prefix,
    };
    let arrivals = match config.rate {
        0 => Arrivals::Silent,
        rate => Arrivals::Fixed { per_second: rate.into() },
    };
    let source = SyntheticConfig {
        seed: place as u64,
        arrivals,
        start: napkin_engine::now() + HEAD_START,
        flows: Flows { count: config.flows, ..Flows::default() },
        ..SyntheticConfig::default()
    };
    let template = || Datagrams { build: FrameBuilder::new(peer, address), port: config.port };
    let queues = source
        .split(config.queues.into())
        .iter()
        .map(|source| {
            let queue = SyntheticQueue::new(source, Box::new(template()), pool.clone(), None)?;
            Ok(Box::new(queue) as Box<dyn PacketQueue>)
        })
        .collect::<Result<_, ServeError>>()?;
    let note = format!("{} datagrams a second of {} flows", config.rate, config.flows);
    Ok(Made { name: DeviceKind::Synthetic.name(place), address, queues, note, faults: Vec::new() })
}

/// Writes datagrams to the service's port, each flow from a port of its own.
struct Datagrams {
    build: FrameBuilder,
    port: u16,
}

impl Template for Datagrams {
    fn fill(&mut self, flow: u32, seq: u64, buffer: &mut [u8]) -> usize {
        let from = 1_024 + (flow % 60_000) as u16;
        // A buffer without room for it does not exist; it would be dropped and counted.
        self.build.udp(buffer, from, self.port, &seq.to_be_bytes()).unwrap_or(0)
    }
}
