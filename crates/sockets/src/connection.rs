//! One connection: a socket, what is known of its two directions, and the application's state.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use napkin_policy::Ns;
use napkin_stack::{ByteStream, Flow, TcpApplication};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown, sockopt};

/// Bytes that are received from one connection before others have their turn.
const TURN: usize = 256 * 1_024;

/// A connection with the application's own state.
#[derive(Debug)]
pub(super) struct Connection<T> {
    pub(super) socket: OwnedFd,
    pub(super) flow: Flow,
    pub(super) state: T,
    pub(super) directions: Directions,
    /// Until when the peer may take to end it, once we have.
    pub(super) until: Option<Ns>,
}

/// What is known of the two directions.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Directions {
    /// The peer's last byte was received.
    ended: bool,
    /// Nothing goes either way any more.
    broken: bool,
    /// We send no more.
    pub(super) shut: bool,
    /// Its turn was over before its bytes were.
    pub(super) more: bool,
}

impl Directions {
    fn closed(self) -> bool {
        self.broken || (self.shut && self.ended)
    }
}

impl<T> Connection<T> {
    /// Tells the application that something has changed; whether there will be no other time.
    pub(super) fn ready<A: TcpApplication<State = T>>(
        &mut self,
        application: &mut A,
        scratch: &mut [u8],
        now: Ns,
    ) -> bool {
        let Connection { socket, flow, state, directions, .. } = self;
        directions.more = false;
        let mut stream =
            OsStream { socket: socket.as_fd(), flow: *flow, directions, scratch, turn: TURN };
        application.ready(state, &mut stream, now);
        if stream.is_closed() {
            application.ready(state, &mut stream, now);
        }
        stream.is_closed()
    }

    /// What still arrives goes nowhere, and the peer is told so.
    pub(super) fn abort<A: TcpApplication<State = T>>(&mut self, application: &mut A, now: Ns) {
        self.directions.broken = true;
        let _ = sockopt::set_socket_linger(&self.socket, Some(Duration::ZERO));
        self.ready(application, &mut [], now);
    }
}

/// A connection as the application has it for the time of a call.
struct OsStream<'a> {
    socket: BorrowedFd<'a>,
    flow: Flow,
    directions: &'a mut Directions,
    scratch: &'a mut [u8],
    /// Bytes that it may still receive now.
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
                self.directions.more = true;
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
            // A peer that has gone meanwhile is found by the next receive.
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
