//! Writing frames, and turning received frames round into replies.
//!
//! Pure functions over the caller's bytes, on smoltcp's wire types. Every packet written here has correct lengths
//! and checksums, carries no options, and has DF set unless [`allow_fragmentation`] is called for it.
//!
//! Queues and neighbours are not handled here.

use std::net::{IpAddr, Ipv6Addr};

use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    Icmpv4Message, Icmpv4Packet, Icmpv6Message, Icmpv6Packet, IpProtocol, Ipv4Packet, Ipv6Packet,
    NdiscNeighborFlags, NdiscRepr, RawHardwareAddress, UdpPacket,
};

use crate::address::{ALL_NODES, group_mac, solicited};
use crate::wire::{
    ETHERNET_HEADER, IPV4_HEADER, IPV6_HEADER, Layout, TAGGED, UDP_HEADER, can_send, udp_ports,
};
use crate::{Address, Addresses, SendError};

/// TTL or hop limit of the packets that we send; most hosts use 64 (RFC 1700).
const HOP_LIMIT: u8 = 64;

/// Hop limit of neighbour discovery, which proves that the packet comes from the link (RFC 4861, 7.1).
const FROM_THE_LINK: u8 = 255;

/// Bytes of an ARP packet for Ethernet and IPv4.
const ARP: usize = 28;

/// The two ends of a packet, and its VLAN tag.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Addressing {
    pub(crate) from: Address,
    pub(crate) to: Address,
    /// The VLAN tag: priority and VLAN.
    pub(crate) tag: Option<u16>,
}

impl Addressing {
    /// The header layout of its frames.
    pub(crate) const fn layout(&self) -> Layout {
        Layout::new(self.tag.is_some(), self.to.ip)
    }

    /// The way back to the sender of a received frame; `None` if the frame is not IP or its source cannot be
    /// answered.
    pub(crate) fn reply_to(frame: &[u8], us: &Addresses) -> Option<Addressing> {
        let layout = Layout::of(frame)?;
        let mac = <[u8; 6]>::try_from(frame.get(6..12)?).ok()?;
        let (source, destination) = layout.ends(frame)?;
        // A group address cannot be answered.
        if mac[0] & 1 != 0 || !can_send(source, us) {
            return None;
        }
        let own = us.list().iter().find(|own| own.ip == destination).copied();
        let from = own.or_else(|| us.towards(source))?;
        Some(Addressing { from, to: Address::single(mac, source), tag: layout.tag(frame) })
    }
}

/// Source and destination port.
pub(crate) type Ports = (u16, u16);

/// The way and the ports of the reply to a received UDP frame. `None` if the bytes are no UDP frame or cannot be
/// answered.
pub(crate) fn udp_reply_addressing(bytes: &[u8], us: &Addresses) -> Option<(Addressing, Ports)> {
    let (source_port, port) = udp_ports(bytes)?;
    // Port 0 is reserved and cannot be answered.
    let addressing = Addressing::reply_to(bytes, us).filter(|_| source_port != 0)?;
    Some((addressing, (port, source_port)))
}

/// The first `length` bytes of `buffer`, or [`SendError::TooLong`].
pub(crate) fn room(buffer: &mut [u8], length: usize) -> Result<&mut [u8], SendError> {
    let room = buffer.len();
    buffer.get_mut(..length).ok_or(SendError::TooLong { length, room })
}

/// Copies a payload to its place behind the headers.
pub(crate) fn put(buffer: &mut [u8], layout: Layout, payload: &[u8]) -> Result<(), SendError> {
    let length = layout.payload().saturating_add(payload.len());
    room(buffer, length)?[layout.payload()..].copy_from_slice(payload);
    Ok(())
}

