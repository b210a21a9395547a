//! What a received frame is.
//!
//! Pure functions over bytes, on smoltcp's wire types. `classify` looks at everything that the
//! stack will ever rely on (lengths, checksums, addresses), in the order of the layers, and says
//! either what the frame is or the [`Fate`] that it meets; what passes can be read afterwards
//! without a second look. Because packets with IPv4 options are dropped, a UDP payload always begins
//! at byte [`UDP_PAYLOAD`].
//!
//! Not here: state. Nothing in this file knows a socket, a neighbour or a queue.

use std::net::Ipv4Addr;

use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    Icmpv4Message, Icmpv4Packet, IpAddress, IpProtocol, Ipv4Packet, TcpPacket, UdpPacket,
};

use crate::{Address, Fate};

/// Bytes of an Ethernet header without a VLAN tag.
pub const ETHERNET_HEADER: usize = 14;
/// Bytes of an IPv4 header without options.
pub const IPV4_HEADER: usize = 20;
/// Bytes of a UDP header, and of an ICMP echo header.
pub const UDP_HEADER: usize = 8;
/// Where the payload of a UDP datagram, or of an ICMP echo, begins in a frame.
pub const UDP_PAYLOAD: usize = ETHERNET_HEADER + IPV4_HEADER + UDP_HEADER;
/// Bytes of a frame with an ARP packet for Ethernet and IPv4.
pub const ARP_FRAME: usize = ETHERNET_HEADER + 28;

/// A frame that the stack can act upon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// An ARP request for our IPv4 address.
    ArpRequest { mac: [u8; 6], ipv4: Ipv4Addr },
    /// An ARP reply to us.
    ArpReply { mac: [u8; 6], ipv4: Ipv4Addr },
    /// An ICMP echo request to us; the packet ends at byte `end` of the frame.
    Echo { end: usize },
    /// A UDP datagram to us, or to everybody; its payload ends at byte `end` of the frame.
    Udp { port: u16, end: usize },
    /// A TCP segment to us; it ends at byte `end` of the frame.
    Tcp { end: usize },
}

/// Says what a received frame is, or why it is dropped.
pub(crate) fn classify(bytes: &[u8], us: &Address) -> Result<Seen, Fate> {
    let frame = EthernetFrame::new_checked(bytes).map_err(|_| Fate::Truncated)?;
    let to_all = frame.dst_addr().is_broadcast();
    if !to_all && frame.dst_addr().0 != us.mac {
        // What every link carries is told apart from what has lost its way.
        return Err(match frame.ethertype() {
            EthernetProtocol::Ipv6 => Fate::Ipv6,
            _ if frame.dst_addr().is_multicast() => Fate::Multicast,
            _ => Fate::NotForUs,
        });
    }
    if !is_host(frame.src_addr()) {
        return Err(Fate::BadSource);
    }
    match frame.ethertype() {
        EthernetProtocol::Ipv4 => ipv4(frame.payload(), us, to_all),
        EthernetProtocol::Arp => arp(frame.payload(), us),
        EthernetProtocol::Ipv6 => Err(Fate::Ipv6),
        // 802.1Q, 802.1ad, and the older tag that 802.1ad replaced.
        EthernetProtocol::Unknown(0x8100 | 0x88a8 | 0x9100) => Err(Fate::Vlan),
        _ => Err(Fate::UnknownProtocol),
    }
}

/// Whether an Ethernet address can be a single host's.
fn is_host(mac: EthernetAddress) -> bool {
    mac.is_unicast() && mac.0 != [0; 6]
}

