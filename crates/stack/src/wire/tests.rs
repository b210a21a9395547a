//! Classification of frames, byte by byte: both families, with and without a VLAN tag.

use std::net::{Ipv4Addr, Ipv6Addr};

use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, Icmpv4Packet, Icmpv6Packet, IpProtocol, Ipv4Packet,
    Ipv6Packet,
};

use super::*;
use crate::FrameOutcome::{self as Outcome, BadHeader, BadLength, Truncated, UnknownProtocol};
use crate::address::{ALL_NODES, group_mac, solicited};
use crate::emit::{Addressing, put, write_udp};
use crate::{Address, FrameBuilder};

const US: Address = Address::v4([2, 0, 0, 0, 0, 1], [10, 0, 0, 1], 24);
const PEER: Address = Address::v4([2, 0, 0, 0, 0, 2], [10, 0, 0, 2], 24);
const US6: Address = Address::v6(US.mac, [0xfd00, 0, 0, 0, 0, 0, 0, 1], 64);
const PEER6: Address = Address::v6(PEER.mac, [0xfd00, 0, 0, 0, 0, 0, 0, 2], 64);

/// Addresses of both families, in no VLAN.
fn us() -> Addresses {
    Addresses::from(US).with(US6.ip, 64).unwrap()
}

fn classed(frame: &[u8]) -> Result<Received, Outcome> {
    classify(frame, &us())
}

fn datagram(from: Address, to: Address, tag: Option<u16>, payload: &[u8]) -> Vec<u8> {
    let addressing = Addressing { from, to, tag };
    let mut frame = vec![0; addressing.layout().payload() + payload.len()];
    put(&mut frame, addressing.layout(), payload).unwrap();
    write_udp(&mut frame, &addressing, (4000, 7), payload.len()).unwrap();
    frame
}

/// A datagram of each family, without a tag and with a priority tag.
fn datagrams() -> Vec<Vec<u8>> {
    [(PEER, US), (PEER6, US6)]
        .into_iter()
        .flat_map(|(from, to)| [None, Some(0xe000)].map(|tag| datagram(from, to, tag, b"hello")))
        .collect()
}

/// Changes the IPv4 header and updates its checksum.
fn with_ip(frame: &[u8], change: impl FnOnce(&mut Ipv4Packet<&mut [u8]>)) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let mut packet = Ipv4Packet::new_unchecked(&mut frame[ETHERNET_HEADER..]);
    change(&mut packet);
    packet.fill_checksum();
    frame
}

/// Changes the IPv6 header, which has no checksum.
fn with_ip6(frame: &[u8], change: impl FnOnce(&mut Ipv6Packet<&mut [u8]>)) -> Vec<u8> {
    let mut frame = frame.to_vec();
    change(&mut Ipv6Packet::new_unchecked(&mut frame[ETHERNET_HEADER..]));
    frame
}

#[test]
fn a_datagram_is_seen_with_its_port_and_end() {
    for mut frame in datagrams() {
        let end = frame.len();
        let source = if end > 60 { PEER6.ip } else { PEER.ip };
        assert_eq!(classed(&frame), Ok(Received::Udp { port: 7, end }));
        // Ethernet pads short frames; the padding is not payload.
        frame.resize(end + 13, 0xaa);
        assert_eq!(classed(&frame), Ok(Received::Udp { port: 7, end }));
        assert_eq!(udp_source(&frame), Some((source, 4000).into()));
    }
}

#[test]
fn every_flipped_bit_is_noticed_or_harmless() {
    for frame in datagrams() {
        let ip = Layout::of(&frame).unwrap().ip();
        let v6 = frame[ip] >> 4 == 6;
        for bit in 0..frame.len() * 8 {
            let mut flipped = frame.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let seen = classed(&flipped);
            // No checksum covers the Ethernet header, and a tag's priority is ignored; everything behind it is
            // covered, except for the traffic class, flow label and hop limit of IPv6.
            let (byte, low) = (bit / 8, bit % 8 < 4);
            let harmless = match byte {
                6..12 => flipped[6] & 1 == 0,
                14 if ip == 18 => !low,
                _ if v6 && byte >= ip => match byte - ip {
                    0 => low,
                    1..4 | 7 => true,
                    _ => false,
                },
                _ => false,
            };
            assert_eq!(seen.is_ok(), harmless, "bit {bit} of {frame:?}: {seen:?}");
        }
    }
}

