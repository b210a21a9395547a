//! A worker of memcached on libevent: it waits for events, then serves each ready connection.
//!
//! Per event it reads the request, works on it, sends the answer, and reads again to find that nothing is left.
//! libevent asks for 32 events at first, and for twice as many after each wait that has filled its list, up to
//! 4096.

use napkin_core::{MILLISECOND, Ns};
use napkin_machine::{Act, Kind, Machine, Packet, Program, ThreadId};

use super::load::answer_bytes;

/// Initial and maximum size of libevent's list of events.
const LIST_MIN: u32 = 32;
const LIST_MAX: u32 = 4096;

/// The epoll timeout of a program that never sleeps, as in the patch of the published experiment.
const SPIN_WAIT: Ns = MILLISECOND;

#[derive(Debug, Clone, Copy)]
enum At {
    Wait,
    Waited,
    Serving,
    Read(Packet),
    Worked(Packet),
}

/// A worker thread of memcached: waits, reads a request, works on it, answers.
#[derive(Debug)]
pub(super) struct Memcached {
    work: Ns,
    list: u32,
    /// Events of the last wait that are still to be served.
    left: u32,
    /// The time of a finished call, which is charged with the next one.
    owed: Ns,
    at: At,
}

impl Memcached {
    /// Returns a worker with this work per request.
    pub(super) fn new(work: Ns) -> Self {
        Memcached { work, list: LIST_MIN, left: 0, owed: 0, at: At::Wait }
    }

    fn serve(&mut self, machine: &mut Machine<'_>, me: ThreadId) -> Act {
        let cost = machine.config().cost;
        while self.left > 0 {
            self.left -= 1;
            let Some(socket) = machine.next_ready(me) else { continue };
            let Some((packet, extra)) = machine.receive(me, socket) else {
                self.owed += cost.recv_empty;
                continue;
            };
            self.at = At::Read(packet);
            return Act::Kernel(std::mem::take(&mut self.owed) + cost.recv + extra);
        }
        self.at = At::Wait;
        Act::Kernel(std::mem::take(&mut self.owed))
    }
}

impl Program for Memcached {
    fn resume(&mut self, machine: &mut Machine<'_>, me: ThreadId) -> Act {
        match self.at {
            At::Wait => {
                self.at = At::Waited;
                let spins = machine.policy().application.spin;
                Act::Epoll { timeout: spins.then_some(SPIN_WAIT), max_events: self.list }
            }
            At::Waited => {
                self.left = machine.events(me);
                if self.left == self.list {
                    self.list = (self.list * 2).min(LIST_MAX);
                }
                self.at = At::Serving;
                self.serve(machine, me)
            }
            At::Serving => self.serve(machine, me),
            At::Read(packet) => {
                self.at = At::Worked(packet);
                Act::User(self.work)
            }
            At::Worked(packet) => {
                let queue = machine.queue_of(packet.flow);
                let bytes = answer_bytes(packet.tag);
                machine.transmit(
                    queue,
                    Packet::new(packet.flow, Kind::Data, bytes, packet.tag, packet.stamp),
                );
                let cost = machine.config().cost;
                self.owed = cost.recv_empty;
                self.at = At::Serving;
                Act::Kernel(cost.send + cost.send_frame)
            }
        }
    }
}
