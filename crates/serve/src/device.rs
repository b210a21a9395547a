//! Opens devices: TAP interfaces including their kernel side, AF_XDP, synthetic sources, and virtio rings.

use std::collections::BTreeMap;
use std::net::IpAddr;

use napkin_kernel::netlink::{NetlinkError, Route};
use napkin_nic::capture::Capture;
use napkin_nic::faulty::{Faults, FaultyQueue};
use napkin_nic::synthetic::{Arrivals, Flows, SyntheticConfig, SyntheticQueue, Template};
use napkin_nic::tap::{Tap, TapConfig, TapError};
use napkin_nic::vhost::Vhost;
use napkin_nic::{PacketQueue, Pool};
use napkin_policy::{MILLISECOND, Ns};
use napkin_stack::{Address, Addresses, FrameBuilder};

use super::config::{DeviceKind, DeviceSpec, ServeConfig};
use super::error::ServeError;
use super::network::Network;
use super::open_device::OpenDevice;
use super::virtio::Virtio;

/// Frame buffers per queue: more than its ring and its socket hold together.
const FRAMES: usize = 4_096;

/// Delay of a synthetic source's first frame, in which the engine starts and the socket is bound.
const HEAD_START: Ns = 100 * MILLISECOND;

/// Device number of a client's device, for an Ethernet address that differs from those of all served devices.
const CLIENT_PLACE: usize = 255;

/// Opens the first device of a configuration as [`run`](crate::run) does, for a client that sends requests through
/// it.
///
/// # Errors
/// An invalid option, or the reason why the device could not be opened.
pub fn open(config: &ServeConfig) -> Result<OpenDevice, ServeError> {
    config.check()?;
    let device = config.devices.first();
    let device = device.ok_or_else(|| ServeError::Usage("give a device".into()))?;
    let opened = make(config, device, &config.networks, CLIENT_PLACE, None)?;
    let note = match &device.kind {
        // The client is given the server's address; which addresses are possible is in the server's note.
        DeviceKind::Virtio(virtio) => format!("the other side is {}", virtio.other()),
        _ => opened.note,
    };
    Ok(OpenDevice { note, ..opened })
}

/// Opens one device with its networks; `place` is its number, from 0. Faults are injected between the device and
/// the capture, so that the file shows what the stack receives.
pub(super) fn make(
    config: &ServeConfig,
    device: &DeviceSpec,
    networks: &[Network],
    place: usize,
    capture: Option<&Capture>,
) -> Result<OpenDevice, ServeError> {
    let mut addresses = Addresses::new(mac(&device.name(place), place, networks, &host()));
    for network in networks {
        addresses = addresses.with(network.ip, network.prefix)?;
    }
    let queues = config.queues_of(device);
    let pool = Pool::new(FRAMES * usize::from(queues));
    let opened = match &device.kind {
        DeviceKind::Tap(name) => {
            if !networks.iter().any(|network| network.is_link_local()) {
                let Address { ip, prefix, .. } = Address::link_local(addresses.mac());
                addresses = addresses.with(ip, prefix)?;
            }
            if let Some(vlan) = device.vlan {
                addresses = addresses.in_vlan(vlan)?;
            }
            tap(config, name, networks, addresses, &pool)?
        }
        DeviceKind::Xdp(spec) => {
            super::xdp::make(config, spec, &config.policy_of(device), networks)?
        }
        DeviceKind::Synthetic => synthetic(config, networks, addresses, &pool, place)?,
        DeviceKind::Virtio(device) => virtio(device, queues, networks, addresses, &pool)?,
    };
    let pool = opened.pool.clone().unwrap_or(pool);
    let mut faults = Vec::new();
    let around = |(seed, mut queue): (u64, Box<dyn PacketQueue>)| {
        if config.faults != Faults::default() {
            let faulty = FaultyQueue::new(queue, config.faults, seed, pool.clone());
            faults.push(faulty.fault_counters());
            queue = Box::new(faulty.with_transmit(config.faults));
        }
        match capture {
            Some(capture) => Box::new(capture.wrap(queue)),
            None => queue,
        }
    };
    let seeds = (place as u64) << 32..;
    let queues = seeds.zip(opened.queues).map(around).collect();
    Ok(OpenDevice { queues, faults, ..opened })
}