#[test]
fn every_cut_is_noticed() {
    for frame in datagrams() {
        for length in 0..frame.len() {
            assert_eq!(classed(&frame[..length]), Err(Truncated), "at {length}");
        }
    }
}

#[test]
fn lengths_that_contradict_each_other_are_refused() {
    let frame = datagram(PEER, US, None, b"hello");
    let longer = with_ip(&frame, |ip| ip.set_total_len(34));
    assert_eq!(classed(&longer), Err(Truncated));
    let headless = with_ip(&frame, |ip| ip.set_total_len(19));
    assert_eq!(classed(&headless), Err(BadLength));
    let shorter = with_ip(&frame, |ip| ip.set_total_len(32));
    assert_eq!(classed(&shorter), Err(BadLength));
    let no_udp = with_ip(&frame, |ip| ip.set_total_len(24));
    assert_eq!(classed(&no_udp), Err(BadLength));
    let mut small_header = frame.clone();
    small_header[ETHERNET_HEADER] = 0x44;
    assert_eq!(classed(&small_header), Err(BadLength));
    let mut udp_length = frame;
    udp_length[39] = 7;
    assert_eq!(classed(&udp_length), Err(BadLength));

    let frame = datagram(PEER6, US6, None, b"hello");
    for (length, fate) in [(14, Truncated), (12, BadLength), (4, BadLength)] {
        let other = with_ip6(&frame, |ip| ip.set_payload_len(length));
        assert_eq!(classed(&other), Err(fate), "{length}");
    }
    // A length of 0 would be valid for a jumbogram, whose option is missing here (RFC 2675).
    let none = with_ip6(&frame, |ip| ip.set_payload_len(0));
    assert_eq!(classed(&none), Err(BadLength));
}

#[test]
fn what_is_not_served_has_a_name() {
    let frame = datagram(PEER, US, None, b"hello");
    let fragment = with_ip(&frame, |ip| ip.set_more_frags(true));
    assert_eq!(classed(&fragment), Err(Outcome::Fragment));
    let last = with_ip(&frame, |ip| ip.set_frag_offset(8));
    assert_eq!(classed(&last), Err(Outcome::Fragment));
    let options = with_ip(&frame, |ip| ip.set_header_len(24));
    assert_eq!(classed(&options), Err(Outcome::IpOptions));
    let sctp = with_ip(&frame, |ip| ip.set_next_header(IpProtocol::Unknown(132)));
    assert_eq!(classed(&sctp), Err(UnknownProtocol));
    let ip6 = with_ip(&frame, |ip| ip.set_version(6));
    assert_eq!(classed(&ip6), Err(BadHeader));
    let none = Addresses::from(US);
    assert_eq!(classify(&datagram(PEER6, US6, None, b""), &none), Err(Outcome::Ipv6));
}

#[test]
fn an_extension_header_is_dropped_under_its_name() {
    let frame = datagram(PEER6, US6, None, b"hello");
    for (next, fate) in [
        (0, Outcome::ExtensionHeader),
        (43, Outcome::ExtensionHeader),
        (44, Outcome::Fragment),
        (51, Outcome::ExtensionHeader),
        (60, Outcome::ExtensionHeader),
        (135, Outcome::ExtensionHeader),
        (139, Outcome::ExtensionHeader),
        (140, Outcome::ExtensionHeader),
        // ESP (encrypted), and "no next header".
        (50, UnknownProtocol),
        (59, UnknownProtocol),
        // ICMP for IPv4 is not valid over IPv6.
        (1, UnknownProtocol),
        (132, UnknownProtocol),
    ] {
        let other = with_ip6(&frame, |ip| ip.set_next_header(IpProtocol::from(next)));
        assert_eq!(classed(&other), Err(fate), "{next}");
    }
    let ip4 = with_ip6(&frame, |ip| ip.set_version(4));
    assert_eq!(classed(&ip4), Err(BadHeader));
    let icmpv6 = with_ip(&datagram(PEER, US, None, b""), |ip| {
        ip.set_next_header(IpProtocol::Icmpv6);
    });
    assert_eq!(classed(&icmpv6), Err(UnknownProtocol));
}

#[test]
fn a_datagram_without_a_checksum_passes_over_ipv4_alone() {
    for (from, to, passes) in [(PEER, US, true), (PEER6, US6, false)] {
        let mut frame = datagram(from, to, None, b"hello");
        let udp = Layout::of(&frame).unwrap().transport();
        frame[udp + 6..udp + 8].fill(0);
        assert_eq!(classed(&frame).is_ok(), passes);
        assert!(passes || classed(&frame) == Err(Outcome::BadChecksum));
    }
}

