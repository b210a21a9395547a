//! Floods: what they evict, and what they cost other flows.

use super::*;

#[test]
fn a_flood_of_syns_pushes_out_itself_and_nobody_else() {
    let limits = TcpLimits { half_open: 8, ..TcpLimits::default() };
    let mut net = Net::new(Sender::of(5), Echo::default(), limits);
    net.client.application.silent = true;
    net.connect();
    net.run(5);
    // SYNs whose answers are lost.
    for port in 1_000..1_100 {
        let syn = syn(port);
        net.server.deliver(&[syn], net.now);
        net.server.out.0.lock().unwrap().clear();
    }
    assert_eq!(net.server.worker.half_open(), 8);
    assert_eq!(net.server.worker.connections(), 9);
    let TcpCounters { opened, evicted, .. } = net.server.worker.counters();
    assert_eq!((opened, evicted), (1, 92));
    // A peer that completes the handshake gets through all the same.
    net.connect();
    net.run(6);
    assert_eq!(net.server.worker.counters().opened, 2);
    // The remaining half-open connections time out.
    net.run(200);
    assert_eq!(net.server.worker.half_open(), 0);
}

#[test]
fn where_all_places_are_half_open_a_flood_still_pushes_out_itself() {
    let limits = TcpLimits { connections: 4, ..TcpLimits::default() };
    let mut net = Net::new(Sender::of(5), Echo::default(), limits);
    for port in 1_000..1_010 {
        let syn = syn(port);
        net.server.deliver(&[syn], net.now);
    }
    assert_eq!((net.server.worker.connections(), net.server.worker.half_open()), (4, 4));
    net.server.out.0.lock().unwrap().clear();
    let counts = |net: &Net<Sender, Echo>| {
        let TcpCounters { opened, evicted, refused, .. } = net.server.worker.counters();
        (opened, evicted, refused)
    };
    assert_eq!(counts(&net), (0, 0, 6), "whoever has just asked is given time to answer");
    net.now += 1_000 * MILLISECOND;
    net.connect();
    net.run(6);
    assert_eq!(counts(&net), (1, 1, 6), "whoever answers gets through");
}

#[test]
fn a_flood_leaves_what_we_begin_and_we_leave_what_peers_begin() {
    let limits = TcpLimits { half_open: 2, connections: 5, ..TcpLimits::default() };
    let mut net = Net::new(Sender::of(5), Echo::default(), limits);
    let peer = SocketAddr::new(CLIENT.ip, PORT);
    let server = &mut net.server;
    server.worker.connect(peer, NAPI_ID).expect("room");
    for port in 1_000..1_010 {
        let syn = syn(port);
        server.deliver(&[syn], net.now);
    }
    assert_eq!((server.worker.half_open(), server.worker.counters().evicted), (1 + 2, 8));
    server.worker.connect(peer, NAPI_ID).expect("room");
    assert_eq!(server.worker.connect(peer, NAPI_ID), Err(ListenError::TooMany(2)));
    assert_eq!((server.worker.half_open(), server.worker.counters().evicted), (2 + 2, 8));
    // The limit of all connections acts in the same way.
    let limits = TcpLimits { connections: 1, ..TcpLimits::default() };
    let mut net = Net::new(Sender::of(5), Echo::default(), limits);
    net.server.deliver(&[syn(1_000)], net.now);
    assert_eq!(net.server.worker.connect(peer, NAPI_ID), Err(ListenError::TooMany(1)));
    assert_eq!(net.server.worker.half_open(), 1);
}

/// Sends the same word again whenever it has been echoed.
#[derive(Default)]
struct Asker {
    answered: usize,
}

impl TcpApplication for Asker {
    type State = Vec<u8>;

    fn opened(&mut self, _: Flow) -> Vec<u8> {
        b"whatever".to_vec()
    }

    fn ready(&mut self, word: &mut Vec<u8>, stream: &mut impl ByteStream, _: Ns) {
        stream.receive(word, 8);
        if word.len() == 8 {
            assert_eq!(stream.send(&std::mem::take(word)), 8);
            self.answered += 1;
        }
    }
}

/// The number of answers that an established flow gets in forty rounds while a flood precedes each of its own
/// transmissions, and the server's number of connections afterwards.
fn answered_under(flood: impl FnMut() -> Vec<Vec<u8>> + 'static) -> (usize, usize) {
    let limits = TcpLimits { half_open: 64, connections: 256, ..TcpLimits::default() };
    let mut net = Net::new(Asker::default(), Echo::default(), limits);
    net.connect();
    net.run(5);
    let before = net.client.application.answered;
    net.flood = Box::new(flood);
    net.run(40);
    (net.client.application.answered - before, net.server.worker.connections())
}

/// A flood costs an established flow no rounds, and takes a bounded number of the server's connections.
#[test]
fn no_flood_keeps_an_established_flow_from_its_next_answer() {
    let quiet = answered_under(Vec::new);
    assert_eq!(quiet, (20, 1), "a word there and back takes two rounds");
    // SYNs, each from another port.
    let mut from = 0u16;
    let syns = move || {
        let next = |_| {
            from += 1;
            syn(from)
        };
        (0..100).map(next).collect()
    };
    assert_eq!(answered_under(syns), (20, 1 + 64));
    // The same SYN repeated: one connection.
    assert_eq!(answered_under(|| vec![syn(5_000); 100]), (20, 2));
    // Segments of no connection: each is answered with a RST and leaves no state.
    let stray = || {
        let mut stray = syn(6_000);
        stray[47] = 0x10;
        let mut segment = smoltcp::wire::TcpPacket::new_unchecked(&mut stray[34..]);
        segment.fill_checksum(&Ipv4Addr::new(10, 0, 0, 77).into(), &OURS.into());
        vec![stray; 100]
    };
    assert_eq!(answered_under(stray), (20, 1));
}

/// A RST would tell a peer whose SYN-ACKs were lost that the port is closed.
#[test]
fn a_handshake_that_is_given_up_ends_without_a_word() {
    let mut net = net(5);
    let begun = net.now;
    net.server.deliver(&[syn(1_000)], begun);
    while net.server.worker.connections() > 0 {
        for sent in net.server.out.0.lock().unwrap().drain(..) {
            let segment = smoltcp::wire::TcpPacket::new_unchecked(&sent[34..]);
            assert!(segment.syn() && segment.ack() && !segment.rst());
        }
        net.now = net.server.worker.next_deadline();
        net.server.deliver(&[], net.now);
    }
    assert_eq!(net.server.out.0.lock().unwrap().len(), 0);
    let took = net.now - begun;
    assert!(took <= TcpLimits::DEFAULT.handshake + MILLISECOND, "{took} ns");
}