/// Writes an Ethernet header, with a VLAN tag if given, and returns the bytes behind it. `frame` must be long
/// enough for it.
pub(crate) fn write_ethernet(
    frame: &mut [u8],
    (from, to): ([u8; 6], [u8; 6]),
    tag: Option<u16>,
    protocol: EthernetProtocol,
) -> &mut [u8] {
    let mut ethernet = EthernetFrame::new_unchecked(&mut *frame);
    ethernet.set_src_addr(EthernetAddress(from));
    ethernet.set_dst_addr(EthernetAddress(to));
    let Some(tag) = tag else {
        ethernet.set_ethertype(protocol);
        return &mut frame[ETHERNET_HEADER..];
    };
    ethernet.set_ethertype(TAGGED.into());
    let (header, rest) = frame[ETHERNET_HEADER..].split_at_mut(4);
    header[..2].copy_from_slice(&tag.to_be_bytes());
    header[2..].copy_from_slice(&u16::from(protocol).to_be_bytes());
    rest
}

/// Writes an Ethernet and an IP header in front of a payload that fills the rest of `frame`. The caller ensures
/// that `frame` has room for both headers and is shorter than 64 KiB.
///
/// # Errors
/// [`SendError::Families`] if one end's address is IPv4 and the other's IPv6.
fn write_ip(
    frame: &mut [u8],
    Addressing { from, to, tag }: &Addressing,
    protocol: IpProtocol,
    hops: u8,
) -> Result<(), SendError> {
    let macs = (from.mac, to.mac);
    match (from.ip, to.ip) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let packet = write_ethernet(frame, macs, *tag, EthernetProtocol::Ipv4);
            let total = u16::try_from(packet.len()).unwrap_or(u16::MAX);
            let mut packet = Ipv4Packet::new_unchecked(packet);
            packet.set_version(4);
            packet.set_header_len(IPV4_HEADER as u8);
            packet.set_dscp(0);
            packet.set_ecn(0);
            packet.set_total_len(total);
            // Never fragmented, so the identification may be anything (RFC 6864).
            packet.set_ident(0);
            packet.clear_flags();
            packet.set_frag_offset(0);
            packet.set_dont_frag(true);
            packet.set_hop_limit(hops);
            packet.set_next_header(protocol);
            packet.set_src_addr(source);
            packet.set_dst_addr(destination);
            packet.fill_checksum();
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let packet = write_ethernet(frame, macs, *tag, EthernetProtocol::Ipv6);
            let payload = packet.len().saturating_sub(IPV6_HEADER);
            let payload = u16::try_from(payload).unwrap_or(u16::MAX);
            let mut packet = Ipv6Packet::new_unchecked(packet);
            packet.set_version(6);
            packet.set_traffic_class(0);
            packet.set_flow_label(0);
            packet.set_payload_len(payload);
            packet.set_next_header(protocol);
            packet.set_hop_limit(hops);
            packet.set_src_addr(source);
            packet.set_dst_addr(destination);
        }
        _ => return Err(SendError::Families { from: from.ip, to: to.ip }),
    }
    Ok(())
}

/// Clears DF in an IPv4 header that is already written, so that routers may fragment the packet.
/// `identification` must differ from that of packets sent shortly before: fragments are reassembled by it
/// (RFC 6864).
pub(crate) fn allow_fragmentation(packet: &mut [u8], identification: u16) {
    let mut packet = Ipv4Packet::new_unchecked(packet);
    packet.set_ident(identification);
    packet.set_dont_frag(false);
    packet.fill_checksum();
}

/// Largest value of the IPv4 total length and of the IPv6 payload length, in bytes.
const IP_LIMIT: usize = u16::MAX as usize;