#[test]
fn a_vlan_is_a_network_of_its_own() {
    let tags = |frame: &[u8], host: &Addresses| classify(frame, host);
    for (from, to) in [(PEER, US), (PEER6, US6)] {
        let (outside, inside) = (us(), us().in_vlan(100).unwrap());
        let with = |tag| datagram(from, to, tag, b"hello");
        let end = with(Some(0)).len();
        let passed = Ok(Received::Udp { port: 7, end });
        assert_eq!(tags(&with(Some(100)), &inside), passed);
        assert_eq!(tags(&with(Some(0xf064)), &inside), passed, "with a priority, and droppable");
        assert_eq!(tags(&with(Some(101)), &inside), Err(Outcome::Vlan));
        assert_eq!(tags(&with(None), &inside), Err(Outcome::Untagged));
        assert_eq!(tags(&with(Some(0)), &inside), Err(Outcome::Vlan), "a priority is no VLAN");
        assert_eq!(tags(&with(Some(0)), &outside), passed);
        assert_eq!(tags(&with(Some(0xe000)), &outside), passed);
        assert_eq!(tags(&with(Some(100)), &outside), Err(Outcome::Vlan));
        for host in [&inside, &outside] {
            for ether_type in [0x88a8u16, 0x9100] {
                let mut provider = with(Some(100));
                provider[12..14].copy_from_slice(&ether_type.to_be_bytes());
                assert_eq!(tags(&provider, host), Err(Outcome::Vlan));
            }
        }
        let mut twice = with(Some(100));
        twice[16..18].copy_from_slice(&[0x81, 0]);
        assert_eq!(tags(&twice, &inside), Err(Outcome::Vlan));
        for length in 14..18 {
            assert_eq!(tags(&with(Some(100))[..length], &inside), Err(Truncated));
        }
    }
}

#[test]
fn only_a_request_for_an_echo_is_answered() {
    let build = FrameBuilder::new(PEER, US);
    let mut frame = vec![0; build.length(5)];
    build.echo_request(&mut frame, 1, 1, b"hello").unwrap();
    assert!(matches!(classed(&frame), Ok(Received::Echo { .. })));
    let with = |kind: u8, code: u8| {
        let mut frame = frame.clone();
        let mut packet = Icmpv4Packet::new_unchecked(&mut frame[34..]);
        packet.set_msg_type(kind.into());
        packet.set_msg_code(code);
        packet.fill_checksum();
        classed(&frame)
    };
    // Replies are never answered, or two stacks would answer each other for ever.
    assert_eq!(with(0, 0), Err(UnknownProtocol), "an answer");
    assert_eq!(with(8, 1), Err(UnknownProtocol), "a code that means nothing");
    assert_eq!(with(3, 3), Err(UnknownProtocol), "unreachable");

    let (v6, hello) = (FrameBuilder::new(PEER6, US6), [128, 0, 0, 0, 0, 1, 0, 1]);
    let mut frame = vec![0; v6.length(5)];
    v6.echo_request(&mut frame, 1, 1, b"hello").unwrap();
    assert_eq!(classed(&frame), Ok(Received::Echo { end: frame.len() }));
    let with = |kind: u8, code: u8, length: usize| {
        let mut message = hello[..length.min(8)].to_vec();
        message.resize(length, 0);
        (message[0], message[1]) = (kind, code);
        classed(&icmpv6(PEER6, US6, 64, &message))
    };
    assert_eq!(with(129, 0, 8), Err(UnknownProtocol), "an answer");
    assert_eq!(with(128, 1, 8), Err(UnknownProtocol), "a code that means nothing");
    assert_eq!(with(1, 4, 8), Err(UnknownProtocol), "unreachable");
    assert_eq!(with(2, 0, 8), Err(Outcome::PacketTooBig));
    assert_eq!(with(134, 0, 16), Err(UnknownProtocol), "a router");
    assert_eq!(with(137, 0, 40), Err(UnknownProtocol), "a redirect");
    assert_eq!(with(155, 0, 8), Err(UnknownProtocol), "what smoltcp does not name");
    for length in 2..8 {
        assert_eq!(with(128, 0, length), Err(BadLength));
    }
    let nobody = Address::single(PEER.mac, Ipv6Addr::UNSPECIFIED.into());
    assert_eq!(classed(&icmpv6(nobody, US6, 64, &hello)), Err(Outcome::BadSource));
    let group = Address::single(group_mac(ALL_NODES), ALL_NODES.into());
    assert!(matches!(classed(&icmpv6(PEER6, group, 64, &hello)), Ok(Received::Echo { .. })));
}

