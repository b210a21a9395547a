//! What is asked of whom, by which device, and what of it makes no sense.

use std::net::SocketAddr;
use std::time::Duration;

use napkin_serve::{DeviceKind, DeviceSpec, Network};
use napkin_stack::EPHEMERAL_PORTS;

use crate::error::LoadError;

/// The highest rate, per second.
pub const HIGHEST_RATE: u64 = 100_000_000;
/// The most flows of datagrams: each has a port of ours, and a socket.
pub const MOST_FLOWS: u16 = 64;
/// Bytes of a datagram at least: when it was due, which comes back in the answer.
pub const LEAST_BYTES: u32 = 8;
/// Bytes of a datagram at most: an Ethernet frame's 1500, less the headers of IPv6 and UDP.
pub const MOST_DATAGRAM: u32 = 1_500 - 40 - 8;

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Datagrams, of an echo server or of one that lets them go.
    Udp,
    /// An echo over TCP connections.
    Tcp,
    /// A memcached over TCP: gets, and 3 % sets. Its records are set first.
    Memcached,
}

/// A load: what is asked of whom, how fast and for how long.
#[derive(Debug, Clone)]
pub struct LoadConfig {
    /// What is asked.
    pub ask: Ask,
    /// The device by which it is asked; `tap`, `xdp` with `:all`, `vhost` or `virtio-user`.
    pub device: DeviceSpec,
    /// Our address on it.
    pub network: Network,
    /// Who is asked, on the same network.
    pub to: SocketAddr,
    /// Requests a second by a schedule; `None` for as many as go.
    pub per_second: Option<u64>,
    /// Bytes of a datagram or of an echoed message.
    pub bytes: u32,
    /// Connections; of datagrams the ports that they come from, in turn.
    pub flows: u16,
    /// How long it is measured.
    pub time: Duration,
    /// The CPU of the thread that asks, which it does not leave idle.
    pub cpu: Option<usize>,
    /// Where randomness comes from.
    pub seed: u64,
}

impl LoadConfig {
    /// # Errors
    /// [`LoadError::Usage`] with the value that makes no sense, and what does.
    pub fn check(&self) -> Result<(), LoadError> {
        self.check_device()?;
        let wrong = |why: String| Err(LoadError::Usage(why));
        let ours = self.network.ip;
        if !self.network.contains(self.to.ip()) {
            return wrong(format!(
                "{} is not in the network of {}: there are no routers here; give --address one of the \
                 same network",
                self.to.ip(),
                self.network
            ));
        }
        if self.to.ip() == ours {
            return wrong(format!("{ours} is our own address: give --to another host's"));
        }
        if self.to.port() == 0 {
            return wrong("port 0 is not a service's: give --to ADDRESS:PORT".into());
        }
        if self.per_second.is_some_and(|rate| !(1..=HIGHEST_RATE).contains(&rate)) {
            return wrong(format!("a rate is 1 to {HIGHEST_RATE} a second, or max"));
        }
        if self.ask == Ask::Udp {
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
        if self.ask != Ask::Udp {
            if ours.is_ipv6() {
                return wrong("over IPv6 there are datagrams only: give an IPv4 address".into());
            }
            if !(1..=EPHEMERAL_PORTS).contains(&usize::from(self.flows)) {
                let flows = self.flows;
                return wrong(format!("1 to {EPHEMERAL_PORTS} connections ask, not {flows}"));
            }
        }
        Ok(())
    }

    /// Comes first: no address is of use on a device that cannot ask.
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
