//! Dialogues over IPv6 and in a VLAN: neighbour discovery, and where answers come from.

mod lab;

use std::net::{IpAddr, Ipv6Addr};

use lab::{Lab, PEER6, US, US6, built, datagram, echo, from_peer, from_peer6};
use napkin_stack::{
    Address, Addresses, Exchange, FrameBuilder, FrameOutcome, RawFilter, SendError,
};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, Icmpv6Packet, Icmpv6Repr, IpProtocol,
    Ipv6Packet, Ipv6Repr, NdiscNeighborFlags, NdiscRepr, RawHardwareAddress, UdpPacket, UdpRepr,
};

const OURS: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const THEIRS: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

fn both() -> Addresses {
    Addresses::from(US).with(US6.ip, US6.prefix).unwrap()
}

/// Parses an IPv6 frame, tagged or not, with smoltcp.
fn read(frame: &[u8]) -> (EthernetAddress, Option<u16>, Ipv6Repr, &[u8]) {
    let ethernet = EthernetFrame::new_checked(frame).unwrap();
    let (tag, packet) = match ethernet.ethertype() {
        EthernetProtocol::Unknown(0x8100) => {
            assert_eq!(frame[16..18], [0x86, 0xdd]);
            (Some(u16::from_be_bytes([frame[14], frame[15]])), &frame[18..])
        }
        other => {
            assert_eq!(other, EthernetProtocol::Ipv6);
            (None, ethernet.payload())
        }
    };
    let packet = Ipv6Packet::new_checked(packet).unwrap();
    assert_eq!(ethernet.src_addr(), EthernetAddress(US.mac));
    (ethernet.dst_addr(), tag, Ipv6Repr::parse(&packet).unwrap(), packet.payload())
}

fn read_icmp<'a>(ip: &Ipv6Repr, payload: &'a [u8]) -> Icmpv6Repr<'a> {
    let (packet, checked) = (Icmpv6Packet::new_checked(payload).unwrap(), Default::default());
    assert_eq!(ip.next_header, IpProtocol::Icmpv6);
    Icmpv6Repr::parse(&ip.src_addr, &ip.dst_addr, &packet, &checked).unwrap()
}

/// A neighbour solicitation or advertisement from a host on the link.
fn message(
    (mac, from): ([u8; 6], Ipv6Addr),
    (to_mac, to): ([u8; 6], Ipv6Addr),
    message: NdiscRepr<'_>,
) -> Vec<u8> {
    let repr = Icmpv6Repr::Ndisc(message);
    let mut bytes = vec![0; 14 + 40 + repr.buffer_len()];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes);
    frame.set_src_addr(EthernetAddress(mac));
    frame.set_dst_addr(EthernetAddress(to_mac));
    frame.set_ethertype(EthernetProtocol::Ipv6);
    let ip = Ipv6Repr {
        src_addr: from,
        dst_addr: to,
        next_header: IpProtocol::Icmpv6,
        payload_len: repr.buffer_len(),
        hop_limit: 255,
    };
    let mut packet = Ipv6Packet::new_unchecked(frame.payload_mut());
    ip.emit(&mut packet);
    let mut icmp = Icmpv6Packet::new_unchecked(packet.payload_mut());
    repr.emit(&from, &to, &mut icmp, &ChecksumCapabilities::default());
    bytes
}

fn lladdr(mac: [u8; 6]) -> Option<RawHardwareAddress> {
    Some(EthernetAddress(mac).into())
}

fn advertised(mac: [u8; 6], flags: NdiscNeighborFlags) -> Vec<u8> {
    let advert = NdiscRepr::NeighborAdvert { flags, target_addr: THEIRS, lladdr: lladdr(mac) };
    let solicited = flags.contains(NdiscNeighborFlags::SOLICITED);
    let all = ([0x33, 0x33, 0, 0, 0, 1], ALL_NODES);
    message((mac, THEIRS), if solicited { (US.mac, OURS) } else { all }, advert)
}