/// Bytes that identify this host for as long as it is installed: its machine-id, or else its host name.
fn host() -> Vec<u8> {
    let files = ["/etc/machine-id", "/proc/sys/kernel/hostname"];
    let texts = files.into_iter().filter_map(|file| std::fs::read(file).ok());
    { texts }.find(|text| !text.trim_ascii().is_empty()).unwrap_or_default()
}

/// Derives a locally administered Ethernet address: `02:6e:6b` for napkin, and 24 bits of a hash (FNV-1a, the same
/// in all releases) over what distinguishes the device. Containers of one host may share its machine-id and device
/// names, but where they share a network their first addresses differ.
fn mac(name: &str, place: usize, networks: &[Network], host: &[u8]) -> [u8; 6] {
    let first = networks.first().map(|network| network.ip.to_string()).unwrap_or_default();
    let place = place.to_string();
    let parts = [host, name.as_bytes(), place.as_bytes(), first.as_bytes()].join(&0_u8);
    let hash = parts.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    // XOR-fold all bits of the hash, as FNV's authors recommend.
    let [.., a, b, c] = (hash ^ hash >> 24 ^ hash >> 48).to_be_bytes();
    [2, b'n', b'k', a, b, c]
}

fn tap(
    config: &ServeConfig,
    name: &str,
    networks: &[Network],
    addresses: Addresses,
    pool: &Pool,
) -> Result<OpenDevice, ServeError> {
    if in_use(name) {
        return Err(TapError::Busy { name: name.to_owned() }.into());
    }
    // Link-local addresses cannot conflict with those of other interfaces.
    let networks: Vec<Network> =
        networks.iter().copied().filter(|it| !it.is_link_local()).collect();
    let host = peer_addresses(&networks)?;
    networks.iter().try_for_each(|network| check_free(name, *network))?;
    // Without the right to set addresses, the user may still own an interface that an administrator has set up.
    let privileged = napkin_os::rights::Right::NetAdmin.held();
    let tap = TapConfig {
        name: name.to_owned(),
        queues: config.queues,
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
    let side = match addresses.vlan() {
        Some(vlan) => format!("{name}.{vlan}"),
        None => name.clone(),
    };
    let listed = |separator: &str, each: &dyn Fn(&str) -> String| {
        let texts = host.iter().map(|(ip, prefix)| each(&format!("{ip}/{prefix}")));
        texts.collect::<Vec<_>>().join(separator)
    };
    let note = if privileged {
        set_up(&name, &side, addresses.vlan(), &host)?;
        match host.is_empty() {
            true => format!("the operating system's side is {side}"),
            false => {
                let all = listed(", ", &str::to_owned);
                format!("the operating system's side of {side} is {all}")
            }
        }
    } else {
        let vlan = addresses.vlan().map(|vlan| {
            format!(
                "ip link set {name} up; ip link add link {name} name {side} type vlan id {vlan}; "
            )
        });
        let add = listed("", &|address| format!("ip addr add {address} dev {side}; "));
        format!(
            "the operating system's side of {side} is as it was found, for without CAP_NET_ADMIN \
             it cannot be set up from here: {}{add}ip link set {side} up",
            vlan.unwrap_or_default()
        )
    };
    let queues = queues.into_iter().map(|queue| Box::new(queue) as Box<dyn PacketQueue>);
    Ok(OpenDevice {
        name: side,
        addresses,
        queues: queues.collect(),
        note,
        faults: Vec::new(),
        busy: Vec::new(),
        peers: None,
        pool: None,
        deferral: None,
    })
}

/// The other side's addresses: one in each of our networks, without duplicates.
fn peer_addresses(networks: &[Network]) -> Result<Vec<(IpAddr, u8)>, ServeError> {
    let mut peers = Vec::new();
    for network in networks {
        let address = (peer_address(*network, networks)?, network.prefix);
        // Several of our addresses may be in the same network.
        if !peers.contains(&address) {
            peers.push(address);
        }
    }
    Ok(peers)
}

/// The other side's address in one of our networks.
fn peer_address(network: Network, own: &[Network]) -> Result<IpAddr, ServeError> {
    network.neighbour(own).ok_or_else(|| {
        ServeError::Usage(format!(
            "every address of the network of {network} is the engine's, and the other side needs one as \
             well: leave one of --address out, or give a shorter prefix"
        ))
    })
}

/// Sets up the operating system's side: the VLAN interface, if there is a VLAN, and the addresses.
fn set_up(
    name: &str,
    side: &str,
    vlan: Option<u16>,
    addresses: &[(IpAddr, u8)],
) -> Result<(), ServeError> {
    let set = || {
        let mut route = Route::open()?;
        let mut ifindex = route.link(name)?.ifindex;
        if let Some(vlan) = vlan {
            // A persistent TAP interface may have it already.
            ifindex = match route.link(side) {
                Ok(link) => link.ifindex,
                Err(NetlinkError::NoDevice { .. }) => route.add_vlan(ifindex, side, vlan)?,
                Err(error) => return Err(error),
            };
            route.set_up(ifindex)?;
        }
        addresses.iter().try_for_each(|(ip, prefix)| route.add_address(ifindex, *ip, *prefix))
    };
    set().map_err(|source| {
        let off = std::fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{side}/disable_ipv6"));
        let off = off.is_ok_and(|off| off.trim() == "1");
        let advice = if vlan.is_some() && !std::path::Path::new("/proc/net/vlan").exists() {
            "; this kernel has no VLANs: load them with modprobe 8021q, or serve without one"
        } else if off && addresses.iter().any(|(ip, _)| ip.is_ipv6()) {
            "; IPv6 is switched off there: sysctl net.ipv6.conf.default.disable_ipv6=0 before, or \
             leave the IPv6 address out"
        } else {
            ""
        };
        ServeError::Side { side: side.to_owned(), source, advice }
    })
}

/// Whether another process has a queue of a TAP interface open. The kernel would give this process a further queue,
/// and with it a share of the flows, which breaks both. A non-persistent interface exists only while a queue is
/// open; a persistent one has a carrier while a queue is open.
fn in_use(name: &str) -> bool {
    /// `IFF_PERSIST`; sysfs shows the flags in hexadecimal.
    const PERSIST: u32 = 0x0800;
    // An invalid name may read other files; opening the interface then reports it.
    let read = |file: &str| std::fs::read_to_string(format!("/sys/class/net/{name}/{file}"));
    let Ok(flags) = read("tun_flags") else { return false };
    let flags = u32::from_str_radix(flags.trim().trim_start_matches("0x"), 16).unwrap_or(0);
    flags & PERSIST == 0 || read("carrier").is_ok_and(|carrier| carrier.trim() == "1")
}

/// Whether an interface is a persistent TAP interface without open queues, or a VLAN of one.
fn left_over(link: &str) -> bool {
    let is_tap =
        |name: &str| std::path::Path::new(&format!("/sys/class/net/{name}/tun_flags")).exists();
    let tap = match link.rsplit_once('.') {
        Some((tap, _)) if !is_tap(link) => tap,
        _ => link,
    };
    // An interface that is down does not tell whether it has a queue.
    let carrier = std::fs::read_to_string(format!("/sys/class/net/{tap}/carrier"));
    is_tap(tap) && !in_use(tap) && carrier.is_ok_and(|carrier| carrier.trim() == "0")
}

/// Refuses a network in which another interface of this host (such as another server's) has an address. If the
/// kernel does not list addresses, nothing is checked.
fn check_free(name: &str, network: Network) -> Result<(), ServeError> {
    let addresses = || {
        let mut route = Route::open()?;
        let links = route.links()?;
        // VLANs of this interface are our own.
        let own = |link: &str| {
            link.strip_prefix(name).is_some_and(|it| it.is_empty() || it.starts_with('.'))
        };
        let others = links.into_iter().filter(|link| !own(&link.name));
        let names: BTreeMap<u32, String> = others.map(|link| (link.ifindex, link.name)).collect();
        let of = |ifindex: u32| names.get(&ifindex).cloned();
        let addresses = route.addresses()?.into_iter();
        let addresses = addresses.filter_map(|it| Some((it.ip, it.prefix, of(it.ifindex)?)));
        Ok::<Vec<(IpAddr, u8, String)>, NetlinkError>(addresses.collect())
    };
    let Ok(addresses) = addresses() else { return Ok(()) };
    let taken = |network: Network| addresses.iter().find(|(ip, ..)| network.contains(*ip));
    let Some((theirs, prefix, other)) = taken(network) else { return Ok(()) };
    let free = (1..=255).filter_map(|places| network.later(places));
    Err(ServeError::SameNetwork {
        name: name.to_owned(),
        ours: network,
        other: other.clone(),
        theirs: *theirs,
        left: left_over(other).then_some(*prefix),
        free: { free }.find(|network| taken(*network).is_none()),
    })
}

fn virtio(
    device: &Virtio,
    queues: u16,
    networks: &[Network],
    addresses: Addresses,
    pool: &Pool,
) -> Result<OpenDevice, ServeError> {
    let others = peer_addresses(networks)?;
    let others: Vec<_> = others.iter().map(|(ip, prefix)| format!("{ip}/{prefix}")).collect();
    let Vhost { queues, peers } = device.open(queues, pool)?;
    let queues = queues.into_iter().map(|queue| Box::new(queue) as Box<dyn PacketQueue>).collect();
    let note = format!("{} may be {}", device.other(), others.join(", "));
    let (faults, peers) = (Vec::new(), Some(peers));
    Ok(OpenDevice {
        name: device.name(),
        addresses,
        queues,
        note,
        faults,
        busy: Vec::new(),
        peers,
        pool: None,
        deferral: None,
    })
}

fn synthetic(
    config: &ServeConfig,
    networks: &[Network],
    addresses: Addresses,
    pool: &Pool,
    place: usize,
) -> Result<OpenDevice, ServeError> {
    // `check` has ensured that there is one.
    let Some(own) = addresses.list().first().copied() else {
        return Err(ServeError::Usage("a device needs an address".into()));
    };
    let ip = peer_address(Network { ip: own.ip, prefix: own.prefix }, networks)?;
    let peer = Address { mac: [2, b's', b'y', b'n', 0, place as u8], ip, prefix: own.prefix };
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
    let template = || Datagrams { build: FrameBuilder::new(peer, own), port: config.port };
    let queues = source
        .split(config.queues.into())
        .iter()
        .map(|source| {
            let queue = SyntheticQueue::new(source, Box::new(template()), pool.clone(), None)?;
            Ok(Box::new(queue) as Box<dyn PacketQueue>)
        })
        .collect::<Result<_, ServeError>>()?;
    let note = format!("{} datagrams a second of {} flows", config.rate, config.flows);
    let name = DeviceKind::Synthetic.name(place);
    Ok(OpenDevice {
        name,
        addresses,
        queues,
        note,
        faults: Vec::new(),
        busy: Vec::new(),
        peers: None,
        pool: None,
        deferral: None,
    })
}

/// Builds datagrams to the service's port, with a source port for each flow.
struct Datagrams {
    build: FrameBuilder,
    port: u16,
}

impl Template for Datagrams {
    fn fill(&mut self, flow: u32, seq: u64, buffer: &mut [u8]) -> usize {
        let from = 1_024 + (flow % 60_000) as u16;
        // Every buffer has room for it; otherwise the frame would be dropped and counted.
        self.build.udp(buffer, from, self.port, &seq.to_be_bytes()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ethernet_address_is_local_the_same_again_and_another_for_each_device() {
        let networks = |text: &str| vec![text.parse::<Network>().expect("an address")];
        let (local, other) = (networks("10.99.0.1/24"), networks("10.99.0.3/24"));
        let all = [
            mac("nk0", 0, &local, b"one"),
            mac("nk1", 0, &local, b"one"),
            mac("nk0", CLIENT_PLACE, &local, b"one"),
            mac("nk0", 0, &other, b"one"),
            mac("nk0", 0, &local, b"two"),
            mac("nk0", 0, &[], b"one"),
        ];
        for (place, mac) in all.iter().enumerate() {
            assert_eq!(mac[..3], [2, b'n', b'k']);
            assert!(!all[..place].contains(mac), "{all:?}");
        }
        assert_eq!(mac("nk0", 0, &local, b"one"), all[0]);
        assert!(!host().is_empty());
    }
}
