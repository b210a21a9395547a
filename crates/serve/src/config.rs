//! What is to be served, where, and how: the options of `napkin serve` as values that read their own
//! text.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::str::FromStr;

use napkin_nic::faulty::Faults;
use napkin_policy::{Policy, SocketPoller};
use napkin_service::memcached::Limits;

use super::error::ServeError;

/// The most devices one engine serves.
pub(super) const MAX_DEVICES: usize = 64;

/// The most queues a device has: those of a TAP interface.
pub(super) const MAX_QUEUES: u16 = napkin_nic::tap::MAX_TAP_QUEUES;

/// The most addresses of a device beside a link-local one.
pub(super) const MAX_NETWORKS: usize = napkin_stack::address::ADDRESSES - 1;

/// The most threads that share a port of the operating system's.
const MAX_THREADS: u16 = 1_024;

/// The service that answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// One on a UDP port.
    Datagrams(Datagrams),
    /// memcached, on a TCP port.
    Memcached(Limits),
    /// A remote disk (NBD), on a TCP port.
    Disk(Export),
}

/// A remote disk, as its clients see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// What it is called; clients may leave it empty, whatever it is.
    pub name: String,
    /// Whether nobody writes to it.
    pub read_only: bool,
    /// Where its bytes are.
    pub store: Store,
}

/// Where a remote disk's bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Store {
    /// In memory, so many of them, all zero at the start.
    Memory(u64),
    /// In a file, or on a block device.
    File(PathBuf),
}

/// What is done with a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Datagrams {
    /// Every one goes back.
    Echo,
    /// Every one is counted and let go.
    Sink,
}

impl What {
    /// The port that its clients expect: that of echo (RFC 862), memcached's own, and NBD's (IANA).
    pub const fn usual_port(&self) -> u16 {
        match self {
            What::Datagrams(_) => 7,
            What::Memcached(_) => 11_211,
            What::Disk(_) => 10_809,
        }
    }
}

/// A kind of device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceKind {
    /// A TAP interface of this name.
    Tap(String),
    /// A synthetic source.
    Synthetic,
}

impl DeviceKind {
    /// The name of the device that is given in this place, from 0.
    pub(super) fn name(&self, place: usize) -> String {
        match self {
            DeviceKind::Tap(name) => name.clone(),
            DeviceKind::Synthetic => format!("syn{place}"),
        }
    }
}

/// A device, and its own policy if it has one: `tap:NAME`, `tap:NAME.VLAN`, `synthetic`,
/// `tap:NAME=POLICY`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSpec {
    /// What it is.
    pub kind: DeviceKind,
    /// The VLAN that it is served in, 1 to 4094; `None` for frames without a tag.
    pub vlan: Option<u16>,
    /// Its policy; `None` for that of all.
    pub policy: Option<Policy>,
}

impl DeviceSpec {
    /// The name of the device that is given in this place, from 0: as Linux calls a VLAN's interface.
    pub(super) fn name(&self, place: usize) -> String {
        let name = self.kind.name(place);
        self.vlan.map_or(name.clone(), |vlan| format!("{name}.{vlan}"))
    }
}

impl FromStr for DeviceSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceSpec, String> {
        let (device, policy) = match text.split_once('=') {
            Some((device, policy)) => (device, Some(policy)),
            None => (text, None),
        };
        let (kind, vlan) = match (device, device.strip_prefix("tap:")) {
            ("synthetic", _) => (DeviceKind::Synthetic, None),
            (_, Some("")) | ("tap", _) => {
                return Err("a TAP device has a name, as in tap:nk0".into());
            }
            (_, Some(name)) => {
                let (name, vlan) = in_vlan(name)?;
                (DeviceKind::Tap(name.to_owned()), vlan)
            }
            _ => {
                return Err(
                    "give tap:NAME or synthetic, and =POLICY behind it if it has its own".into()
                );
            }
        };
        let policy = policy.map(str::parse::<Policy>).transpose().map_err(|e| e.to_string())?;
        Ok(DeviceSpec { kind, vlan, policy })
    }
}

