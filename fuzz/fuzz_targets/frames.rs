//! Frames from Ethernet to TCP: whatever comes, nothing panics, every frame has one fate, every buffer comes
//! back, and the bounds on connections hold.
#![no_main]

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex};

use libfuzzer_sys::fuzz_target;
use napkin_nic::{Pool, SendError, Transmitter};
use napkin_stack::{Address, Addresses, ByteStream, Flow, Input, Stack, TcpApplication, TcpLimits};
use smoltcp::wire::{
    ArpPacket, EthernetFrame, EthernetProtocol, Icmpv4Packet, Icmpv6Packet, IpAddress, IpProtocol,
    Ipv4Packet, Ipv6Packet, TcpPacket, UdpPacket,
};

const US: Address = Address::v4([2, 0, 0, 0, 0, 1], [10, 0, 0, 1], 24);
const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const OURS6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const LIMITS: TcpLimits = TcpLimits {
    connections: 6,
    half_open: 3,
    receive_buffer: 512,
    send_buffer: 512,
    ..TcpLimits::DEFAULT
};

/// The last frame sent: what it acknowledges makes a peer's next one fit.
#[derive(Default)]
struct Wire(Mutex<Vec<u8>>);

impl Transmitter for Wire {
    fn send(&self, frame: &[u8], _: u64) -> Result<(), SendError> {
        // With a tag.
        assert!(frame.len() <= 1_518);
        *self.0.lock().expect("one thread") = frame.to_vec();
        Ok(())
    }
}

#[derive(Default)]
struct Echo;

impl TcpApplication for Echo {
    type State = Vec<u8>;

    fn opened(&mut self, _: Flow) -> Vec<u8> {
        Vec::new()
    }

    fn ready(&mut self, waiting: &mut Vec<u8>, stream: &mut impl ByteStream, _: u64) {
        stream.receive(waiting, 1_000 - waiting.len());
        let sent = stream.send(waiting);
        waiting.drain(..sent);
        if waiting.first() == Some(&b'!') {
            stream.abort();
        }
        if stream.ended() {
            stream.close();
        }
    }
}

/// The next so many bytes; fewer at the end.
fn take<'a>(data: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (taken, rest) = data.split_at(count.min(data.len()));
    *data = rest;
    taken
}

/// Bits of `kind`: IPv6, and a tag that says a priority.
const V6: u8 = 8;
const TAGGED: u8 = 16;

/// Where the TCP header of a frame begins.
fn tcp_at(frame: &[u8]) -> usize {
    let ip = if frame.get(12..14) == Some(&[0x81, 0]) { 18 } else { 14 };
    ip + if frame.get(ip).is_some_and(|it| it >> 4 == 6) { 40 } else { 20 }
}

