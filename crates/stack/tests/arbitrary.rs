//! Arbitrary frames: no panic, every frame accounted for, every buffer returned.

mod lab;

use lab::{Lab, PEER, US, US6, built, datagram, echo, from_peer, from_peer6};
use napkin_stack::{Addresses, FrameBuilder, RawFilter, RawSocket, UdpSocket};
use proptest::collection::vec;
use proptest::prelude::*;

const VLAN: u16 = 100;

/// Frames from a host of either family, in or out of a VLAN.
fn builder() -> impl Strategy<Value = FrameBuilder> {
    let tag = prop_oneof![Just(None), Just(Some(0xe000)), Just(Some(VLAN)), Just(Some(101))];
    (any::<bool>(), tag)
        .prop_map(|(v6, tag)| FrameBuilder { tag, ..if v6 { from_peer6() } else { from_peer() } })
}

/// A frame that the stack would accept, before it is harmed.
fn valid() -> impl Strategy<Value = Vec<u8>> {
    let payload = || vec(any::<u8>(), 0..64);
    let port = prop_oneof![Just(7), Just(8), Just(9)];
    prop_oneof![
        (builder(), port, payload()).prop_map(|(build, port, p)| datagram(build, port, &p)),
        (builder(), any::<u16>(), any::<u16>(), payload())
            .prop_map(|(build, i, s, p)| echo(build, i, s, &p)),
        builder().prop_map(|build| built(128, |buffer| build.request(buffer))),
        builder().prop_map(|build| built(128, |buffer| build.reply(buffer))),
    ]
}

/// Damage to a frame in transit.
#[derive(Debug, Clone)]
enum Harm {
    Cut(prop::sample::Index),
    Pad(usize),
    Flip(prop::sample::Index, u8),
    /// Overwrites a 16-bit field; most of them are lengths, ports and checksums.
    Field(prop::sample::Index, u16),
    /// Corrects the checksums, so that the fields that they cover are parsed.
    Mend,
}

fn harm() -> impl Strategy<Value = Harm> {
    prop_oneof![
        any::<prop::sample::Index>().prop_map(Harm::Cut),
        (0usize..64).prop_map(Harm::Pad),
        (any::<prop::sample::Index>(), 1u8..).prop_map(|(at, bits)| Harm::Flip(at, bits)),
        (any::<prop::sample::Index>(), any::<u16>()).prop_map(|(at, v)| Harm::Field(at, v)),
        Just(Harm::Mend),
    ]
}

fn inflict(mut frame: Vec<u8>, harms: &[Harm]) -> Vec<u8> {
    for harm in harms {
        match harm {
            Harm::Cut(at) => frame.truncate(at.index(frame.len() + 1)),
            Harm::Pad(bytes) => frame.resize(frame.len() + bytes, 0x5a),
            Harm::Flip(at, bits) if !frame.is_empty() => {
                let at = at.index(frame.len());
                frame[at] ^= bits;
            }
            Harm::Field(at, value) if frame.len() >= 16 => {
                let at = 12 + 2 * at.index((frame.len() - 14) / 2);
                frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
            }
            Harm::Mend => mend(&mut frame),
            _ => {}
        }
    }
    frame
}

/// Corrects the checksum of IPv4 or of ICMPv6.
fn mend(frame: &mut [u8]) {
    use smoltcp::wire::{Icmpv6Packet, Ipv4Packet, Ipv6Packet};
    let start = if frame.get(12..14) == Some(&[0x81, 0]) { 18 } else { 14 };
    let Some(ip) = frame.get_mut(start..) else { return };
    match ip.first().map(|it| it >> 4) {
        Some(4) => {
            let header = 4 * usize::from(ip[0] & 15);
            if (20..=ip.len()).contains(&header) {
                Ipv4Packet::new_unchecked(ip).fill_checksum();
            }
        }
        Some(6) if ip.len() >= 44 && ip[6] == 58 => {
            let packet = Ipv6Packet::new_unchecked(&*ip);
            let (from, to, total) = (packet.src_addr(), packet.dst_addr(), packet.total_len());
            if let Some(icmp) = ip.get_mut(40..total).filter(|it| it.len() >= 4) {
                Icmpv6Packet::new_unchecked(icmp).fill_checksum(&from, &to);
            }
        }
        _ => {}
    }
}

/// Sockets of every kind. They also answer what they receive: answering must not panic either.
struct Sockets {
    udp: [UdpSocket; 2],
    raw: Option<RawSocket>,
}

