//! ping: sends an echo request, waits for its answer, and begins again.
//!
//! Flooding, it sends the next request as soon as the answer is there, or a hundredth of a second
//! after the last one (`ping -f`). Paced, it sends on a schedule and receives in between.

use napkin_core::{MILLISECOND, Ns};
use napkin_machine::{Act, Kind, Machine, Packet, Program, ThreadId};

use crate::machine::frame::FRAME;

/// How long a flood waits for an answer before it sends the next request all the same.
const FLOOD_INTERVAL: Ns = 10 * MILLISECOND;

#[derive(Debug, Clone, Copy)]
enum At {
    /// Has been woken or started, and looks at the clock.
    Awake,
    /// The send call is over: the frame is with the driver.
    Sent,
    /// The wait has ended, with an answer or without.
    Waited,
    /// An answer was read.
    Received,
}

/// `ping`, flooding or paced: sends a request, waits for the answer, and sends the next.
#[derive(Debug)]
pub(super) struct Ping {
    /// The flow on which it sends and is answered.
    pub flow: u32,
    /// Where the answers are delivered.
    pub socket: u32,
    /// Its own work on a request and its answer.
    pub work: Ns,
    /// Time from one request to the next; `None` floods.
    pub pace: Option<Ns>,
    /// When the next request is due at the latest.
    due: Ns,
    /// When the last one was meant to be sent.
    meant: Ns,
    at: At,
}

impl Ping {
    /// A program that has sent nothing yet.
    pub(super) fn new(flow: u32, socket: u32, work: Ns, pace: Option<Ns>) -> Self {
        Ping { flow, socket, work, pace, due: 0, meant: 0, at: At::Awake }
    }

    fn send(&mut self, machine: &Machine<'_>) -> Act {
        let interval = self.pace.unwrap_or(FLOOD_INTERVAL);
        // A paced sender keeps its schedule, but does not make up for what it has missed.
        self.meant = if self.pace.is_some() { self.due } else { machine.now() };
        self.due = (self.meant + interval).max(machine.now());
        self.at = At::Sent;
        let cost = machine.config().cost;
        Act::Kernel(cost.send + cost.send_frame)
    }

    fn wait(&mut self, machine: &Machine<'_>) -> Act {
        self.at = At::Waited;
        Act::Receive { timeout: Some(self.due.saturating_sub(machine.now())) }
    }
}

impl Program for Ping {
    fn resume(&mut self, machine: &mut Machine<'_>, me: ThreadId) -> Act {
        match self.at {
            At::Awake if machine.now() >= self.due => self.send(machine),
            At::Awake => self.wait(machine),
            At::Sent => {
                let queue = machine.queue_of(self.flow);
                machine.transmit(queue, Packet::new(self.flow, Kind::Data, FRAME, 0, self.meant));
                self.wait(machine)
            }
            At::Waited => match machine.receive(me, self.socket) {
                Some((answer, extra)) => {
                    machine.record(machine.now() - answer.stamp);
                    self.at = At::Received;
                    Act::Kernel(machine.config().cost.recv + extra)
                }
                None => {
                    self.at = At::Awake;
                    Act::Kernel(0)
                }
            },
            At::Received => {
                self.at = At::Awake;
                if self.pace.is_none() {
                    self.due = machine.now();
                }
                Act::User(self.work)
            }
        }
    }
}
