//! One connection: smoltcp's socket in a set of its own, and the worker's records of it.

use napkin_policy::{MILLISECOND, NEVER, Ns};
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Duration;

use super::{Flow, TcpApplication, TcpLimits, TcpStream};

/// A connection, with the application's state `T`.
pub(super) struct Connection<T> {
    pub(super) flow: Flow,
    /// Increases with every connection; orders them by age.
    pub(super) serial: u64,
    /// When the handshake times out; [`NEVER`] before the connection was first processed.
    pub(super) handshake_ends: Ns,
    pub(super) sockets: SocketSet<'static>,
    handle: SocketHandle,
    /// Destination of its segments: the Ethernet address that the peer's segments come from.
    pub(super) mac: [u8; 6],
    /// Source of the last segment that made progress and came from an address other than `mac`.
    new_mac: Option<[u8; 6]>,
    /// Whether the peer is an IPv4 host beyond our own networks (see [`Link`](super::link::Link)).
    pub(super) off_link_ipv4: bool,
    /// The queue that the last segment came from; 0 before the first.
    pub(super) napi_id: u32,
    /// The connection's deadline in [`Deadlines`](super::deadlines::Deadlines); [`NEVER`] if none.
    pub(super) armed: Ns,
    /// Whether it is on the worker's list of changed connections.
    pub(super) listed: bool,
    /// The application's state; `None` before the handshake has ended.
    pub(super) state: Option<T>,
    pub(super) phase: Phase,
}

/// The state under which the worker counts a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The handshake has not ended, whichever side began it.
    HalfOpen,
    Open,
    /// Both sides have closed and late segments may still arrive. Such a connection is evicted when its place is
    /// needed.
    TimeWait,
}

/// An upper bound on a round trip: the initial retransmission timeout of TCP (RFC 6298, 2.1).
const ROUND_TRIP: Ns = 1_000 * MILLISECOND;

/// The largest window without scaling. A SYN's window is never scaled, but smoltcp remembers it as if it were: a
/// peer could send twice the buffer and more before the next segment corrects the window, and smoltcp's buffer
/// asserts on overflow.
const LARGEST_WINDOW: usize = u16::MAX as usize;

impl<T> Connection<T> {
    /// A connection before its first segment, received or sent.
    pub(super) fn new(flow: Flow, limits: &TcpLimits) -> Connection<T> {
        let buffer = |bytes| SocketBuffer::new(vec![0; bytes]);
        let received = limits.receive_buffer.min(LARGEST_WINDOW);
        let mut socket = Socket::new(buffer(received), buffer(limits.send_buffer));
        // No Nagle: a service decides itself which bytes go into one segment.
        socket.set_nagle_enabled(false);
        // Must be set before the connection is open: set later, smoltcp sends a probe at once.
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
            new_mac: None,
            off_link_ipv4: false,
            napi_id: 0,
            armed: NEVER,
            listed: false,
            state: None,
            phase: Phase::HalfOpen,
        }
    }

    /// Whether the peer has had time to complete the handshake.
    pub(super) fn is_late(&self, limits: &TcpLimits, now: Ns) -> bool {
        let begun = self.handshake_ends.saturating_sub(limits.handshake);
        begun.saturating_add(ROUND_TRIP) <= now
    }

    pub(super) fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    /// Bytes sent that the peer has not acknowledged, and received bytes that the application has not read.
    pub(super) fn progress(&mut self) -> (usize, usize) {
        let socket = self.socket();
        (socket.send_queue(), socket.recv_queue())
    }

    /// Handles a segment from an Ethernet address other than `mac`: another router has taken over, the segment is
    /// spoofed, or the frame was damaged. The connection switches to that address only with the second segment from
    /// it, of which the first must have made progress since `before`, as only the peer's own segments can. The
    /// second need not: a peer whose answers went to the old address can only retransmit.
    pub(super) fn confirm_source(&mut self, mac: [u8; 6], before: (usize, usize)) {
        let same = self.new_mac == Some(mac);
        if self.progress() != before {
            self.new_mac = Some(mac);
        }
        if same {
            self.mac = mac;
        }
    }

    /// Marks the handshake as ended: from now on a peer that leaves data unanswered times out.
    pub(super) fn established(&mut self, limits: &TcpLimits) {
        let socket = self.socket();
        socket.set_timeout(Some(Duration::from_micros(limits.peer_timeout / 1_000)));
        self.phase = Phase::Open;
    }

    /// Calls the application, if the connection is established and not closed.
    pub(super) fn ready<A: TcpApplication<State = T>>(&mut self, application: &mut A, now: Ns) {
        let Some(state) = &mut self.state else { return };
        let socket = self.sockets.get_mut::<Socket<'_>>(self.handle);
        if matches!(socket.state(), State::Closed | State::TimeWait) {
            return;
        }
        let mut stream = TcpStream { socket, flow: self.flow, napi_id: self.napi_id };
        application.ready(state, &mut stream, now);
    }

    /// Calls the application for the last time: the connection is closed.
    pub(super) fn notify_closed<A: TcpApplication<State = T>>(
        &mut self,
        application: &mut A,
        now: Ns,
    ) {
        let Some(mut state) = self.state.take() else { return };
        let socket = self.sockets.get_mut(self.handle);
        let mut stream = TcpStream { socket, flow: self.flow, napi_id: self.napi_id };
        application.ready(&mut state, &mut stream, now);
    }
}
