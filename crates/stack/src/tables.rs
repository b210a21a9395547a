//! Which socket a frame is for: a snapshot that the packet path reads without a lock.
//!
//! A batch is delivered by one snapshot from beginning to end. A socket that opens meanwhile is seen
//! by the next batch; one that closes refuses frames by itself, see
//! [`Receiver::is_closed`](crate::Receiver::is_closed).

use std::fmt;
use std::sync::Arc;

use crate::{Receiver, wire};

/// The most UDP sockets of one stack.
pub const UDP_SOCKETS: usize = 4096;
/// The most raw sockets of one stack: each costs every frame a comparison.
pub const RAW_SOCKETS: usize = 16;
/// The most TCP workers of one stack: one a queue, or one a thread.
pub const TCP_WORKERS: usize = 256;

/// Which frames a raw socket takes.
///
/// It takes them whole and alone, as an AF_XDP socket does: before any protocol, so unverified, and
/// nobody else gets them. Where several filters match, the narrower one wins: a port before an
/// EtherType before everything. With [`RawFilter::All`] the stack answers neither ARP nor
/// neighbour solicitations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RawFilter {
    /// UDP datagrams to this port, behind a VLAN tag or not: IPv4 without options or IPv6 without extension
    /// headers, not fragmented; addresses and VLAN are not looked at.
    UdpPort(u16),
    /// Frames of this EtherType; tagged ones have 0x8100.
    EtherType(u16),
    /// Every frame, whatever it carries.
    All,
}

impl RawFilter {
    /// Whether a frame passes the filter.
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

/// One state of the tables.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tables {
    /// Grows by one with every change.
    pub(crate) generation: u64,
    /// One more than the highest slot that any receiver has had.
    pub(crate) slots: usize,
    /// Sorted by port.
    udp: Vec<(u16, Arc<Receiver>)>,
    /// Sorted by filter, narrow ones first.
    raw: Vec<(RawFilter, Arc<Receiver>)>,
    /// The TCP workers, each with the queue that is its own, if one is.
    tcp: Vec<(Option<u32>, Arc<Receiver>)>,
}

impl Tables {
    /// The raw socket that takes this frame, if one does.
    pub(crate) fn raw(&self, frame: &[u8]) -> Option<&Arc<Receiver>> {
        self.raw.iter().find(|(filter, _)| filter.matches(frame)).map(|(_, receiver)| receiver)
    }

    /// The UDP socket that has this port.
    pub(crate) fn udp(&self, port: u16) -> Option<&Arc<Receiver>> {
        let at = self.udp.binary_search_by_key(&port, |(port, _)| *port).ok()?;
        self.udp.get(at).map(|(_, receiver)| receiver)
    }

    /// The TCP worker of a segment from the queue `napi_id`: that queue's own, or of those that have
    /// none the one that `hash` falls to, so that a connection stays with one worker.
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

    /// How many UDP and how many raw sockets there are.
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