fn run(batches: &[Vec<Vec<u8>>], filter: Option<RawFilter>, vlan: bool) -> (Lab, Sockets) {
    let us = Addresses::from(US).with(US6.ip, US6.prefix).unwrap();
    let mut lab = Lab::of(if vlan { us.in_vlan(VLAN).unwrap() } else { us });
    let udp = [7, 8].map(|port| lab.stack.bind_udp(port, 3).unwrap());
    let raw = filter.map(|filter| lab.stack.open_raw(filter, 3).unwrap());
    let sockets = Sockets { udp, raw };
    for (now, batch) in batches.iter().enumerate() {
        lab.receive(batch, now as u64);
        for socket in &sockets.udp {
            if let Some(datagram) = socket.try_recv() {
                let _ = socket.echo(datagram, 0);
            }
            if let Some(datagram) = socket.try_recv() {
                let _ = socket.reply(datagram, b"answer", 0);
            }
        }
        if let Some(raw) = &sockets.raw {
            if let Some(frame) = raw.try_recv() {
                let _ = raw.reply_in_place(frame, 0);
            }
            if let Some(frame) = raw.try_recv() {
                let _ = raw.reply_with(frame, b"answer", 0);
            }
        }
    }
    (lab, sockets)
}

fn check(batches: &[Vec<Vec<u8>>], filter: Option<RawFilter>, vlan: bool) {
    let (lab, sockets) = run(batches, filter, vlan);
    let counters = lab.counters();
    assert_eq!(counters.frames, batches.iter().map(Vec::len).sum::<usize>() as u64);
    drop(sockets);
    drop(lab.input);
    assert_eq!(lab.pool.available(), 256);
}

fn filter() -> impl Strategy<Value = Option<RawFilter>> {
    prop_oneof![
        4 => Just(None),
        1 => Just(Some(RawFilter::UdpPort(8))),
        1 => Just(Some(RawFilter::EtherType(0x0800))),
        1 => Just(Some(RawFilter::All)),
    ]
}

/// Bytes that pass the Ethernet header's checks.
fn plausible() -> impl Strategy<Value = Vec<u8>> {
    let ether_type = prop_oneof![
        Just(vec![8, 0]),
        Just(vec![8, 6]),
        Just(vec![0x86, 0xdd]),
        Just(vec![0x81, 0, 0, VLAN as u8, 0x86, 0xdd]),
        vec(any::<u8>(), 2..7),
    ];
    let group = [0x33, 0x33, 0xff, 0, 0, 1];
    let to = prop_oneof![Just(US.mac), Just([0xff; 6]), Just(group), any::<[u8; 6]>()];
    (to, ether_type, vec(any::<u8>(), 0..80))
        .prop_map(|(to, ether_type, rest)| [&to[..], &PEER.mac, &ether_type, &rest].concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn arbitrary_bytes(
        batches in vec(vec(prop_oneof![vec(any::<u8>(), 0..128), plausible()], 0..8), 1..4),
        filter in filter(), vlan in any::<bool>(),
    ) {
        check(&batches, filter, vlan);
    }

    #[test]
    fn harmed_frames(
        batches in vec(vec((valid(), vec(harm(), 0..4)), 0..8), 1..4),
        filter in filter(), vlan in any::<bool>(),
    ) {
        let harmed: Vec<Vec<Vec<u8>>> = batches
            .into_iter()
            .map(|batch| batch.into_iter().map(|(frame, harms)| inflict(frame, &harms)).collect())
            .collect();
        check(&harmed, filter, vlan);
    }

    #[test]
    fn what_is_delivered_is_what_was_sent(
        payload in vec(any::<u8>(), 0..1473), pad in 0usize..20, build in builder(),
    ) {
        let vlan = build.tag.filter(|tag| *tag != 0xe000);
        let us = Addresses::from(US).with(US6.ip, US6.prefix).unwrap();
        let mut lab = Lab::of(vlan.map_or(us.clone(), |vlan| us.in_vlan(vlan).unwrap()));
        let socket = lab.stack.bind_udp(7, 1).unwrap();
        let mut frame = datagram(build, 7, &payload);
        frame.resize(frame.len() + pad, 0xee);
        lab.receive(&[frame], 5);
        let datagram = socket.try_recv().expect("it was valid");
        prop_assert_eq!(datagram.payload(), &payload[..]);
    }
}
