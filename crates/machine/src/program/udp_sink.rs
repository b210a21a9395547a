//! A sink of datagrams, or an echo: waits, then receives until nothing is left.

use napkin_core::Ns;

use crate::machine::Machine;
use crate::packet::{Kind, Packet};
use crate::thread::{Act, Program, ThreadId};

/// Most datagrams it receives from one socket before it waits again.
const MOST: u32 = 64;

#[derive(Debug, Clone, Copy)]
enum At {
    Waiting,
    Ready,
    Receiving { socket: u32, received: u32 },
    Working { socket: u32, received: u32, packet: Packet },
    Sending { socket: u32, received: u32, packet: Packet },
}

/// The program.
#[derive(Debug)]
pub struct UdpSink {
    /// Work on each datagram.
    pub work: Ns,
    /// Whether it answers.
    pub echo: bool,
    /// `maxevents`.
    pub max_events: u32,
    /// It waits in a receive call on this socket instead of in epoll.
    pub blocking: Option<u32>,
    at: At,
}

impl UdpSink {
    /// A sink that waits in epoll.
    pub fn new(work: Ns, echo: bool) -> Self {
        UdpSink { work, echo, max_events: 64, blocking: None, at: At::Waiting }
    }

    fn receive(&mut self, machine: &mut Machine<'_>, me: ThreadId, socket: u32, n: u32) -> Act {
        let cost = machine.config().cost;
        if n == MOST {
            machine.still_ready(socket);
            self.at = At::Ready;
            return Act::Kernel(0);
        }
        match machine.receive(me, socket) {
            Some((packet, extra)) => {
                self.at = At::Working { socket, received: n + 1, packet };
                Act::Kernel(cost.recv + extra)
            }
            None => {
                self.at = At::Ready;
                Act::Kernel(cost.recv_empty)
            }
        }
    }
}

impl Program for UdpSink {
    fn resume(&mut self, machine: &mut Machine<'_>, me: ThreadId) -> Act {
        match self.at {
            At::Waiting => {
                self.at = At::Ready;
                match self.blocking {
                    None => Act::Epoll { timeout: None, max_events: self.max_events },
                    Some(_) => Act::Receive { timeout: None },
                }
            }
            At::Ready => match self.blocking.or_else(|| machine.next_ready(me)) {
                Some(socket) if machine.waiting(socket) > 0 || self.blocking.is_none() => {
                    self.receive(machine, me, socket, 0)
                }
                _ => {
                    self.at = At::Waiting;
                    Act::Kernel(0)
                }
            },
            At::Receiving { socket, received } => self.receive(machine, me, socket, received),
            At::Working { socket, received, packet } => {
                let now = machine.now();
                machine.record(now - packet.stamp);
                self.at = if self.echo {
                    At::Sending { socket, received, packet }
                } else {
                    At::Receiving { socket, received }
                };
                Act::User(self.work)
            }
            At::Sending { socket, received, packet } => {
                let queue = machine.queue_of(packet.flow);
                machine.transmit(queue, Packet::new(packet.flow, Kind::Data, packet.bytes, packet.tag, packet.stamp));
                self.at = At::Receiving { socket, received };
                let cost = machine.config().cost;
                Act::Kernel(cost.send + cost.send_frame)
            }
        }
    }
}
