//! Connections that are opened, refused, closed and timed out, and the worker that gets their segments.

use super::*;

#[test]
fn a_request_is_answered_and_both_sides_close() {
    let mut net = net(5);
    let flow = net.connect();
    assert_eq!(flow.peer.port(), PORT);
    net.run(20);
    assert_eq!((net.client.application.done, net.server.application.opened), (1, 1));
    // After TIME-WAIT, some seconds later, nothing is left.
    net.run(50);
    assert_eq!((net.client.application.closed, net.server.application.closed), (1, 1));
    assert_eq!((net.client.worker.connections(), net.server.worker.connections()), (0, 0));
    assert_eq!(
        (net.client.worker.next_deadline(), net.server.worker.next_deadline()),
        (NEVER, NEVER)
    );
}

#[test]
fn a_thousand_connections_are_told_apart() {
    let mut net = net(300);
    for _ in 0..1_000 {
        net.connect();
    }
    net.run(200);
    assert_eq!((net.client.application.done, net.server.application.opened), (1_000, 1_000));
}

#[test]
fn a_port_that_nobody_listens_to_is_refused_at_once() {
    let mut net = net(5);
    let nobody = SocketAddr::new(SERVER.ip, 8);
    net.connect_to(nobody);
    let before = net.now;
    net.run(3);
    assert_eq!(net.client.worker.connections(), 0, "it was told");
    assert!(net.now - before < 100 * MILLISECOND, "and did not wait for it");
    assert_eq!(net.server.worker.counters().unknown, 1);
}

#[test]
fn a_new_connection_is_left_alone_until_its_peer_has_said_nothing_for_long() {
    let mut net = net(5);
    net.client.application.silent = true;
    net.connect();
    let begun = net.now;
    net.run(4);
    let sent = |net: &Net<Sender, Echo>| {
        (net.client.worker.counters().sent, net.server.worker.counters().sent)
    };
    assert_eq!(net.server.worker.counters().opened, 1);
    assert_eq!(sent(&net), (2, 1), "a SYN, its answer, and that it came");
    while net.now < begun + TcpLimits::DEFAULT.keep_alive {
        assert_eq!(sent(&net), (2, 1));
        net.run(1);
    }
    net.run(2);
    let (client, server) = sent(&net);
    assert!(client > 2 && server > 1, "then each asks: {client} and {server}");
}

/// The SYN goes to the local port of a connection that this host has opened, from that connection's peer.
#[test]
fn nobody_opens_a_connection_to_a_port_that_only_began_one() {
    let mut net = net(5);
    net.connect();
    net.run(1);
    let mut syn = net.server.out.0.lock().unwrap().front().cloned().expect("its answer");
    syn[47] = 2; // SYN alone, without ACK.
    let mut segment = smoltcp::wire::TcpPacket::new_unchecked(&mut syn[34..]);
    segment.fill_checksum(&OURS.into(), &Ipv4Addr::new(10, 0, 0, 2).into());
    while net.client.application.closed == 0 {
        net.run(1);
    }
    assert_eq!(net.client.worker.connections(), 1, "in TIME-WAIT");
    net.client.deliver(&[syn], net.now);
    assert_eq!((net.client.worker.connections(), net.client.worker.half_open()), (1, 0));
    assert_eq!(net.client.stack.counters().of(FrameOutcome::BadChecksum), 0);
}

/// Closes every connection.
#[derive(Default)]
struct Closer {
    over: usize,
}

impl TcpApplication for Closer {
    type State = ();

    fn opened(&mut self, _: Flow) {}

    fn ready(&mut self, (): &mut (), stream: &mut impl ByteStream, _: Ns) {
        stream.close();
        self.over += usize::from(stream.is_closed());
    }
}

#[test]
fn who_has_closed_does_not_wait_for_ever_for_a_peer_who_says_nothing_more() {
    let mut net = Net::new(Sender::of(5), Closer::default(), TcpLimits::default());
    net.client.application.silent = true;
    net.connect();
    net.run(8);
    assert_eq!(net.server.worker.connections(), 1);
    let begun = net.now;
    while net.server.worker.connections() > 0 {
        net.run(1);
    }
    let took = net.now - begun;
    assert!(took <= 2 * TcpLimits::DEFAULT.peer_timeout, "{took} ns");
    assert_eq!(net.server.application.over, 1);
}

#[test]
fn beyond_the_limit_of_connections_a_syn_waits_its_turn() {
    let limits = TcpLimits { connections: 2, ..TcpLimits::default() };
    let mut net = Net::new(Sender::of(5), Echo::default(), TcpLimits::default());
    net.server = Host::new(SERVER, limits, Echo::default());
    net.server.worker.listen(PORT).expect("a free port");
    net.client.application.silent = true;
    for _ in 0..3 {
        net.connect();
    }
    net.run(7);
    let counters = net.server.worker.counters();
    assert_eq!((net.server.worker.connections(), counters.opened), (2, 2));
    assert!(counters.refused > 0);
    assert_eq!(net.client.worker.connections(), 3, "the third asks again");
}

