//! Validation of IPv4 and IPv6 packets and their payloads.
//!
//! Each header is verified by its own family's rules; the payload is then handled by code common to both. No header
//! is skipped: a packet with IPv4 options or IPv6 extension headers (hop-by-hop options included) is dropped under
//! a named reason, and so is every fragment.

use std::net::IpAddr;

use smoltcp::wire::{
    Icmpv4Message, Icmpv4Packet, Icmpv6Message, Icmpv6Packet, IpProtocol, Ipv4Packet, Ipv6Packet,
    TcpPacket, UdpPacket,
};

use super::packet::Packet;
use super::{IPV4_HEADER, IPV6_HEADER, LinkDestination, Received, can_send, resolve};
use crate::address::group_mac;
use crate::{Addresses, FrameOutcome};

pub(super) fn v4(
    bytes: &[u8],
    us: &Addresses,
    to: LinkDestination,
    at: usize,
) -> Result<Received, FrameOutcome> {
    if bytes.len() < IPV4_HEADER {
        return Err(FrameOutcome::Truncated);
    }
    let ip = Ipv4Packet::new_unchecked(bytes);
    if ip.version() != 4 {
        return Err(FrameOutcome::BadHeader);
    }
    let header = usize::from(ip.header_len());
    let total = usize::from(ip.total_len());
    if header < IPV4_HEADER || total < header {
        return Err(FrameOutcome::BadLength);
    }
    if bytes.len() < total {
        return Err(FrameOutcome::Truncated);
    }
    if !ip.verify_checksum() {
        return Err(FrameOutcome::BadChecksum);
    }
    let (source, destination) = (IpAddr::V4(ip.src_addr()), IpAddr::V4(ip.dst_addr()));
    let for_us = us.is_ours(destination);
    // Unicast on one layer and broadcast on the other: dropped (RFC 1122, 3.3.6).
    match to {
        LinkDestination::Us if for_us => {}
        LinkDestination::Broadcast if !for_us && us.is_broadcast(destination) => {}
        _ => return Err(FrameOutcome::NotForUs),
    }
    if !can_send(source, us) {
        return Err(FrameOutcome::BadSource);
    }
    if header > IPV4_HEADER {
        return Err(FrameOutcome::IpOptions);
    }
    if ip.more_frags() || ip.frag_offset() != 0 {
        return Err(FrameOutcome::Fragment);
    }
    let payload = ip.payload();
    let packet = Packet { source, destination, payload, for_us, at: at + IPV4_HEADER };
    match ip.next_header() {
        IpProtocol::Icmp => icmp(&packet),
        protocol => transport(&packet, protocol),
    }
}

pub(super) fn v6(
    bytes: &[u8],
    us: &Addresses,
    to: LinkDestination,
    mac: [u8; 6],
    at: usize,
) -> Result<Received, FrameOutcome> {
    if bytes.len() < IPV6_HEADER {
        return Err(FrameOutcome::Truncated);
    }
    let ip = Ipv6Packet::new_unchecked(bytes);
    if ip.version() != 6 {
        return Err(FrameOutcome::BadHeader);
    }
    if bytes.len() < ip.total_len() {
        return Err(FrameOutcome::Truncated);
    }
    let (source, destination) = (ip.src_addr(), ip.dst_addr());
    let for_us = us.is_ours(destination.into());
    match to {
        LinkDestination::Us if for_us => {}
        LinkDestination::Group(mac)
            if us.in_group(destination) && group_mac(destination) == mac => {}
        // Another group that maps to the same Ethernet address.
        LinkDestination::Group(_) if destination.is_multicast() => {
            return Err(FrameOutcome::Multicast);
        }
        _ => return Err(FrameOutcome::NotForUs),
    }
    let packet = Packet {
        source: source.into(),
        destination: destination.into(),
        payload: ip.payload(),
        for_us,
        at: at + IPV6_HEADER,
    };
    let protocol = ip.next_header();
    // A duplicate address probe has no source address yet.
    let nobody = source.is_unspecified() && protocol == IpProtocol::Icmpv6;
    if !nobody && !can_send(packet.source, us) {
        return Err(FrameOutcome::BadSource);
    }
    match protocol {
        IpProtocol::Icmpv6 => icmpv6(&packet, us, ip.hop_limit(), mac),
        IpProtocol::Ipv6Frag => Err(FrameOutcome::Fragment),
        // Those that smoltcp does not name: mobility, host identity, shim6 (IANA's list).
        IpProtocol::HopByHop
        | IpProtocol::Ipv6Route
        | IpProtocol::Ipv6Opts
        | IpProtocol::IpSecAh
        | IpProtocol::Unknown(135 | 139 | 140) => Err(FrameOutcome::ExtensionHeader),
        protocol => transport(&packet, protocol),
    }
}