#[test]
fn who_solicits_us_is_told_and_known() {
    let mut lab = Lab::new();
    lab.receive(&[built(128, |buffer| from_peer6().request(buffer))], 0);
    let sent = lab.wire.sent();
    let (to, _, ip, payload) = read(&sent[0]);
    assert_eq!(to, EthernetAddress(PEER6.mac));
    assert_eq!((ip.src_addr, ip.dst_addr, ip.hop_limit), (OURS, THEIRS, 255));
    let flags = NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::OVERRIDE;
    let advert = NdiscRepr::NeighborAdvert { flags, target_addr: OURS, lladdr: lladdr(US.mac) };
    assert_eq!(read_icmp(&ip, payload), Icmpv6Repr::Ndisc(advert));
    assert_eq!(lab.stack.neighbour(PEER6.ip), Some(PEER6.mac));
    assert_eq!(lab.counters().of(FrameOutcome::AnsweredNdisc), 1);
}

#[test]
fn our_address_is_defended_against_who_wants_it() {
    let mut lab = Lab::new();
    let nobody = ([2, 0, 0, 0, 0, 9], Ipv6Addr::UNSPECIFIED);
    let group = ([0x33, 0x33, 0xff, 0, 0, 1], "ff02::1:ff00:1".parse().unwrap());
    let ask = |target_addr| NdiscRepr::NeighborSolicit { target_addr, lladdr: None };
    lab.receive(&[message(nobody, group, ask(OURS))], 0);
    let sent = lab.wire.sent();
    let (to, _, ip, payload) = read(&sent[0]);
    assert_eq!(to, EthernetAddress([0x33, 0x33, 0, 0, 0, 1]), "everybody is told");
    assert_eq!((ip.src_addr, ip.dst_addr, ip.hop_limit), (OURS, ALL_NODES, 255));
    let flags = NdiscNeighborFlags::OVERRIDE;
    let advert = NdiscRepr::NeighborAdvert { flags, target_addr: OURS, lladdr: lladdr(US.mac) };
    assert_eq!(read_icmp(&ip, payload), Icmpv6Repr::Ndisc(advert));
    // An address with the same last bytes has the same solicited-node group.
    lab.receive(&[message(nobody, group, ask("fd00::7:0:0:1".parse().unwrap()))], 0);
    assert!(lab.wire.sent().is_empty());
    assert_eq!(lab.counters().of(FrameOutcome::NotForUs), 1);
}

#[test]
fn whom_we_solicit_becomes_known_and_who_tells_unasked_does_not() {
    let mut lab = Lab::new();
    let (solicited, overrides) = (NdiscNeighborFlags::SOLICITED, NdiscNeighborFlags::OVERRIDE);
    let other = [2, 0, 0, 0, 0, 9];
    lab.receive(&[advertised(PEER6.mac, solicited | overrides)], 0);
    assert_eq!(lab.stack.neighbour(PEER6.ip), None, "nobody asked");
    lab.stack.resolve(PEER6.ip, 0).unwrap();
    let sent = lab.wire.sent();
    let (to, _, ip, payload) = read(&sent[0]);
    assert_eq!(to, EthernetAddress([0x33, 0x33, 0xff, 0, 0, 2]));
    assert_eq!((ip.src_addr, ip.hop_limit), (OURS, 255));
    assert_eq!(ip.dst_addr, "ff02::1:ff00:2".parse::<Ipv6Addr>().unwrap());
    let ask = NdiscRepr::NeighborSolicit { target_addr: THEIRS, lladdr: lladdr(US.mac) };
    assert_eq!(read_icmp(&ip, payload), Icmpv6Repr::Ndisc(ask));
    lab.receive(&[advertised(PEER6.mac, solicited)], 0);
    assert_eq!(lab.stack.neighbour(PEER6.ip), Some(PEER6.mac));
    lab.receive(&[advertised(other, NdiscNeighborFlags::empty())], 0);
    assert_eq!(lab.stack.neighbour(PEER6.ip), Some(PEER6.mac), "it does not override");
    lab.receive(&[advertised(other, overrides)], 0);
    assert_eq!(lab.stack.neighbour(PEER6.ip), Some(other), "it has a new card, and says so");
    assert_eq!(lab.counters().of(FrameOutcome::Learned), 4);
}

