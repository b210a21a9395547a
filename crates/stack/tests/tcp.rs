//! TCP between two stacks on a wire in memory, in virtual time, with faults from a seed.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use napkin_nic::{Frame, Pool, SendError, Transmitter};
use napkin_policy::{MILLISECOND, NEVER, Ns};
use napkin_stack::tcp::{ListenError, TcpCounters};
use napkin_stack::{
    Address, Addresses, ByteStream, Fate, Flow, Input, Socket, Stack, TcpApplication, TcpLimits,
    TcpWorker,
};
use proptest::prelude::*;

const SERVER: Address = Address::v4([2, 0, 0, 0, 0, 1], [10, 0, 0, 1], 24);
const CLIENT: Address = Address::v4([2, 0, 0, 0, 0, 2], [10, 0, 0, 2], 24);
const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PORT: u16 = 7;
const NAPI_ID: u32 = 513;

/// One direction of the wire.
#[derive(Default)]
struct Wire(Mutex<VecDeque<Vec<u8>>>);

impl Transmitter for Wire {
    fn send(&self, frame: &[u8], _: Ns) -> Result<(), SendError> {
        self.0.lock().unwrap().push_back(frame.to_vec());
        Ok(())
    }
}

/// A host: a stack with one queue, one worker and its application.
struct Host<A: TcpApplication> {
    stack: Arc<Stack>,
    input: Input,
    out: Arc<Wire>,
    worker: TcpWorker<A::State>,
    application: A,
}

impl<A: TcpApplication> Host<A> {
    fn new(ours: impl Into<Addresses>, limits: TcpLimits, application: A) -> Host<A> {
        let (stack, out) = (Stack::new(ours), Arc::<Wire>::default());
        let transmitter: Arc<dyn Transmitter> = out.clone();
        let input = Input::new(Arc::clone(&stack), NAPI_ID, transmitter);
        let worker = stack.open_tcp(None, limits).expect("the first worker");
        Host { stack, input, out, worker, application }
    }

    fn deliver(&mut self, frames: &[Vec<u8>], now: Ns) {
        let mut batch = frames.iter().map(|bytes| frame(bytes)).collect();
        self.input.deliver(&mut batch, now);
        while self.worker.step(now, 64, &mut self.application) == 64 {}
    }
}

/// How often which fault happens to a frame, in hundredths.
#[derive(Debug, Clone, Copy, Default)]
struct Faults {
    loss: u64,
    corruption: u64,
    duplication: u64,
    reordering: u64,
}

/// Both hosts and the wire between them.
struct Net<C: TcpApplication, S: TcpApplication> {
    client: Host<C>,
    server: Host<S>,
    /// The server's service.
    at: SocketAddr,
    /// Bytes of the longest frame of the client, and of the server.
    longest: (usize, usize),
    faults: Faults,
    /// What somebody else sends to the server ahead of each round of the client's.
    flood: Box<dyn FnMut() -> Vec<Vec<u8>>>,
    rng: napkin_traffic::SplitMix,
    now: Ns,
}

impl<C: TcpApplication, S: TcpApplication> Net<C, S> {
    fn new(client: C, server: S, limits: TcpLimits) -> Net<C, S> {
        Net::between((CLIENT.into(), client), (SERVER.into(), server), limits)
    }

    /// Of hosts that are in one network by the first address of each.
    fn between(
        (ours, client): (Addresses, C),
        (theirs, server): (Addresses, S),
        limits: TcpLimits,
    ) -> Net<C, S> {
        let ip = theirs.list()[0].ip;
        let mut net = Net {
            client: Host::new(ours, limits, client),
            server: Host::new(theirs, limits, server),
            at: SocketAddr::new(ip, PORT),
            longest: (0, 0),
            faults: Faults::default(),
            flood: Box::new(Vec::new),
            rng: napkin_traffic::SplitMix::new(1),
            now: 1,
        };
        net.server.worker.listen(PORT).expect("a free port");
        net.client.stack.resolve(ip, 0).expect("a queue");
        net.run(4);
        net
    }

