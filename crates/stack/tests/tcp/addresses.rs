//! Ethernet destinations of answers: addresses that change, several addresses of ours, paths beyond the link.

use super::*;

/// Delivers the client's frames with the source address `mac`; returns the destinations of the answers.
fn answered_to(net: &mut Net<Sender, Echo>, mac: [u8; 6]) -> Vec<[u8; 6]> {
    let mut sent: Vec<Vec<u8>> = net.client.out.0.lock().unwrap().drain(..).collect();
    sent.iter_mut().for_each(|frame| frame[6..12].copy_from_slice(&mac));
    net.now += MILLISECOND;
    net.server.deliver(&sent, net.now);
    let answered: Vec<Vec<u8>> = net.server.out.0.lock().unwrap().drain(..).collect();
    let to = answered.iter().map(|frame| *frame.first_chunk().expect("a header")).collect();
    // Whichever router that is forwards them to the client.
    let pass = |mut frame: Vec<u8>| {
        frame[..6].copy_from_slice(&CLIENT.mac);
        frame
    };
    net.client.deliver(&answered.into_iter().map(pass).collect::<Vec<_>>(), net.now);
    to
}

#[test]
fn a_peer_whose_ethernet_address_changes_is_followed_and_who_only_says_so_is_not() {
    for (v6, vlan) in [(false, false), (true, false), (true, true)] {
        let (client, server) = hosts(v6, vlan);
        let ends = (client.list()[0].ip.into(), server.list()[0].ip.into());
        let sides = ((client, Sender::of(90_000)), (server, Echo::default()));
        let mut net = Net::between(sides.0, sides.1, TcpLimits::default());
        net.connect();
        net.run(2);
        let (peer, other) = (CLIENT.mac, [2, 9, 9, 9, 9, 9]);
        assert!(answered_to(&mut net, peer).iter().all(|mac| *mac == peer));
        // A spoofed segment with the right ports and a guessed sequence number makes no progress.
        let guessed = net.client.out.0.lock().unwrap().front().cloned().expect("it sends");
        let tcp = 14 + if vlan { 4 } else { 0 } + if v6 { 40 } else { 20 };
        for _ in 0..3 {
            let mut guessed = guessed.clone();
            guessed[6..12].copy_from_slice(&other);
            guessed[tcp + 4..tcp + 8].copy_from_slice(&[9; 4]);
            let mut segment = smoltcp::wire::TcpPacket::new_unchecked(&mut guessed[tcp..]);
            segment.fill_checksum(&ends.0, &ends.1);
            net.server.deliver(&[guessed], net.now);
            let answered: Vec<Vec<u8>> = net.server.out.0.lock().unwrap().drain(..).collect();
            assert!(answered.iter().all(|frame| frame[..6] == peer), "{answered:02x?}");
        }
        assert_eq!(net.server.stack.counters().of(FrameOutcome::BadChecksum), 0);
        // Two rounds of the peer's own segments, by another router.
        answered_to(&mut net, other);
        answered_to(&mut net, other);
        let answers = answered_to(&mut net, other);
        assert!(!answers.is_empty() && answers.iter().all(|mac| *mac == other), "{answers:02x?}");
    }
}

#[test]
fn who_asks_again_as_the_answer_went_to_his_old_address_is_followed() {
    let mut net = net(100);
    net.connect();
    net.run(2);
    let other = [2, 9, 9, 9, 9, 9];
    // The request comes by another router; the old one is gone, and frames sent to it are lost.
    let mut answers = Vec::new();
    for _ in 0..60 {
        net.client.deliver(&[], net.now);
        let mut sent: Vec<Vec<u8>> = net.client.out.0.lock().unwrap().drain(..).collect();
        sent.iter_mut().for_each(|frame| frame[6..12].copy_from_slice(&other));
        net.server.deliver(&sent, net.now);
        let answered: Vec<Vec<u8>> = net.server.out.0.lock().unwrap().drain(..).collect();
        answers.extend(answered.iter().map(|frame| frame[..6] == other));
        let come = answered.into_iter().filter(|frame| frame[..6] == other).map(|mut frame| {
            frame[..6].copy_from_slice(&CLIENT.mac);
            frame
        });
        net.client.deliver(&come.collect::<Vec<_>>(), net.now);
        net.now += 500 * MILLISECOND;
    }
    assert_eq!(answers.first(), Some(&false), "one request alone proves too little");
    assert_eq!(net.client.application.done, 1, "{answers:?}");
}

#[test]
fn two_addresses_of_ours_are_two_ends_to_the_same_peer() {
    let second = Ipv4Addr::new(10, 0, 0, 3);
    let both = Addresses::from(SERVER).with(second.into(), 24).unwrap();
    let mut server = Host::new(both, TcpLimits::default(), Echo::default());
    server.worker.listen(PORT).unwrap();
    server.deliver(&[syn(1_000), syn_to(second, 1_000)], 1);
    assert_eq!(server.worker.half_open(), 2);
    let answers: Vec<Vec<u8>> = server.out.0.lock().unwrap().drain(..).collect();
    let from: Vec<&[u8]> = answers.iter().map(|frame| &frame[26..30]).collect();
    assert_eq!(from, [&OURS.octets()[..], &second.octets()]);
}

#[test]
fn beyond_the_link_ipv6_keeps_to_what_every_path_carries() {
    // The server is in the client's network, but the client is behind a router for the server.
    let of = |mac, groups, prefix| Addresses::from(Address::v6(mac, groups, prefix));
    let server = || of(SERVER.mac, [0x2001, 0xdb8, 1, 0, 0, 0, 0, 1], 64);
    for (network, longest) in [(1, 1_500), (9, 1_280)] {
        let client = of(CLIENT.mac, [0x2001, 0xdb8, network, 0, 0, 0, 0, 2], 32);
        let ends = ((client, Sender::of(20_000)), (server(), Echo::default()));
        let mut net = Net::between(ends.0, ends.1, TcpLimits::default());
        net.connect();
        net.run(200);
        assert_eq!(net.client.application.done, 1);
        assert_eq!(net.longest, (14 + 1_500, 14 + longest));
    }
}

#[test]
fn beyond_the_link_an_ipv4_segment_may_be_cut_and_on_it_may_not() {
    for (network, beyond) in [(0, false), (9, true)] {
        // As above: the client is behind a router if the server's longer prefix makes it another network.
        let client = Addresses::from(Address::v4(CLIENT.mac, [10, 0, network, 2], 16));
        let ends = ((client, Sender::of(20_000)), (Addresses::from(SERVER), Echo::default()));
        let mut net = Net::between(ends.0, ends.1, TcpLimits::default());
        net.connect();
        let mut numbers = Vec::new();
        for _ in 0..200 {
            net.run(1);
            for frame in net.server.out.0.lock().unwrap().iter() {
                let ip: &[u8; 20] = frame[14..].first_chunk().expect("a header");
                assert_eq!(ip[6] & 0x40 == 0, beyond, "{ip:02x?}");
                numbers.push(u16::from_be_bytes([ip[4], ip[5]]));
            }
        }
        assert_eq!(net.client.application.done, 1);
        assert_eq!(net.longest, (14 + 1_500, 14 + 1_500));
        assert_eq!(net.client.stack.counters().of(FrameOutcome::BadChecksum), 0);
        assert!(numbers.len() > 10, "{numbers:?}");
        let own = numbers.windows(2).all(|two| two[1] == two[0].wrapping_add(1));
        assert!(if beyond { own } else { numbers.iter().all(|number| *number == 0) });
    }
}
