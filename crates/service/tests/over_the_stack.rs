//! The services over real sockets of a stack: the same service over UDP and raw.

use std::sync::{Arc, Mutex};

use napkin_nic::{Pool, SendError, Transmitter};
use napkin_policy::Ns;
use napkin_service::{Echo, Service, Sink, discard};
use napkin_stack::{Address, Exchange, FrameBuilder, Input, RawFilter, Stack};

const US: Address = Address::v4([2, 0, 0, 0, 0, 1], [10, 0, 0, 1], 24);
const PEER: Address = Address::v4([2, 0, 0, 0, 0, 2], [10, 0, 0, 2], 24);

#[derive(Default)]
struct Wire(Mutex<Vec<Vec<u8>>>);

impl Transmitter for Wire {
    fn send(&self, frame: &[u8], _: Ns) -> Result<(), SendError> {
        self.0.lock().unwrap().push(frame.to_vec());
        Ok(())
    }
}

/// Delivers these payloads to port 7 of a stack.
fn receive(stack: &Arc<Stack>, payloads: &[&str]) -> (Input, Arc<Wire>) {
    let wire = Arc::new(Wire::default());
    let mut input = Input::new(Arc::clone(stack), 513, wire.clone());
    let pool = Pool::new(payloads.len());
    let mut batch: Vec<_> = payloads
        .iter()
        .map(|payload| {
            let mut frame = pool.take().unwrap();
            let build = FrameBuilder::new(PEER, US);
            let length = build.udp(frame.buffer(), 4000, 7, payload.as_bytes()).unwrap();
            frame.set_len(length);
            frame
        })
        .collect();
    input.deliver(&mut batch, 0);
    (input, wire)
}

/// Returns the payloads that a peer gets back from an echo service.
fn echoed<S: Exchange>(stack: &Arc<Stack>, socket: S) -> Vec<String> {
    let mut echo = Echo::new(socket);
    let (_input, wire) = receive(stack, &["one", "two", "three"]);
    assert_eq!(echo.serve_ready(0, 2), 2);
    assert_eq!(echo.serve_ready(0, 2), 1);
    // The peer is a stack of its own, which verifies every frame.
    let peer = Stack::new(PEER);
    let socket = peer.bind_udp(4000, 8).unwrap();
    let mut input = Input::new(Arc::clone(&peer), 1, Arc::new(Wire::default()));
    let pool = Pool::new(8);
    for bytes in wire.0.lock().unwrap().iter() {
        let mut frame = pool.take().unwrap();
        frame.buffer()[..bytes.len()].copy_from_slice(bytes);
        frame.set_len(bytes.len());
        input.deliver(&mut vec![frame], 0);
    }
    std::iter::from_fn(|| socket.try_recv())
        .inspect(|datagram| assert_eq!(datagram.source(), (US.ip, 7).into()))
        .map(|datagram| String::from_utf8_lossy(datagram.payload()).into_owned())
        .collect()
}

#[test]
fn a_peer_hears_its_echo_over_udp() {
    let stack = Stack::new(US);
    let socket = stack.bind_udp(7, 8).unwrap();
    assert_eq!(echoed(&stack, socket), ["one", "two", "three"]);
}

#[test]
fn a_peer_hears_its_echo_over_a_raw_socket() {
    let stack = Stack::new(US);
    let socket = stack.open_raw(RawFilter::UdpPort(7), 8).unwrap();
    assert_eq!(echoed(&stack, socket), ["one", "two", "three"]);
}

/// A host with an echo on one port.
struct Host<S> {
    echo: Echo<S>,
    input: Input,
    wire: Arc<Wire>,
}

impl<S: Exchange> Host<S> {
    fn new(address: Address, open: impl FnOnce(&Arc<Stack>) -> S) -> Host<S> {
        let (stack, wire) = (Stack::new(address), Arc::new(Wire::default()));
        let input = Input::new(Arc::clone(&stack), 1, wire.clone());
        Host { echo: Echo::new(open(&stack)), input, wire }
    }

    /// Delivers these frames, and returns those that the host sends in response.
    fn receives(&mut self, frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let pool = Pool::new(frames.len().max(1));
        let mut batch = Vec::new();
        for bytes in frames {
            let mut frame = pool.take().unwrap();
            frame.buffer()[..bytes.len()].copy_from_slice(&bytes);
            frame.set_len(bytes.len());
            batch.push(frame);
        }
        self.input.deliver(&mut batch, 0);
        self.echo.serve_ready(0, 8);
        std::mem::take(&mut *self.wire.0.lock().unwrap())
    }
}

/// Sends one host a datagram with the other's port as its forged source, and lets the two answer each other.
/// Returns the number of answers, at most 20.
fn answers<S: Exchange>(us: &mut Host<S>, peer: &mut Host<S>, (from, to): (u16, u16)) -> usize {
    let mut forged = vec![0; 64];
    let length = FrameBuilder::new(PEER, US).udp(&mut forged, from, to, b"x").unwrap();
    forged.truncate(length);
    let (mut frames, mut answers) = (vec![forged], 0);
    while !frames.is_empty() && answers < 20 {
        let sent = us.receives(frames);
        answers += sent.len();
        frames = peer.receives(sent);
        answers += frames.len();
    }
    answers
}

#[test]
fn two_echoes_cannot_be_set_on_each_other() {
    let udp = |port| move |stack: &Arc<Stack>| stack.bind_udp(port, 8).unwrap();
    let (mut us, mut peer) = (Host::new(US, udp(7)), Host::new(PEER, udp(7)));
    assert_eq!(answers(&mut us, &mut peer, (7, 7)), 0);
    assert_eq!((us.echo.answered(), us.echo.refused(), us.echo.failed()), (0, 1, 0));

    // The peer's port may be a client's; to the peer, ours is a service's.
    let mut peer = Host::new(PEER, udp(7_000));
    assert_eq!(answers(&mut us, &mut peer, (7_000, 7)), 1);
    assert_eq!((us.echo.answered(), peer.echo.refused()), (1, 1));

    // The same port on both hosts, above the reserved ones.
    let mut us = Host::new(US, udp(7_000));
    assert_eq!(answers(&mut us, &mut peer, (7_000, 7_000)), 0);

    let raw = |stack: &Arc<Stack>| stack.open_raw(RawFilter::UdpPort(7), 8).unwrap();
    let (mut us, mut peer) = (Host::new(US, raw), Host::new(PEER, raw));
    assert_eq!(answers(&mut us, &mut peer, (7, 7)), 0);
    assert_eq!(us.echo.refused(), 1);
}

#[test]
fn a_sink_gives_every_buffer_back() {
    let stack = Stack::new(US);
    let mut sink = Sink::new(stack.bind_udp(7, 8).unwrap(), discard);
    let (_input, wire) = receive(&stack, &["one", "three"]);
    assert!(sink.socket().readable());
    assert_eq!(sink.serve_ready(0, 8), 2);
    assert!(!sink.socket().readable());
    assert_eq!((sink.messages(), sink.bytes()), (2, 8));
    assert!(wire.0.lock().unwrap().is_empty());
}