/// A frame from a peer: headers that are in order, but for what `changes` says: place and byte.
fn frame(kind: u8, port: u8, changes: &[u8], payload: &[u8], wire: &Wire) -> Vec<u8> {
    let (v6, what) = (kind & V6 != 0, kind % 8);
    let ip_at = if kind & TAGGED != 0 { 18 } else { 14 };
    let header = match what {
        0 if v6 => 24,
        0 | 1 => 28,
        2 | 3 => 8,
        _ => 20,
    };
    let body_at = ip_at + if v6 { 40 } else { 20 };
    let mut bytes = vec![0; body_at + header + payload.len()];
    bytes[body_at + header..].copy_from_slice(payload);
    let mut ethernet = EthernetFrame::new_unchecked(&mut bytes);
    ethernet.set_dst_addr(smoltcp::wire::EthernetAddress(US.mac));
    ethernet.set_src_addr(smoltcp::wire::EthernetAddress([2, 0, 0, 0, 0, 2]));
    let protocol: u16 = match (what, v6) {
        (0, false) => 0x0806,
        (1, _) => 0,
        (_, false) => 0x0800,
        (_, true) => 0x86dd,
    };
    if kind & TAGGED != 0 {
        bytes[12..16].copy_from_slice(&[0x81, 0, 0xe0, 0]);
    }
    bytes[ip_at - 2..ip_at].copy_from_slice(&protocol.to_be_bytes());
    let length = (header + payload.len()) as u16;
    if protocol == 0x0806 {
        let mut arp = ArpPacket::new_unchecked(&mut bytes[ip_at..]);
        arp.set_hardware_type(smoltcp::wire::ArpHardware::Ethernet);
        arp.set_protocol_type(EthernetProtocol::Ipv4);
        arp.set_hardware_len(6);
        arp.set_protocol_len(4);
        arp.set_operation(smoltcp::wire::ArpOperation::from(u16::from(port % 3)));
        arp.set_target_protocol_addr(&OURS.octets());
        arp.set_source_protocol_addr(&[10, 0, 0, port]);
    } else if what != 1 {
        let next = match what {
            2 => IpProtocol::Udp,
            0 | 3 if v6 => IpProtocol::Icmpv6,
            3 => IpProtocol::Icmp,
            _ => IpProtocol::Tcp,
        };
        if v6 {
            let mut ip = Ipv6Packet::new_unchecked(&mut bytes[ip_at..]);
            ip.set_version(6);
            ip.set_payload_len(length);
            ip.set_hop_limit(255);
            ip.set_src_addr(Ipv6Addr::from_bits(OURS6.to_bits() + 1));
            ip.set_dst_addr(OURS6);
            ip.set_next_header(next);
        } else {
            let mut ip = Ipv4Packet::new_unchecked(&mut bytes[ip_at..]);
            ip.set_version(4);
            ip.set_header_len(20);
            ip.set_total_len(20 + length);
            ip.set_hop_limit(64);
            ip.set_src_addr(Ipv4Addr::new(10, 0, 0, 2));
            ip.set_dst_addr(OURS);
            ip.set_next_header(next);
        }
        let body = &mut bytes[body_at..];
        match what {
            // A solicitation for us, or an advertisement of a peer; the payload is its options.
            0 => {
                body[0] = 135 + (port & 1);
                body[4] = port & 0xe0;
                let target = OURS6.to_bits() + u128::from(port & 1);
                body[8..24].copy_from_slice(&target.to_be_bytes());
            }
            2 => {
                let mut udp = UdpPacket::new_unchecked(body);
                udp.set_src_port(u16::from(port));
                udp.set_dst_port(9);
                udp.set_len((8 + payload.len()) as u16);
            }
            3 => {
                body[0] = if v6 { 128 } else { 8 };
            }
            _ => {
                let mut tcp = TcpPacket::new_unchecked(body);
                tcp.set_header_len(20);
                tcp.set_src_port(1 + u16::from(port & 7));
                tcp.set_dst_port(7);
                tcp.set_window_len(300);
                match what {
                    4 => tcp.set_syn(true),
                    _ => {
                        // Fits what was sent last, if that was TCP.
                        let last = wire.0.lock().expect("one thread");
                        if let Some(Ok(last)) =
                            last.get(tcp_at(&last)..).map(TcpPacket::new_checked)
                        {
                            tcp.set_src_port(last.dst_port());
                            tcp.set_seq_number(last.ack_number());
                            let sent = last.payload().len()
                                + usize::from(last.syn())
                                + usize::from(last.fin());
                            tcp.set_ack_number(last.seq_number() + sent);
                        }
                        tcp.set_ack(true);
                        tcp.set_fin(what == 6);
                        tcp.set_rst(what == 7 && port & 8 != 0);
                    }
                }
            }
        }
    }
    for change in changes.as_chunks::<2>().0 {
        let at = usize::from(change[0]) % bytes.len();
        bytes[at] = change[1];
    }
    // The sums are right again, unless they are not to be.
    if kind & 0x80 == 0 {
        mend(&mut bytes[ip_at..], v6);
    }
    bytes
}

