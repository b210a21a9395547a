//! TCP between two stacks on an in-memory wire, in virtual time, with faults from a seeded generator.

mod addresses;
mod connections;
mod faults;
mod floods;
mod windows;

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use napkin_nic::{Frame, Pool, SendError, Transmitter};
use napkin_policy::{MILLISECOND, NEVER, Ns};
use napkin_stack::tcp::{ListenError, TcpCounters};
use napkin_stack::{
    Address, Addresses, ByteStream, Flow, FrameOutcome, Input, Socket, Stack, TcpApplication,
    TcpLimits, TcpWorker,
};
use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, Ipv4Repr, TcpControl,
    TcpPacket, TcpRepr, TcpSeqNumber,
};

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
    fn new(local: impl Into<Addresses>, limits: TcpLimits, application: A) -> Host<A> {
        let (stack, out) = (Stack::new(local), Arc::<Wire>::default());
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

/// The probability of each fault, in percent.
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
    /// The server's address and port.
    at: SocketAddr,
    /// Bytes of the longest frame of the client and of the server.
    longest: (usize, usize),
    faults: Faults,
    /// Frames that a third host sends to the server ahead of each round of the client's.
    flood: Box<dyn FnMut() -> Vec<Vec<u8>>>,
    rng: napkin_traffic::SplitMix,
    now: Ns,
}

impl<C: TcpApplication, S: TcpApplication> Net<C, S> {
    fn new(client: C, server: S, limits: TcpLimits) -> Net<C, S> {
        Net::between((CLIENT.into(), client), (SERVER.into(), server), limits)
    }

    /// Connects two hosts, which share a network by the first address of each.
    fn between(
        (local, client): (Addresses, C),
        (remote, server): (Addresses, S),
        limits: TcpLimits,
    ) -> Net<C, S> {
        let ip = remote.list()[0].ip;
        let mut net = Net {
            client: Host::new(local, limits, client),
            server: Host::new(remote, limits, server),
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

    /// Applies the faults to these frames: returns those that arrive, in the order in which they do.
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

    /// Runs up to `rounds` round trips of a tenth of a millisecond. When no frame is in flight, time advances to
    /// the next deadline of a worker.
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

/// An echo service, which closes when the peer does.
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

/// Sends `bytes` on each connection, expects them back, and closes.
struct Sender {
    bytes: usize,
    done: usize,
    closed: usize,
    /// Whether it opens connections without sending anything.
    silent: bool,
}

impl Sender {
    fn of(bytes: usize) -> Sender {
        Sender { bytes, done: 0, closed: 0, silent: false }
    }
}

/// A connection's progress.
#[derive(Default)]
struct Sent {
    sent: usize,
    received: Vec<u8>,
}

/// A byte that identifies its position.
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

fn frame(bytes: &[u8]) -> Frame {
    let mut frame = Pool::new(1).take().expect("it has one");
    frame.buffer()[..bytes.len()].copy_from_slice(bytes);
    frame.set_len(bytes.len());
    frame
}

/// A SYN to the server from a host that does not exist.
fn syn(port: u16) -> Vec<u8> {
    syn_to(OURS, port)
}

fn syn_to(to: Ipv4Addr, port: u16) -> Vec<u8> {
    segment_to(to, &TcpRepr { max_seg_size: Some(1_460), ..bare(port, TcpControl::Syn) })
}

/// A segment of that host without payload.
fn bare(port: u16, control: TcpControl) -> TcpRepr<'static> {
    TcpRepr {
        src_port: port,
        dst_port: PORT,
        control,
        seq_number: TcpSeqNumber(1),
        ack_number: None,
        window_len: 1_000,
        window_scale: None,
        max_seg_size: None,
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: &[],
    }
}

fn segment_to(to: Ipv4Addr, tcp: &TcpRepr) -> Vec<u8> {
    let peer = Ipv4Addr::new(10, 0, 0, 77);
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