/// Writes the headers of a UDP datagram. Its payload of `payload` bytes is already in `buffer`, at the offset that
/// the layout gives it. Returns the length of the frame.
pub(crate) fn write_udp(
    buffer: &mut [u8],
    addressing: &Addressing,
    ports: Ports,
    payload: usize,
) -> Result<usize, SendError> {
    let length = sized(addressing, payload)?;
    let frame = room(buffer, length)?;
    write_ip(frame, addressing, IpProtocol::Udp, HOP_LIMIT)?;
    let mut udp = UdpPacket::new_unchecked(&mut frame[addressing.layout().transport()..]);
    udp.set_src_port(ports.0);
    udp.set_dst_port(ports.1);
    // The cast does not truncate: `sized` has checked the length.
    udp.set_len((UDP_HEADER + payload) as u16);
    udp.fill_checksum(&addressing.from.ip.into(), &addressing.to.ip.into());
    Ok(length)
}

/// Writes the headers of an echo request. Its payload of `payload` bytes is already in `buffer`, at the offset that
/// the layout gives it. Returns the length of the frame.
pub(crate) fn write_echo(
    buffer: &mut [u8],
    addressing: &Addressing,
    (ident, sequence): (u16, u16),
    payload: usize,
) -> Result<usize, SendError> {
    let length = sized(addressing, payload)?;
    let frame = room(buffer, length)?;
    let start = addressing.layout().transport();
    frame[start + 4..start + 6].copy_from_slice(&ident.to_be_bytes());
    frame[start + 6..start + 8].copy_from_slice(&sequence.to_be_bytes());
    finish_echo(frame, addressing, false)?;
    Ok(length)
}

/// Writes the headers of an echo message whose identifier, sequence number and payload are in place.
fn finish_echo(frame: &mut [u8], addressing: &Addressing, reply: bool) -> Result<(), SendError> {
    let start = addressing.layout().transport();
    if let (IpAddr::V6(source), IpAddr::V6(destination)) = (addressing.from.ip, addressing.to.ip) {
        write_ip(frame, addressing, IpProtocol::Icmpv6, HOP_LIMIT)?;
        let mut icmp = Icmpv6Packet::new_unchecked(&mut frame[start..]);
        icmp.set_msg_type(match reply {
            true => Icmpv6Message::EchoReply,
            false => Icmpv6Message::EchoRequest,
        });
        icmp.set_msg_code(0);
        icmp.fill_checksum(&source, &destination);
        return Ok(());
    }
    write_ip(frame, addressing, IpProtocol::Icmp, HOP_LIMIT)?;
    let mut icmp = Icmpv4Packet::new_unchecked(&mut frame[start..]);
    icmp.set_msg_type(match reply {
        true => Icmpv4Message::EchoReply,
        false => Icmpv4Message::EchoRequest,
    });
    icmp.set_msg_code(0);
    icmp.fill_checksum();
    Ok(())
}

/// The length of a frame with `payload` bytes behind an 8-byte UDP or ICMP header.
fn sized(addressing: &Addressing, payload: usize) -> Result<usize, SendError> {
    let header = if addressing.to.ip.is_ipv4() { IPV4_HEADER } else { 0 };
    let limit = IP_LIMIT - header - UDP_HEADER;
    if payload > limit {
        return Err(SendError::TooLong { length: payload, room: limit });
    }
    Ok(addressing.layout().payload() + payload)
}

/// Writes a request for the Ethernet address of `to.ip`: an ARP request to broadcast, or a neighbour solicitation
/// to the solicited-node group. Returns the length of the frame.
pub(crate) fn write_request(
    buffer: &mut [u8],
    addressing: &Addressing,
) -> Result<usize, SendError> {
    match (addressing.from.ip, addressing.to.ip) {
        (IpAddr::V6(_), IpAddr::V6(target)) => {
            let group = solicited(target);
            let lladdr = Some(RawHardwareAddress::from(EthernetAddress(addressing.from.mac)));
            let ask = NdiscRepr::NeighborSolicit { target_addr: target, lladdr };
            write_ndisc(buffer, addressing, (group_mac(group), group), &ask)
        }
        _ => write_arp(buffer, addressing, false),
    }
}