/// Makes the sums of an IP packet right, if it is one.
fn mend(packet: &mut [u8], v6: bool) {
    if v6 {
        let mut ip = Ipv6Packet::new_unchecked(packet);
        if ip.check_len().is_err() {
            return;
        }
        let (from, to, next) = (ip.src_addr(), ip.dst_addr(), ip.next_header());
        let body = ip.payload_mut();
        if next == IpProtocol::Icmpv6 && body.len() >= 4 {
            return Icmpv6Packet::new_unchecked(body).fill_checksum(&from, &to);
        }
        mend_transport(next, body, from.into(), to.into());
    } else {
        let mut ip = Ipv4Packet::new_unchecked(packet);
        if ip.check_len().is_ok() {
            ip.fill_checksum();
            let (from, to, next) = (ip.src_addr().into(), ip.dst_addr().into(), ip.next_header());
            mend_transport(next, ip.payload_mut(), from, to);
        }
    }
}

fn mend_transport(next: IpProtocol, body: &mut [u8], from: IpAddress, to: IpAddress) {
    match next {
        IpProtocol::Tcp => {
            let mut tcp = TcpPacket::new_unchecked(body);
            if tcp.check_len().is_ok() {
                tcp.fill_checksum(&from, &to);
            }
        }
        IpProtocol::Udp => {
            let mut udp = UdpPacket::new_unchecked(body);
            if udp.check_len().is_ok() {
                udp.fill_checksum(&from, &to);
            }
        }
        IpProtocol::Icmp => {
            let mut icmp = Icmpv4Packet::new_unchecked(body);
            if icmp.check_len().is_ok() {
                icmp.fill_checksum();
            }
        }
        _ => {}
    }
}

fuzz_target!(|data: &[u8]| {
    let both = Addresses::from(US).with(OURS6.into(), 64).expect("two addresses");
    let (stack, wire) = (Stack::new(both), Arc::<Wire>::default());
    let mut input = Input::new(Arc::clone(&stack), 1, wire.clone());
    let udp = stack.bind_udp(9, 4).expect("a free port");
    let mut worker = stack.open_tcp(None, LIMITS).expect("the first");
    worker.listen(7).expect("a free port");
    let pool = Pool::new(64);
    let (mut data, mut now) = (data, 1_000_000u64);
    while let [kind, port, sizes, rest @ ..] = data {
        data = rest;
        let changes = take(&mut data, usize::from(sizes & 3) * 2);
        let payload = take(&mut data, usize::from(sizes >> 2));
        let bytes = match kind % 64 {
            63 => payload.to_vec(),
            _ => frame(*kind, *port, changes, payload, &wire),
        };
        let mut frame = pool.take().expect("all are back but those of a socket");
        frame.buffer()[..bytes.len()].copy_from_slice(&bytes);
        frame.set_len(bytes.len());
        input.deliver(&mut vec![frame], now);
        worker.step(now, 64, &mut Echo);
        assert!(
            worker.connections() <= LIMITS.connections && worker.half_open() <= LIMITS.half_open
        );
        // Mostly a moment; now and then until somebody wants to be called.
        now += 1_000;
        if kind & 0x40 != 0 {
            now = now.max(worker.next_deadline().min(now + 1_000_000_000));
        }
        while udp.try_recv().is_some() {}
    }
    // A day later nothing is left, but who is kept for being there.
    for _ in 0..200 {
        now = now.max(worker.next_deadline().min(now + 600_000_000_000)) + 1;
        worker.step(now, 64, &mut Echo);
    }
    assert_eq!(worker.connections(), 0, "a peer that says nothing is kept");
    let counters = stack.counters();
    assert_eq!(counters.frames, counters.accounted(), "a frame without a fate");
    drop(worker);
    assert_eq!(pool.available(), 64, "a frame was lost");
});