    /// What of these frames arrives, and in which order.
    fn pass(&mut self, frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let mut passed: Vec<Vec<u8>> = Vec::new();
        for mut frame in frames {
            let mut happens = |percent: u64| self.rng.below(100) < percent;
            if happens(self.faults.loss) {
                continue;
            }
            let (twice, early) =
                (happens(self.faults.duplication), happens(self.faults.reordering));
            if happens(self.faults.corruption) {
                let at = self.rng.below(frame.len() as u64) as usize;
                frame[at] ^= 1 << self.rng.below(8);
            }
            if twice {
                passed.push(frame.clone());
            }
            let at = if early { passed.len().saturating_sub(1) } else { passed.len() };
            passed.insert(at, frame);
        }
        passed
    }

    fn exchange(&mut self) -> bool {
        let sent: Vec<_> = self.client.out.0.lock().unwrap().drain(..).collect();
        let answered: Vec<_> = self.server.out.0.lock().unwrap().drain(..).collect();
        let longest =
            |frames: &[Vec<u8>], before| frames.iter().map(Vec::len).fold(before, usize::max);
        self.longest = (longest(&sent, self.longest.0), longest(&answered, self.longest.1));
        let quiet = sent.is_empty() && answered.is_empty();
        let (sent, answered) = (self.pass(sent), self.pass(answered));
        let sent = [(self.flood)(), sent].concat();
        self.server.deliver(&sent, self.now);
        self.client.deliver(&answered, self.now);
        !quiet
    }

    /// Up to `rounds` round trips of a tenth of a millisecond; where nothing is on its way, time passes
    /// until somebody wants to be called.
    fn run(&mut self, rounds: usize) {
        for _ in 0..rounds {
            self.now += MILLISECOND / 10;
            if !self.exchange() {
                let next =
                    self.client.worker.next_deadline().min(self.server.worker.next_deadline());
                if next == NEVER {
                    return;
                }
                self.now = self.now.max(next);
            }
        }
    }

    fn connect(&mut self) -> Flow {
        self.connect_to(self.at)
    }

    fn connect_to(&mut self, to: SocketAddr) -> Flow {
        let flow = self.client.worker.connect(to, NAPI_ID).expect("a free port");
        self.client.deliver(&[], self.now);
        flow
    }
}

/// Sends back whatever comes, and closes when the peer does.
#[derive(Default)]
struct Echo {
    opened: usize,
    closed: usize,
}

impl TcpApplication for Echo {
    type State = Vec<u8>;

    fn opened(&mut self, _: Flow) -> Vec<u8> {
        self.opened += 1;
        Vec::new()
    }

    fn ready(&mut self, waiting: &mut Vec<u8>, stream: &mut impl ByteStream, _: Ns) {
        loop {
            let sent = stream.send(waiting);
            waiting.drain(..sent);
            if !waiting.is_empty() || stream.receive(waiting, 1_000) == 0 {
                break;
            }
        }
        if stream.ended() && waiting.is_empty() {
            stream.close();
        }
        self.closed += usize::from(stream.is_closed());
    }
}

/// Sends so many bytes on each connection, expects them back, and closes.
struct Sender {
    bytes: usize,
    done: usize,
    closed: usize,
    /// Opens connections and does nothing more.
    silent: bool,
}

impl Sender {
    fn of(bytes: usize) -> Sender {
        Sender { bytes, done: 0, closed: 0, silent: false }
    }
}

/// A connection's bytes so far.
#[derive(Default)]
struct Sent {
    sent: usize,
    received: Vec<u8>,
}

/// A byte that tells its place.
fn byte(place: usize) -> u8 {
    (place % 251) as u8
}

impl TcpApplication for Sender {
    type State = Sent;

    fn opened(&mut self, _: Flow) -> Sent {
        Sent::default()
    }

    fn ready(&mut self, state: &mut Sent, stream: &mut impl ByteStream, _: Ns) {
        self.closed += usize::from(stream.is_closed());
        if self.silent {
            return;
        }
        while state.sent < self.bytes {
            let end = self.bytes.min(state.sent + 1_000);
            let next: Vec<u8> = (state.sent..end).map(byte).collect();
            let taken = stream.send(&next);
            state.sent += taken;
            if taken == 0 {
                break;
            }
        }
        let before = state.received.len();
        stream.receive(&mut state.received, usize::MAX);
        for (place, got) in state.received.iter().enumerate().skip(before) {
            assert_eq!(*got, byte(place), "byte {place}");
        }
        if state.received.len() == self.bytes && before < self.bytes {
            self.done += 1;
            stream.close();
        }
    }
}

