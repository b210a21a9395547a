//! Whatever comes from the wire: no panic, no frame unaccounted for, no buffer lost.

mod lab;

use lab::{Lab, PEER, ping, udp, who_has_us};
use napkin_stack::{RawFilter, RawSocket, UdpSocket};
use proptest::collection::vec;
use proptest::prelude::*;

/// A frame that the stack would take, before anything happens to it.
fn valid() -> impl Strategy<Value = Vec<u8>> {
    let payload = || vec(any::<u8>(), 0..64);
    prop_oneof![
        (prop_oneof![Just(7), Just(8), Just(9)], payload()).prop_map(|(port, p)| udp(port, &p)),
        (any::<u16>(), any::<u16>(), payload()).prop_map(|(i, s, p)| ping(i, s, &p)),
        Just(who_has_us()),
    ]
}

/// What can happen to a frame on its way.
#[derive(Debug, Clone)]
enum Harm {
    Cut(prop::sample::Index),
    Pad(usize),
    Flip(prop::sample::Index, u8),
    /// A 16-bit field, most of which are lengths, ports and checksums.
    Field(prop::sample::Index, u16),
    /// The header checksum is made right again, so that what it protects is looked at.
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
            Harm::Mend if frame.len() >= 34 => {
                let header = 4 * usize::from(frame[14] & 15);
                if (20..=frame.len() - 14).contains(&header) {
                    let mut packet = smoltcp::wire::Ipv4Packet::new_unchecked(&mut frame[14..]);
                    packet.fill_checksum();
                }
            }
            _ => {}
        }
    }
    frame
}

/// Sockets of every kind, which also answer what they get: answering must not panic either.
struct Sockets {
    udp: [UdpSocket; 2],
    raw: Option<RawSocket>,
}

fn run(batches: &[Vec<Vec<u8>>], filter: Option<RawFilter>) -> (Lab, Sockets) {
    let mut lab = Lab::new();
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

fn check(batches: &[Vec<Vec<u8>>], filter: Option<RawFilter>) {
    let (lab, sockets) = run(batches, filter);
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

/// Bytes that get past the Ethernet header.
fn plausible() -> impl Strategy<Value = Vec<u8>> {
    let ether_type = prop_oneof![Just([8, 0]), Just([8, 6]), any::<[u8; 2]>()];
    let to = prop_oneof![Just(lab::US.mac), Just([0xff; 6]), any::<[u8; 6]>()];
    (to, ether_type, vec(any::<u8>(), 0..80))
        .prop_map(|(to, ether_type, rest)| [&to[..], &PEER.mac, &ether_type, &rest].concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn arbitrary_bytes(
        batches in vec(vec(prop_oneof![vec(any::<u8>(), 0..128), plausible()], 0..8), 1..4),
        filter in filter(),
    ) {
        check(&batches, filter);
    }

    #[test]
    fn harmed_frames(
        batches in vec(vec((valid(), vec(harm(), 0..4)), 0..8), 1..4),
        filter in filter(),
    ) {
        let harmed: Vec<Vec<Vec<u8>>> = batches
            .into_iter()
            .map(|batch| batch.into_iter().map(|(frame, harms)| inflict(frame, &harms)).collect())
            .collect();
        check(&harmed, filter);
    }

    #[test]
    fn what_is_delivered_is_what_was_sent(payload in vec(any::<u8>(), 0..1473), pad in 0usize..20) {
        let mut lab = Lab::new();
        let socket = lab.stack.bind_udp(7, 1).unwrap();
        let mut frame = udp(7, &payload);
        frame.resize(frame.len() + pad, 0xee);
        lab.receive(&[frame], 5);
        let datagram = socket.try_recv().expect("it was valid");
        prop_assert_eq!(datagram.payload(), &payload[..]);
    }
}