/// An interface's name, and the VLAN behind its last point, as Linux names a VLAN's interface: `nk0.100`.
fn in_vlan(name: &str) -> Result<(&str, Option<u16>), String> {
    match name.rsplit_once('.') {
        Some((device, id)) if !id.is_empty() && id.bytes().all(|it| it.is_ascii_digit()) => {
            if device.is_empty() {
                return Err(format!("a TAP device has a name before its VLAN, as in tap:nk0.{id}"));
            }
            match id.parse() {
                Ok(vlan @ 1..=4_094) => Ok((device, Some(vlan))),
                _ => Err(format!("{name} would be in VLAN {id}: a VLAN is 1 to 4094")),
            }
        }
        _ => Ok((name, None)),
    }
}

/// An address and its network: `10.99.0.1/24`, `fd00:99::1/64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    /// Our IP address on the device.
    pub ip: IpAddr,
    /// Bits of it that name the network.
    pub prefix: u8,
}

impl Network {
    /// The address as a number, and how many bits of it name the host.
    fn bits(self) -> (u128, u32) {
        match self.ip {
            IpAddr::V4(ip) => (ip.to_bits().into(), 32u32.saturating_sub(self.prefix.into())),
            IpAddr::V6(ip) => (ip.to_bits(), 128u32.saturating_sub(self.prefix.into())),
        }
    }

    /// An address of the same family; `None` if it has not so many bits.
    fn with(self, bits: u128) -> Option<IpAddr> {
        match self.ip {
            IpAddr::V4(_) => u32::try_from(bits).ok().map(|it| Ipv4Addr::from_bits(it).into()),
            IpAddr::V6(_) => Some(Ipv6Addr::from_bits(bits).into()),
        }
    }

    /// Whether a host of the network can have this address.
    fn is_host(self, address: u128) -> bool {
        let (ours, hosts) = self.bits();
        let mask = 1u128.checked_shl(hosts).unwrap_or(0).wrapping_sub(1);
        let host = address & mask;
        // The first is every router's in IPv6; the last is everybody's in IPv4, and kept free in both.
        (address ^ ours) & !mask == 0 && host != 0 && host != mask
    }

    /// Whether an address belongs to it.
    pub fn contains(self, address: IpAddr) -> bool {
        let other = Network { ip: address, ..self };
        let (ours, hosts) = self.bits();
        address.is_ipv4() == self.ip.is_ipv4()
            && (other.bits().0 ^ ours).checked_shr(hosts).unwrap_or(0) == 0
    }

