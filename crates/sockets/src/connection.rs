//! One connection: a socket, the state of its two directions, and the application's state.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use napkin_policy::Ns;
use napkin_stack::{ByteStream, Flow, TcpApplication};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown, sockopt};

/// The maximum number of bytes received from one connection per turn.
const MAX_TURN: usize = 256 * 1_024;

/// A connection, with the application's own state.
#[derive(Debug)]
pub(super) struct Connection<T> {
    pub(super) socket: OwnedFd,
    pub(super) flow: Flow,
    pub(super) state: T,
    pub(super) directions: Directions,
    /// The deadline for the peer to close its side, once we have closed ours.
    pub(super) close_deadline: Option<Ns>,
}

/// The state of the two directions.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Directions {
    /// Whether the peer's last byte was received.
    ended: bool,
    /// Whether the connection is unusable in both directions.
    broken: bool,
    /// Whether we have closed our side.
    pub(super) shut: bool,
    /// Whether bytes were left at the end of its turn.
    pub(super) bytes_left: bool,
}

impl Directions {
    fn closed(self) -> bool {
        self.broken || (self.shut && self.ended)
    }
}

impl<T> Connection<T> {
    /// Notifies the application; returns whether this was the last time.
    pub(super) fn ready<A: TcpApplication<State = T>>(
        &mut self,
        application: &mut A,
        scratch: &mut [u8],
        now: Ns,
    ) -> bool {
        let Connection { socket, flow, state, directions, .. } = self;
        directions.bytes_left = false;
        let mut stream =
            OsStream { socket: socket.as_fd(), flow: *flow, directions, scratch, turn: MAX_TURN };
        application.ready(state, &mut stream, now);
        if stream.is_closed() {
            application.ready(state, &mut stream, now);
        }
        stream.is_closed()
    }

    /// Discards what still arrives, and sends a reset.
    pub(super) fn abort<A: TcpApplication<State = T>>(&mut self, application: &mut A, now: Ns) {
        self.directions.broken = true;
        let _ = sockopt::set_socket_linger(&self.socket, Some(Duration::ZERO));
        self.ready(application, &mut [], now);
    }
}

/// The application's view of a connection for the duration of a call.
struct OsStream<'a> {
    socket: BorrowedFd<'a>,
    flow: Flow,
    directions: &'a mut Directions,
    scratch: &'a mut [u8],
    /// The number of bytes that it may still receive in this turn.
    turn: usize,
}

impl ByteStream for OsStream<'_> {
    fn flow(&self) -> Flow {
        self.flow
    }

    fn receive(&mut self, into: &mut Vec<u8>, most: usize) -> usize {
        let mut received = 0;
        while received < most && !self.ended() {
            let room = self.scratch.len().min(most - received).min(self.turn);
            if room == 0 {
                self.directions.bytes_left = true;
                break;
            }
            match recv(self.socket, &mut self.scratch[..room], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => self.directions.ended = true,
                Ok((_, bytes)) => {
                    into.extend_from_slice(&self.scratch[..bytes]);
                    received += bytes;
                    self.turn -= bytes;
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(_) => self.directions.broken = true,
            }
        }
        received
    }

    fn send(&mut self, bytes: &[u8]) -> usize {
        let mut sent = 0;
        while sent < bytes.len() && self.writable() {
            match send(self.socket, &bytes[sent..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(taken) => sent += taken,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(_) => self.directions.broken = true,
            }
        }
        sent
    }

    fn ended(&self) -> bool {
        self.directions.ended || self.directions.broken
    }

    fn writable(&self) -> bool {
        !self.directions.shut && !self.directions.broken
    }

    fn close(&mut self) {
        if self.writable() {
            self.directions.shut = true;
            // If the peer is gone, the next receive notices.
            let _ = shutdown(self.socket, Shutdown::Write);
        }
    }

    fn abort(&mut self) {
        self.directions.broken = true;
        let _ = sockopt::set_socket_linger(self.socket, Some(Duration::ZERO));
    }

    fn is_closed(&self) -> bool {
        self.directions.closed()
    }
}
