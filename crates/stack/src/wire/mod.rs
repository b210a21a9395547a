//! What a received frame is.
//!
//! Pure functions over bytes, on smoltcp's wire types. `classify` looks at everything that the
//! stack will ever rely on (tag, lengths, checksums, addresses), in the order of the layers, and says
//! either what the frame is or the [`Fate`] that it meets; what passes can be read afterwards
//! without a second look. Because packets with IPv4 options or IPv6 extension headers are dropped, what
//! the Ethernet header says (its shape) tells where everything begins.
//!
//! Not here: state. Nothing in these files knows a socket, a neighbour or a queue.

mod ip;
mod packet;
mod resolve;

use std::net::{IpAddr, SocketAddr};

use smoltcp::wire::{EthernetAddress, EthernetFrame, EthernetProtocol, IpProtocol};

use crate::address::can_be_host;
use crate::{Addresses, Fate};

/// Bytes of an Ethernet header without a VLAN tag.
pub const ETHERNET_HEADER: usize = 14;
/// Bytes of a VLAN tag (802.1Q).
pub const VLAN_TAG: usize = 4;
/// Bytes of an IPv4 header without options.
pub const IPV4_HEADER: usize = 20;
/// Bytes of an IPv6 header without extension headers.
pub const IPV6_HEADER: usize = 40;
/// Bytes of a UDP header, and of an ICMP echo header.
pub const UDP_HEADER: usize = 8;
/// Bytes before the payload of a UDP datagram, or of an ICMP echo, at most: with a VLAN tag and over IPv6.
pub const HEADERS: usize = ETHERNET_HEADER + VLAN_TAG + IPV6_HEADER + UDP_HEADER;
/// Bytes of a frame in which an Ethernet address is asked for or told, at most: a neighbour solicitation or
/// advertisement with one option, tagged. By ARP it is shorter.
pub const RESOLVE_FRAME: usize = ETHERNET_HEADER + VLAN_TAG + IPV6_HEADER + resolve::NDISC;

/// The EtherType of an 802.1Q tag; a frame's own follows behind the tag.
pub(crate) const TAGGED: u16 = 0x8100;

/// A frame that the stack can act upon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Somebody asks for the Ethernet address of our address `target`, by ARP or neighbour solicitation.
    Asked {
        mac: [u8; 6],
        /// Unspecified where it has no address yet and asks whether this one is free.
        ip: IpAddr,
        target: IpAddr,
        /// It says that `mac` is its own; otherwise it is only where the frame came from.
        told: bool,
    },
    /// A host tells us its Ethernet address.
    Told {
        mac: [u8; 6],
        ip: IpAddr,
        /// Even if we know another (the override flag of a neighbour advertisement; ARP has none and
        /// means it).
        overrides: bool,
        /// Only if we know or have asked for one (neighbour advertisements: RFC 4861, 7.2.5; and
        /// announcements by ARP, which tell everybody).
        asked: bool,
    },
    /// An ICMP echo request to us; the packet ends at byte `end` of the frame.
    Echo { end: usize },
    /// A UDP datagram to us, or to everybody; its payload ends at byte `end` of the frame.
    Udp { port: u16, end: usize },
    /// A TCP segment to us; it ends at byte `end` of the frame.
    Tcp { end: usize },
}

/// Says what a received frame is, or why it is dropped.
pub(crate) fn classify(bytes: &[u8], us: &Addresses) -> Result<Seen, Fate> {
    let frame = EthernetFrame::new_checked(bytes).map_err(|_| Fate::Truncated)?;
    let (at, ether_type) = match u16::from(frame.ethertype()) {
        TAGGED => {
            let tag = bytes.get(ETHERNET_HEADER..ETHERNET_HEADER + VLAN_TAG);
            let &[high, low, inner_high, inner_low] = tag.ok_or(Fate::Truncated)? else {
                return Err(Fate::Truncated);
            };
            let vlan = u16::from_be_bytes([high, low]) & 0xfff;
            // One of VLAN 0 only says its priority (802.1Q), and is as good as none.
            if vlan != us.vlan().unwrap_or(0) {
                return Err(Fate::Vlan);
            }
            (ETHERNET_HEADER + VLAN_TAG, u16::from_be_bytes([inner_high, inner_low]))
        }
        // 802.1ad, and the older tag that it replaced.
        0x88a8 | 0x9100 => return Err(Fate::Vlan),
        _ if us.vlan().is_some() => return Err(Fate::Untagged),
        ether_type => (ETHERNET_HEADER, ether_type),
    };
    let to = match frame.dst_addr() {
        mac if mac.0 == us.mac() => To::Us,
        mac if mac.is_broadcast() => To::All,
        mac if us.in_group_of(mac.0) => To::Group(mac.0),
        // What every link carries is told apart from what has lost its way.
        _ if ether_type == u16::from(EthernetProtocol::Ipv6) && !us.has_ipv6() => {
            return Err(Fate::Ipv6);
        }
        mac if mac.is_multicast() => return Err(Fate::Multicast),
        _ => return Err(Fate::NotForUs),
    };
    if !is_host(frame.src_addr()) {
        return Err(Fate::BadSource);
    }
    let (payload, mac) = (&bytes[at..], frame.src_addr().0);
    match ether_type.into() {
        EthernetProtocol::Ipv4 => ip::v4(payload, us, to, at),
        EthernetProtocol::Arp => resolve::arp(payload, us),
        EthernetProtocol::Ipv6 if us.has_ipv6() => ip::v6(payload, us, to, mac, at),
        EthernetProtocol::Ipv6 => Err(Fate::Ipv6),
        // Behind a tag of ours another.
        EthernetProtocol::Unknown(TAGGED | 0x88a8 | 0x9100) => Err(Fate::Vlan),
        _ => Err(Fate::UnknownProtocol),
    }
}

