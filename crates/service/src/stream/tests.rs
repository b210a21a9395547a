//! Peers that read slowly, keep writing after the end, or send more than there is room for.

use super::*;

/// Answers anything with a farewell and closes.
struct Farewell;

impl StreamService for Farewell {
    type Connection = ();

    fn open(&mut self, _: Flow) {}

    fn serve(&mut self, (): &mut (), _: &[u8], output: &mut Vec<u8>, _: Ns) -> Served {
        output.extend_from_slice(b"bye");
        Served::Close
    }

    fn longest_request(&self) -> usize {
        1_000
    }
}

#[test]
fn a_read_resumes_when_the_flush_has_made_room() {
    use crate::nbd::{MemoryStore, Nbd};
    let mut pump = Pump::new(Nbd::new("", true, MemoryStore::new(4 << 20).unwrap()).unwrap());
    let mut peer = Scripted::default();
    let mut state = pump.opened(peer.flow());
    let read = [&0x2560_9513_u32.to_be_bytes()[..], &[0; 4], &[7; 8], &[0; 8]].concat();
    let read = [&read[..], &(2u32 << 20).to_be_bytes()].concat();
    let export = [b"IHAVEOPT".as_slice(), &[0, 0, 0, 1, 0, 0, 0, 0]].concat();
    peer.to_send = [&3u32.to_be_bytes()[..], &export, &read].concat();
    // Served once: a peer that takes all that it is sent raises no event about free space.
    pump.ready(&mut state, &mut peer, 0);
    pump.collect(&mut |_| {});
    assert!(peer.heard >= 16 + (2 << 20), "{} bytes", peer.heard);
}

/// A peer that sends a script, and takes whatever it is sent.
#[derive(Default)]
struct Scripted {
    to_send: Vec<u8>,
    heard: usize,
}

impl ByteStream for Scripted {
    fn flow(&self) -> Flow {
        Peer::default().flow()
    }

    fn receive(&mut self, into: &mut Vec<u8>, most: usize) -> usize {
        let taken = self.to_send.len().min(most);
        into.extend(self.to_send.drain(..taken));
        taken
    }

    fn send(&mut self, bytes: &[u8]) -> usize {
        self.heard += bytes.len();
        bytes.len()
    }

    fn ended(&self) -> bool {
        false
    }

    fn writable(&self) -> bool {
        true
    }

    fn close(&mut self) {}

    fn abort(&mut self) {}

    fn is_closed(&self) -> bool {
        false
    }
}

/// A peer, as seen through its connection.
#[derive(Default)]
struct Peer {
    writes: usize,
    heard: Vec<u8>,
    ended: bool,
    closed: bool,
    aborted: bool,
}

impl ByteStream for Peer {
    fn flow(&self) -> Flow {
        let end = |port| (std::net::Ipv4Addr::LOCALHOST, port).into();
        Flow::new(end(7), end(40_000))
    }

    fn receive(&mut self, into: &mut Vec<u8>, most: usize) -> usize {
        let taken = self.writes.min(most);
        into.resize(into.len() + taken, 0);
        self.writes -= taken;
        taken
    }

    fn send(&mut self, bytes: &[u8]) -> usize {
        self.heard.extend_from_slice(bytes);
        bytes.len()
    }

    fn ended(&self) -> bool {
        self.ended
    }

    fn writable(&self) -> bool {
        !self.closed
    }

    fn close(&mut self) {
        self.closed = true;
    }

    fn abort(&mut self) {
        self.aborted = true;
    }

    fn is_closed(&self) -> bool {
        self.aborted
    }
}

/// A connection that was sent its farewell at time 1.
fn lingering() -> (Pump<Farewell>, Pumped<()>, Peer) {
    let (mut pump, mut peer) = (Pump::new(Farewell), Peer { writes: 5, ..Peer::default() });
    let mut state = pump.opened(peer.flow());
    pump.ready(&mut state, &mut peer, 1);
    assert_eq!((&peer.heard[..], peer.closed, peer.aborted), (&b"bye"[..], true, false));
    (pump, state, peer)
}

/// Treats all input as incomplete.
struct Insatiable(Arc<Bound>);

impl StreamService for Insatiable {
    type Connection = ();

    fn open(&mut self, _: Flow) {}

    fn serve(&mut self, (): &mut (), _: &[u8], _: &mut Vec<u8>, _: Ns) -> Served {
        Served::More
    }

    fn longest_request(&self) -> usize {
        1 << 20
    }

    fn bound(&self) -> Option<Arc<Bound>> {
        Some(Arc::clone(&self.0))
    }
}

#[test]
fn a_connection_beyond_the_bound_is_reset_and_the_others_are_not() {
    let bound = Arc::new(Bound::new(1 << 20));
    let mut pump = Pump::new(Insatiable(Arc::clone(&bound)));
    let peer = || Peer { writes: 600 << 10, ..Peer::default() };
    let (mut first, mut second) = (peer(), peer());
    let mut held = pump.opened(first.flow());
    pump.ready(&mut held, &mut first, 1);
    assert!(!first.aborted && bound.bytes() >= (600 << 10) - 2 * KEPT);
    let mut refused = pump.opened(second.flow());
    pump.ready(&mut refused, &mut second, 1);
    assert!(second.aborted && refused.input.capacity() == 0);
    assert!(bound.refused() == 1 && bound.bytes() <= 1 << 20);
    let (mut few, mut idle) = (Peer { writes: 100, ..Peer::default() }, Peer::default());
    for peer in [&mut few, &mut idle] {
        let mut state = pump.opened(peer.flow());
        pump.ready(&mut state, peer, 1);
        assert!(!peer.aborted);
    }
    drop(held);
    assert_eq!((bound.bytes(), bound.refused()), (0, 1));
}

#[test]
fn unused_capacity_is_released_before_a_connection_is_reset() {
    let bound = Arc::new(Bound::new(1 << 20));
    let mut pump = Pump::new(Insatiable(Arc::clone(&bound)));
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut peer = Peer { writes: 300 << 10, ..Peer::default() };
        let mut state = pump.opened(peer.flow());
        pump.ready(&mut state, &mut peer, 1);
        // One byte more makes the buffer double.
        peer.writes = 1;
        pump.ready(&mut state, &mut peer, 1);
        assert!(!peer.aborted && state.input.len() == (300 << 10) + 1);
        held.push(state);
    }
    assert!(bound.refused() == 0 && bound.bytes() <= 1 << 20);
}

#[test]
fn a_peer_that_writes_after_our_close_is_reset_after_a_limit() {
    let (mut pump, mut state, mut peer) = lingering();
    for _ in 0..16 {
        peer.writes = LINGER_BYTES / 16;
        pump.ready(&mut state, &mut peer, 2);
        assert_eq!((peer.writes, peer.aborted, state.input.capacity()), (0, false, 0));
    }
    peer.writes = 1;
    pump.ready(&mut state, &mut peer, 2);
    assert!(peer.aborted);
    assert_eq!(peer.heard, b"bye");
}

#[test]
fn a_peer_that_does_not_close_after_us_is_reset_in_time() {
    let (mut pump, mut state, mut peer) = lingering();
    pump.ready(&mut state, &mut peer, LINGER);
    assert!(!peer.aborted);
    pump.ready(&mut state, &mut peer, LINGER + 1);
    assert!(peer.aborted);
    let (mut pump, mut state, mut peer) = lingering();
    peer.ended = true;
    pump.ready(&mut state, &mut peer, 2 * LINGER);
    assert!(!peer.aborted);
}
