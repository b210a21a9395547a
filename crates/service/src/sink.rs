//! Sink service: counts every message and drops it (RFC 863), after a configurable amount of work.
//!
//! The work is a closure on the message, with which a benchmark can model a slow application; [`discard`] does
//! none.

use napkin_policy::Ns;
use napkin_stack::{Exchange, Message};

use crate::Service;

/// A sink on one socket that does `work` for each message.
#[derive(Debug)]
pub struct Sink<S, W> {
    socket: S,
    work: W,
    messages: u64,
    bytes: u64,
}

/// No work: the message is dropped.
pub fn discard<M>(_message: &M) {}

impl<S: Exchange, W: FnMut(&S::Message)> Sink<S, W> {
    /// Serves `socket`; `work` is called once for each message.
    pub fn new(socket: S, work: W) -> Sink<S, W> {
        Sink { socket, work, messages: 0, bytes: 0 }
    }

    /// Messages received so far.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Bytes of their payloads.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl<S: Exchange, W: FnMut(&S::Message)> Service for Sink<S, W> {
    type Socket = S;

    fn socket(&self) -> &S {
        &self.socket
    }

    fn serve_ready(&mut self, _now: Ns, limit: usize) -> usize {
        for served in 0..limit {
            let Some(message) = self.socket.try_recv() else { return served };
            self.messages += 1;
            self.bytes += message.payload().len() as u64;
            (self.work)(&message);
        }
        limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{Line, Script};

    #[test]
    fn it_counts_and_works_and_never_answers() {
        let mut lengths = Vec::new();
        let script = Script::of(&["one", "three"]);
        let mut sink = Sink::new(script, |message: &Line| lengths.push(message.payload().len()));
        assert_eq!(sink.serve_ready(0, 1), 1);
        assert_eq!(sink.serve_ready(0, 8), 1);
        assert_eq!((sink.messages(), sink.bytes()), (2, 8));
        assert!(sink.socket().sent().is_empty());
        drop(sink);
        assert_eq!(lengths, [3, 5]);
    }

    #[test]
    fn it_can_do_without_work() {
        let mut sink = Sink::new(Script::of(&["one"]), discard);
        assert_eq!(sink.serve_ready(0, 8), 1);
    }
}
