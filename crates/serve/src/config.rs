//! Options of `napkin serve` as values that parse their own text: what is served, where, and how.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::str::FromStr;

use napkin_nic::faulty::Faults;
use napkin_policy::{Policy, SocketPoller};
use napkin_service::memcached::Limits;

use super::error::ServeError;
use super::network::Network;
use super::virtio::{Side, Virtio};
use super::xdp_spec::XdpSpec;

/// Most devices of one engine.
pub(super) const MAX_DEVICES: usize = 64;

/// Most queues of a device: the limit of a TAP interface.
pub(super) const MAX_QUEUES: u16 = napkin_nic::tap::MAX_TAP_QUEUES;

/// Most addresses of a device besides a link-local one.
pub(super) const MAX_NETWORKS: usize = napkin_stack::address::ADDRESSES - 1;

/// Most threads that share a port of the operating system.
const MAX_THREADS: u16 = 1_024;

/// The service to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceKind {
    /// A service on a UDP port.
    Datagrams(Datagrams),
    /// memcached on a TCP port.
    Memcached(Limits),
    /// A remote disk (NBD) on a TCP port.
    Disk(Export),
}

/// A remote disk as clients see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// Its name; clients may also give an empty one.
    pub name: String,
    /// Whether clients may only read.
    pub read_only: bool,
    /// Its storage.
    pub store: Store,
}

/// The storage of a remote disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Store {
    /// So many bytes of memory, all zero at the start.
    Memory(u64),
    /// A file or a block device.
    File(PathBuf),
}

/// What to do with a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Datagrams {
    /// Send it back.
    Echo,
    /// Count and drop it.
    Sink,
}

impl ServiceKind {
    /// The well-known port: that of echo (RFC 862), memcached, or NBD (IANA).
    pub const fn usual_port(&self) -> u16 {
        match self {
            ServiceKind::Datagrams(_) => 7,
            ServiceKind::Memcached(_) => 11_211,
            ServiceKind::Disk(_) => 10_809,
        }
    }
}

/// A kind of device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceKind {
    /// A TAP interface, by name.
    Tap(String),
    /// Queues of an interface, through AF_XDP.
    Xdp(XdpSpec),
    /// A synthetic traffic source.
    Synthetic,
    /// Virtio rings, over vhost-user.
    Virtio(Virtio),
}

impl DeviceKind {
    /// The device's name; `place` is its position in the list of devices, from 0.
    pub(super) fn name(&self, place: usize) -> String {
        match self {
            DeviceKind::Tap(name) => name.clone(),
            DeviceKind::Xdp(spec) => spec.interface.clone(),
            DeviceKind::Synthetic => format!("syn{place}"),
            DeviceKind::Virtio(virtio) => virtio.name(),
        }
    }
}

/// A device, with its own policy if it has one: `tap:NAME`, `tap:NAME.VLAN`, `synthetic`, `vhost:PATH`,
/// `virtio-user:PATH`, `tap:NAME=POLICY`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSpec {
    /// The kind of device.
    pub kind: DeviceKind,
    /// The VLAN to serve, 1 to 4094; `None` for untagged frames.
    pub vlan: Option<u16>,
    /// Its policy; `None` for the common one.
    pub policy: Option<Policy>,
}

impl DeviceSpec {
    /// The device's name, with `.VLAN` appended as in Linux; `place` is its position in the list of devices, from
    /// 0.
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
        let virtio = [("vhost:", Side::Backend), ("virtio-user:", Side::Frontend)];
        let virtio =
            virtio.into_iter().find_map(|(it, side)| Some((side, device.strip_prefix(it)?)));
        let (kind, vlan) = match (device, device.strip_prefix("tap:")) {
            _ if device == "xdp" || device.starts_with("xdp:") => {
                let spec = device.trim_start_matches("xdp").trim_start_matches(':').parse()?;
                (DeviceKind::Xdp(spec), None)
            }
            ("synthetic", _) => (DeviceKind::Synthetic, None),
            (_, Some("")) | ("tap", _) => {
                return Err("a TAP device has a name, as in tap:nk0".into());
            }
            (_, Some(name)) => {
                let (name, vlan) = in_vlan(name)?;
                (DeviceKind::Tap(name.to_owned()), vlan)
            }
            _ => match virtio {
                Some((side, text)) => (DeviceKind::Virtio(Virtio::parse(side, text)?), None),
                None => return Err(
                    "give tap:NAME, xdp:IF:QUEUES, vhost:PATH, virtio-user:PATH or synthetic, and =POLICY behind it if \
                     it has its own".into(),
                ),
            },
        };
        let policy = policy.map(str::parse::<Policy>).transpose().map_err(|e| e.to_string())?;
        Ok(DeviceSpec { kind, vlan, policy })
    }
}

/// Splits an interface's name at the last dot into device and VLAN, as Linux names VLAN interfaces: `nk0.100`.
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

/// A port of the operating system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listen {
    /// A local address; 0.0.0.0 or :: for all.
    pub address: IpAddr,
    /// Number of threads that share the port.
    pub threads: u16,
}