fn net(bytes: usize) -> Net<Sender, Echo> {
    Net::new(Sender::of(bytes), Echo::default(), TcpLimits::default())
}

#[test]
fn a_request_is_answered_and_both_sides_close() {
    let mut net = net(5);
    let flow = net.connect();
    assert_eq!(flow.peer.port(), PORT);
    net.run(20);
    assert_eq!((net.client.application.done, net.server.application.opened), (1, 1));
    // TIME-WAIT is over some seconds later, and nothing is left.
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
fn a_flood_of_syns_pushes_out_itself_and_nobody_else() {
    let limits = TcpLimits { half_open: 8, ..TcpLimits::default() };
    let mut net = Net::new(Sender::of(5), Echo::default(), limits);
    net.client.application.silent = true;
    net.connect();
    net.run(8);
    // Syns whose answers go nowhere.
    for port in 1_000..1_100 {
        let syn = syn(port);
        net.server.deliver(&[syn], net.now);
        net.server.out.0.lock().unwrap().clear();
    }
    assert_eq!(net.server.worker.half_open(), 8);
    assert_eq!(net.server.worker.connections(), 9);
    let TcpCounters { opened, pushed_out, .. } = net.server.worker.counters();
    assert_eq!((opened, pushed_out), (1, 92));
    // Whoever answers gets through all the same.
    net.connect();
    net.run(6);
    assert_eq!(net.server.worker.counters().opened, 2);
    // And the rest is forgotten in time.
    net.run(200);
    assert_eq!(net.server.worker.half_open(), 0);
}

/// Asks again and again, one word at a time.
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

/// The answers that an established flow has in forty rounds while somebody sends these frames before
/// each of its own, and the server's connections then.
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

/// What a flood costs an established flow in rounds is nothing; what it takes of the server is bounded.
#[test]
fn no_flood_keeps_an_established_flow_from_its_next_answer() {
    let quiet = answered_under(Vec::new);
    assert_eq!(quiet, (20, 1), "a word there and back takes two rounds");
    // SYNs of another peer each.
    let mut from = 0u16;
    let syns = move || {
        let next = |_| {
            from += 1;
            syn(from)
        };
        (0..100).map(next).collect()
    };
    assert_eq!(answered_under(syns), (20, 1 + 64));
    // The same SYN over and over: one connection.
    assert_eq!(answered_under(|| vec![syn(5_000); 100]), (20, 2));
    // Segments of no connection: each is answered by a RST, and forgotten.
    let stray = || {
        let mut stray = syn(6_000);
        stray[47] = 0x10;
        let mut segment = smoltcp::wire::TcpPacket::new_unchecked(&mut stray[34..]);
        segment.fill_checksum(&Ipv4Addr::new(10, 0, 0, 77).into(), &OURS.into());
        vec![stray; 100]
    };
    assert_eq!(answered_under(stray), (20, 1));
}

/// A RST would tell a peer whose SYN's answers were lost that nobody listens.
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

/// Closes whatever is opened.
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
    net.run(10);
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
    assert_eq!(stack.counters().of(Fate::NoPort), 1);
}

fn frame(bytes: &[u8]) -> Frame {
    let mut frame = Pool::new(1).take().expect("it has one");
    frame.buffer()[..bytes.len()].copy_from_slice(bytes);
    frame.set_len(bytes.len());
    frame
}

/// A SYN to the server from a host that is not there.
fn syn(port: u16) -> Vec<u8> {
    syn_to(OURS, port)
}

fn syn_to(to: Ipv4Addr, port: u16) -> Vec<u8> {
    use smoltcp::phy::ChecksumCapabilities;
    use smoltcp::wire::*;
    let peer = Ipv4Addr::new(10, 0, 0, 77);
    let tcp = TcpRepr {
        src_port: port,
        dst_port: PORT,
        control: TcpControl::Syn,
        seq_number: TcpSeqNumber(1),
        ack_number: None,
        window_len: 1_000,
        window_scale: None,
        max_seg_size: Some(1_460),
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: &[],
    };
    let ip = Ipv4Repr {
        src_addr: peer,
        dst_addr: to,
        next_header: IpProtocol::Tcp,
        payload_len: tcp.buffer_len(),
        hop_limit: 64,
    };
    let checksums = ChecksumCapabilities::default();
    let mut bytes = vec![0; 14 + 20 + tcp.buffer_len()];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes);
    frame.set_src_addr(EthernetAddress([2, 0, 0, 0, 0, 77]));
    frame.set_dst_addr(EthernetAddress(SERVER.mac));
    frame.set_ethertype(EthernetProtocol::Ipv4);
    let mut packet = Ipv4Packet::new_unchecked(frame.payload_mut());
    ip.emit(&mut packet, &checksums);
    let mut segment = TcpPacket::new_unchecked(packet.payload_mut());
    tcp.emit(&mut segment, &peer.into(), &to.into(), &checksums);
    bytes
}