    /// Whether it is the same on every link (`fe80::/10`).
    pub fn is_link_local(self) -> bool {
        matches!(self.ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
    }

    /// The address of the other side: the next one, or the one before where there is none.
    pub fn neighbour(self) -> IpAddr {
        let (ours, _) = self.bits();
        let next = ours.wrapping_add(1);
        let bits = if self.is_host(next) { next } else { ours.wrapping_sub(1) };
        self.with(bits).unwrap_or(self.ip)
    }

    /// The same address in the network that comes `places` later; `None` beyond the last one. A link-local
    /// one is the same for all.
    pub fn later(self, places: usize) -> Option<Network> {
        if self.is_link_local() {
            return Some(self);
        }
        let (ours, hosts) = self.bits();
        let beyond = u128::try_from(places).ok()?.checked_mul(1u128.checked_shl(hosts)?)?;
        let ip = self.with(ours.checked_add(beyond)?)?;
        Some(Network { ip, ..self })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Network, String> {
        let form = || "give an IP address and the length of its prefix, as in 10.99.0.1/24 or fd00:99::1/64";
        let (ip, prefix) = text.split_once('/').ok_or_else(form)?;
        let ip: IpAddr = ip.parse().map_err(|_| form())?;
        let prefix: u8 = prefix.parse().map_err(|_| form())?;
        let most = if ip.is_ipv4() { 30 } else { 126 };
        if !(1..=most).contains(&prefix) {
            return Err(format!(
                "the prefix has 1 to {most} bits: the other side needs an address as well"
            ));
        }
        let network = Network { ip, prefix };
        let usable = match ip {
            IpAddr::V4(ip) => {
                !(ip.is_loopback() || ip.is_multicast() || ip.octets()[0] == 0 || ip.is_broadcast())
            }
            IpAddr::V6(ip) => {
                !(ip.is_loopback() || ip.is_multicast() || ip.to_ipv4_mapped().is_some())
            }
        };
        if !usable || !network.is_host(network.bits().0) {
            return Err(format!(
                "no host can have the address {ip} in its network of {prefix} bits"
            ));
        }
        Ok(network)
    }
}

/// A port of the operating system's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listen {
    /// The address of this host's; 0.0.0.0 or :: for all.
    pub address: IpAddr,
    /// Threads that share the port.
    pub threads: u16,
}

/// All of it.
#[derive(Debug, Clone)]
pub struct ServeConfig {
    /// The service that answers.
    pub what: What,
    /// Where it is served on the operating system's own sockets; then without devices, and nothing of what
    /// is of theirs holds: policies, networks, queues, captures, faults.
    pub listen: Option<Listen>,
    /// The devices that are served, at least one if it is not on the operating system's sockets.
    pub devices: Vec<DeviceSpec>,
    /// The policy of the devices that have none of their own.
    pub policy: Policy,
    /// Our addresses on the first device, at most seven; on each further one they are in the
    /// networks after those. A TAP device has a link-local one as well, made from its Ethernet address, if
    /// none is given.
    pub networks: Vec<Network>,
    /// The port, of UDP or of TCP as the service has it.
    pub port: u16,
    /// Whether memcached is served over UDP as well, on the port of the same number.
    pub udp: bool,
    /// Queues of each device.
    pub queues: u16,
    /// The operating system's CPUs to use; empty for all that are usable.
    pub cpus: Vec<usize>,
    /// Datagrams a second of each synthetic device; 0 for none.
    pub rate: u32,
    /// Flows among which the frames are divided.
    pub flows: u32,
    /// Where the engine is controlled; `None` for the default place.
    pub control: Option<PathBuf>,
    /// The pcap file that every device's frames are written to.
    pub capture: Option<PathBuf>,
    /// What befalls frames on each device, received and sent.
    pub faults: Faults,
}

impl Default for ServeConfig {
    fn default() -> Self {
        ServeConfig {
            what: What::Datagrams(Datagrams::Echo),
            listen: None,
            devices: Vec::new(),
            policy: Policy::BASE,
            networks: vec![Network { ip: Ipv4Addr::new(10, 99, 0, 1).into(), prefix: 24 }],
            port: 7,
            udp: false,
            queues: 1,
            cpus: Vec::new(),
            rate: 10_000,
            flows: 16,
            control: None,
            capture: None,
            faults: Faults::default(),
        }
    }
}

impl ServeConfig {
    pub(super) fn check(&self) -> Result<(), ServeError> {
        let wrong = |what: String| Err(ServeError::Option(what));
        match self.listen {
            Some(_) if !self.devices.is_empty() => {
                return wrong("give devices, or an address to listen on, not both".into());
            }
            Some(Listen { threads, .. }) if !(1..=MAX_THREADS).contains(&threads) => {
                return wrong(format!("1 to {MAX_THREADS} threads serve, not {threads}"));
            }
            Some(_) => {}
            None if self.devices.is_empty() || self.devices.len() > MAX_DEVICES => {
                let given = self.devices.len();
                return wrong(format!("give 1 to {MAX_DEVICES} devices, not {given}"));
            }
            None => {}
        }
        if !(1..=MAX_QUEUES).contains(&self.queues) {
            return wrong(format!("a device has 1 to {MAX_QUEUES} queues, not {}", self.queues));
        }
        if self.port == 0 || self.flows == 0 {
            return wrong("the port and the number of flows are at least 1".into());
        }
        if self.udp && !matches!(self.what, What::Memcached(_)) {
            return wrong("UDP beside TCP is memcached's: leave --udp out".into());
        }
        let service = match &self.what {
            What::Datagrams(_) => None,
            What::Memcached(limits) => {
                limits.check().map_err(|error| ServeError::Option(error.to_string()))?;
                Some("memcached")
            }
            What::Disk(_) => Some("nbd"),
        };
        if let Some(service) = service {
            if self.devices.iter().any(|device| device.kind == DeviceKind::Synthetic) {
                return wrong(format!(
                    "a synthetic device sends datagrams: give {service} a tap:NAME"
                ));
            }
            let separate = |device: &DeviceSpec| {
                let application = self.policy_of(device).application;
                application.socket_busy_polls()
                    && application.socket_poller == SocketPoller::Separate
            };
            if self.devices.iter().any(separate) {
                return wrong(format!(
                    "socket-poller=separate is for one UDP socket: give {service} another policy"
                ));
            }
        }
        if !(1..=MAX_NETWORKS).contains(&self.networks.len()) {
            return wrong(format!(
                "give 1 to {MAX_NETWORKS} addresses, not {}",
                self.networks.len()
            ));
        }
        for (place, network) in self.networks.iter().enumerate() {
            if self.networks[..place].iter().any(|other| other.ip == network.ip) {
                return wrong(format!("the address {} is given twice", network.ip));
            }
            if network.later(self.devices.len().saturating_sub(1)).is_none() {
                return wrong(format!("{network} leaves no network for every device"));
            }
        }
        for (place, device) in self.devices.iter().enumerate() {
            let twice = |other: &DeviceSpec| other.kind == device.kind;
            if let DeviceKind::Tap(name) = &device.kind
                && self.devices[..place].iter().any(twice)
            {
                return wrong(format!(
                    "the device tap:{name} is given twice: it is served once, in one VLAN at most"
                ));
            }
        }
        Ok(())
    }

