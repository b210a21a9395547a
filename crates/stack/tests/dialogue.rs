//! Dialogues with a stack over IPv4, frame by frame.

mod lab;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use lab::{
    Lab, NAPI, PEER, RecordingListener, US, built, datagram, echo, from_peer, from_peer6, ping,
    udp, who_has_us,
};
use napkin_stack::error::Resource;
use napkin_stack::{
    Addresses, BindError, Exchange, FrameOutcome, Message, RawFilter, SendError, Socket,
};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, IpProtocol, Ipv4Packet, Ipv4Repr, UdpPacket, UdpRepr,
};

const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const THEIRS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// Parses an IPv4 frame with smoltcp and verifies every checksum.
fn read_ipv4(frame: &[u8]) -> (EthernetFrame<&[u8]>, Ipv4Repr, &[u8]) {
    let ethernet = EthernetFrame::new_checked(frame).unwrap();
    assert_eq!(ethernet.ethertype(), EthernetProtocol::Ipv4);
    let packet = Ipv4Packet::new_checked(ethernet.payload()).unwrap();
    let repr = Ipv4Repr::parse(&packet, &ChecksumCapabilities::default()).unwrap();
    (ethernet, repr, packet.payload())
}

fn read_udp(frame: &[u8]) -> (EthernetFrame<&[u8]>, Ipv4Repr, UdpRepr, &[u8]) {
    let (ethernet, ip, payload) = read_ipv4(frame);
    assert_eq!(ip.next_header, IpProtocol::Udp);
    let packet = UdpPacket::new_checked(payload).unwrap();
    let checked = ChecksumCapabilities::default();
    let udp = UdpRepr::parse(&packet, &ip.src_addr.into(), &ip.dst_addr.into(), &checked).unwrap();
    (ethernet, ip, udp, packet.payload())
}

#[test]
fn who_asks_for_us_is_told_and_known() {
    let mut lab = Lab::new();
    assert_eq!(lab.stack.neighbour(PEER.ip), None);
    lab.receive(&[who_has_us()], 0);
    let sent = lab.wire.sent();
    assert_eq!(sent.len(), 1);
    let ethernet = EthernetFrame::new_checked(&sent[0][..]).unwrap();
    assert_eq!(ethernet.dst_addr(), EthernetAddress(PEER.mac));
    let reply = ArpRepr::parse(&ArpPacket::new_checked(ethernet.payload()).unwrap()).unwrap();
    let expected = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Reply,
        source_hardware_addr: EthernetAddress(US.mac),
        source_protocol_addr: OURS,
        target_hardware_addr: EthernetAddress(PEER.mac),
        target_protocol_addr: THEIRS,
    };
    assert_eq!(reply, expected);
    assert_eq!(lab.stack.neighbour(PEER.ip), Some(PEER.mac));
    assert_eq!(lab.counters().answered(), 1);
}

#[test]
fn whom_we_ask_for_becomes_known() {
    let mut lab = Lab::new();
    lab.stack.resolve(PEER.ip, 0).unwrap();
    let asked = lab.wire.sent();
    let ethernet = EthernetFrame::new_checked(&asked[0][..]).unwrap();
    assert!(ethernet.dst_addr().is_broadcast());
    let mut reply = vec![0; 42];
    from_peer().reply(&mut reply).unwrap();
    lab.receive(&[reply], 0);
    assert_eq!(lab.stack.neighbour(PEER.ip), Some(PEER.mac));
    assert_eq!(lab.counters().of(FrameOutcome::Learned), 1);
}

#[test]
fn who_takes_over_a_known_address_says_so_to_everybody_and_is_believed() {
    let other = [2, 0, 0, 0, 0, 9];
    // An announcement may be a request or a reply for its own address.
    for operation in [1, 2] {
        let mut announcement = who_has_us();
        announcement[6..12].copy_from_slice(&other);
        announcement[21] = operation;
        announcement[22..28].copy_from_slice(&other);
        announcement[38..42].copy_from_slice(&THEIRS.octets());
        let mut lab = Lab::new();
        lab.receive(std::slice::from_ref(&announcement), 0);
        assert_eq!(lab.stack.neighbour(PEER.ip), None, "it teaches nothing new");
        lab.receive(&[who_has_us(), announcement], 0);
        assert_eq!(lab.stack.neighbour(PEER.ip), Some(other));
        assert_eq!((lab.wire.sent().len(), lab.counters().of(FrameOutcome::Learned)), (1, 2));
    }
}

