//! Where answers go: Ethernet addresses that change, several of ours, and paths beyond the link.

use super::*;

/// Delivers what the client has sent as if it came from `mac`; returns where the answers go.
fn answered_to(net: &mut Net<Sender, Echo>, mac: [u8; 6]) -> Vec<[u8; 6]> {
    let mut sent: Vec<Vec<u8>> = net.client.out.0.lock().unwrap().drain(..).collect();
    sent.iter_mut().for_each(|frame| frame[6..12].copy_from_slice(&mac));
    net.now += MILLISECOND;
    net.server.deliver(&sent, net.now);
    let answered: Vec<Vec<u8>> = net.server.out.0.lock().unwrap().drain(..).collect();
    let to = answered.iter().map(|frame| *frame.first_chunk().expect("a header")).collect();
    // Whoever that is passes them on.
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
        // Somebody who knows the ports and guesses the rest: nothing of it moves the connection on.
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
        assert_eq!(net.server.stack.counters().of(Fate::BadChecksum), 0);
        // Two rounds of the peer's own, by another router.
        answered_to(&mut net, other);
        answered_to(&mut net, other);
        let answers = answered_to(&mut net, other);
        assert!(!answers.is_empty() && answers.iter().all(|mac| *mac == other), "{answers:02x?}");
    }
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
    // The client has the server in its network, and the server has the client behind a router.
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
