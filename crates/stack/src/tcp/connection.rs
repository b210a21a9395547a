//! One connection: smoltcp's socket in a set of its own, and what the worker notes of it.

use napkin_policy::{MILLISECOND, NEVER, Ns};
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Duration;

use super::{Flow, TcpApplication, TcpLimits, TcpStream};

/// A connection with the application's own state.
pub(super) struct Connection<T> {
    pub(super) flow: Flow,
    /// Grows from connection to connection: which is older.
    pub(super) serial: u64,
    /// When its handshake is given up; [`NEVER`] before it was first looked at.
    pub(super) handshake_ends: Ns,
    pub(super) sockets: SocketSet<'static>,
    handle: SocketHandle,
    /// Where its segments go: the Ethernet address that they came from.
    pub(super) mac: [u8; 6],
    /// The one that the last segment to move the connection on came from, if it was another.
    moved: Option<[u8; 6]>,
    /// The peer is beyond our own networks, and has an IPv4 address ([`Link`](super::link::Link)).
    pub(super) beyond: bool,
    /// The queue that they came from; 0 before the first.
    pub(super) napi_id: u32,
    /// Its deadline, as [`Deadlines`](super::deadlines::Deadlines) has it.
    pub(super) armed: Ns,
    /// It is on the worker's list of those that changed.
    pub(super) listed: bool,
    /// The application's; `None` before the handshake has ended.
    pub(super) state: Option<T>,
    pub(super) phase: Phase,
}

/// What the worker counts it as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// A SYN was answered.
    HalfOpen,
    Open,
    /// Both have closed, and late segments are waited for: it may go when its place is needed.
    TimeWait,
}

/// The longest that a peer's answer takes: after as long TCP sends again what was not answered (RFC 6298, 2.1).
const ROUND_TRIP: Ns = 1_000 * MILLISECOND;

/// The largest window without a scale. smoltcp remembers that of its SYN, which has none, as if it had: a peer might fill
/// twice the buffer and more before the next segment tells it better, and the buffer asserts that nobody does.
const LARGEST_WINDOW: usize = u16::MAX as usize;

impl<T> Connection<T> {
    /// A connection that is about to receive its first segment, or to send it.
    pub(super) fn new(flow: Flow, limits: &TcpLimits) -> Connection<T> {
        let buffer = |bytes| SocketBuffer::new(vec![0; bytes]);
        let received = limits.receive_buffer.min(LARGEST_WINDOW);
        let mut socket = Socket::new(buffer(received), buffer(limits.send_buffer));
        // A service says itself what belongs together.
        socket.set_nagle_enabled(false);
        // The peer is asked now and then whether it is there. Said once the connection is open, smoltcp
        // would ask at once.
        socket.set_keep_alive(Some(Duration::from_micros(limits.keep_alive / 1_000)));
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(socket);
        Connection {
            flow,
            serial: 0,
            handshake_ends: NEVER,
            sockets,
            handle,
            mac: [0; 6],
            moved: None,
            beyond: false,
            napi_id: 0,
            armed: NEVER,
            listed: false,
            state: None,
            phase: Phase::HalfOpen,
        }
    }

    /// Whether its peer has had time for the answer that ends the handshake.
    pub(super) fn is_late(&self, limits: &TcpLimits, now: Ns) -> bool {
        let begun = self.handshake_ends.saturating_sub(limits.handshake);
        begun.saturating_add(ROUND_TRIP) <= now
    }

    pub(super) fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    /// Bytes that the peer has yet to acknowledge, and bytes of its own that wait.
    pub(super) fn progress(&mut self) -> (usize, usize) {
        let socket = self.socket();
        (socket.send_queue(), socket.recv_queue())
    }

    /// A segment came from another Ethernet address than the ones before: a router took over for
    /// another, somebody pretends to be the peer, or the frame was damaged. It is followed with the next
    /// segment from there after one that only the peer can have sent: that one moved the connection on
    /// from where it was `before`. The next need not: who waits for an answer that went to the old address
    /// only says the same again.
    pub(super) fn came_from(&mut self, mac: [u8; 6], before: (usize, usize)) {
        let again = self.moved == Some(mac);
        if self.progress() != before {
            self.moved = Some(mac);
        }
        if again {
            self.mac = mac;
        }
    }

    /// The handshake has ended: from now on a peer that leaves something unanswered is given up in time.
    pub(super) fn established(&mut self, limits: &TcpLimits) {
        let socket = self.socket();
        socket.set_timeout(Some(Duration::from_micros(limits.peer_timeout / 1_000)));
        self.phase = Phase::Open;
    }

    /// Tells the application, if it knows of the connection and that is not over.
    pub(super) fn ready<A: TcpApplication<State = T>>(&mut self, application: &mut A, now: Ns) {
        let Some(state) = &mut self.state else { return };
        let socket = self.sockets.get_mut::<Socket<'_>>(self.handle);
        if matches!(socket.state(), State::Closed | State::TimeWait) {
            return;
        }
        let mut stream = TcpStream { socket, flow: self.flow, napi_id: self.napi_id };
        application.ready(state, &mut stream, now);
    }

    /// Tells the application that the connection is over.
    pub(super) fn last_call<A: TcpApplication<State = T>>(&mut self, application: &mut A, now: Ns) {
        let Some(mut state) = self.state.take() else { return };
        let socket = self.sockets.get_mut(self.handle);
        let mut stream = TcpStream { socket, flow: self.flow, napi_id: self.napi_id };
        application.ready(&mut state, &mut stream, now);
    }
}
