//! How a thread with an epoll of its own comes by its requests: it waits, takes one ready socket after
//! the other, and reads each until that is empty. What it has read it acknowledges.

use napkin_machine::{Act, Machine, Packet, ThreadId};

use super::stream::{acknowledge, copying};

/// Most events that one wait returns.
const MAX_EVENTS: u32 = 64;

/// The last packet of a request, read; or what the thread does before there is one.
pub(crate) type Found = Result<Packet, Act>;

/// Where such a thread is in what its last wait found.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    waited: bool,
    /// The socket that is being read.
    socket: u32,
    /// A packet whose receive call is under way.
    reading: Option<Packet>,
}

impl Requests {
    /// Goes on until a whole request is there: `more` says by a packet's tag how many of its request follow.
    /// What has no bytes is no request's, takes no call, and is there at once.
    pub(crate) fn next(
        &mut self,
        machine: &mut Machine<'_>,
        me: ThreadId,
        more: impl FnOnce(u64) -> u64,
    ) -> Found {
        if let Some(packet) = self.reading.take() {
            acknowledge(machine, &packet);
            return if more(packet.tag) > 0 { self.read(machine, me) } else { Ok(packet) };
        }
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
    pub(crate) fn read(&mut self, machine: &mut Machine<'_>, me: ThreadId) -> Found {
        let (packet, extra) = machine.receive(me, self.socket).ok_or(Act::Kernel(0))?;
        if packet.bytes == 0 {
            return Ok(packet);
        }
        self.reading = Some(packet);
        let cost = machine.config().cost;
        Err(Act::Kernel(cost.recv + extra + copying(cost.copy, packet.bytes)))
    }
}