/// Writes the reply to `to` that `from.ip` is at `from.mac`: an ARP reply or a neighbour advertisement. The answer
/// to a duplicate address probe, which has no source address, goes to the all-nodes group. Returns the length of
/// the frame.
pub(crate) fn write_reply(buffer: &mut [u8], addressing: &Addressing) -> Result<usize, SendError> {
    match (addressing.from.ip, addressing.to.ip) {
        (IpAddr::V6(target), IpAddr::V6(asker)) => {
            let lladdr = Some(RawHardwareAddress::from(EthernetAddress(addressing.from.mac)));
            let (to, flags) = match asker.is_unspecified() {
                true => ((group_mac(ALL_NODES), ALL_NODES), NdiscNeighborFlags::OVERRIDE),
                false => (
                    (addressing.to.mac, asker),
                    NdiscNeighborFlags::OVERRIDE | NdiscNeighborFlags::SOLICITED,
                ),
            };
            let advert = NdiscRepr::NeighborAdvert { flags, target_addr: target, lladdr };
            write_ndisc(buffer, addressing, to, &advert)
        }
        _ => write_arp(buffer, addressing, true),
    }
}

fn write_ndisc(
    buffer: &mut [u8],
    addressing: &Addressing,
    (mac, ip): ([u8; 6], Ipv6Addr),
    message: &NdiscRepr<'_>,
) -> Result<usize, SendError> {
    let IpAddr::V6(source) = addressing.from.ip else {
        return Err(SendError::Families { from: addressing.from.ip, to: ip.into() });
    };
    let start = addressing.layout().transport();
    let length = start + message.buffer_len();
    let frame = room(buffer, length)?;
    let addressing = Addressing { to: Address::single(mac, ip.into()), ..*addressing };
    write_ip(frame, &addressing, IpProtocol::Icmpv6, FROM_THE_LINK)?;
    let mut packet = Icmpv6Packet::new_unchecked(&mut frame[start..]);
    message.emit(&mut packet);
    packet.fill_checksum(&source, &ip);
    Ok(length)
}

/// Writes an ARP packet: a request for `to.ip` to broadcast, or a reply to `to`.
fn write_arp(buffer: &mut [u8], addressing: &Addressing, reply: bool) -> Result<usize, SendError> {
    let Addressing { from, to, tag } = *addressing;
    let (IpAddr::V4(source), IpAddr::V4(target)) = (from.ip, to.ip) else {
        return Err(SendError::Families { from: from.ip, to: to.ip });
    };
    let length = addressing.layout().ip() + ARP;
    let frame = room(buffer, length)?;
    let mac = if reply { to.mac } else { [0xff; 6] };
    let packet = write_ethernet(frame, (from.mac, mac), tag, EthernetProtocol::Arp);
    ArpRepr::EthernetIpv4 {
        operation: if reply { ArpOperation::Reply } else { ArpOperation::Request },
        source_hardware_addr: EthernetAddress(from.mac),
        source_protocol_addr: source,
        target_hardware_addr: EthernetAddress(if reply { to.mac } else { [0; 6] }),
        target_protocol_addr: target,
    }
    .emit(&mut ArpPacket::new_unchecked(packet));
    Ok(length)
}

/// Turns an echo request that [`classify`](crate::wire::classify) has accepted into its reply, in place;
/// identifier, sequence number and payload stay. `frame` must end where the packet ends. Returns whether a reply
/// was written.
pub(crate) fn turn_echo(frame: &mut [u8], us: &Addresses) -> bool {
    Addressing::reply_to(frame, us)
        .is_some_and(|addressing| finish_echo(frame, &addressing, true).is_ok())
}