fn arp(bytes: &[u8], us: &Address) -> Result<Seen, Fate> {
    let packet = ArpPacket::new_checked(bytes).map_err(|_| Fate::Truncated)?;
    // The only way for this to fail once the length is right is another kind of address.
    let ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: mac,
        source_protocol_addr: ipv4,
        target_hardware_addr: target_mac,
        target_protocol_addr: target,
    } = ArpRepr::parse(&packet).map_err(|_| Fate::UnknownProtocol)?
    else {
        return Err(Fate::UnknownProtocol);
    };
    if target != us.ipv4 {
        return Err(Fate::NotForUs);
    }
    if !is_host(mac) {
        return Err(Fate::BadHeader);
    }
    // A probe (RFC 5227) asks from 0.0.0.0 whether the address is taken, and deserves its answer.
    let probe = ipv4.is_unspecified() && operation == ArpOperation::Request;
    if !probe && !can_send(ipv4, us) {
        return Err(Fate::BadSource);
    }
    match operation {
        ArpOperation::Request => Ok(Seen::ArpRequest { mac: mac.0, ipv4 }),
        ArpOperation::Reply if target_mac.0 == us.mac => Ok(Seen::ArpReply { mac: mac.0, ipv4 }),
        ArpOperation::Reply => Err(Fate::NotForUs),
        ArpOperation::Unknown(_) => Err(Fate::UnknownProtocol),
    }
}

/// Whether a packet from this address can have come from another host.
pub(crate) fn can_send(source: Ipv4Addr, us: &Address) -> bool {
    !(source.is_unspecified()
        || source.is_loopback()
        || source.is_multicast()
        || us.is_broadcast(source)
        || source == us.ipv4)
}

fn ipv4(bytes: &[u8], us: &Address, to_all: bool) -> Result<Seen, Fate> {
    if bytes.len() < IPV4_HEADER {
        return Err(Fate::Truncated);
    }
    let packet = Ipv4Packet::new_unchecked(bytes);
    if packet.version() != 4 {
        return Err(Fate::BadHeader);
    }
    let header = usize::from(packet.header_len());
    let total = usize::from(packet.total_len());
    if header < IPV4_HEADER || total < header {
        return Err(Fate::BadLength);
    }
    if bytes.len() < total {
        return Err(Fate::Truncated);
    }
    if !packet.verify_checksum() {
        return Err(Fate::BadChecksum);
    }
    let for_all = us.is_broadcast(packet.dst_addr());
    // What is unicast on one layer and broadcast on the other is nobody's (RFC 1122, 3.3.6).
    if for_all != to_all || !(for_all || packet.dst_addr() == us.ipv4) {
        return Err(Fate::NotForUs);
    }
    if !can_send(packet.src_addr(), us) {
        return Err(Fate::BadSource);
    }
    if header > IPV4_HEADER {
        return Err(Fate::IpOptions);
    }
    if packet.more_frags() || packet.frag_offset() != 0 {
        return Err(Fate::Fragment);
    }
    match packet.next_header() {
        IpProtocol::Udp => udp(&packet),
        IpProtocol::Icmp => icmp(&packet, for_all),
        IpProtocol::Tcp => tcp(&packet, for_all),
        _ => Err(Fate::UnknownProtocol),
    }
}

fn icmp(ip: &Ipv4Packet<&[u8]>, for_all: bool) -> Result<Seen, Fate> {
    let packet = Icmpv4Packet::new_checked(ip.payload()).map_err(|_| Fate::BadLength)?;
    if !packet.verify_checksum() {
        return Err(Fate::BadChecksum);
    }
    if packet.msg_type() != Icmpv4Message::EchoRequest || packet.msg_code() != 0 {
        return Err(Fate::UnknownProtocol);
    }
    if for_all {
        return Err(Fate::NotForUs);
    }
    Ok(Seen::Echo { end: ETHERNET_HEADER + usize::from(ip.total_len()) })
}

fn udp(ip: &Ipv4Packet<&[u8]>) -> Result<Seen, Fate> {
    let packet = UdpPacket::new_checked(ip.payload()).map_err(|_| Fate::BadLength)?;
    // A checksum of 0 means that the sender made none, and passes.
    if !packet.verify_checksum(&IpAddress::Ipv4(ip.src_addr()), &IpAddress::Ipv4(ip.dst_addr())) {
        return Err(Fate::BadChecksum);
    }
    let end = ETHERNET_HEADER + IPV4_HEADER + usize::from(packet.len());
    Ok(Seen::Udp { port: packet.dst_port(), end })
}