/// The complete configuration of a server.
#[derive(Debug, Clone)]
pub struct ServeConfig {
    /// The service to run.
    pub what: ServiceKind,
    /// Set to serve on the operating system's own sockets. Then there are no devices, and policies, networks,
    /// queues, captures and faults do not apply.
    pub listen: Option<Listen>,
    /// The devices to serve; at least one unless `listen` is set.
    pub devices: Vec<DeviceSpec>,
    /// The policy of devices without their own.
    pub policy: Policy,
    /// Our addresses on the first device, at most seven; each further device has the addresses of the networks that
    /// follow. A TAP device also gets a link-local address, derived from its Ethernet address, unless one is given.
    pub networks: Vec<Network>,
    /// The port, UDP or TCP depending on the service.
    pub port: u16,
    /// Whether memcached is also served over UDP, on the same port number.
    pub udp: bool,
    /// Number of queues of each device.
    pub queues: u16,
    /// The operating system's numbers of the CPUs to use; empty for all usable ones.
    pub cpus: Vec<usize>,
    /// Datagrams per second of each synthetic device; 0 for none.
    pub rate: u32,
    /// Number of flows among which a synthetic device divides its frames.
    pub flows: u32,
    /// Path of the control socket; `None` for the default.
    pub control: Option<PathBuf>,
    /// The pcap file to which the frames of all devices are written.
    pub capture: Option<PathBuf>,
    /// Faults to inject into the frames of each device, received and sent.
    pub faults: Faults,
}

impl Default for ServeConfig {
    fn default() -> Self {
        ServeConfig {
            what: ServiceKind::Datagrams(Datagrams::Echo),
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
        let wrong = |what: String| Err(ServeError::Usage(what));
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
        if self.port == 0 {
            return wrong("a port is 1 to 65535, not 0".into());
        }
        if self.flows == 0 {
            return wrong("the number of flows is at least 1, not 0".into());
        }
        if self.udp && !matches!(self.what, ServiceKind::Memcached(_)) {
            return wrong("UDP beside TCP is memcached's: leave --udp out".into());
        }
        let service = match &self.what {
            ServiceKind::Datagrams(_) => None,
            ServiceKind::Memcached(limits) => {
                limits.check().map_err(|error| ServeError::Usage(error.to_string()))?;
                Some("memcached")
            }
            ServiceKind::Disk(_) => Some("nbd"),
        };
        if let Some(service) = service {
            if self.devices.iter().any(|device| device.kind == DeviceKind::Synthetic) {
                return wrong(format!(
                    "a synthetic device sends datagrams, and {service} needs TCP: give --device tap:NAME, \
                     xdp:IF, vhost:PATH or virtio-user:PATH, or --listen ADDRESS"
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
            let same = |other: &DeviceSpec| match (&other.kind, &device.kind) {
                (DeviceKind::Xdp(one), DeviceKind::Xdp(other)) => one.interface == other.interface,
                _ => false,
            };
            if self.devices[..place].iter().any(same) {
                return wrong(format!(
                    "the interface {} is given twice: it has one program, and is given once with all its \
                     queues, as in xdp:{0}:0-3",
                    device.kind.name(place)
                ));
            }
            if let DeviceKind::Tap(name) = &device.kind
                && self.devices[..place].iter().any(twice)
            {
                return wrong(format!(
                    "the device tap:{name} is given twice: it is served once, in one VLAN at most"
                ));
            }
            let name = device.name(place);
            let same = |(place, it): (usize, &DeviceSpec)| it.name(place) == name;
            if let DeviceKind::Virtio(virtio) = &device.kind
                && self.devices[..place].iter().enumerate().any(same)
            {
                return wrong(format!(
                    "two devices would be called {name}, as the socket of {virtio}:{} is: give it \
                     another name",
                    virtio.path.display()
                ));
            }
        }
        Ok(())
    }

    /// The number of queues of a device.
    pub(super) fn queues_of(&self, device: &DeviceSpec) -> u16 {
        match &device.kind {
            DeviceKind::Virtio(virtio) => virtio.queues.unwrap_or(self.queues),
            DeviceKind::Xdp(spec) => spec.count(self.queues),
            DeviceKind::Tap(_) | DeviceKind::Synthetic => self.queues,
        }
    }

    pub(super) fn policy_of(&self, device: &DeviceSpec) -> Policy {
        device.policy.unwrap_or(self.policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_ports_and_flows_are_refused_by_name() {
        let devices = vec!["synthetic".parse().unwrap()];
        let config = ServeConfig { devices, ..ServeConfig::default() };
        assert!(config.check().is_ok());
        for (wrong, message) in [
            (ServeConfig { port: 0, ..config.clone() }, "a port is 1 to 65535, not 0"),
            (ServeConfig { flows: 0, ..config }, "the number of flows is at least 1, not 0"),
        ] {
            assert_eq!(wrong.check().unwrap_err().to_string(), message);
        }
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
}
