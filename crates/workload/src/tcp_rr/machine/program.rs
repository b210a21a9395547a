//! The server side of neper's `tcp_rr`: threads with an epoll context each, which read requests and answer each
//! complete one.

use napkin_core::Ns;
use napkin_machine::{Act, Kind, Machine, Packet, Program, ThreadId};

use crate::machine::requests::{Found, Requests};
use crate::machine::stream::{BURST, copying, packets};

#[derive(Debug, Clone, Copy)]
enum At {
    Reading,
    Worked { packet: Packet },
    Sent { packet: Packet },
}

/// One thread of the program. A request may arrive in several packets: a packet's tag is the number of packets that
/// follow it.
#[derive(Debug)]
pub(super) struct TcpRr {
    /// The program's own work on a request.
    work: Ns,
    /// Bytes of an answer.
    answer: u32,
    requests: Requests,
    at: At,
}

impl TcpRr {
    /// Returns a thread that answers each request with so many bytes.
    pub(super) fn new(work: Ns, answer: u32) -> Self {
        TcpRr { work, answer, requests: Requests::default(), at: At::Reading }
    }

    fn begin(&mut self, found: Found) -> Act {
        let (at, act) = match found {
            Ok(packet) => (At::Worked { packet }, Act::User(self.work)),
            Err(act) => (At::Reading, act),
        };
        self.at = at;
        act
    }

    fn answer(&mut self, machine: &mut Machine<'_>, packet: Packet) {
        let queue = machine.queue_of(packet.flow);
        packets(self.answer, |bytes, more| {
            let answer = Packet::new(packet.flow, Kind::Data, bytes, more, packet.stamp);
            machine.transmit(queue, answer);
        });
    }
}

impl Program for TcpRr {
    fn resume(&mut self, machine: &mut Machine<'_>, me: ThreadId) -> Act {
        let cost = machine.config().cost;
        match self.at {
            At::Reading => {
                let found = self.requests.next(machine, me, |tag| tag);
                self.begin(found)
            }
            At::Worked { packet } => {
                self.at = At::Sent { packet };
                let frames = Ns::from(self.answer.div_ceil(BURST));
                Act::Kernel(cost.send + frames * cost.send_frame + copying(cost.copy, self.answer))
            }
            At::Sent { packet } => {
                self.answer(machine, packet);
                let found = self.requests.read(machine, me);
                self.begin(found)
            }
        }
    }
}
