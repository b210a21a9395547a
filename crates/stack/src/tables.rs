//! The socket tables: a snapshot that the packet path reads without a lock.
//!
//! A batch uses one snapshot from start to end. A socket that opens meanwhile gets frames from the next batch on; a
//! socket that closes refuses frames itself, see [`Receiver::is_closed`](crate::Receiver::is_closed).

use std::fmt;
use std::sync::Arc;

use crate::{Receiver, wire};

/// Maximum number of UDP sockets of one stack.
pub const UDP_SOCKETS: usize = 4096;
/// Maximum number of raw sockets of one stack: each costs one comparison per frame.
pub const RAW_SOCKETS: usize = 16;
/// Maximum number of TCP workers of one stack: one per queue, or one per thread.
pub const TCP_WORKERS: usize = 256;

/// The frames that a raw socket receives.
///
/// As with an AF_XDP socket, they are whole and unverified, and no other socket receives them. Where several
/// filters match, the narrowest wins: a port before an EtherType before all frames. With [`RawFilter::All`] the
/// stack answers neither ARP nor neighbour solicitations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RawFilter {
    /// UDP datagrams to this port, with or without a VLAN tag: IPv4 without options or IPv6 without extension
    /// headers, not fragmented. Addresses and VLAN are not compared.
    UdpPort(u16),
    /// Frames of this EtherType; for tagged frames that is 0x8100.
    EtherType(u16),
    /// Every frame.
    All,
}

impl RawFilter {
    /// Whether a frame matches the filter.
    pub fn matches(&self, frame: &[u8]) -> bool {
        match *self {
            RawFilter::UdpPort(port) => wire::steering_port(frame) == Some(port),
            RawFilter::EtherType(ether_type) => wire::ether_type(frame) == Some(ether_type),
            RawFilter::All => true,
        }
    }
}

impl fmt::Display for RawFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RawFilter::UdpPort(port) => write!(f, "udp port {port}"),
            RawFilter::EtherType(ether_type) => write!(f, "ethertype {ether_type:#06x}"),
            RawFilter::All => write!(f, "all"),
        }
    }
}

/// One version of the tables.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tables {
    /// Incremented by every change.
    pub(crate) generation: u64,
    /// One more than the highest slot ever assigned to a receiver.
    pub(crate) slots: usize,
    /// Sorted by port.
    udp: Vec<(u16, Arc<Receiver>)>,
    /// Sorted by filter, narrowest first.
    raw: Vec<(RawFilter, Arc<Receiver>)>,
    /// The TCP workers, each with the queue that it serves alone, if any.
    tcp: Vec<(Option<u32>, Arc<Receiver>)>,
}

impl Tables {
    /// The raw socket that receives this frame, if any.
    pub(crate) fn raw(&self, frame: &[u8]) -> Option<&Arc<Receiver>> {
        self.raw.iter().find(|(filter, _)| filter.matches(frame)).map(|(_, receiver)| receiver)
    }

    /// The UDP socket that is bound to this port.
    pub(crate) fn udp(&self, port: u16) -> Option<&Arc<Receiver>> {
        let at = self.udp.binary_search_by_key(&port, |(port, _)| *port).ok()?;
        self.udp.get(at).map(|(_, receiver)| receiver)
    }

    /// The TCP worker for a segment from the queue `napi_id`: the queue's own worker, or the worker that `hash`
    /// selects among those without a queue, so that a connection stays with one worker.
    pub(crate) fn tcp(&self, napi_id: u32, hash: impl FnOnce() -> u64) -> Option<&Arc<Receiver>> {
        let own = self.tcp.iter().find(|(queue, _)| *queue == Some(napi_id));
        if let Some((_, receiver)) = own {
            return Some(receiver);
        }
        let shared = || self.tcp.iter().filter(|(queue, _)| queue.is_none());
        let workers = shared().count() as u64;
        let at = match workers {
            0 => return None,
            1 => 0,
            _ => hash() % workers,
        };
        shared().nth(at as usize).map(|(_, receiver)| receiver)
    }

    pub(crate) fn has_tcp(&self, queue: Option<u32>) -> bool {
        queue.is_some() && self.tcp.iter().any(|(other, _)| *other == queue)
    }

    pub(crate) fn tcp_workers(&self) -> usize {
        self.tcp.len()
    }

    pub(crate) fn add_tcp(&mut self, queue: Option<u32>, receiver: Arc<Receiver>) {
        self.tcp.push((queue, receiver));
    }

    /// The numbers of UDP and of raw sockets.
    pub(crate) fn sockets(&self) -> (usize, usize) {
        (self.udp.len(), self.raw.len())
    }

    pub(crate) fn has_filter(&self, filter: RawFilter) -> bool {
        self.raw.iter().any(|(other, _)| *other == filter)
    }

    pub(crate) fn add_udp(&mut self, port: u16, receiver: Arc<Receiver>) {
        let at = self.udp.partition_point(|(other, _)| *other < port);
        self.udp.insert(at, (port, receiver));
    }

    pub(crate) fn add_raw(&mut self, filter: RawFilter, receiver: Arc<Receiver>) {
        let at = self.raw.partition_point(|(other, _)| *other < filter);
        self.raw.insert(at, (filter, receiver));
    }

    pub(crate) fn remove(&mut self, receiver: &Arc<Receiver>) {
        self.udp.retain(|(_, other)| !Arc::ptr_eq(other, receiver));
        self.raw.retain(|(_, other)| !Arc::ptr_eq(other, receiver));
        self.tcp.retain(|(_, other)| !Arc::ptr_eq(other, receiver));
    }
}