#[test]
fn a_ping_comes_back_as_it_was() {
    let mut lab = Lab::new();
    for payload in [&b""[..], b"x", b"0123456789abcdef", &[0xff; 1472]] {
        let mut request = ping(0x1234, 77, payload);
        request.resize(request.len().max(60), 0); // as Ethernet pads it
        lab.receive(&[request], 0);
        let sent = lab.wire.sent();
        let (ethernet, ip, icmp) = read_ipv4(&sent[0]);
        assert_eq!(ethernet.dst_addr(), EthernetAddress(PEER.mac));
        assert_eq!(ethernet.src_addr(), EthernetAddress(US.mac));
        assert_eq!((ip.src_addr, ip.dst_addr), (OURS, THEIRS));
        let packet = Icmpv4Packet::new_checked(icmp).unwrap();
        let reply = Icmpv4Repr::parse(&packet, &ChecksumCapabilities::default()).unwrap();
        assert_eq!(reply, Icmpv4Repr::EchoReply { ident: 0x1234, seq_no: 77, data: payload });
    }
    assert_eq!(lab.counters().answered(), 4);
}

#[test]
fn an_answer_that_the_queue_refuses_is_a_drop() {
    let mut lab = Lab::new();
    lab.wire.cut.store(true, Ordering::SeqCst);
    lab.receive(&[ping(1, 1, b""), who_has_us()], 0);
    assert_eq!(lab.counters().of(FrameOutcome::AnswerFailed), 2);
}

#[test]
fn a_datagram_reaches_its_port_and_no_other() {
    let mut lab = Lab::new();
    let echo = lab.stack.bind_udp(7, 8).unwrap();
    let other = lab.stack.bind_udp(9, 8).unwrap();
    assert_eq!(echo.receiver().incoming_napi_id(), 0);
    lab.receive(&[udp(7, b"hello"), udp(8, b"nobody")], 0);
    let datagram = echo.try_recv().unwrap();
    assert_eq!(datagram.payload(), b"hello");
    assert_eq!(datagram.source(), (PEER.ip, 4000).into());
    assert!(echo.try_recv().is_none());
    assert!(!other.readable());
    assert_eq!(Socket::incoming_napi_id(&echo), NAPI);
    let counters = lab.counters();
    assert_eq!((counters.delivered(), counters.of(FrameOutcome::NoPort)), (1, 1));
}

#[test]
fn an_echo_is_a_valid_datagram_back_to_its_sender() {
    let mut lab = Lab::new();
    let socket = lab.stack.bind_udp(7, 8).unwrap();
    for payload in [&b""[..], b"odd", b"even", &[0xff; 1472]] {
        lab.receive(&[udp(7, payload)], 0);
        socket.echo(socket.try_recv().unwrap(), 0).unwrap();
        lab.receive(&[udp(7, b"what?")], 0);
        socket.reply(socket.try_recv().unwrap(), payload, 0).unwrap();
        let sent = lab.wire.sent();
        assert_eq!(sent.len(), 2);
        for frame in &sent {
            let (ethernet, ip, udp, data) = read_udp(frame);
            assert_eq!(ethernet.dst_addr(), EthernetAddress(PEER.mac));
            assert_eq!((ip.src_addr, ip.dst_addr), (OURS, THEIRS));
            assert_eq!((udp.src_port, udp.dst_port), (7, 4000));
            assert_eq!(data, payload);
        }
    }
}

#[test]
fn to_speak_first_one_must_know_the_neighbour() {
    let mut lab = Lab::new();
    let socket = lab.stack.bind_udp(0, 8).unwrap();
    let to = (PEER.ip, 53).into();
    assert!(
        matches!(socket.send_to(b"q", to, 0), Err(SendError::NoNeighbour(ip)) if ip == PEER.ip)
    );
    lab.receive(&[who_has_us()], 0);
    lab.wire.sent();
    socket.send_to(b"question", to, 0).unwrap();
    let sent = lab.wire.sent();
    let (ethernet, _, udp, data) = read_udp(&sent[0]);
    assert_eq!(ethernet.dst_addr(), EthernetAddress(PEER.mac));
    assert_eq!((udp.src_port, udp.dst_port), (socket.port(), 53));
    assert_eq!(data, b"question");
    let long = [0; 4000];
    assert!(matches!(socket.send_to(&long, to, 0), Err(SendError::TooLong { .. })));
    lab.wire.cut.store(true, Ordering::SeqCst);
    assert!(matches!(socket.send_to(b"q", to, 0), Err(SendError::Queue(_))));
}

