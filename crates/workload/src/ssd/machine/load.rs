//! Clients of a block service, and the timers of its storage devices. Operations come at a fixed rate on random
//! connections, half of them reads and half writes.
//!
//! An operation's latency is measured from its intended sending time until the last packet of its answer has been
//! read.

use napkin_core::Ns;
use napkin_machine::{Client, Kind, Machine, Packet};

use super::program::{HEADER, MORE, WRITES, more};
use crate::machine::stream::packets;
use napkin_machine::profile::Profile;
use napkin_traffic::Rng;

/// The timer of the next operation; all other timers belong to devices.
const NEXT: u64 = u64::MAX;

#[derive(Debug, Clone, Copy)]
struct Operation {
    flow: u32,
    writes: bool,
    meant: Ns,
}

/// The client hosts, which read and write the disks at a fixed rate.
#[derive(Debug)]
pub(super) struct Ssd {
    connections: u32,
    /// By connection: the socket through which its thread learns of completed device operations.
    completions: Vec<u32>,
    bytes: u32,
    /// Mean time between two operations, in nanoseconds.
    gap: f64,
    next: f64,
    delay: Ns,
    operations: Vec<Operation>,
    free: Vec<u32>,
    rng: Rng,
}

impl Ssd {
    /// Returns clients with `per_second` operations of `bytes` bytes.
    pub(super) fn new(
        profile: &Profile,
        completions: Vec<u32>,
        bytes: u32,
        per_second: f64,
        seed: u64,
    ) -> Self {
        Ssd {
            connections: completions.len() as u32,
            completions,
            bytes,
            gap: 1e9 / per_second,
            next: 0.0,
            delay: profile.time("ssd.client-delay"),
            operations: Vec::new(),
            free: Vec::new(),
            rng: Rng::new(seed),
        }
    }

    fn ask(&mut self, machine: &mut Machine<'_>) {
        let operation = Operation {
            flow: self.rng.below(u64::from(self.connections)) as u32,
            writes: self.rng.bits() & 1 == 1,
            meant: machine.now(),
        };
        machine.request_due();
        let place = match self.free.pop() {
            Some(place) => {
                self.operations[place as usize] = operation;
                place
            }
            None => {
                self.operations.push(operation);
                self.operations.len() as u32 - 1
            }
        };
        let Operation { flow, writes, meant } = operation;
        let (bytes, bit) = if writes { (self.bytes, WRITES) } else { (HEADER, 0) };
        packets(bytes, |bytes, more| {
            let tag = u64::from(place) | bit | more << MORE;
            machine.send_to_host(Packet::new(flow, Kind::Data, bytes, tag, meant));
        });
        self.next += self.rng.exponential(self.gap);
        machine.client_timer(self.next as Ns, NEXT);
    }
}

impl Client for Ssd {
    fn start(&mut self, machine: &mut Machine<'_>) {
        machine.client_timer(0, NEXT);
    }

    fn timer(&mut self, machine: &mut Machine<'_>, token: u64) {
        if token == NEXT {
            return self.ask(machine);
        }
        let Operation { flow, writes, meant } = self.operations[token as usize];
        let tag = token | if writes { WRITES } else { 0 };
        let socket = self.completions[flow as usize];
        machine.complete(socket, Packet::new(flow, Kind::Data, 0, tag, meant));
    }

    fn receive(&mut self, machine: &mut Machine<'_>, packet: Packet) {
        if packet.kind == Kind::Ack {
            return;
        }
        if packet.segments() > 1 {
            let ack = Packet::new(packet.flow, Kind::Ack, Packet::wire_bytes(0), 0, 0);
            machine.send_to_host(ack);
        }
        if more(packet.tag) == 0 {
            machine.record(machine.now() + self.delay - packet.stamp);
            self.free.push(packet.tag as u32);
        }
    }
}