    pub(super) fn policy_of(&self, device: &DeviceSpec) -> Policy {
        device.policy.unwrap_or(self.policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        text.parse().expect(text)
    }

    #[test]
    fn a_device_may_bring_its_own_policy() {
        let device: DeviceSpec = "tap:a=suspend20,hold=1ms".parse().unwrap();
        assert_eq!(device.kind, DeviceKind::Tap("a".into()));
        assert_eq!(device.policy, Some("suspend20,hold=1ms".parse().unwrap()));
        assert_eq!("synthetic".parse::<DeviceSpec>().unwrap().policy, None);
        for (text, name, vlan) in [
            ("tap:nk0.100", "nk0", Some(100)),
            ("tap:nk0.a.1=hold", "nk0.a", Some(1)),
            ("tap:nk0.a", "nk0.a", None),
            ("tap:nk.", "nk.", None),
        ] {
            let device: DeviceSpec = text.parse().unwrap();
            assert_eq!((device.kind, device.vlan), (DeviceKind::Tap(name.into()), vlan), "{text}");
        }
        for wrong in ["tap:nk0.0", "tap:nk0.4095", "tap:nk0.99999", "tap:.100"] {
            let error = wrong.parse::<DeviceSpec>().unwrap_err();
            assert!(error.contains("VLAN"), "{error}");
        }
        for wrong in ["", "tap", "tap:", "eth0", "synthetics", "synthetic="] {
            assert!(wrong.parse::<DeviceSpec>().is_err(), "{wrong}");
        }
        let error = "synthetic=suspnd20".parse::<DeviceSpec>().unwrap_err();
        assert!(error.contains("did you mean 'suspend20'?"), "{error}");
    }

    #[test]
    fn the_other_side_has_the_next_address() {
        for (ours, theirs) in [
            ("10.99.0.1/24", "10.99.0.2"),
            ("10.99.0.254/24", "10.99.0.253"),
            ("10.0.0.1/30", "10.0.0.2"),
            ("10.0.0.2/30", "10.0.0.1"),
            ("fd00::1/64", "fd00::2"),
            ("fd00::2/126", "fd00::1"),
        ] {
            assert_eq!(network(ours).neighbour(), theirs.parse::<IpAddr>().unwrap(), "{ours}");
        }
    }

    #[test]
    fn every_device_has_its_network() {
        assert_eq!(network("10.99.0.1/24").later(2), Some(network("10.99.2.1/24")));
        assert_eq!(network("223.255.255.1/24").later(1 << 30), None);
        assert_eq!(network("fd00::1/64").later(2), Some(network("fd00:0:0:2::1/64")));
        assert_eq!(network("bfff::1/1").later(usize::MAX), None);
        assert_eq!(network("fe80::1/64").later(2), Some(network("fe80::1/64")));
        assert!(network("fd00::1/64").contains("fd00::7:0:0:1".parse().unwrap()));
        for other in ["fd00:0:0:1::1", "10.99.0.1"] {
            assert!(!network("fd00::1/64").contains(other.parse().unwrap()), "{other}");
        }
    }

    #[test]
    fn an_address_that_no_host_can_have_is_refused() {
        for wrong in [
            "10.99.0.1",
            "10.99.0.0/24",
            "10.99.0.255/24",
            "127.0.0.1/8",
            "224.0.0.1/4",
            "10.0.0.1/31",
            "10.0.0.1/0",
            "0.0.0.1/8",
            "10.0.0.1/x",
            "fd00::1",
            "fd00::/64",
            "fd00::1/127",
            "fd00::1/129",
            "::1/64",
            "::/1",
            "ff02::1/64",
            "::ffff:10.0.0.1/100",
        ] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }
}