fn transport(packet: &Packet<'_>, protocol: IpProtocol) -> Result<Received, FrameOutcome> {
    match protocol {
        IpProtocol::Udp => udp(packet),
        IpProtocol::Tcp => tcp(packet),
        _ => Err(FrameOutcome::UnknownProtocol),
    }
}

fn icmp(ip: &Packet<'_>) -> Result<Received, FrameOutcome> {
    let packet = Icmpv4Packet::new_checked(ip.payload).map_err(|_| FrameOutcome::BadLength)?;
    if !packet.verify_checksum() {
        return Err(FrameOutcome::BadChecksum);
    }
    if packet.msg_type() != Icmpv4Message::EchoRequest || packet.msg_code() != 0 {
        return Err(FrameOutcome::UnknownProtocol);
    }
    if !ip.for_us {
        return Err(FrameOutcome::NotForUs);
    }
    Ok(Received::Echo { end: ip.at + ip.payload.len() })
}

fn icmpv6(
    ip: &Packet<'_>,
    us: &Addresses,
    hops: u8,
    mac: [u8; 6],
) -> Result<Received, FrameOutcome> {
    /// Bytes of the message header that every message must have.
    const HEADER: usize = 8;
    let (IpAddr::V6(source), IpAddr::V6(destination)) = (ip.source, ip.destination) else {
        return Err(FrameOutcome::BadHeader);
    };
    if ip.payload.len() < HEADER {
        return Err(FrameOutcome::BadLength);
    }
    let packet = Icmpv6Packet::new_unchecked(ip.payload);
    if !packet.verify_checksum(&source, &destination) {
        return Err(FrameOutcome::BadChecksum);
    }
    let kind = packet.msg_type();
    if kind == Icmpv6Message::NeighborSolicit {
        return resolve::solicitation(ip, us, hops, mac);
    }
    if source.is_unspecified() {
        return Err(FrameOutcome::BadSource);
    }
    match kind {
        Icmpv6Message::NeighborAdvert => resolve::advertisement(ip, us, hops),
        // Answered for a group as well (RFC 4443, 4.2), unlike IPv4's.
        Icmpv6Message::EchoRequest if packet.msg_code() == 0 => {
            Ok(Received::Echo { end: ip.at + ip.payload.len() })
        }
        Icmpv6Message::PktTooBig => Err(FrameOutcome::PacketTooBig),
        _ => Err(FrameOutcome::UnknownProtocol),
    }
}

fn udp(ip: &Packet<'_>) -> Result<Received, FrameOutcome> {
    let packet = UdpPacket::new_checked(ip.payload).map_err(|_| FrameOutcome::BadLength)?;
    // A checksum of 0 means none: IPv4 allows that, IPv6 does not (RFC 8200, 8.1).
    let none = packet.checksum() == 0;
    let right = match none {
        true => ip.source.is_ipv4(),
        false => packet.verify_checksum(&ip.source.into(), &ip.destination.into()),
    };
    if !right {
        return Err(FrameOutcome::BadChecksum);
    }
    Ok(Received::Udp { port: packet.dst_port(), end: ip.at + usize::from(packet.len()) })
}

fn tcp(ip: &Packet<'_>) -> Result<Received, FrameOutcome> {
    let packet = TcpPacket::new_checked(ip.payload).map_err(|_| FrameOutcome::BadLength)?;
    if !packet.verify_checksum(&ip.source.into(), &ip.destination.into()) {
        return Err(FrameOutcome::BadChecksum);
    }
    // TCP is unicast only (RFC 1122, 4.2.3.10), and port 0 is reserved.
    if !ip.for_us || packet.src_port() == 0 || packet.dst_port() == 0 {
        return Err(FrameOutcome::BadHeader);
    }
    Ok(Received::Tcp { end: ip.at + ip.payload.len() })
}
