//! How a frame is written, and how a received one is turned round.
//!
//! Pure functions into the caller's bytes, on smoltcp's wire types. Every packet that leaves here has
//! its lengths and checksums right, no options, and is never to be fragmented.
//!
//! Not here: where the bytes go, and whether the receiver is known.

use std::net::Ipv4Addr;

use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    Icmpv4Message, Icmpv4Packet, IpAddress, IpProtocol, Ipv4Packet, UdpPacket,
};

use crate::wire::{
    ARP_FRAME, ETHERNET_HEADER, IPV4_HEADER, UDP_HEADER, UDP_PAYLOAD, can_send, udp_ports,
    udp_source,
};
use crate::{Address, SendError};

/// The time to live of every packet that we send: what most hosts use (RFC 1700).
const HOP_LIMIT: u8 = 64;

/// Where a UDP frame that was sent to us goes when it is answered: our address and port, and those
/// of the sender. `None` if the bytes are no IPv4 UDP frame.
pub(crate) fn udp_way_back(bytes: &[u8], us: &Address) -> Option<Way> {
    let (source_port, port) = udp_ports(bytes)?;
    let (ipv4, _) = udp_source(bytes)?;
    let mac = <[u8; 6]>::try_from(bytes.get(6..12)?).ok()?;
    // 0 is no port, and a group is not to be written to.
    if source_port == 0 || mac[0] & 1 != 0 || !can_send(ipv4, us) {
        return None;
    }
    Some(Way { from: *us, to: Address { mac, ipv4, prefix: 32 }, ports: (port, source_port) })
}

/// Between which two ends a datagram goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way {
    pub(crate) from: Address,
    pub(crate) to: Address,
    /// Source and destination port.
    pub(crate) ports: (u16, u16),
}

/// The bytes of `buffer` that a frame of `length` takes, or the refusal.
pub(crate) fn room(buffer: &mut [u8], length: usize) -> Result<&mut [u8], SendError> {
    let room = buffer.len();
    buffer.get_mut(..length).ok_or(SendError::TooLong { length, room })
}

/// Writes an Ethernet and an IPv4 header for what fills the rest of `frame`, which the caller has
/// made long enough for both and shorter than 64 KiB.
fn write_ipv4(frame: &mut [u8], from: &Address, to: &Address, protocol: IpProtocol) {
    let mut ethernet = EthernetFrame::new_unchecked(&mut *frame);
    ethernet.set_src_addr(EthernetAddress(from.mac));
    ethernet.set_dst_addr(EthernetAddress(to.mac));
    ethernet.set_ethertype(EthernetProtocol::Ipv4);
    let packet = &mut frame[ETHERNET_HEADER..];
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
    packet.set_hop_limit(HOP_LIMIT);
    packet.set_next_header(protocol);
    packet.set_src_addr(from.ipv4);
    packet.set_dst_addr(to.ipv4);
    packet.fill_checksum();
}

/// Longest IPv4 packet: what its length field can say.
const IPV4_LIMIT: usize = u16::MAX as usize;

/// Writes the headers of a UDP datagram whose payload of `payload` bytes is in `buffer` already, at
/// [`UDP_PAYLOAD`]. Returns the length of the frame.
pub(crate) fn write_udp(buffer: &mut [u8], way: &Way, payload: usize) -> Result<usize, SendError> {
    let length = sized(payload)?;
    let frame = room(buffer, length)?;
    write_ipv4(frame, &way.from, &way.to, IpProtocol::Udp);
    let mut udp = UdpPacket::new_unchecked(&mut frame[ETHERNET_HEADER + IPV4_HEADER..]);
    udp.set_src_port(way.ports.0);
    udp.set_dst_port(way.ports.1);
    // Cannot be cut: `sized` has bounded it.
    udp.set_len((UDP_HEADER + payload) as u16);
    udp.fill_checksum(&IpAddress::Ipv4(way.from.ipv4), &IpAddress::Ipv4(way.to.ipv4));
    Ok(length)
}

/// Writes the headers of an ICMP echo request whose payload of `payload` bytes is in `buffer`
/// already, at [`UDP_PAYLOAD`]. Returns the length of the frame.
pub(crate) fn write_echo(
    buffer: &mut [u8],
    from: &Address,
    to: &Address,
    (ident, sequence): (u16, u16),
    payload: usize,
) -> Result<usize, SendError> {
    let length = sized(payload)?;
    let frame = room(buffer, length)?;
    write_ipv4(frame, from, to, IpProtocol::Icmp);
    let mut icmp = Icmpv4Packet::new_unchecked(&mut frame[ETHERNET_HEADER + IPV4_HEADER..]);
    icmp.set_msg_type(Icmpv4Message::EchoRequest);
    icmp.set_msg_code(0);
    icmp.set_echo_ident(ident);
    icmp.set_echo_seq_no(sequence);
    icmp.fill_checksum();
    Ok(length)
}

/// The length of a frame with this many bytes behind an 8-byte header over IPv4.
fn sized(payload: usize) -> Result<usize, SendError> {
    let limit = IPV4_LIMIT - IPV4_HEADER - UDP_HEADER;
    if payload > limit {
        return Err(SendError::TooLong { length: payload, room: limit });
    }
    Ok(UDP_PAYLOAD + payload)
}