#[test]
fn one_answers_on_the_queue_that_asked() {
    let mut lab = Lab::new();
    let (mut second, second_wire) = lab.another_queue(514);
    let socket = lab.stack.bind_udp(7, 8).unwrap();
    second.deliver(&mut vec![lab.frame(&udp(7, b"there"))], 0);
    socket.echo(socket.try_recv().unwrap(), 0).unwrap();
    assert_eq!((lab.wire.sent().len(), second_wire.sent().len()), (0, 1));
    lab.receive(&[udp(7, b"here")], 0);
    socket.echo(socket.try_recv().unwrap(), 0).unwrap();
    assert_eq!((lab.wire.sent().len(), second_wire.sent().len()), (1, 0));
    // The queue that brought the datagram is gone: the answer leaves on the first remaining queue.
    second.deliver(&mut vec![lab.frame(&udp(7, b"there"))], 0);
    drop(second);
    socket.echo(socket.try_recv().unwrap(), 0).unwrap();
    assert_eq!(lab.wire.sent().len(), 1);
    let before = lab.counters();
    drop(lab.input);
    assert_eq!(lab.stack.counters(), before);
    assert!(matches!(lab.stack.resolve(PEER.ip, 0), Err(SendError::NoQueue)));
}

#[test]
fn every_fate_can_be_met_and_is_counted_under_its_own_name() {
    // One host with both families in no VLAN, one with IPv4 only, one in a VLAN.
    let mut labs = [Lab::new(), Lab::of(US), Lab::of(Addresses::from(US).in_vlan(100).unwrap())];
    let _sockets = labs.each_ref().map(|lab| lab.stack.bind_udp(7, 1).unwrap());
    let changed = |at: usize, bytes: &[u8]| {
        let mut frame = udp(7, b"hello");
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    let mended = |at: usize, byte: u8| {
        let mut frame = changed(at, &[byte]);
        Ipv4Packet::new_unchecked(&mut frame[14..]).fill_checksum();
        frame
    };
    let next_header = |next: u8| {
        let mut frame = datagram(from_peer6(), 7, b"hello");
        frame[20] = next;
        frame
    };
    let too_big = || {
        let mut frame = echo(from_peer6(), 1, 1, b"");
        frame[54] = 2;
        let (from, to) = ("fd00::2".parse().unwrap(), "fd00::1".parse().unwrap());
        Icmpv6Packet::new_unchecked(&mut frame[54..]).fill_checksum(&from, &to);
        frame
    };
    for (fate, lab, frame) in [
        (FrameOutcome::Delivered, 0, udp(7, b"hello")),
        (FrameOutcome::SocketFull, 0, udp(7, b"hello")),
        (FrameOutcome::AnsweredArp, 0, who_has_us()),
        (FrameOutcome::AnsweredNdisc, 0, built(128, |buffer| from_peer6().request(buffer))),
        (FrameOutcome::AnsweredPing, 0, ping(1, 1, b"hello")),
        (FrameOutcome::Learned, 0, built(64, |buffer| from_peer().reply(buffer))),
        (FrameOutcome::Truncated, 0, udp(7, b"hello")[..46].to_vec()),
        (FrameOutcome::BadLength, 0, changed(38, &[0, 7])),
        (FrameOutcome::BadHeader, 0, changed(14, &[0x65])),
        (FrameOutcome::BadChecksum, 0, changed(42, b"j")),
        (FrameOutcome::BadSource, 0, changed(6, &[3])),
        (FrameOutcome::Ipv6, 1, datagram(from_peer6(), 7, b"hello")),
        (FrameOutcome::Multicast, 0, changed(0, &[1, 0, 0x5e, 0, 0, 0xfb])),
        (FrameOutcome::NotForUs, 0, changed(0, &[4])),
        (FrameOutcome::Vlan, 0, datagram(from_peer().tagged(100), 7, b"hello")),
        (FrameOutcome::Untagged, 2, udp(7, b"hello")),
        (FrameOutcome::IpOptions, 0, mended(14, 0x46)),
        (FrameOutcome::ExtensionHeader, 0, next_header(0)),
        (FrameOutcome::Fragment, 0, next_header(44)),
        (FrameOutcome::PacketTooBig, 0, too_big()),
        (FrameOutcome::UnknownProtocol, 0, mended(23, 132)),
        (FrameOutcome::NoPort, 0, udp(8, b"hello")),
        (FrameOutcome::AnswerFailed, 0, ping(1, 1, b"hello")),
    ] {
        let lab = &mut labs[lab];
        lab.wire.cut.store(fate == FrameOutcome::AnswerFailed, Ordering::SeqCst);
        lab.receive(&[frame], 0);
        assert_eq!(lab.counters().of(fate), 1, "{}", fate.name());
    }
    let counters = labs.map(|lab| lab.counters());
    assert!(
        FrameOutcome::ALL
            .iter()
            .all(|fate| counters.iter().map(|it| it.of(*fate)).sum::<u64>() == 1)
    );
    assert_eq!((counters[0].malformed(), counters[0].dropped()), (4, 16));
}

#[test]
fn a_raw_socket_takes_whole_frames_before_anybody_else() {
    let mut lab = Lab::new();
    let bound = lab.stack.bind_udp(7, 8).unwrap();
    let port = lab.stack.open_raw(RawFilter::UdpPort(7), 8).unwrap();
    let arp = lab.stack.open_raw(RawFilter::EtherType(0x0806), 8).unwrap();
    let mut corrupt = udp(7, b"corrupt");
    corrupt[45] ^= 1;
    lab.receive(&[udp(7, b"raw"), who_has_us(), corrupt.clone(), ping(1, 1, b"")], 0);
    assert_eq!(&port.try_recv().unwrap()[..], &udp(7, b"raw")[..]);
    assert_eq!(&port.try_recv().unwrap()[..], &corrupt[..]);
    assert_eq!(&arp.try_recv().unwrap()[..], &who_has_us()[..]);
    assert!(!bound.readable());
    let all = lab.stack.open_raw(RawFilter::All, 8).unwrap();
    lab.receive(&[ping(1, 1, b""), vec![], vec![1]], 0);
    assert_eq!(&all.try_recv().unwrap()[..], &ping(1, 1, b"")[..]);
    drop((port, all));
    lab.receive(&[udp(7, b"cooked")], 0);
    assert_eq!(bound.try_recv().unwrap().payload(), b"cooked");
    let counters = lab.counters();
    assert_eq!((counters.delivered(), counters.answered()), (7, 1));
}

#[test]
fn a_raw_udp_frame_can_be_turned_round() {
    let mut lab = Lab::new();
    let raw = lab.stack.open_raw(RawFilter::UdpPort(7), 8).unwrap();
    let mut padded = udp(7, b"raw");
    padded.resize(60, 0xaa);
    let mut lying = udp(7, b"raw");
    lying[38..40].copy_from_slice(&500u16.to_be_bytes());
    lab.receive(&[padded, lying.clone(), lying], 0);
    raw.reply_in_place(raw.try_recv().unwrap(), 0).unwrap();
    let sent = lab.wire.sent();
    let (_, ip, udp, data) = read_udp(&sent[0]);
    assert_eq!((ip.dst_addr, udp.dst_port, data), (THEIRS, 4000, &b"raw"[..]));
    assert_eq!(sent[0], &sent[0][..14 + 20 + 8 + 3], "without the padding");
    let lying = raw.try_recv().unwrap();
    assert!(matches!(raw.reply_in_place(lying, 0), Err(SendError::Unanswerable)));
    let lying = raw.try_recv().unwrap();
    assert!(matches!(raw.reply_with(lying, b"x", 0), Err(SendError::Unanswerable)));
}

#[test]
fn the_narrowest_filter_takes_the_frame_whichever_was_first() {
    let filters = [RawFilter::All, RawFilter::EtherType(0x0800), RawFilter::UdpPort(7)];
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let mut lab = Lab::new();
        let mut raw: Vec<_> =
            order.map(|at| (at, lab.stack.open_raw(filters[at], 8).unwrap())).into();
        raw.sort_by_key(|(at, _)| *at);
        lab.receive(&[udp(7, b"a port"), udp(8, b"a protocol"), who_has_us()], 0);
        for ((_, raw), frame) in
            raw.iter().zip([who_has_us(), udp(8, b"a protocol"), udp(7, b"a port")])
        {
            assert!(raw.readable());
            assert_eq!(&raw.try_recv().unwrap()[..], &frame[..], "{order:?}");
            assert!(!raw.readable());
        }
    }
}

