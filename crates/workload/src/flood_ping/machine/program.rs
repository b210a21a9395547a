//! ping: sends an echo request, waits for its answer, and repeats.
//!
//! When flooding, it sends the next request as soon as the answer has arrived, or 10 ms after the last request
//! (`ping -f`). With a rate, it sends on a schedule and receives in between.

use napkin_core::{MILLISECOND, Ns};
use napkin_machine::{Act, Kind, Machine, Packet, Program, ThreadId};

use crate::machine::frame::FRAME;

/// Time after which a flood sends the next request even without an answer.
const FLOOD_INTERVAL: Ns = 10 * MILLISECOND;

#[derive(Debug, Clone, Copy)]
enum At {
    /// Woken or started; about to check the clock.
    Awake,
    /// The send call has returned: the driver has the frame.
    Sent,
    /// The wait has ended, with or without an answer.
    Waited,
    /// An answer has been read.
    Received,
}

/// `ping`, flooding or at a rate: sends a request, waits for the answer, and sends the next one.
#[derive(Debug)]
pub(super) struct Ping {
    /// The flow of requests and answers.
    pub flow: u32,
    /// The socket that receives the answers.
    pub socket: u32,
    /// The program's own work on a request and its answer.
    pub work: Ns,
    /// Time from one request to the next; `None` floods.
    pub pace: Option<Ns>,
    /// The latest time of the next request.
    due: Ns,
    /// The intended sending time of the last request.
    meant: Ns,
    at: At,
}

impl Ping {
    /// Returns a program that has sent nothing yet.
    pub(super) fn new(flow: u32, socket: u32, work: Ns, pace: Option<Ns>) -> Self {
        Ping { flow, socket, work, pace, due: 0, meant: 0, at: At::Awake }
    }

    fn send(&mut self, machine: &Machine<'_>) -> Act {
        let interval = self.pace.unwrap_or(FLOOD_INTERVAL);
        // A paced sender keeps its schedule, but does not catch up on missed requests.
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