/// An ICMPv6 message with its checksum.
fn icmpv6(from: Address, to: Address, hops: u8, message: &[u8]) -> Vec<u8> {
    let (IpAddr::V6(source), IpAddr::V6(destination)) = (from.ip, to.ip) else { unreachable!() };
    let mut frame = datagram(PEER6, US6, None, &[]);
    frame.truncate(54);
    frame.extend(message);
    frame[..6].copy_from_slice(&to.mac);
    frame[6..12].copy_from_slice(&from.mac);
    let mut ip = Ipv6Packet::new_unchecked(&mut frame[14..]);
    ip.set_payload_len(message.len() as u16);
    ip.set_next_header(IpProtocol::Icmpv6);
    ip.set_hop_limit(hops);
    ip.set_src_addr(source);
    ip.set_dst_addr(destination);
    let icmp = &mut frame[54..];
    if icmp.len() >= 4 {
        Icmpv6Packet::new_unchecked(icmp).fill_checksum(&source, &destination);
    }
    frame
}

/// A solicitation (135) or advertisement (136) with these flags and options.
fn ndisc(kind: u8, flags: u8, target: IpAddr, options: &[u8]) -> Vec<u8> {
    let IpAddr::V6(target) = target else { unreachable!() };
    [&[kind, 0, 0, 0, flags, 0, 0, 0], &target.octets()[..], options].concat()
}

const SOURCE: [u8; 8] = [1, 1, 2, 0, 0, 0, 0, 2];
const TARGET: [u8; 8] = [2, 1, 2, 0, 0, 0, 0, 2];

#[test]
fn a_solicitation_is_for_hosts_on_the_link_alone() {
    let group = solicited("fd00::1".parse().unwrap());
    let group = Address::single(group_mac(group), group.into());
    let (mac, ip, target) = (PEER.mac, PEER6.ip, US6.ip);
    let ask = ndisc(135, 0, target, &SOURCE);
    let query = Ok(Received::AddressQuery { mac, ip, target, states_source: true });
    for to in [US6, group] {
        assert_eq!(classed(&icmpv6(PEER6, to, 255, &ask)), query);
        for hops in [0, 64, 254] {
            assert_eq!(classed(&icmpv6(PEER6, to, hops, &ask)), Err(BadHeader), "forwarded");
        }
    }
    let no_source = ndisc(135, 0, target, &[]);
    let query = Ok(Received::AddressQuery { mac, ip, target, states_source: false });
    assert_eq!(classed(&icmpv6(PEER6, US6, 255, &no_source)), query);

    let nobody = Address::single(PEER.mac, Ipv6Addr::UNSPECIFIED.into());
    let query = Ok(Received::AddressQuery { mac, ip: nobody.ip, target, states_source: false });
    assert_eq!(classed(&icmpv6(nobody, group, 255, &no_source)), query, "is it free?");
    assert_eq!(classed(&icmpv6(nobody, group, 255, &ask)), Err(BadHeader), "not its own yet");
    assert_eq!(classed(&icmpv6(nobody, US6, 255, &no_source)), Err(BadHeader), "not in its group");

    let other = ndisc(135, 0, "fd00:0:0:1::1".parse().unwrap(), &SOURCE);
    assert_eq!(classed(&icmpv6(PEER6, group, 255, &other)), Err(Outcome::NotForUs));
    let all = ndisc(135, 0, ALL_NODES.into(), &SOURCE);
    assert_eq!(classed(&icmpv6(PEER6, US6, 255, &all)), Err(BadHeader));
    let mut coded = ask.clone();
    coded[1] = 1;
    assert_eq!(classed(&icmpv6(PEER6, US6, 255, &coded)), Err(BadHeader));
    for length in 8..ask.len() {
        let cut = icmpv6(PEER6, US6, 255, &ask[..length]);
        let whole = length == 24;
        assert_eq!(classed(&cut).is_ok(), whole, "{length}");
        assert!(whole || classed(&cut) == Err(BadLength));
    }
    for (options, fate) in [
        (&[1, 0, 2, 0, 0, 0, 0, 2][..], BadLength),
        (&[14, 0, 0, 0, 0, 0, 0, 0], BadLength),
        (&[1, 2, 2, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0], BadLength),
        (&[1, 1, 3, 0, 0, 0, 0, 2], BadHeader),
        (&[1, 1, 0, 0, 0, 0, 0, 0], BadHeader),
    ] {
        let odd = ndisc(135, 0, target, options);
        assert_eq!(classed(&icmpv6(PEER6, US6, 255, &odd)), Err(fate), "{options:?}");
    }
    // Behind a nonce option, as Linux sends it (RFC 7527).
    let nonce = ndisc(135, 0, target, &[&[14, 1, 1, 2, 3, 4, 5, 6][..], &SOURCE].concat());
    assert!(matches!(
        classed(&icmpv6(PEER6, US6, 255, &nonce)),
        Ok(Received::AddressQuery { states_source: true, .. })
    ));
}

