//! Clients of a block service: operations at a fixed rate, half of them reads and half writes, on
//! connections drawn at random; and the clock of the storage devices.
//!
//! An operation's latency counts from the time when it was meant to be sent, until the last packet of
//! its answer has been read.

use napkin_core::Ns;
use napkin_machine::{Client, Kind, Machine, Packet};

use super::program::{HEADER, MORE, WRITES, more};
use crate::machine::stream::packets;
use napkin_machine::profile::Profile;
use napkin_traffic::Rng;

/// The timer of the next operation; the others are the devices'.
const NEXT: u64 = u64::MAX;

#[derive(Debug, Clone, Copy)]
struct Operation {
    flow: u32,
    writes: bool,
    meant: Ns,
}

/// The hosts that read and write the disks, at a fixed rate.
#[derive(Debug)]
pub(super) struct Ssd {
    connections: u32,
    /// For each connection the socket in which its thread finds what the devices finish.
    completions: Vec<u32>,
    bytes: u32,
    /// Mean time between two operations.
    gap: f64,
    next: f64,
    delay: Ns,
    operations: Vec<Operation>,
    free: Vec<u32>,
    rng: Rng,
}

impl Ssd {
    /// So many operations of so many bytes a second.
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
        machine.fall_due();
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
