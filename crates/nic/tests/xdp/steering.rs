//! Tests of which frames the XDP program redirects, and which stay with the kernel.

use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::Duration;

use napkin_nic::xdp::{Mode, XdpConfig};
use napkin_nic::{Frame, PacketQueue, Pool, SendError};
use napkin_testing::test;

use crate::lab::{Engine, Lab, OURS, OURS6, THEIRS, open, ports, small};

/// The datagram sent back to its source, with another payload.
fn answer(frame: &Frame, text: &[u8; 3]) -> Vec<u8> {
    let mut back = frame.to_vec();
    back[..6].copy_from_slice(&frame[6..12]);
    back[6..12].copy_from_slice(&frame[..6]);
    back[26..30].copy_from_slice(&frame[30..34]);
    back[30..34].copy_from_slice(&frame[26..30]);
    back[34..36].copy_from_slice(&frame[36..38]);
    back[36..38].copy_from_slice(&frame[34..36]);
    // A UDP checksum of 0 means none.
    back[40..42].fill(0);
    back[42..45].copy_from_slice(text);
    back
}

fn echo_over(mode: Mode) {
    let lab = Lab::new(1);
    // The kernel's own socket, beside the program.
    let kernels = UdpSocket::bind((OURS, 9)).expect("the address is there");
    kernels.set_read_timeout(Some(Duration::from_secs(10))).expect("it may");
    let config = XdpConfig { mode, ..small(ports(&[7, 22_122])) };
    let mut xdp = open(&config, &Pool::new(512)).expect("a device");
    assert_eq!((xdp.native, xdp.zero_copy), (mode != Mode::Generic, false));
    assert_eq!((xdp.driver.as_str(), &xdp.numbers[..]), ("veth", &[0][..]));
    let mut engine = Engine::new(xdp.queues.remove(0));
    engine.unmask();

    let client = lab.socket();
    for round in 0..200 {
        client.send_to(b"out", (OURS, 7)).expect("the kernel answers its ARP");
        assert!(engine.sleeps(10_000), "an interrupt in round {round}");
        // Masked: no further interrupt comes, whatever arrives.
        client.send_to(b"two", (OURS, 7)).expect("sent");
        assert!(!engine.sleeps(0), "it is masked");
        for text in [b"out", b"two"] {
            let frame = engine.next(|_| true);
            assert_eq!((&frame[42..45], frame.arrived()), (&text[..], 7), "round {round}");
            let back = answer(&frame, b"in!");
            engine.queue.transmitter().send(&back, 8).expect("room");
            let mut read = [0; 8];
            let (length, from) = client.recv_from(&mut read).expect("the answer came");
            assert_eq!((&read[..length], from), (&b"in!"[..], (OURS, 7).into()));
        }
        engine.unmask();
        // The interrupt may be for a link notification, without a frame.
        for _ in 0..10 {
            if !engine.sleeps(0) {
                break;
            }
            assert_eq!(engine.queue.poll(64, 0, &mut engine.frames).rx, 0, "nothing is left");
            engine.unmask();
        }
    }
    client.send_to(b"ssh", (OURS, 9)).expect("sent");
    let mut read = [0; 8];
    let (length, from) = kernels.recv_from(&mut read).expect("the kernel has its own");
    assert_eq!((&read[..length], from.ip()), (&b"ssh"[..], THEIRS.into()));
    kernels.send_to(b"yes", from).expect("sent");
    assert_eq!(client.recv_from(&mut read).expect("and answers").0, 3);

    let counts = engine.queue.counters().read();
    assert_eq!((counts.rx_packets, counts.tx_packets, counts.rx_dropped()), (400, 400, 0));
    assert!(counts.interrupts_rx >= 200);
    assert_eq!(engine.queue.transmitter().send(&[0; 13], 9), Err(SendError::TooShort));
}

#[test]
fn datagrams_to_a_port_are_ours_in_the_driver_and_all_else_is_the_kernel_s() {
    echo_over(Mode::Auto);
}