#[test]
fn a_raw_socket_sends_what_it_is_given() {
    let lab = Lab::new();
    let raw = lab.stack.open_raw(RawFilter::All, 8).unwrap();
    raw.send(&who_has_us(), 0).unwrap();
    assert_eq!(lab.wire.sent(), [who_has_us()]);
    lab.wire.cut.store(true, Ordering::SeqCst);
    assert!(raw.send(&who_has_us(), 0).is_err());
}

/// Uses a socket as a service does: receives messages, echoes them and replies to them.
fn exchanged<S: Socket + Exchange>(lab: &mut Lab, socket: &S, payload: &[u8]) {
    assert!(!socket.readable());
    assert_eq!(socket.receiver().capacity(), 8);
    let mut frames: Vec<_> = (0..3).map(|_| lab.frame(&udp(7, b"asked"))).collect();
    frames.iter_mut().for_each(|frame| frame.set_arrived(77));
    lab.input.deliver(&mut frames, 100);
    assert!(socket.readable());
    let message = socket.try_recv().expect("a message");
    assert_eq!(message.payload(), payload);
    assert_eq!((message.arrived(), message.ports()), (77, Some((4000, 7))));
    socket.echo(message, 0).expect("sent");
    socket.reply(socket.try_recv().expect("another"), b"answer", 0).expect("sent");
    let sent = lab.wire.sent();
    let data: Vec<_> = sent.iter().map(|frame| read_udp(frame)).collect();
    let to: Vec<_> = data.iter().map(|(_, ip, udp, _)| (ip.dst_addr, udp.dst_port)).collect();
    assert_eq!(to, [(THEIRS, 4000); 2]);
    assert_eq!((data[0].3, data[1].3), (&b"asked"[..], &b"answer"[..]));
    lab.wire.cut.store(true, Ordering::SeqCst);
    let last = socket.try_recv().expect("the third");
    assert!(socket.echo(last, 0).is_err());
    assert!(socket.try_recv().is_none());
}

