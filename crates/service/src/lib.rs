//! Services, written once against the socket traits of the stack.
//!
//! A [`Service`] is a step, not a loop: the code that waits for its socket (an epoll context, a busy poller, a
//! test) calls [`Service::serve_ready`] when the socket is readable, and decides what to do next. Nothing here
//! blocks, sleeps, starts a thread or reads a clock.
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.

mod bound;
pub mod echo;
pub mod memcached;
pub mod nbd;
pub mod sink;
pub mod stream;

use napkin_policy::Ns;

pub use bound::Bound;
pub use echo::Echo;
pub use memcached::Memcached;
pub use nbd::Nbd;
pub use sink::{Sink, discard};
pub use stream::{EchoStream, Pump, Served, StreamService};

/// A service on one socket.
pub trait Service {
    /// The kind of socket it serves.
    type Socket;

    /// The socket to wait for.
    fn socket(&self) -> &Self::Socket;

    /// Serves up to `limit` waiting messages, and returns how many it took. Fewer than `limit` means that the
    /// socket was found empty; `limit` itself means that more may be waiting.
    fn serve_ready(&mut self, now: Ns, limit: usize) -> usize;
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use napkin_stack::{Exchange, Message};

    use super::*;

    /// A socket that receives scripted messages and records what it sends.
    pub(crate) struct Script {
        waiting: RefCell<Vec<String>>,
        sent: RefCell<Vec<String>>,
    }

    /// One scripted message.
    pub(crate) struct Line(String);

    impl Script {
        pub(crate) fn of(messages: &[&str]) -> Script {
            let waiting = messages.iter().rev().map(|message| (*message).to_owned()).collect();
            Script { waiting: RefCell::new(waiting), sent: RefCell::default() }
        }

        pub(crate) fn sent(&self) -> Vec<String> {
            self.sent.take()
        }
    }

    impl Message for Line {
        fn payload(&self) -> &[u8] {
            self.0.as_bytes()
        }

        fn arrived(&self) -> Ns {
            0
        }

        fn ports(&self) -> Option<(u16, u16)> {
            None
        }
    }

    impl Exchange for Script {
        type Message = Line;
        type Error = std::io::Error;

        fn try_recv(&self) -> Option<Line> {
            self.waiting.borrow_mut().pop().map(Line)
        }

        fn echo(&self, message: Line, now: Ns) -> std::io::Result<()> {
            let text = message.0.clone();
            self.reply(message, text.as_bytes(), now)
        }

        fn reply(&self, message: Line, payload: &[u8], _now: Ns) -> std::io::Result<()> {
            if message.0 == "unanswerable" {
                return Err(std::io::ErrorKind::AddrNotAvailable.into());
            }
            self.sent.borrow_mut().push(String::from_utf8_lossy(payload).into_owned());
            Ok(())
        }
    }
}