/// Writes an ARP packet into `buffer` and returns the length of the frame. A request goes to
/// everybody and asks for `to.ipv4`; a reply goes to `to`.
pub(crate) fn write_arp(
    buffer: &mut [u8],
    from: &Address,
    to: &Address,
    reply: bool,
) -> Result<usize, SendError> {
    let frame = room(buffer, ARP_FRAME)?;
    let to_mac = if reply { EthernetAddress(to.mac) } else { EthernetAddress::BROADCAST };
    let mut ethernet = EthernetFrame::new_unchecked(&mut *frame);
    ethernet.set_src_addr(EthernetAddress(from.mac));
    ethernet.set_dst_addr(to_mac);
    ethernet.set_ethertype(EthernetProtocol::Arp);
    ArpRepr::EthernetIpv4 {
        operation: if reply { ArpOperation::Reply } else { ArpOperation::Request },
        source_hardware_addr: EthernetAddress(from.mac),
        source_protocol_addr: from.ipv4,
        target_hardware_addr: EthernetAddress(if reply { to.mac } else { [0; 6] }),
        target_protocol_addr: to.ipv4,
    }
    .emit(&mut ArpPacket::new_unchecked(&mut frame[ETHERNET_HEADER..]));
    Ok(ARP_FRAME)
}

/// Turns an echo request that [`classify`] has passed into its reply, in place: same identifier,
/// sequence number and payload. `frame` ends where the packet ends.
pub(crate) fn turn_echo(frame: &mut [u8], us: &Address) {
    if let Some((mac, ipv4)) = sender(frame) {
        write_ipv4(frame, us, &Address { mac, ipv4, prefix: 32 }, IpProtocol::Icmp);
        let mut icmp = Icmpv4Packet::new_unchecked(&mut frame[ETHERNET_HEADER + IPV4_HEADER..]);
        icmp.set_msg_type(Icmpv4Message::EchoReply);
        icmp.fill_checksum();
    }
}

/// The Ethernet and IPv4 source of a frame that is at least long enough for an echo header.
fn sender(frame: &[u8]) -> Option<([u8; 6], Ipv4Addr)> {
    let mac = <[u8; 6]>::try_from(frame.get(6..12)?).ok()?;
    let ip = frame.get(ETHERNET_HEADER..UDP_PAYLOAD)?;
    Some((mac, Ipv4Packet::new_unchecked(ip).src_addr()))
}

/// Turns a UDP frame round in place: the addresses and ports change places, the payload stays, and
/// with it the UDP checksum, which does not depend on the order of what it adds up. `frame` ends
/// where the datagram ends. Its source becomes ourselves even if it was sent to everybody.
pub(crate) fn turn_udp(frame: &mut [u8], way: &Way) {
    let to_all = frame.get(30..34) != Some(way.from.ipv4.octets().as_slice());
    write_ipv4(frame, &way.from, &way.to, IpProtocol::Udp);
    let mut udp = UdpPacket::new_unchecked(&mut frame[ETHERNET_HEADER + IPV4_HEADER..]);
    udp.set_src_port(way.ports.0);
    udp.set_dst_port(way.ports.1);
    if to_all {
        udp.fill_checksum(&IpAddress::Ipv4(way.from.ipv4), &IpAddress::Ipv4(way.to.ipv4));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Seen, classify};

    const US: Address =
        Address { mac: [2, 0, 0, 0, 0, 1], ipv4: Ipv4Addr::new(10, 0, 0, 1), prefix: 24 };
    const PEER: Address =
        Address { mac: [2, 0, 0, 0, 0, 2], ipv4: Ipv4Addr::new(10, 0, 0, 2), prefix: 24 };

    fn datagram(to: &Address, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; UDP_PAYLOAD + payload.len()];
        frame[UDP_PAYLOAD..].copy_from_slice(payload);
        let way = Way { from: PEER, to: *to, ports: (4000, 7) };
        write_udp(&mut frame, &way, payload.len()).unwrap();
        frame
    }

    #[test]
    fn a_frame_turned_round_is_a_valid_frame_for_its_sender() {
        for to in [US, Address { mac: [0xff; 6], ipv4: Ipv4Addr::BROADCAST, ..US }] {
            let mut frame = datagram(&to, b"hello");
            let way = udp_way_back(&frame, &US).unwrap();
            turn_udp(&mut frame, &way);
            assert_eq!(classify(&frame, &PEER), Ok(Seen::Udp { port: 4000, end: 47 }));
            assert_eq!(udp_source(&frame), Some((US.ipv4, 7)));
            assert_eq!(&frame[UDP_PAYLOAD..], b"hello");
        }
    }

    #[test]
    fn there_is_no_way_back_to_port_0_or_from_no_datagram() {
        let mut frame = datagram(&US, b"hello");
        frame[34..36].fill(0);
        assert!(udp_way_back(&frame, &US).is_none());
        for length in 0..38 {
            assert!(udp_way_back(&frame[..length], &US).is_none());
        }
    }
}
