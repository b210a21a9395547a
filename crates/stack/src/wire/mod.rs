//! Classification of received frames.
//!
//! Pure functions over bytes, on smoltcp's wire types. `classify` verifies everything that the stack relies on
//! later (tag, lengths, checksums, addresses), layer by layer, and returns either the kind of the frame or the
//! [`FrameOutcome`] for which it is dropped; a frame that passes can be read afterwards without further checks. Because
//! packets with IPv4 options or IPv6 extension headers are dropped, the Ethernet header alone determines all
//! offsets (`Layout`).
//!
//! These files hold no state: no sockets, no neighbours, no queues.

mod ip;
mod packet;
mod resolve;

use std::net::{IpAddr, SocketAddr};

use smoltcp::wire::{EthernetAddress, EthernetFrame, EthernetProtocol, IpProtocol};

use crate::address::can_be_host;
use crate::{Addresses, FrameOutcome};

/// Bytes of an Ethernet header without a VLAN tag.
pub const ETHERNET_HEADER: usize = 14;
/// Bytes of a VLAN tag (802.1Q).
pub const VLAN_TAG: usize = 4;
/// Bytes of an IPv4 header without options.
pub const IPV4_HEADER: usize = 20;
/// Bytes of an IPv6 header without extension headers.
pub const IPV6_HEADER: usize = 40;
/// Bytes of a UDP header, and equally of an ICMP echo header.
pub const UDP_HEADER: usize = 8;
/// Most bytes before the payload of a UDP datagram or an ICMP echo: with a VLAN tag and over IPv6.
pub const HEADERS: usize = ETHERNET_HEADER + VLAN_TAG + IPV6_HEADER + UDP_HEADER;
/// Most bytes of a frame that resolves an Ethernet address: a tagged neighbour solicitation or advertisement with
/// one option. ARP frames are shorter.
pub const RESOLVE_FRAME: usize = ETHERNET_HEADER + VLAN_TAG + IPV6_HEADER + resolve::NDISC;

/// The EtherType of an 802.1Q tag; the frame's own EtherType follows the tag.
pub(crate) const TAGGED: u16 = 0x8100;

/// A frame that the stack acts upon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// An ARP request or neighbour solicitation for the Ethernet address of our address `target`.
    AddressQuery {
        mac: [u8; 6],
        /// The sender's address; unspecified in a duplicate address probe.
        ip: IpAddr,
        target: IpAddr,
        /// Whether the sender states `mac` as its own address; otherwise it is only the frame's source.
        states_source: bool,
    },
    /// A host states its Ethernet address: ARP reply or announcement, or neighbour advertisement.
    AddressClaim {
        mac: [u8; 6],
        ip: IpAddr,
        /// Whether it replaces another known address: the override flag of a neighbour advertisement; always true
        /// for ARP.
        overrides: bool,
        /// Whether it only updates an entry that exists or was asked for: neighbour advertisements (RFC 4861,
        /// 7.2.5) and ARP announcements, which are broadcast.
        update_only: bool,
    },
    /// An ICMP echo request to us; the packet ends at byte `end` of the frame.
    Echo { end: usize },
    /// A UDP datagram to us or to broadcast; its payload ends at byte `end` of the frame.
    Udp { port: u16, end: usize },
    /// A TCP segment to us; it ends at byte `end` of the frame.
    Tcp { end: usize },
}

/// Classifies a received frame, or returns the fate for which it is dropped.
pub(crate) fn classify(bytes: &[u8], us: &Addresses) -> Result<Received, FrameOutcome> {
    let frame = EthernetFrame::new_checked(bytes).map_err(|_| FrameOutcome::Truncated)?;
    let (at, ether_type) = match u16::from(frame.ethertype()) {
        TAGGED => {
            let tag = bytes.get(ETHERNET_HEADER..ETHERNET_HEADER + VLAN_TAG);
            let &[high, low, inner_high, inner_low] = tag.ok_or(FrameOutcome::Truncated)? else {
                return Err(FrameOutcome::Truncated);
            };
            let vlan = u16::from_be_bytes([high, low]) & 0xfff;
            // VLAN 0 is a priority tag (802.1Q) and treated as no tag.
            if vlan != us.vlan().unwrap_or(0) {
                return Err(FrameOutcome::Vlan);
            }
            (ETHERNET_HEADER + VLAN_TAG, u16::from_be_bytes([inner_high, inner_low]))
        }
        // 802.1ad, and its pre-standard predecessor.
        0x88a8 | 0x9100 => return Err(FrameOutcome::Vlan),
        _ if us.vlan().is_some() => return Err(FrameOutcome::Untagged),
        ether_type => (ETHERNET_HEADER, ether_type),
    };
    let to = match frame.dst_addr() {
        mac if mac.0 == us.mac() => LinkDestination::Us,
        mac if mac.is_broadcast() => LinkDestination::Broadcast,
        mac if us.in_group_of(mac.0) => LinkDestination::Group(mac.0),
        // Counted separately, since every link carries some, unlike frames to wrong addresses.
        _ if ether_type == u16::from(EthernetProtocol::Ipv6) && !us.has_ipv6() => {
            return Err(FrameOutcome::Ipv6);
        }
        mac if mac.is_multicast() => return Err(FrameOutcome::Multicast),
        _ => return Err(FrameOutcome::NotForUs),
    };
    if !is_host(frame.src_addr()) {
        return Err(FrameOutcome::BadSource);
    }
    let (payload, mac) = (&bytes[at..], frame.src_addr().0);
    match ether_type.into() {
        EthernetProtocol::Ipv4 => ip::v4(payload, us, to, at),
        EthernetProtocol::Arp => resolve::arp(payload, us),
        EthernetProtocol::Ipv6 if us.has_ipv6() => ip::v6(payload, us, to, mac, at),
        EthernetProtocol::Ipv6 => Err(FrameOutcome::Ipv6),
        // A second tag behind ours.
        EthernetProtocol::Unknown(TAGGED | 0x88a8 | 0x9100) => Err(FrameOutcome::Vlan),
        _ => Err(FrameOutcome::UnknownProtocol),
    }
}

