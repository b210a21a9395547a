//! Between which two ends a connection is.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, SocketAddrV4};

use smoltcp::wire::{Ipv4Packet, TcpPacket};

use crate::wire::{ETHERNET_HEADER, IPV4_HEADER};

/// A connection's two ends: what its segments are told apart by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    /// Our port, host byte order.
    pub port: u16,
    /// The peer's address and port.
    pub peer: SocketAddrV4,
}

/// What is read of a segment before it is presented. The stack has passed its lengths and checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) flow: Flow,
    /// Where an answer goes: the Ethernet address of its sender, or of a router.
    pub(crate) mac: [u8; 6],
    /// It asks for a connection: SYN without ACK.
    pub(crate) opens: bool,
}

impl Segment {
    /// Reads the headers of a frame; `None` if it is no IPv4 TCP.
    pub(crate) fn read(frame: &[u8]) -> Option<Segment> {
        let mac = <[u8; 6]>::try_from(frame.get(6..12)?).ok()?;
        let ip = Ipv4Packet::new_unchecked(frame.get(ETHERNET_HEADER..)?);
        let tcp = TcpPacket::new_checked(frame.get(ETHERNET_HEADER + IPV4_HEADER..)?).ok()?;
        let peer = SocketAddrV4::new(ip.src_addr(), tcp.src_port());
        let flow = Flow { port: tcp.dst_port(), peer };
        Some(Segment { flow, mac, opens: tcp.syn() && !tcp.ack() && !tcp.rst() })
    }
}

/// A keyed hash of the flow of a frame that is IPv4 TCP, for sharing flows between workers: whoever
/// does not know the key cannot send all his flows to one of them.
pub(crate) fn flow_hash(key: &RandomState, frame: &[u8]) -> u64 {
    Segment::read(frame).map_or(0, |segment| key.hash_one(segment.flow))
}

impl Flow {
    /// A flow between `port` of ours and a peer.
    pub const fn new(port: u16, address: Ipv4Addr, peer_port: u16) -> Flow {
        Flow { port, peer: SocketAddrV4::new(address, peer_port) }
    }
}