#[test]
fn a_ping_comes_back_as_it_was_also_from_the_group_of_all() {
    let mut lab = Lab::new();
    for payload in [&b""[..], b"x", b"0123456789abcdef", &[0xff; 1452]] {
        let all = Address { mac: [0x33, 0x33, 0, 0, 0, 1], ip: ALL_NODES.into(), prefix: 128 };
        for build in [from_peer6(), FrameBuilder::new(PEER6, all)] {
            let mut request = echo(build, 0x1234, 77, payload);
            request.resize(request.len() + 3, 0xee);
            lab.receive(&[request], 0);
            let sent = lab.wire.sent();
            let (to, tag, ip, icmp) = read(&sent[0]);
            assert_eq!((to, tag), (EthernetAddress(PEER6.mac), None));
            assert_eq!((ip.src_addr, ip.dst_addr), (OURS, THEIRS));
            let reply = Icmpv6Repr::EchoReply { ident: 0x1234, seq_no: 77, data: payload };
            assert_eq!(read_icmp(&ip, icmp), reply);
        }
    }
    assert_eq!(lab.counters().of(FrameOutcome::AnsweredPing), 8);
}

/// Parses a datagram: addresses, tag, ports and payload.
fn read_udp(frame: &[u8]) -> (EthernetAddress, Option<u16>, Ipv6Repr, UdpRepr, &[u8]) {
    let (to, tag, ip, payload) = read(frame);
    assert_eq!(ip.next_header, IpProtocol::Udp);
    let packet = UdpPacket::new_checked(payload).unwrap();
    assert_ne!(packet.checksum(), 0);
    let checked = ChecksumCapabilities::default();
    let udp = UdpRepr::parse(&packet, &ip.src_addr.into(), &ip.dst_addr.into(), &checked).unwrap();
    (to, tag, ip, udp, packet.payload())
}

#[test]
fn a_datagram_is_received_echoed_and_answered() {
    let mut lab = Lab::new();
    let socket = lab.stack.bind_udp(7, 8).unwrap();
    let raw = lab.stack.open_raw(RawFilter::UdpPort(8), 8).unwrap();
    for payload in [&b""[..], b"odd", b"even", &[0xff; 1452]] {
        lab.receive(&[datagram(from_peer6(), 7, payload)], 0);
        let received = socket.try_recv().unwrap();
        assert_eq!((received.payload(), received.source()), (payload, (PEER6.ip, 4000).into()));
        socket.echo(received, 0).unwrap();
        lab.receive(&[datagram(from_peer6(), 7, b"what?")], 0);
        socket.reply(socket.try_recv().unwrap(), payload, 0).unwrap();
        lab.receive(&[datagram(from_peer6(), 8, payload), datagram(from_peer6(), 8, b"")], 0);
        raw.echo(raw.try_recv().unwrap(), 0).unwrap();
        raw.reply(raw.try_recv().unwrap(), payload, 0).unwrap();
        let sent = lab.wire.sent();
        assert_eq!(sent.len(), 4);
        for (frame, port) in sent.iter().zip([7, 7, 8, 8]) {
            let (to, tag, ip, udp, data) = read_udp(frame);
            assert_eq!((to, tag), (EthernetAddress(PEER6.mac), None));
            assert_eq!((ip.src_addr, ip.dst_addr, ip.hop_limit), (OURS, THEIRS, 64));
            assert_eq!((udp.src_port, udp.dst_port, data), (port, 4000, payload));
        }
    }
    let mut none = datagram(from_peer6(), 7, b"no checksum");
    none[60..62].fill(0);
    lab.receive(&[none], 0);
    assert_eq!(lab.counters().of(FrameOutcome::BadChecksum), 1);
}