/// Whom a frame's Ethernet header is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum To {
    Us,
    All,
    /// A group that we are in.
    Group([u8; 6]),
}

/// Whether an Ethernet address can be a single host's.
fn is_host(mac: EthernetAddress) -> bool {
    mac.is_unicast() && mac.0 != [0; 6]
}

/// Whether a packet from this address can have come from another host.
pub(crate) fn can_send(source: IpAddr, us: &Addresses) -> bool {
    can_be_host(source) && !us.claims(source)
}

/// Where the parts of a frame begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// It has a VLAN tag.
    tagged: bool,
    v6: bool,
}

impl Shape {
    /// That of a frame to or from this address.
    pub(crate) const fn new(tagged: bool, ip: IpAddr) -> Shape {
        Shape { tagged, v6: ip.is_ipv6() }
    }

    /// That of a frame, by its Ethernet header alone; `None` if it is no IP, or too short for its headers.
    pub(crate) fn of(frame: &[u8]) -> Option<Shape> {
        let (tagged, ether_type) = match word_at(frame, 12)? {
            TAGGED => (true, word_at(frame, 12 + VLAN_TAG)?),
            ether_type => (false, ether_type),
        };
        let shape = match ether_type {
            0x0800 => Shape { tagged, v6: false },
            0x86dd => Shape { tagged, v6: true },
            _ => return None,
        };
        (frame.len() >= shape.transport()).then_some(shape)
    }

    pub(crate) const fn ip(self) -> usize {
        if self.tagged { ETHERNET_HEADER + VLAN_TAG } else { ETHERNET_HEADER }
    }

    /// Where the UDP, TCP or ICMP header begins.
    pub(crate) const fn transport(self) -> usize {
        self.ip() + if self.v6 { IPV6_HEADER } else { IPV4_HEADER }
    }

    /// Where the payload of a UDP datagram or an echo begins.
    pub(crate) const fn payload(self) -> usize {
        self.transport() + UDP_HEADER
    }

    /// The tag's priority and VLAN, if there is one.
    pub(crate) fn tag(self, frame: &[u8]) -> Option<u16> {
        if self.tagged { word_at(frame, ETHERNET_HEADER) } else { None }
    }

    /// Source and destination of the packet in such a frame.
    pub(crate) fn ends(self, frame: &[u8]) -> Option<(IpAddr, IpAddr)> {
        let (at, length) = if self.v6 { (8, 16) } else { (12, 4) };
        let from = self.ip() + at;
        let read = |bytes: &[u8]| -> Option<IpAddr> {
            match *bytes {
                [a, b, c, d] => Some([a, b, c, d].into()),
                _ => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
            }
        };
        let both = frame.get(from..from + 2 * length)?;
        Some((read(&both[..length])?, read(&both[length..])?))
    }
}

fn word_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

/// The EtherType of a frame, if it is long enough to have one; of a tagged one that of the tag.
pub(crate) fn ether_type(bytes: &[u8]) -> Option<u16> {
    word_at(bytes, 12)
}

/// The UDP destination port of a frame, by its headers alone, as a filter in a NIC would see it:
/// lengths and checksums are not verified, options, extension headers and fragments do not match.
pub(crate) fn steering_port(bytes: &[u8]) -> Option<u16> {
    let shape = Shape::of(bytes)?;
    let ip = &bytes[shape.ip()..shape.transport()];
    let udp = u8::from(IpProtocol::Udp);
    let plain = match shape.v6 {
        true => ip[0] >> 4 == 6 && ip[6] == udp,
        // Neither options nor a fragment, but perhaps the flag against fragments.
        false => ip[0] == 0x45 && ip[6] & 0x3f == 0 && ip[7] == 0 && ip[9] == udp,
    };
    if !plain {
        return None;
    }
    word_at(bytes, shape.transport() + 2)
}

/// Where a UDP frame that [`classify`] has passed came from.
pub(crate) fn udp_source(bytes: &[u8]) -> Option<SocketAddr> {
    let shape = Shape::of(bytes)?;
    let (ip, _) = shape.ends(bytes)?;
    Some(SocketAddr::new(ip, word_at(bytes, shape.transport())?))
}

/// The source and destination port of a UDP frame, by its headers alone.
pub(crate) fn udp_ports(bytes: &[u8]) -> Option<(u16, u16)> {
    let to = steering_port(bytes)?;
    udp_source(bytes).map(|from| (from.port(), to))
}

#[cfg(test)]
mod tests;