#[test]
fn datagrams_to_a_port_are_ours_behind_the_driver_and_all_else_is_the_kernel_s() {
    echo_over(Mode::Generic);
}

#[test]
fn ports_of_ours_are_found_over_ipv4_and_ipv6_and_other_hosts_vlans_and_fragments_are_not_ours() {
    let lab = Lab::new(1);
    let peer = lab.peer_device();
    let wire = peer.queue.transmitter();
    let mut xdp = open(&small(ports(&[7])), &Pool::new(512)).expect("a device");
    let mut engine = Engine::new(xdp.queues.remove(0));
    let four_to = |to: Ipv4Addr, protocol: u8, fragment: u16, options: usize, port: u16| {
        let mut packet = vec![0x45 + options as u8, 0, 0, 60, 0, 0];
        packet.extend(fragment.to_be_bytes());
        packet.extend([64, protocol, 0, 0]);
        packet.extend(THEIRS.octets().iter().chain(&to.octets()));
        packet.extend(vec![1; 4 * options]);
        packet.extend([0x30, 0x39]);
        packet.extend(port.to_be_bytes());
        (vec![8, 0], packet)
    };
    let four = |protocol, fragment, options, port| four_to(OURS, protocol, fragment, options, port);
    let six_to = |to: Ipv6Addr, protocol: u8, port: u16| {
        let mut packet = vec![0x60, 0, 0, 0, 0, 20, protocol, 64];
        packet.extend([&[0xfe; 16][..], &to.octets()].concat());
        packet.extend([0x30, 0x39]);
        packet.extend(port.to_be_bytes());
        (vec![0x86, 0xdd], packet)
    };
    let six = |protocol, port| six_to(OURS6, protocol, port);
    let cases = [
        (four(17, 0, 0, 7), true),
        (four(6, 0, 0, 7), true),
        (four(17, 0x4000, 10, 7), true),
        (six(17, 7), true),
        (six(6, 7), true),
        // To another host, by way of this one.
        (four_to(Ipv4Addr::from_bits(OURS.to_bits() ^ 0x80), 17, 0, 0, 7), false),
        (six_to(Ipv6Addr::from_bits(OURS6.to_bits() ^ 1 << 127), 17, 7), false),
        (four(17, 0, 0, 8), false),
        (four(1, 0, 0, 7), false),
        (four(17, 0x2000, 0, 7), false),
        (four(17, 0x0001, 0, 7), false),
        (six(17, 8), false),
        (six(58, 7), false),
        ((vec![8, 6], vec![0; 40]), false),
    ];
    for (number, ((kind, packet), _)) in (0_u8..).zip(&cases) {
        let vlan = [[0x81, 0, 0, 5], [0x88, 0xa8, 0, 0]][usize::from(number % 2)];
        for tags in [&[][..], &[0x81, 0, 0xe0, 0], &vlan] {
            // To a multicast address, so that the kernel does not answer.
            let mut frame = vec![1, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, number];
            frame.extend(tags.iter().chain(kind).chain(packet));
            frame.resize(frame.len().max(60), 0);
            wire.post(&frame, 0).expect("room");
        }
    }
    wire.flush();
    let wanted: Vec<u8> =
        (0..).zip(&cases).filter(|case| case.1.1).flat_map(|(it, _)| [it; 2]).collect();
    let found: Vec<u8> = wanted.iter().map(|_| engine.next(|_| true)[11]).collect();
    assert_eq!(found, wanted);
    // Truncated within a header: passed to the kernel as well.
    for length in 14..34 {
        wire.send(
            &[&[1, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 0, 8, 0], &[0x45; 20][..length - 14]].concat(),
            0,
        )
        .expect("room");
    }
    let mut more = Vec::with_capacity(64);
    assert_eq!(engine.queue.poll(64, 0, &mut more).rx, 0);
    drop(peer.frames);
}
