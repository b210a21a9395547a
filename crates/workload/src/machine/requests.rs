//! The request loop of a thread with its own epoll context: it waits, takes one ready socket after the other, and
//! reads each until it is empty. It acknowledges what it has read.

use napkin_machine::{Act, Machine, Packet, ThreadId};

use super::stream::{acknowledge, copying};

/// Upper limit of the events that one wait returns.
const MAX_EVENTS: u32 = 64;

/// The last packet of a request, or the thread's next act if no request is complete yet.
pub(crate) type Found = Result<Packet, Act>;

/// The progress of such a thread through the events of its last wait.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    waited: bool,
    /// The socket being read.
    socket: u32,
    /// A packet whose receive call is in progress.
    reading: Option<Packet>,
}

impl Requests {
    /// Continues until a request is complete. `more` returns how many packets of the request follow one with this
    /// tag. A packet without payload belongs to no request: it is returned at once, without a receive call.
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

    /// Continues reading the same socket.
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
