//! How a thread with an epoll of its own comes by its requests: it waits, takes one ready socket after
//! the other, and reads each until that is empty.

use napkin_core::Ns;
use napkin_machine::{Act, Machine, Packet, ThreadId};

/// Most events that one wait returns.
const MAX_EVENTS: u32 = 64;

/// A packet that was read, with the receive call's further cost; or what the thread does before there is one.
pub(crate) type Found = Result<(Packet, Ns), Act>;

/// Where such a thread is in what its last wait found.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    waited: bool,
    /// The socket that is being read.
    socket: u32,
}

impl Requests {
    /// Goes on at the start, and after each socket that was found empty.
    pub(crate) fn next(&mut self, machine: &mut Machine<'_>, me: ThreadId) -> Found {
        if !self.waited {
            self.waited = true;
            return Err(Act::Epoll { timeout: None, max_events: MAX_EVENTS });
        }
        match machine.next_ready(me) {
            Some(socket) => {
                self.socket = socket;
                self.read(machine, me)
            }
            None => {
                self.waited = false;
                Err(Act::Kernel(0))
            }
        }
    }

    /// Reads on in the same socket.
    pub(crate) fn read(&self, machine: &mut Machine<'_>, me: ThreadId) -> Found {
        machine.receive(me, self.socket).ok_or(Act::Kernel(0))
    }
}