#[test]
fn what_stays_unanswered_ends_and_is_told() {
    let limits = TcpLimits {
        keep_alive: 1_000 * MILLISECOND,
        peer_timeout: 3_000 * MILLISECOND,
        ..TcpLimits::default()
    };
    let mut net = Net::new(Sender::of(5), Echo::default(), limits);
    net.client.application.silent = true;
    net.connect();
    net.run(100);
    assert_eq!(net.server.worker.connections(), 1, "a peer that is there is kept");
    net.faults.loss = 100;
    net.run(100);
    assert_eq!(net.server.worker.connections(), 0);
    assert_eq!((net.server.application.closed, net.client.application.closed), (1, 1));
}

#[test]
fn listening_twice_and_to_port_0_is_refused() {
    let mut net = net(0);
    assert_eq!(net.server.worker.listen(PORT), Err(ListenError::InUse(PORT)));
    assert_eq!(net.server.worker.listen(0), Err(ListenError::NoPort));
    let stranger = SocketAddr::from(([10, 0, 0, 9], 1));
    let error = net.client.worker.connect(stranger, NAPI_ID);
    assert_eq!(error, Err(ListenError::NoNeighbour(stranger.ip())));
}

#[test]
fn a_queue_s_own_worker_has_its_segments_and_the_others_share() {
    let stack = Stack::new(SERVER);
    let wire: Arc<dyn Transmitter> = Arc::<Wire>::default();
    let mut own: TcpWorker<Vec<u8>> = stack.open_tcp(Some(1), TcpLimits::default()).unwrap();
    let shared: [TcpWorker<Vec<u8>>; 2] =
        [(); 2].map(|()| stack.open_tcp(None, TcpLimits::default()).unwrap());
    let taken = stack.open_tcp::<()>(Some(1), TcpLimits::default());
    assert_eq!(taken.err().unwrap().to_string(), "the TCP of queue 1 is taken by another socket");
    own.listen(PORT).unwrap();
    let feed = |napi_id: u32| {
        let mut input = Input::new(Arc::clone(&stack), napi_id, Arc::clone(&wire));
        input.deliver(&mut (1..=64).map(|port| frame(&syn(port))).collect(), 1);
    };
    feed(1);
    assert_eq!(own.step(1, 100, &mut Echo::default()), 64);
    feed(2);
    let levels = [&shared[0], &shared[1]].map(|worker| worker.segments().receiver().level());
    assert_eq!(levels[0] + levels[1], 64);
    assert!(levels.iter().all(|level| *level > 10), "{levels:?}");
    assert_eq!(own.segments().receiver().level(), 0);
}

#[test]
fn a_segment_without_a_worker_is_dropped_by_name() {
    let stack = Stack::new(SERVER);
    let wire: Arc<dyn Transmitter> = Arc::<Wire>::default();
    let mut input = Input::new(Arc::clone(&stack), 1, wire);
    input.deliver(&mut vec![frame(&syn(9))], 1);
    assert_eq!(stack.counters().of(FrameOutcome::NoPort), 1);
}

/// Whether the first of three initial sequence numbers predicts the others, had smoltcp's generator (sPCG32) drawn
/// them from one state: a number is 32 of the state's 64 bits, from bit 22 on if the upper three bits are set, and
/// the bits below are few enough to be tried.
fn first_tells([first, second, third]: [u32; 3]) -> bool {
    let (multiplier, increment) = (0xbb2e_fcec_3c39_611d_u64, 0x7590_ef39);
    // The lower 54 bits of the next state are known: 25 of the bits in a number, wherever those begin.
    let shows = |state: u64, number: u32| {
        let mut begins = 22..30;
        begins.any(|bit| ((state >> bit) as u32 ^ number) << 7 == 0)
    };
    let after = |state: u64| state.wrapping_mul(multiplier).wrapping_add(increment);
    let mut next = after(u64::from(first) << 22);
    (0..1 << 22).any(|_| {
        let found = shows(next, second) && shows(after(next), third);
        next = next.wrapping_add(multiplier);
        found
    })
}

#[test]
fn a_sequence_number_tells_nobody_the_next_one_s() {
    let mut net = net(0);
    let numbers: Vec<u32> = (1..=26)
        .map(|port| {
            net.server.deliver(&[syn(port)], net.now);
            let answer = net.server.out.0.lock().unwrap().pop_back().expect("a SYN");
            TcpPacket::new_unchecked(&answer[34..]).seq_number().0 as u32
        })
        .collect();
    // With a shared state, one in eight numbers is of the kind that can be tried.
    let revealed = numbers.windows(3).position(|it| first_tells([it[0], it[1], it[2]]));
    assert_eq!(revealed, None);
}