#[test]
fn a_service_sees_the_same_of_either_socket() {
    let mut lab = Lab::new();
    assert_eq!(lab.input.napi_id(), NAPI);
    let socket = lab.stack.bind_udp(7, 8).unwrap();
    exchanged(&mut lab, &socket, b"asked");
    let mut lab = Lab::new();
    let socket = lab.stack.open_raw(RawFilter::UdpPort(7), 8).unwrap();
    exchanged(&mut lab, &socket, &udp(7, b"asked"));
}

#[test]
fn ports_and_filters_are_given_once_and_given_back() {
    let lab = Lab::new();
    let first = lab.stack.bind_udp(7, 1).unwrap();
    let taken = BindError::InUse(Resource::Port(7));
    assert_eq!(lab.stack.bind_udp(7, 1).unwrap_err(), taken);
    drop(first);
    let _again = lab.stack.bind_udp(7, 1).unwrap();
    let _all = lab.stack.open_raw(RawFilter::All, 1).unwrap();
    assert!(lab.stack.open_raw(RawFilter::All, 1).is_err());
    assert_eq!(lab.stack.bind_udp(8, 0).unwrap_err(), BindError::Capacity(0));
    assert!(lab.stack.bind_udp(8, usize::MAX).is_err());
    let some = lab.stack.bind_udp(0, 1).unwrap();
    assert_ne!(lab.stack.bind_udp(0, 1).unwrap().port(), some.port());
    let raw: Vec<_> =
        (0..15).map(|port| lab.stack.open_raw(RawFilter::UdpPort(port), 1).unwrap()).collect();
    assert_eq!(
        lab.stack.open_raw(RawFilter::UdpPort(99), 1).unwrap_err(),
        BindError::TooMany { limit: 16 }
    );
    drop(raw);
    assert!(lab.stack.open_raw(RawFilter::UdpPort(99), 1).is_ok());
}

#[test]
fn a_socket_closes_while_frames_come() {
    let mut lab = Lab::new();
    let listener = Arc::new(RecordingListener::default());
    let socket = lab.stack.bind_udp(7, 8).unwrap();
    socket.receiver().set_listener(listener.clone());
    lab.receive(&vec![udp(7, b"x"); 3], 0);
    assert_eq!(listener.readable(), [NAPI]);
    let receiver = Arc::clone(socket.receiver());
    drop(socket);
    assert_eq!(listener.readable(), [NAPI]);
    assert!(receiver.is_closed() && !receiver.readable());
    assert_eq!(lab.pool.available(), 256);
    lab.receive(&vec![udp(7, b"x"); 2], 0);
    assert_eq!(lab.counters().of(FrameOutcome::NoPort), 2);
    // The queue has released the receiver as well, and the next socket is not mistaken for it.
    assert_eq!(Arc::strong_count(&receiver), 1);
    let next = lab.stack.bind_udp(7, 8).unwrap();
    lab.receive(&[udp(7, b"y")], 0);
    assert_eq!(next.try_recv().unwrap().payload(), b"y");
}
