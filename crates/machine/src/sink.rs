//! A sink or echo server for datagrams: waits, then receives until its sockets are empty.

use napkin_core::Ns;

use crate::machine::Machine;
use crate::net::packet::{Kind, Packet};
use crate::sched::id::ThreadId;
use crate::sched::thread::{Act, Program};

/// Most datagrams that it receives from one socket before it turns to the next.
const RECEIVE_BATCH: u32 = 64;

#[derive(Debug, Clone, Copy)]
enum At {
    Waiting,
    Woken,
    Ready,
    Receiving { socket: u32, received: u32 },
    Working { socket: u32, received: u32, packet: Packet },
    Sending { socket: u32, received: u32, packet: Packet },
    Sent { socket: u32, received: u32, packet: Packet },
    Exiting,
    Gone,
}

/// A program that reads datagrams from its sockets, works on each, and may send it back.
#[derive(Debug)]
pub struct UdpSink {
    /// Nanoseconds of work per datagram.
    pub work: Ns,
    /// Whether it sends each datagram back.
    pub echo: bool,
    /// Most events that one `epoll_wait` returns (`maxevents`).
    pub max_events: u32,
    /// The socket on which it waits in a receive call; `None`: it waits in epoll.
    pub blocking: Option<u32>,
    /// Whether its latencies are left out of the machine's.
    pub unrecorded: bool,
    /// The queue through which it answers; `None`: the one by which its frames arrive.
    pub answers_by: Option<u16>,
    /// The flow that brings its answers to another card of the same machine; `None`: the answers only leave the host.
    pub answers_to: Option<u32>,
    /// A single stall: after so many datagrams, so many nanoseconds of computation.
    pub stall: Option<(u64, Ns)>,
    /// The exit: after so many datagrams, so many nanoseconds before its descriptors are closed; half as long again
    /// after that.
    pub exit: Option<(u64, Ns)>,
    received: u64,
    /// Sockets that the last wait reported and that are still to be read.
    unread: u32,
    at: At,
}

impl UdpSink {
    /// Creates a sink that waits in epoll.
    pub fn new(work: Ns, echo: bool) -> Self {
        UdpSink {
            work,
            echo,
            max_events: 64,
            blocking: None,
            unrecorded: false,
            answers_by: None,
            answers_to: None,
            stall: None,
            exit: None,
            received: 0,
            unread: 0,
            at: At::Waiting,
        }
    }

    /// Returns the next socket to read: its own if that is not empty, or one that the last wait reported.
    fn next_socket(&self, machine: &mut Machine<'_>, me: ThreadId) -> Option<u32> {
        match self.blocking {
            Some(socket) => (machine.waiting(socket) > 0).then_some(socket),
            None if self.unread > 0 => machine.next_ready(me),
            None => None,
        }
    }

    fn receive(&mut self, machine: &mut Machine<'_>, me: ThreadId, socket: u32, n: u32) -> Act {
        let cost = machine.config().cost;
        if n == RECEIVE_BATCH {
            // Level-triggered: the next wait reports the socket again if frames are left.
            if machine.waiting(socket) > 0 {
                machine.still_ready(socket);
            }
            self.at = At::Ready;
            self.unread = self.unread.saturating_sub(1);
            return Act::Kernel(0);
        }
        match machine.receive(me, socket) {
            Some((packet, extra)) => {
                self.at = At::Working { socket, received: n + 1, packet };
                Act::Kernel(cost.recv + extra)
            }
            None => {
                self.at = At::Ready;
                self.unread = self.unread.saturating_sub(1);
                Act::Kernel(cost.recv_empty)
            }
        }
    }
}

impl Program for UdpSink {
    fn resume(&mut self, machine: &mut Machine<'_>, me: ThreadId) -> Act {
        match self.at {
            At::Waiting => {
                self.at = At::Woken;
                match self.blocking {
                    None => Act::Epoll { timeout: None, max_events: self.max_events },
                    Some(_) => Act::Receive { timeout: None },
                }
            }
            At::Woken => {
                self.unread = machine.events(me);
                self.at = At::Ready;
                Act::Kernel(0)
            }
            At::Ready => match self.next_socket(machine, me) {
                Some(socket) => self.receive(machine, me, socket, 0),
                None => {
                    self.at = At::Waiting;
                    Act::Kernel(0)
                }
            },
            // A blocking receive call on an empty socket sleeps.
            At::Receiving { socket, .. }
                if self.blocking.is_some() && machine.waiting(socket) == 0 =>
            {
                self.at = At::Ready;
                Act::Receive { timeout: None }
            }
            At::Receiving { socket, received } => self.receive(machine, me, socket, received),
            At::Working { socket, received, packet } => {
                let now = machine.now();
                if !self.unrecorded {
                    machine.record(now - packet.stamp);
                }
                self.received += 1;
                let after = |event: Option<(u64, Ns)>| {
                    event.filter(|(count, _)| *count == self.received).map(|(_, time)| time)
                };
                let stall = after(self.stall).unwrap_or(0);
                if let Some(time) = after(self.exit) {
                    self.at = At::Exiting;
                    return Act::Kernel(self.work + time);
                }
                self.at = if self.echo {
                    At::Sending { socket, received, packet }
                } else {
                    At::Receiving { socket, received }
                };
                Act::User(self.work + stall)
            }
            At::Sending { socket, received, packet } => {
                self.at = At::Sent { socket, received, packet };
                let cost = machine.config().cost;
                Act::Kernel(cost.send + cost.send_frame)
            }
            // The doorbell ends the send call.
            At::Sent { socket, received, packet } => {
                let Packet { flow, bytes, tag, stamp, .. } = packet;
                let queue = self.answers_by.unwrap_or_else(|| machine.queue_of(flow));
                machine.transmit(queue, Packet::new(flow, Kind::Data, bytes, tag, stamp));
                if let Some(flow) = self.answers_to {
                    machine.send_to_host(Packet::new(flow, Kind::Data, bytes, tag, stamp));
                }
                self.at = At::Receiving { socket, received };
                Act::Kernel(0)
            }
            At::Exiting => {
                machine.close_epoll_of(me);
                self.at = At::Gone;
                Act::Kernel(self.exit.map_or(0, |(_, time)| time / 2))
            }
            At::Gone => Act::Exit,
        }
    }
}