#[test]
fn an_advertisement_tells_an_address_and_whether_it_overrides() {
    let advert = |flags, options: &[u8]| ndisc(136, flags, PEER6.ip, options);
    let group = Address::single(group_mac(ALL_NODES), ALL_NODES.into());
    let claim = |overrides| {
        Ok(Received::AddressClaim { mac: PEER.mac, ip: PEER6.ip, overrides, update_only: true })
    };
    assert_eq!(classed(&icmpv6(PEER6, US6, 255, &advert(0x60, &TARGET))), claim(true));
    assert_eq!(classed(&icmpv6(PEER6, US6, 255, &advert(0x40, &TARGET))), claim(false));
    assert_eq!(classed(&icmpv6(PEER6, group, 255, &advert(0x20, &TARGET))), claim(true));
    let answered = icmpv6(PEER6, group, 255, &advert(0x60, &TARGET));
    assert_eq!(classed(&answered), Err(BadHeader), "an answer to everybody");
    let forwarded = icmpv6(PEER6, US6, 254, &advert(0x60, &TARGET));
    assert_eq!(classed(&forwarded), Err(BadHeader));
    let no_target = icmpv6(PEER6, US6, 255, &advert(0x60, &[]));
    assert_eq!(classed(&no_target), Err(UnknownProtocol));
    let own = ndisc(136, 0x60, US6.ip, &TARGET);
    assert_eq!(classed(&icmpv6(PEER6, US6, 255, &own)), Err(Outcome::BadSource), "our address");
    let nobody = Address::single(PEER.mac, Ipv6Addr::UNSPECIFIED.into());
    assert_eq!(classed(&icmpv6(nobody, US6, 255, &advert(0x60, &TARGET))), Err(Outcome::BadSource));
}

#[test]
fn an_address_is_asked_for_and_told_by_hosts_alone() {
    let arp = |operation, source, target_mac: [u8; 6]| {
        let mut frame = vec![0; 42];
        FrameBuilder::new(PEER, US).request(&mut frame).unwrap();
        frame[..6].copy_from_slice(&US.mac);
        let repr = ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr: EthernetAddress(PEER.mac),
            source_protocol_addr: source,
            target_hardware_addr: EthernetAddress(target_mac),
            target_protocol_addr: Ipv4Addr::new(10, 0, 0, 1),
        };
        repr.emit(&mut ArpPacket::new_unchecked(&mut frame[ETHERNET_HEADER..]));
        classed(&frame)
    };
    let (mac, ipv4) = (PEER.mac, Ipv4Addr::new(10, 0, 0, 2));
    let nobody = Ipv4Addr::UNSPECIFIED;
    let group = Ipv4Addr::new(224, 0, 0, 1);
    let (ask, reply) = (ArpOperation::Request, ArpOperation::Reply);
    let query = |ip: Ipv4Addr| {
        Ok(Received::AddressQuery { mac, ip: ip.into(), target: US.ip, states_source: true })
    };
    assert_eq!(arp(ask, ipv4, [0; 6]), query(ipv4));
    assert_eq!(arp(ask, nobody, [0; 6]), query(nobody), "a probe");
    assert_eq!(arp(ask, group, [0; 6]), Err(Outcome::BadSource));
    let claim =
        Received::AddressClaim { mac, ip: ipv4.into(), overrides: true, update_only: false };
    assert_eq!(arp(reply, ipv4, US.mac), Ok(claim));
    assert_eq!(arp(reply, nobody, US.mac), Err(Outcome::BadSource));
    assert_eq!(arp(reply, ipv4, [2, 0, 0, 0, 0, 9]), Err(Outcome::NotForUs), "told to another");
}

