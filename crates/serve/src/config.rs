//! What is to be served, where, and how: the options of `napkin serve` as values that read their own
//! text.

use std::net::Ipv4Addr;
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

/// A device, and its own policy if it has one: `tap:NAME`, `synthetic`, `tap:NAME=POLICY`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSpec {
    /// What it is.
    pub kind: DeviceKind,
    /// Its policy; `None` for that of all.
    pub policy: Option<Policy>,
}

impl FromStr for DeviceSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceSpec, String> {
        let (device, policy) = match text.split_once('=') {
            Some((device, policy)) => (device, Some(policy)),
            None => (text, None),
        };
        let kind = match (device, device.strip_prefix("tap:")) {
            ("synthetic", _) => DeviceKind::Synthetic,
            (_, Some("")) | ("tap", _) => {
                return Err("a TAP device has a name, as in tap:nk0".into());
            }
            (_, Some(name)) => DeviceKind::Tap(name.to_owned()),
            _ => {
                return Err(
                    "give tap:NAME or synthetic, and =POLICY behind it if it has its own".into()
                );
            }
        };
        let policy = policy.map(str::parse::<Policy>).transpose().map_err(|e| e.to_string())?;
        Ok(DeviceSpec { kind, policy })
    }
}

/// An address and its network: `10.99.0.1/24`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    /// Our IPv4 address on the device.
    pub ipv4: Ipv4Addr,
    /// Bits of it that name the network.
    pub prefix: u8,
}

impl Network {
    fn mask(self) -> u32 {
        u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0)
    }

    /// Whether a host of the network can have this address.
    fn is_host(self, address: u32) -> bool {
        let host = address & !self.mask();
        (address ^ self.ipv4.to_bits()) & self.mask() == 0 && host != 0 && host != !self.mask()
    }

    /// Whether an address belongs to it.
    pub fn contains(self, address: Ipv4Addr) -> bool {
        (address.to_bits() ^ self.ipv4.to_bits()) & self.mask() == 0
    }

    /// The address of the other side: the next one, or the one before where there is none.
    pub fn neighbour(self) -> Ipv4Addr {
        let ours = self.ipv4.to_bits();
        let next = ours.wrapping_add(1);
        Ipv4Addr::from_bits(if self.is_host(next) { next } else { ours.wrapping_sub(1) })
    }

    /// The same address in the network that comes `places` later; `None` beyond the last one.
    pub fn later(self, places: usize) -> Option<Network> {
        let size = !self.mask() as usize + 1;
        let ipv4 =
            self.ipv4.to_bits().checked_add(u32::try_from(places.checked_mul(size)?).ok()?)?;
        Some(Network { ipv4: Ipv4Addr::from_bits(ipv4), ..self })
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Network, String> {
        let form = || "give an IPv4 address and the length of its prefix, as in 10.99.0.1/24";
        let (ipv4, prefix) = text.split_once('/').ok_or_else(form)?;
        let ipv4: Ipv4Addr = ipv4.parse().map_err(|_| form())?;
        let prefix: u8 = prefix.parse().map_err(|_| form())?;
        if !(1..=30).contains(&prefix) {
            return Err(
                "the prefix has 1 to 30 bits: the other side needs an address as well".into()
            );
        }
        let network = Network { ipv4, prefix };
        let usable = !(ipv4.is_loopback() || ipv4.is_multicast() || ipv4.octets()[0] == 0);
        if !usable || ipv4.is_broadcast() || !network.is_host(ipv4.to_bits()) {
            return Err(format!(
                "no host can have the address {ipv4} in its network of {prefix} bits"
            ));
        }
        Ok(network)
    }
}

/// All of it.
#[derive(Debug, Clone)]
pub struct ServeConfig {
    /// The service that answers.
    pub what: What,
    /// The devices that are served, at least one.
    pub devices: Vec<DeviceSpec>,
    /// The policy of the devices that have none of their own.
    pub policy: Policy,
    /// Our address on the first device; each further one is in the network after the last.
    pub network: Network,
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
            devices: Vec::new(),
            policy: Policy::BASE,
            network: Network { ipv4: Ipv4Addr::new(10, 99, 0, 1), prefix: 24 },
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
        if self.devices.is_empty() || self.devices.len() > MAX_DEVICES {
            return wrong(format!("give 1 to {MAX_DEVICES} devices, not {}", self.devices.len()));
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
        if self.network.later(self.devices.len() - 1).is_none() {
            let Network { ipv4, prefix } = self.network;
            return wrong(format!("{ipv4}/{prefix} leaves no network for every device"));
        }
        for (place, device) in self.devices.iter().enumerate() {
            let twice = |other: &DeviceSpec| other.kind == device.kind;
            if let DeviceKind::Tap(name) = &device.kind
                && self.devices[..place].iter().any(twice)
            {
                return wrong(format!("the device tap:{name} is given twice"));
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
        for wrong in ["", "tap", "tap:", "eth0", "synthetics", "synthetic="] {
            assert!(wrong.parse::<DeviceSpec>().is_err(), "{wrong}");
        }
        let error = "synthetic=suspnd20".parse::<DeviceSpec>().unwrap_err();
        assert!(error.contains("did you mean 'suspend20'?"), "{error}");
    }

    #[test]
    fn the_other_side_has_the_next_address() {
        assert_eq!(network("10.99.0.1/24").neighbour(), Ipv4Addr::new(10, 99, 0, 2));
        assert_eq!(network("10.99.0.254/24").neighbour(), Ipv4Addr::new(10, 99, 0, 253));
        assert_eq!(network("10.0.0.1/30").neighbour(), Ipv4Addr::new(10, 0, 0, 2));
        assert_eq!(network("10.0.0.2/30").neighbour(), Ipv4Addr::new(10, 0, 0, 1));
    }

    #[test]
    fn every_device_has_its_network() {
        assert_eq!(network("10.99.0.1/24").later(2), Some(network("10.99.2.1/24")));
        assert_eq!(network("223.255.255.1/24").later(1 << 30), None);
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
        ] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }
}
