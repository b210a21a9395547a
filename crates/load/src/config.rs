//! The configuration of a load and its validation.

use std::net::SocketAddr;
use std::time::Duration;

use napkin_serve::{DeviceKind, DeviceSpec, Network};
use napkin_stack::EPHEMERAL_PORTS;

use crate::error::LoadError;

/// The highest rate, in requests per second.
pub const HIGHEST_RATE: u64 = 100_000_000;
/// Maximum number of flows of datagrams: each takes a local port and a socket.
pub const MOST_FLOWS: u16 = 64;
/// Minimum size of a datagram in bytes: it carries its due time, which comes back in the answer.
pub const LEAST_BYTES: u32 = 8;
/// Maximum size of a datagram in bytes: the 1500 of an Ethernet frame, less the IPv6 and UDP headers.
pub const MOST_DATAGRAM: u32 = 1_500 - 40 - 8;

/// The kind of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Datagrams, to an echo server or to one that discards them.
    Udp,
    /// An echo service over TCP connections.
    Tcp,
    /// A memcached over TCP: gets, and 3 % sets. Its records are set before the measurement.
    Memcached,
}

/// A load: the requests, the server, the rate and the duration.
#[derive(Debug, Clone)]
pub struct LoadConfig {
    /// The kind of requests.
    pub ask: Protocol,
    /// The device to send on: `tap`, `xdp` with `:all`, `vhost` or `virtio-user`.
    pub device: DeviceSpec,
    /// The local address and network on the device.
    pub network: Network,
    /// The server's address and port, in the same network.
    pub to: SocketAddr,
    /// Requests per second of the schedule; `None` for as many as possible.
    pub per_second: Option<u64>,
    /// Size of a datagram or of an echoed message, in bytes.
    pub bytes: u32,
    /// Number of connections; for datagrams, of local ports, which are used in turn.
    pub flows: u16,
    /// Duration of the measurement.
    pub time: Duration,
    /// The CPU of the sending thread, which keeps it busy.
    pub cpu: Option<usize>,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl LoadConfig {
    /// [`LoadError::Usage`] names the invalid value, and valid ones.
    /// [`LoadError::Usage`] with the value that makes no sense, and what does.
    pub fn check(&self) -> Result<(), LoadError> {
        self.check_device()?;
        let wrong = |why: String| Err(LoadError::Usage(why));
        let own = self.network.ip;
        if !self.network.contains(self.to.ip()) {
            return wrong(format!(
                "{} is not in the network of {}: there are no routers here; give --address one of the \
                 same network",
                self.to.ip(),
                self.network
            ));
        }
        if self.to.ip() == own {
            return wrong(format!("{own} is our own address: give --to another host's"));
        }
        if self.to.port() == 0 {
            return wrong("port 0 is not a service's: give --to ADDRESS:PORT".into());
        }
        if self.per_second.is_some_and(|rate| !(1..=HIGHEST_RATE).contains(&rate)) {
            return wrong(format!("a rate is 1 to {HIGHEST_RATE} a second, or max"));
        }
        if self.ask == Protocol::Udp {
            if !(LEAST_BYTES..=MOST_DATAGRAM).contains(&self.bytes) {
                return wrong(format!(
                    "a datagram has {LEAST_BYTES} to {MOST_DATAGRAM} bytes, not {}",
                    self.bytes
                ));
            }
            if !(1..=MOST_FLOWS).contains(&self.flows) {
                return wrong(format!(
                    "datagrams have 1 to {MOST_FLOWS} flows, not {}",
                    self.flows
                ));
            }
        }
        if self.ask != Protocol::Udp {
            if own.is_ipv6() {
                return wrong("over IPv6 there are datagrams only: give an IPv4 address".into());
            }
            if !(1..=EPHEMERAL_PORTS).contains(&usize::from(self.flows)) {
                let flows = self.flows;
                return wrong(format!("1 to {EPHEMERAL_PORTS} connections ask, not {flows}"));
            }
        }
        Ok(())
    }

    /// Checked first: addresses do not matter on an unsuitable device.
    fn check_device(&self) -> Result<(), LoadError> {
        let wrong = |why: &str| Err(LoadError::Usage(why.into()));
        match &self.device.kind {
            DeviceKind::Xdp(spec) if !spec.all => wrong(
                "by port an AF_XDP device leaves ARP to the kernel, so no peer could be found: give \
                 xdp:IF:QUEUE:all",
            ),
            DeviceKind::Synthetic => wrong(
                "a synthetic device has no peer: give tap:NAME, xdp:IF:QUEUE:all, vhost:PATH or \
                 virtio-user:PATH",
            ),
            _ if self.device.policy.is_some() => {
                wrong("a load polls its device itself, under no policy: leave =POLICY out")
            }
            _ => Ok(()),
        }
    }
}