#[test]
fn a_frame_is_steered_by_its_port_only_if_it_is_whole_and_plain() {
    for frame in datagrams() {
        assert_eq!(steering_port(&frame), Some(7));
        let layout = Layout::of(&frame).unwrap();
        for length in 0..layout.transport() + 4 {
            assert_eq!(steering_port(&frame[..length]), None);
        }
        let v6 = frame[layout.ip()] >> 4 == 6;
        let changes = match v6 {
            true => &[(0, 0x45, "another version"), (6, 6, "TCP"), (6, 44, "a fragment")][..],
            false => &[
                (0, 0x65, "another version"),
                (0, 0x46, "options"),
                (6, 0x20, "the first fragment"),
                (7, 1, "the last fragment"),
                (9, 6, "TCP"),
            ],
        };
        for (at, byte, what) in changes {
            let mut other = frame.clone();
            other[layout.ip() + at] = *byte;
            assert_eq!(steering_port(&other), None, "{what}");
        }
        let mut other = frame;
        other[layout.ip() - 2..layout.ip()].copy_from_slice(&[8, 6]);
        assert_eq!(steering_port(&other), None, "another EtherType");
    }
}

#[test]
fn only_hosts_can_send() {
    let frame = datagram(PEER, US, None, b"hello");
    for source in ["0.0.0.0", "127.0.0.1", "255.255.255.255", "10.0.0.255", "224.0.0.1", "10.0.0.1"]
    {
        let forged = with_ip(&frame, |ip| ip.set_src_addr(source.parse().unwrap()));
        assert_eq!(classed(&forged), Err(Outcome::BadSource), "{source}");
    }
    let mut group = frame;
    group[6] |= 1;
    assert_eq!(classed(&group), Err(Outcome::BadSource));
    let frame = datagram(PEER6, US6, None, b"hello");
    for source in ["::", "::1", "ff02::1", "fd00::1", "::ffff:10.0.0.2"] {
        let forged = with_ip6(&frame, |ip| ip.set_src_addr(source.parse().unwrap()));
        assert_eq!(classed(&forged), Err(Outcome::BadSource), "{source}");
    }
}

#[test]
fn what_is_for_many_must_be_so_on_both_layers() {
    let all = Address { mac: [0xff; 6], ip: IpAddr::from([10, 0, 0, 255]), ..US };
    let nodes = Address::single(group_mac(ALL_NODES), ALL_NODES.into());
    for (from, us, many) in [(PEER, US, all), (PEER6, US6, nodes)] {
        let to = |mac, ip| classed(&datagram(from, Address::single(mac, ip), None, b"x"));
        assert!(matches!(to(many.mac, many.ip), Ok(Received::Udp { port: 7, .. })));
        assert_eq!(to(many.mac, us.ip), Err(Outcome::NotForUs));
        assert_eq!(to(us.mac, many.ip), Err(Outcome::NotForUs));
        assert_eq!(to(from.mac, from.ip), Err(Outcome::NotForUs));
        assert_eq!(to(us.mac, from.ip), Err(Outcome::NotForUs));
    }
    // Another group that maps to the same Ethernet address.
    let other = Address::single(nodes.mac, "ff05::1".parse().unwrap());
    assert_eq!(classed(&datagram(PEER6, other, None, b"x")), Err(Outcome::Multicast));
    let broadcast = Address::single([0xff; 6], US6.ip);
    assert_eq!(classed(&datagram(PEER6, broadcast, None, b"x")), Err(Outcome::NotForUs));
}

#[test]
fn what_every_link_carries_is_told_apart_from_what_has_lost_its_way() {
    let group = Address { mac: [1, 0, 0x5e, 0, 0, 0xfb], ..US };
    let mut frame = datagram(PEER, group, None, b"mDNS");
    assert_eq!(classed(&frame), Err(Outcome::Multicast));
    frame[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 2]);
    frame[12..14].copy_from_slice(&[0x86, 0xdd]);
    assert_eq!(classed(&frame), Err(Outcome::Multicast));
    assert_eq!(classify(&frame, &Addresses::from(US)), Err(Outcome::Ipv6));
}