fn tcp(ip: &Ipv4Packet<&[u8]>, for_all: bool) -> Result<Seen, Fate> {
    let packet = TcpPacket::new_checked(ip.payload()).map_err(|_| Fate::BadLength)?;
    if !packet.verify_checksum(&IpAddress::Ipv4(ip.src_addr()), &IpAddress::Ipv4(ip.dst_addr())) {
        return Err(Fate::BadChecksum);
    }
    // A connection has two ends (RFC 1122, 4.2.3.10), and both have ports.
    if for_all || packet.src_port() == 0 || packet.dst_port() == 0 {
        return Err(Fate::BadHeader);
    }
    Ok(Seen::Tcp { end: ETHERNET_HEADER + usize::from(ip.total_len()) })
}

/// The EtherType of a frame, if it is long enough to have one.
pub(crate) fn ether_type(bytes: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(12)?, *bytes.get(13)?]))
}

/// The UDP destination port of a frame, by its headers alone, as a filter in a NIC would see it:
/// lengths and checksums are not verified, options and fragments do not match.
pub(crate) fn steering_port(bytes: &[u8]) -> Option<u16> {
    let ip = bytes.get(ETHERNET_HEADER..ETHERNET_HEADER + IPV4_HEADER)?;
    let packet = Ipv4Packet::new_unchecked(ip);
    let whole = !packet.more_frags() && packet.frag_offset() == 0;
    let plain = packet.version() == 4 && usize::from(packet.header_len()) == IPV4_HEADER;
    if ether_type(bytes)? != 0x0800 || !plain || !whole || packet.next_header() != IpProtocol::Udp {
        return None;
    }
    let port = bytes.get(ETHERNET_HEADER + IPV4_HEADER + 2..ETHERNET_HEADER + IPV4_HEADER + 4)?;
    Some(u16::from_be_bytes([port[0], port[1]]))
}

/// Where a UDP frame that [`classify`] has passed came from.
pub(crate) fn udp_source(bytes: &[u8]) -> Option<(Ipv4Addr, u16)> {
    let ip = bytes.get(ETHERNET_HEADER..ETHERNET_HEADER + IPV4_HEADER)?;
    let port = bytes.get(ETHERNET_HEADER + IPV4_HEADER..ETHERNET_HEADER + IPV4_HEADER + 2)?;
    Some((Ipv4Packet::new_unchecked(ip).src_addr(), u16::from_be_bytes([port[0], port[1]])))
}