#[test]
fn an_answer_comes_from_the_address_that_was_asked() {
    let link_local = Address::link_local(US.mac);
    let mut lab = Lab::of(both().with(link_local.ip, 64).unwrap());
    let socket = lab.stack.bind_udp(7, 8).unwrap();
    let IpAddr::V6(own) = link_local.ip else { unreachable!() };
    let near = Address::link_local(PEER6.mac);
    for (from, to, expected) in
        [(near, link_local, own), (PEER6, link_local, own), (near, US6, OURS)]
    {
        lab.receive(&[datagram(FrameBuilder::new(from, to), 7, b"who?")], 0);
        socket.echo(socket.try_recv().unwrap(), 0).unwrap();
        assert_eq!(read_udp(&lab.wire.sent()[0]).2.src_addr, expected);
    }
    // Sent to all nodes: the answer comes from the address that the sender can reach.
    let all = Address { mac: [0x33, 0x33, 0, 0, 0, 1], ip: ALL_NODES.into(), prefix: 128 };
    for (from, expected) in [(near, own), (PEER6, OURS)] {
        lab.receive(&[datagram(FrameBuilder::new(from, all), 7, b"who?")], 0);
        socket.echo(socket.try_recv().unwrap(), 0).unwrap();
        assert_eq!(read_udp(&lab.wire.sent()[0]).2.src_addr, expected);
    }
}

#[test]
fn to_speak_first_one_must_know_the_neighbour_of_either_family() {
    let mut lab = Lab::of(US6);
    let socket = lab.stack.bind_udp(0, 8).unwrap();
    let unknown = |to: IpAddr, sent: Result<(), SendError>| {
        assert!(matches!(sent, Err(SendError::NoNeighbour(ip)) if ip == to));
    };
    unknown(PEER6.ip, socket.send_to(b"q", (PEER6.ip, 53).into(), 0));
    unknown(lab::PEER.ip, socket.send_to(b"q", (lab::PEER.ip, 53).into(), 0));
    unknown(lab::PEER.ip, lab.stack.resolve(lab::PEER.ip, 0));
    lab.receive(&[built(128, |buffer| from_peer6().request(buffer))], 0);
    lab.wire.sent();
    socket.send_to(b"question", (PEER6.ip, 53).into(), 0).unwrap();
    let sent = lab.wire.sent();
    let (to, _, ip, udp, data) = read_udp(&sent[0]);
    assert_eq!(to, EthernetAddress(PEER6.mac));
    assert_eq!((ip.src_addr, ip.dst_addr), (OURS, THEIRS));
    assert_eq!((udp.src_port, udp.dst_port, data), (socket.port(), 53, &b"question"[..]));
}

#[test]
fn in_a_vlan_all_that_is_said_has_its_tag() {
    let mut lab = Lab::of(both().in_vlan(100).unwrap());
    let socket = lab.stack.bind_udp(7, 8).unwrap();
    for build in [from_peer(), from_peer6()] {
        let own = build.tagged(100);
        lab.receive(
            &[
                built(128, |buffer| own.request(buffer)),
                echo(own, 1, 1, b"hello"),
                datagram(own, 7, b"hello"),
                datagram(build, 7, b"no tag"),
                datagram(build.tagged(101), 7, b"another's"),
                datagram(build.tagged(0), 7, b"a priority"),
            ],
            0,
        );
        socket.echo(socket.try_recv().unwrap(), 0).unwrap();
        assert!(socket.try_recv().is_none());
        socket.send_to(b"unasked", (build.from.ip, 9).into(), 0).unwrap();
        lab.stack.resolve(build.from.ip, 0).unwrap();
        let sent = lab.wire.sent();
        assert_eq!(sent.len(), 5);
        assert!(sent.iter().all(|frame| frame[12..16] == [0x81, 0, 0, 100]), "{sent:02x?}");
    }
    let counters = lab.counters();
    assert_eq!((counters.of(FrameOutcome::Untagged), counters.of(FrameOutcome::Vlan)), (2, 4));
}

#[test]
fn a_priority_is_no_vlan_and_comes_back() {
    let mut lab = Lab::new();
    let socket = lab.stack.bind_udp(7, 8).unwrap();
    for build in [from_peer(), from_peer6()] {
        lab.receive(&[datagram(build.tagged(0xe000), 7, b"urgent")], 0);
        socket.echo(socket.try_recv().unwrap(), 0).unwrap();
        let sent = lab.wire.sent();
        assert_eq!(sent[0][12..16], [0x81, 0, 0xe0, 0]);
        assert!(sent[0].ends_with(b"urgent"));
    }
}