/// A client and a server of one family, in a VLAN or not.
fn hosts(v6: bool, vlan: bool) -> (Addresses, Addresses) {
    let v6_of =
        |last| Address::v6([2, 0, 0, 0, 0, last], [0xfd00, 0, 0, 0, 0, 0, 0, last.into()], 64);
    let of = |v4, last| Addresses::from(if v6 { v6_of(last) } else { v4 });
    let both = (of(CLIENT, 2), of(SERVER, 1));
    match vlan {
        true => (both.0.in_vlan(100).unwrap(), both.1.in_vlan(100).unwrap()),
        false => both,
    }
}

fn conserve(
    (client, server): (Addresses, Addresses),
    limits: TcpLimits,
    seed: u64,
    faults: Faults,
    (bytes, connections): (usize, usize),
) {
    let (sender, echo) = (Sender::of(bytes), Echo::default());
    let mut net = Net::between((client, sender), (server, echo), limits);
    net.rng = napkin_traffic::SplitMix::new(seed);
    net.faults = faults;
    for _ in 0..connections {
        net.connect();
    }
    net.run(20_000);
    assert_eq!(net.client.application.done, connections);
    net.faults = Faults::default();
    net.run(2_000);
    assert_eq!(net.server.worker.connections(), 0);
    assert_eq!(net.client.worker.connections(), 0);
    let counters = net.server.stack.counters();
    assert_eq!(counters.frames, counters.accounted());
}

/// The last segment of a burst had a damaged source address, to which everything then went.
#[test]
fn a_damaged_ethernet_address_leads_no_answer_astray() {
    let faults = Faults { loss: 7, corruption: 2, duplication: 8, reordering: 6 };
    let seed = 13_319_514_197_607_268_128;
    conserve(hosts(false, false), TcpLimits::default(), seed, faults, (75_757, 1));
}

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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever the wire does, every byte comes once and in order, and nothing is left at the end.
    #[test]
    fn bytes_are_conserved(
        seed in any::<u64>(), loss in 0u64..=10, corruption in 0u64..=5,
        duplication in 0u64..=10, reordering in 0u64..=20,
        bytes in 1usize..100_000, connections in 1usize..5,
        v6 in any::<bool>(), vlan in any::<bool>(),
    ) {
        // With the defaults a handshake is given up after four attempts, and at a loss of 10 % one of
        // some six hundred fails all four.
        let patient = 3_600_000 * MILLISECOND;
        let limits =
            TcpLimits { handshake: patient, peer_timeout: patient, ..TcpLimits::default() };
        let faults = Faults { loss, corruption, duplication, reordering };
        conserve(hosts(v6, vlan), limits, seed, faults, (bytes, connections));
    }

    /// No frame of a peer's panics, whatever is in it, and each is accounted for.
    #[test]
    fn no_segment_panics(changes in proptest::collection::vec((14usize..54, any::<u8>()), 0..6)) {
        let mut net = net(5);
        net.connect();
        net.run(3);
        let mut bytes = syn(4_000);
        for (at, value) in changes {
            bytes[at] = value;
        }
        // With its checksums right again, so that it gets past the stack.
        let mut packet = smoltcp::wire::Ipv4Packet::new_unchecked(&mut bytes[14..]);
        let (from, to) = (packet.src_addr().into(), packet.dst_addr().into());
        if packet.check_len().is_ok() {
            packet.fill_checksum();
            let mut segment = smoltcp::wire::TcpPacket::new_unchecked(packet.payload_mut());
            if segment.check_len().is_ok() {
                segment.fill_checksum(&from, &to);
            }
        }
        net.server.deliver(&[bytes], net.now);
        net.run(20);
        prop_assert_eq!(net.client.application.done, 1);
    }
}