/// The source and destination port of a UDP frame, by its headers alone.
pub(crate) fn udp_ports(bytes: &[u8]) -> Option<(u16, u16)> {
    let to = steering_port(bytes)?;
    udp_source(bytes).map(|(_, from)| (from, to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FrameBuilder;
    use crate::emit::{Way, write_udp};

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

    /// Writes `value` at `at` of the IPv4 header and makes its checksum right again.
    fn with_ip(frame: &[u8], change: impl FnOnce(&mut Ipv4Packet<&mut [u8]>)) -> Vec<u8> {
        let mut frame = frame.to_vec();
        let mut packet = Ipv4Packet::new_unchecked(&mut frame[ETHERNET_HEADER..]);
        change(&mut packet);
        packet.fill_checksum();
        frame
    }

    #[test]
    fn a_datagram_is_seen_with_its_port_and_end() {
        let mut frame = datagram(&US, b"hello");
        assert_eq!(classify(&frame, &US), Ok(Seen::Udp { port: 7, end: 47 }));
        // Ethernet pads short frames; the padding is not payload.
        frame.resize(60, 0xaa);
        assert_eq!(classify(&frame, &US), Ok(Seen::Udp { port: 7, end: 47 }));
        assert_eq!(udp_source(&frame), Some((PEER.ipv4, 4000)));
    }

    #[test]
    fn every_flipped_bit_is_noticed_or_harmless() {
        let frame = datagram(&US, b"hello");
        for bit in 0..frame.len() * 8 {
            let mut flipped = frame.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let seen = classify(&flipped, &US);
            // Nothing sums up the Ethernet header; all that follows is protected.
            let harmless = (6 * 8..12 * 8).contains(&bit);
            assert_eq!(seen.is_ok(), harmless && flipped[6] & 1 == 0, "bit {bit}: {seen:?}");
        }
    }

    #[test]
    fn every_cut_is_noticed() {
        let frame = datagram(&US, b"hello");
        for length in 0..frame.len() {
            assert_eq!(classify(&frame[..length], &US), Err(Fate::Truncated), "at {length}");
        }
    }

    #[test]
    fn lengths_that_contradict_each_other_are_refused() {
        let frame = datagram(&US, b"hello");
        let longer = with_ip(&frame, |ip| ip.set_total_len(34));
        assert_eq!(classify(&longer, &US), Err(Fate::Truncated));
        let headless = with_ip(&frame, |ip| ip.set_total_len(19));
        assert_eq!(classify(&headless, &US), Err(Fate::BadLength));
        let shorter = with_ip(&frame, |ip| ip.set_total_len(32));
        assert_eq!(classify(&shorter, &US), Err(Fate::BadLength));
        let no_udp = with_ip(&frame, |ip| ip.set_total_len(24));
        assert_eq!(classify(&no_udp, &US), Err(Fate::BadLength));
        let mut small_header = frame.clone();
        small_header[ETHERNET_HEADER] = 0x44;
        assert_eq!(classify(&small_header, &US), Err(Fate::BadLength));
        let mut udp_length = frame;
        udp_length[39] = 7;
        assert_eq!(classify(&udp_length, &US), Err(Fate::BadLength));
    }

    #[test]
    fn what_is_not_served_has_a_name() {
        let frame = datagram(&US, b"hello");
        let fragment = with_ip(&frame, |ip| ip.set_more_frags(true));
        assert_eq!(classify(&fragment, &US), Err(Fate::Fragment));
        let last = with_ip(&frame, |ip| ip.set_frag_offset(8));
        assert_eq!(classify(&last, &US), Err(Fate::Fragment));
        let options = with_ip(&frame, |ip| ip.set_header_len(24));
        assert_eq!(classify(&options, &US), Err(Fate::IpOptions));
        let sctp = with_ip(&frame, |ip| ip.set_next_header(IpProtocol::Unknown(132)));
        assert_eq!(classify(&sctp, &US), Err(Fate::UnknownProtocol));
        let ip6 = with_ip(&frame, |ip| ip.set_version(6));
        assert_eq!(classify(&ip6, &US), Err(Fate::BadHeader));
        for (ether_type, fate) in
            [(0x8100u16, Fate::Vlan), (0x88a8, Fate::Vlan), (0x86dd, Fate::Ipv6)]
        {
            let mut other = frame.clone();
            other[12..14].copy_from_slice(&ether_type.to_be_bytes());
            assert_eq!(classify(&other, &US), Err(fate));
        }
    }

    #[test]
    fn only_a_request_for_an_echo_is_answered() {
        let mut frame = vec![0; FrameBuilder::length(5)];
        FrameBuilder::new(PEER, US).echo_request(&mut frame, 1, 1, b"hello").unwrap();
        assert!(matches!(classify(&frame, &US), Ok(Seen::Echo { .. })));
        let with = |kind: u8, code: u8| {
            let mut frame = frame.clone();
            let mut packet =
                Icmpv4Packet::new_unchecked(&mut frame[ETHERNET_HEADER + IPV4_HEADER..]);
            packet.set_msg_type(kind.into());
            packet.set_msg_code(code);
            packet.fill_checksum();
            classify(&frame, &US)
        };
        // Two stacks that answered an answer would do so for ever.
        assert_eq!(with(0, 0), Err(Fate::UnknownProtocol), "an answer");
        assert_eq!(with(8, 1), Err(Fate::UnknownProtocol), "a code that means nothing");
        assert_eq!(with(3, 3), Err(Fate::UnknownProtocol), "unreachable");
    }

    #[test]
    fn an_address_is_asked_for_and_told_by_hosts_alone() {
        let arp = |operation, source, target_mac: [u8; 6]| {
            let mut frame = vec![0; ARP_FRAME];
            FrameBuilder::new(PEER, US).arp_request(&mut frame).unwrap();
            frame[..6].copy_from_slice(&US.mac);
            let repr = ArpRepr::EthernetIpv4 {
                operation,
                source_hardware_addr: EthernetAddress(PEER.mac),
                source_protocol_addr: source,
                target_hardware_addr: EthernetAddress(target_mac),
                target_protocol_addr: US.ipv4,
            };
            repr.emit(&mut ArpPacket::new_unchecked(&mut frame[ETHERNET_HEADER..]));
            classify(&frame, &US)
        };
        let (mac, ipv4) = (PEER.mac, PEER.ipv4);
        let nobody = Ipv4Addr::UNSPECIFIED;
        let group = Ipv4Addr::new(224, 0, 0, 1);
        let (ask, tell) = (ArpOperation::Request, ArpOperation::Reply);
        assert_eq!(arp(ask, ipv4, [0; 6]), Ok(Seen::ArpRequest { mac, ipv4 }));
        assert_eq!(arp(ask, nobody, [0; 6]), Ok(Seen::ArpRequest { mac, ipv4: nobody }), "a probe");
        assert_eq!(arp(ask, group, [0; 6]), Err(Fate::BadSource));
        assert_eq!(arp(tell, ipv4, US.mac), Ok(Seen::ArpReply { mac, ipv4 }));
        assert_eq!(arp(tell, nobody, US.mac), Err(Fate::BadSource));
        assert_eq!(arp(tell, ipv4, [2, 0, 0, 0, 0, 9]), Err(Fate::NotForUs), "told to another");
    }

    #[test]
    fn a_frame_is_steered_by_its_port_only_if_it_is_whole_and_plain() {
        let frame = datagram(&US, b"hello");
        assert_eq!(steering_port(&frame), Some(7));
        for (at, byte, what) in [
            (12, 0x86, "another EtherType"),
            (14, 0x65, "another version"),
            (14, 0x46, "options"),
            (20, 0x20, "the first fragment"),
            (21, 1, "the last fragment"),
            (23, 6, "TCP"),
        ] {
            let mut other = frame.clone();
            other[at] = byte;
            assert_eq!(steering_port(&other), None, "{what}");
        }
    }

    #[test]
    fn only_hosts_can_send() {
        let frame = datagram(&US, b"hello");
        for source in [
            Ipv4Addr::UNSPECIFIED,
            Ipv4Addr::LOCALHOST,
            Ipv4Addr::BROADCAST,
            Ipv4Addr::new(10, 0, 0, 255),
            Ipv4Addr::new(224, 0, 0, 1),
            US.ipv4,
        ] {
            let forged = with_ip(&frame, |ip| ip.set_src_addr(source));
            assert_eq!(classify(&forged, &US), Err(Fate::BadSource), "{source}");
        }
        let mut group = frame;
        group[6] |= 1;
        assert_eq!(classify(&group, &US), Err(Fate::BadSource));
    }

    #[test]
    fn broadcast_must_be_broadcast_on_both_layers() {
        let all = Address { mac: [0xff; 6], ipv4: Ipv4Addr::new(10, 0, 0, 255), ..US };
        let frame = datagram(&all, b"x");
        assert_eq!(classify(&frame, &US), Ok(Seen::Udp { port: 7, end: 43 }));
        let below = Address { mac: [0xff; 6], ..US };
        assert_eq!(classify(&datagram(&below, b"x"), &US), Err(Fate::NotForUs));
        let above = Address { mac: US.mac, ..all };
        assert_eq!(classify(&datagram(&above, b"x"), &US), Err(Fate::NotForUs));
        assert_eq!(classify(&datagram(&PEER, b"x"), &US), Err(Fate::NotForUs));
    }

    #[test]
    fn what_every_link_carries_is_told_apart_from_what_has_lost_its_way() {
        let group = Address { mac: [1, 0, 0x5e, 0, 0, 0xfb], ..US };
        let mut frame = datagram(&group, b"mDNS");
        assert_eq!(classify(&frame, &US), Err(Fate::Multicast));
        frame[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 2]);
        frame[12..14].copy_from_slice(&[0x86, 0xdd]);
        assert_eq!(classify(&frame, &US), Err(Fate::Ipv6));
    }
}