/// Turns a UDP frame round in place: addresses and ports are swapped and the payload stays. The UDP checksum stays
/// valid, because the sum does not depend on the order; it is recomputed if the request was sent to broadcast or a
/// group, since the reply's source is our own address. `frame` must end where the datagram ends.
pub(crate) fn turn_udp(
    frame: &mut [u8],
    addressing: &Addressing,
    ports: Ports,
) -> Result<(), SendError> {
    let layout = addressing.layout();
    let to_all = layout.ends(frame).is_none_or(|(_, to)| to != addressing.from.ip);
    write_ip(frame, addressing, IpProtocol::Udp, HOP_LIMIT)?;
    let mut udp = UdpPacket::new_unchecked(&mut frame[layout.transport()..]);
    udp.set_src_port(ports.0);
    udp.set_dst_port(ports.1);
    if to_all {
        udp.fill_checksum(&addressing.from.ip.into(), &addressing.to.ip.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Received, classify, udp_source};

    const US: Address = Address::v4([2, 0, 0, 0, 0, 1], [10, 0, 0, 1], 24);
    const PEER: Address = Address::v4([2, 0, 0, 0, 0, 2], [10, 0, 0, 2], 24);
    const US6: Address = Address::v6(US.mac, [0xfd00, 0, 0, 0, 0, 0, 0, 1], 64);
    const PEER6: Address = Address::v6(PEER.mac, [0xfd00, 0, 0, 0, 0, 0, 0, 2], 64);

    fn datagram(addressing: Addressing, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; addressing.layout().payload() + payload.len()];
        put(&mut frame, addressing.layout(), payload).unwrap();
        write_udp(&mut frame, &addressing, (4000, 7), payload.len()).unwrap();
        frame
    }

    #[test]
    fn a_frame_turned_round_is_a_valid_frame_for_its_sender() {
        let all = Address { mac: [0xff; 6], ip: IpAddr::from([255; 4]), ..US };
        let nodes = Address::single(group_mac(ALL_NODES), ALL_NODES.into());
        for (us, peer, to) in
            [(US, PEER, US), (US, PEER, all), (US6, PEER6, US6), (US6, PEER6, nodes)]
        {
            for tag in [None, Some(100)] {
                let host = |address: Address| {
                    let host = Addresses::from(address);
                    if tag.is_some() { host.in_vlan(100).unwrap() } else { host }
                };
                let mut frame = datagram(Addressing { from: peer, to, tag }, b"hello");
                let (addressing, ports) = udp_reply_addressing(&frame, &host(us)).unwrap();
                turn_udp(&mut frame, &addressing, ports).unwrap();
                let seen = classify(&frame, &host(peer));
                assert_eq!(seen, Ok(Received::Udp { port: 4000, end: frame.len() }));
                assert_eq!(udp_source(&frame), Some((us.ip, 7).into()));
                assert!(frame.ends_with(b"hello"));
            }
        }
    }

    #[test]
    fn there_is_no_way_back_to_port_0_or_from_no_datagram() {
        for (us, peer) in [(US, PEER), (US6, PEER6)] {
            let mut frame = datagram(Addressing { from: peer, to: us, tag: None }, b"hello");
            let start = Layout::of(&frame).unwrap().transport();
            let us = Addresses::from(us);
            assert!(udp_reply_addressing(&frame, &us).is_some());
            frame[start..start + 2].fill(0);
            assert!(udp_reply_addressing(&frame, &us).is_none());
            for length in 0..start + 4 {
                assert!(udp_reply_addressing(&frame[..length], &us).is_none());
            }
        }
    }

    #[test]
    fn two_families_make_no_packet() {
        let mixed = Addressing { from: US, to: PEER6, tag: None };
        let mut buffer = [0; 128];
        assert!(matches!(
            write_udp(&mut buffer, &mixed, (1, 2), 0),
            Err(SendError::Families { from, to }) if from == US.ip && to == PEER6.ip
        ));
        assert!(write_request(&mut buffer, &mixed).is_err());
        assert!(write_reply(&mut buffer, &mixed).is_err());
        assert!(write_echo(&mut buffer, &mixed, (1, 1), 0).is_err());
    }
}