/// The kind of a frame's Ethernet destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LinkDestination {
    Us,
    Broadcast,
    /// A group that we are a member of.
    Group([u8; 6]),
}

/// Whether an Ethernet address can be a single host's.
fn is_host(mac: EthernetAddress) -> bool {
    mac.is_unicast() && mac.0 != [0; 6]
}

/// Whether an address can be the source of a packet from another host.
pub(crate) fn can_send(source: IpAddr, us: &Addresses) -> bool {
    can_be_host(source) && !us.claims(source)
}

/// The header layout of an IP frame, which determines where each part begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Whether it has a VLAN tag.
    tagged: bool,
    v6: bool,
}

impl Layout {
    /// The layout of a frame to or from this address.
    pub(crate) const fn new(tagged: bool, ip: IpAddr) -> Layout {
        Layout { tagged, v6: ip.is_ipv6() }
    }

    /// The layout of a frame, from its Ethernet header alone; `None` if it is not IP or too short for its headers.
    pub(crate) fn of(frame: &[u8]) -> Option<Layout> {
        let (tagged, ether_type) = match word_at(frame, 12)? {
            TAGGED => (true, word_at(frame, 12 + VLAN_TAG)?),
            ether_type => (false, ether_type),
        };
        let layout = match ether_type {
            0x0800 => Layout { tagged, v6: false },
            0x86dd => Layout { tagged, v6: true },
            _ => return None,
        };
        (frame.len() >= layout.transport()).then_some(layout)
    }

    pub(crate) const fn ip(self) -> usize {
        if self.tagged { ETHERNET_HEADER + VLAN_TAG } else { ETHERNET_HEADER }
    }

    /// Offset of the UDP, TCP or ICMP header.
    pub(crate) const fn transport(self) -> usize {
        self.ip() + if self.v6 { IPV6_HEADER } else { IPV4_HEADER }
    }

    /// Offset of the payload of a UDP datagram or an ICMP echo.
    pub(crate) const fn payload(self) -> usize {
        self.transport() + UDP_HEADER
    }

    /// The tag's priority and VLAN, if the frame is tagged.
    pub(crate) fn tag(self, frame: &[u8]) -> Option<u16> {
        if self.tagged { word_at(frame, ETHERNET_HEADER) } else { None }
    }

    /// Source and destination address of the packet.
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

/// The EtherType of a frame, if it is long enough; for a tagged frame that is 0x8100.
pub(crate) fn ether_type(bytes: &[u8]) -> Option<u16> {
    word_at(bytes, 12)
}

/// The UDP destination port of a frame, from its headers alone, as a NIC's filter would read it: lengths and
/// checksums are not verified; packets with options, extension headers or fragments do not match.
pub(crate) fn steering_port(bytes: &[u8]) -> Option<u16> {
    let layout = Layout::of(bytes)?;
    let ip = &bytes[layout.ip()..layout.transport()];
    let udp = u8::from(IpProtocol::Udp);
    let plain = match layout.v6 {
        true => ip[0] >> 4 == 6 && ip[6] == udp,
        // No options and no fragment; DF may be set.
        false => ip[0] == 0x45 && ip[6] & 0x3f == 0 && ip[7] == 0 && ip[9] == udp,
    };
    if !plain {
        return None;
    }
    word_at(bytes, layout.transport() + 2)
}

/// The source of a UDP frame that [`classify`] has accepted.
pub(crate) fn udp_source(bytes: &[u8]) -> Option<SocketAddr> {
    let layout = Layout::of(bytes)?;
    let (ip, _) = layout.ends(bytes)?;
    Some(SocketAddr::new(ip, word_at(bytes, layout.transport())?))
}

/// The source and destination port of a UDP frame, from its headers alone.
pub(crate) fn udp_ports(bytes: &[u8]) -> Option<(u16, u16)> {
    let to = steering_port(bytes)?;
    udp_source(bytes).map(|from| (from.port(), to))
}

#[cfg(test)]
mod tests;
