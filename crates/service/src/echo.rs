//! Echo service: returns every message to its sender unchanged (RFC 862).
//!
//! On the stack's own sockets, the frame is turned round in place: no copy and no lookup.
//!
//! Like inetd's echo, it does not answer a message from a service's port. Such a sender is forged, and the service
//! there would answer the answer, for ever if it is an echo too. A service's ports are those below 1024, and the
//! port on which this echo itself listens. Two echoes on two different higher ports can still be looped.

use napkin_policy::Ns;
use napkin_stack::{Exchange, Message};

use crate::Service;

/// The first port that a client may use (`IPPORT_RESERVED`).
const FIRST_CLIENT_PORT: u16 = 1024;

/// An echo service on one socket.
#[derive(Debug)]
pub struct Echo<S> {
    socket: S,
    answered: u64,
    failed: u64,
    refused: u64,
}

impl<S: Exchange> Echo<S> {
    /// Serves `socket`.
    pub fn new(socket: S) -> Echo<S> {
        Echo { socket, answered: 0, failed: 0, refused: 0 }
    }

    /// Messages that were sent back.
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// Messages that could not be sent back. They are lost, as datagrams may be.
    pub fn failed(&self) -> u64 {
        self.failed
    }

    /// Messages that were dropped because they came from a service's port.
    pub fn refused(&self) -> u64 {
        self.refused
    }
}

impl<S: Exchange> Service for Echo<S> {
    type Socket = S;

    fn socket(&self) -> &S {
        &self.socket
    }

    fn serve_ready(&mut self, now: Ns, limit: usize) -> usize {
        let mut served = 0;
        while served < limit
            && let Some(message) = self.socket.try_recv()
        {
            served += 1;
            if message.ports().is_some_and(from_service) {
                self.refused += 1;
                continue;
            }
            match self.socket.echo(message, now) {
                Ok(()) => self.answered += 1,
                Err(_) => self.failed += 1,
            }
        }
        self.socket.flush();
        served
    }
}

/// Whether a message between these ports (source and destination) came from a service.
pub(crate) fn from_service((from, to): (u16, u16)) -> bool {
    from < FIRST_CLIENT_PORT || from == to
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Script;

    #[test]
    fn everything_comes_back_in_order() {
        let mut echo = Echo::new(Script::of(&["one", "two", "three"]));
        assert_eq!(echo.serve_ready(0, 2), 2);
        assert_eq!(echo.socket().sent(), ["one", "two"]);
        assert_eq!(echo.serve_ready(0, 2), 1);
        assert_eq!(echo.serve_ready(0, 2), 0);
        assert_eq!(echo.socket().sent(), ["three"]);
        assert_eq!((echo.answered(), echo.failed()), (3, 0));
    }

    #[test]
    fn a_message_that_cannot_go_back_does_not_stop_the_next() {
        let mut echo = Echo::new(Script::of(&["unanswerable", "two"]));
        assert_eq!(echo.serve_ready(0, 8), 2);
        assert_eq!(echo.socket().sent(), ["two"]);
        assert_eq!((echo.answered(), echo.failed()), (1, 1));
    }

    #[test]
    fn a_service_is_not_answered() {
        // Port 0, discard, the last reserved port, and the echo's own.
        for from in [0, 9, 1023, 7_000] {
            assert!(from_service((from, 7_000)), "{from}");
        }
        for from in [1024, 6_999, 7_001, u16::MAX] {
            assert!(!from_service((from, 7_000)), "{from}");
        }
    }

    #[test]
    fn a_limit_of_nothing_serves_nothing() {
        let mut echo = Echo::new(Script::of(&["one"]));
        assert_eq!(echo.serve_ready(0, 0), 0);
    }
}
