//! Frames from Ethernet to TCP: whatever comes, nothing panics, every frame has one fate, every buffer comes
//! back, and the bounds on connections hold.
#![no_main]

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use libfuzzer_sys::fuzz_target;
use napkin_nic::{Pool, SendError, Transmitter};
use napkin_stack::{Address, ByteStream, Flow, Input, Stack, TcpApplication, TcpLimits};
use smoltcp::wire::{
    ArpPacket, EthernetFrame, EthernetProtocol, Icmpv4Packet, IpProtocol, Ipv4Packet, TcpPacket,
    UdpPacket,
};

const US: Address =
    Address { mac: [2, 0, 0, 0, 0, 1], ipv4: Ipv4Addr::new(10, 0, 0, 1), prefix: 24 };
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
        assert!(frame.len() <= 1_514);
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

/// A frame from a peer: headers that are in order, but for what `changes` says: place and byte.
fn frame(kind: u8, port: u8, changes: &[u8], payload: &[u8], wire: &Wire) -> Vec<u8> {
    let header = match kind % 8 {
        0 | 1 => 28,
        2 => 8,
        3 => 8,
        _ => 20,
    };
    let mut bytes = vec![0; 34 + header + payload.len()];
    bytes[34 + header..].copy_from_slice(payload);
    let mut ethernet = EthernetFrame::new_unchecked(&mut bytes);
    ethernet.set_dst_addr(smoltcp::wire::EthernetAddress(US.mac));
    ethernet.set_src_addr(smoltcp::wire::EthernetAddress([2, 0, 0, 0, 0, 2]));
    if kind % 8 == 0 {
        ethernet.set_ethertype(EthernetProtocol::Arp);
        let mut arp = ArpPacket::new_unchecked(ethernet.payload_mut());
        arp.set_hardware_type(smoltcp::wire::ArpHardware::Ethernet);
        arp.set_protocol_type(EthernetProtocol::Ipv4);
        arp.set_hardware_len(6);
        arp.set_protocol_len(4);
        arp.set_operation(smoltcp::wire::ArpOperation::from(u16::from(port % 3)));
        arp.set_target_protocol_addr(&US.ipv4.octets());
        arp.set_source_protocol_addr(&[10, 0, 0, port]);
    } else if kind % 8 != 1 {
        ethernet.set_ethertype(EthernetProtocol::Ipv4);
        let mut ip = Ipv4Packet::new_unchecked(ethernet.payload_mut());
        ip.set_version(4);
        ip.set_header_len(20);
        ip.set_total_len((20 + header + payload.len()) as u16);
        ip.set_hop_limit(64);
        ip.set_src_addr(Ipv4Addr::new(10, 0, 0, 2));
        ip.set_dst_addr(US.ipv4);
        ip.set_next_header(match kind % 8 {
            2 => IpProtocol::Udp,
            3 => IpProtocol::Icmp,
            _ => IpProtocol::Tcp,
        });
        let body = ip.payload_mut();
        match kind % 8 {
            2 => {
                let mut udp = UdpPacket::new_unchecked(body);
                udp.set_src_port(u16::from(port));
                udp.set_dst_port(9);
                udp.set_len((8 + payload.len()) as u16);
            }
            3 => {
                body[0] = 8;
            }
            _ => {
                let mut tcp = TcpPacket::new_unchecked(body);
                tcp.set_header_len(20);
                tcp.set_src_port(1 + u16::from(port & 7));
                tcp.set_dst_port(7);
                tcp.set_window_len(300);
                match kind % 8 {
                    4 => tcp.set_syn(true),
                    _ => {
                        // Fits what was sent last, if that was TCP.
                        let last = wire.0.lock().expect("one thread");
                        if let Some(Ok(last)) = last.get(34..).map(TcpPacket::new_checked) {
                            tcp.set_src_port(last.dst_port());
                            tcp.set_seq_number(last.ack_number());
                            let sent = last.payload().len()
                                + usize::from(last.syn())
                                + usize::from(last.fin());
                            tcp.set_ack_number(last.seq_number() + sent);
                        }
                        tcp.set_ack(true);
                        tcp.set_fin(kind % 8 == 6);
                        tcp.set_rst(kind % 8 == 7 && port & 8 != 0);
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
        let mut ip = Ipv4Packet::new_unchecked(&mut bytes[14..]);
        if ip.check_len().is_ok() {
            ip.fill_checksum();
            let (from, to) = (ip.src_addr().into(), ip.dst_addr().into());
            match ip.next_header() {
                IpProtocol::Tcp => {
                    let mut tcp = TcpPacket::new_unchecked(ip.payload_mut());
                    if tcp.check_len().is_ok() {
                        tcp.fill_checksum(&from, &to);
                    }
                }
                IpProtocol::Udp => {
                    let mut udp = UdpPacket::new_unchecked(ip.payload_mut());
                    if udp.check_len().is_ok() {
                        udp.fill_checksum(&from, &to);
                    }
                }
                IpProtocol::Icmp => {
                    let mut icmp = Icmpv4Packet::new_unchecked(ip.payload_mut());
                    if icmp.check_len().is_ok() {
                        icmp.fill_checksum();
                    }
                }
                _ => {}
            }
        }
    }
    bytes
}

fuzz_target!(|data: &[u8]| {
    let (stack, wire) = (Stack::new(US), Arc::<Wire>::default());
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
