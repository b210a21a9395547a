//! The client side of neper's `tcp_rr`: flows in a closed loop, each with one outstanding request.
//!
//! The client host is like the server, and its receive queues are modelled: an answer waits for the CPU of its
//! queue, in order of arrival. A request of many packets shares the wire with those of other flows as their
//! congestion windows allow, which differ from one transfer to the next. A request that fits into one packet is
//! sent at once.

use napkin_core::Ns;
use napkin_machine::{Client, Kind, Machine, Packet};

use crate::machine::stream::BURST;
use napkin_machine::profile::Profile;
use napkin_traffic::Rng;

/// The timer of the wire; all other timers belong to flows.
const WIRE: u64 = u64::MAX;

/// Flows start within this time, in nanoseconds.
const START: f64 = 300_000.0;

/// A transfer of several packets in progress.
#[derive(Debug, Clone, Copy)]
struct Transfer {
    flow: u32,
    /// Bytes still to be sent.
    left: u32,
    share: f64,
    stamp: Ns,
}

/// The client host.
#[derive(Debug)]
pub(super) struct TcpRr {
    /// By flow: the sending time of its request.
    stamps: Vec<Ns>,
    /// By flow: its queue on this host.
    queue: Vec<u16>,
    /// By queue: when its CPU becomes idle.
    free: Vec<Ns>,
    request: u32,
    /// A request's time on this host, without its queue's.
    delay: Ns,
    /// The queue's time for an answer, for each further segment of it, for an acknowledgement, and for a transmit
    /// completion.
    frame: Ns,
    segment: Ns,
    ack: Ns,
    completion: Ns,
    spread: f64,
    transfers: Vec<Transfer>,
    sending: bool,
    rng: Rng,
}

impl TcpRr {
    /// Returns a client with so many flows, each with requests of so many bytes.
    pub(super) fn new(profile: &Profile, flows: u32, request: u32, seed: u64) -> Self {
        let queues = profile.count("nic.queues");
        let mut rng = Rng::new(seed);
        TcpRr {
            stamps: vec![0; flows as usize],
            queue: (0..flows).map(|_| rng.below(queues) as u16).collect(),
            free: vec![0; queues as usize],
            request,
            delay: profile.time("tcp-rr.client-delay"),
            frame: profile.time("tcp-rr.client-frame"),
            segment: busy(profile, &["cost.segment"]),
            completion: busy(profile, &["cost.poll-completion"]),
            ack: busy(profile, &["cost.poll-frame", "cost.deliver-ack"]),
            spread: profile.ratio("tcp-rr.share-spread"),
            transfers: Vec::new(),
            sending: false,
            rng,
        }
    }

    fn ask(&mut self, machine: &mut Machine<'_>, flow: u32) {
        let now = machine.now();
        self.stamps[flow as usize] = now;
        if self.request <= BURST {
            let bytes = Packet::wire_bytes(self.request);
            machine.send_to_host(Packet::new(flow, Kind::Data, bytes, 0, now));
            return;
        }
        let share = libm::exp(self.spread * self.rng.normal());
        self.transfers.push(Transfer { flow, left: self.request, share, stamp: now });
        if !self.sending {
            self.sending = true;
            machine.client_timer(now, WIRE);
        }
    }

    /// Sends the next packet of a transfer, when the wire is free.
    fn send_next(&mut self, machine: &mut Machine<'_>) {
        let all: f64 = self.transfers.iter().map(|it| it.share).sum();
        let mut ticket = self.rng.unit() * all;
        let Some(last) = self.transfers.len().checked_sub(1) else {
            self.sending = false;
            return;
        };
        let drawn = self.transfers.iter().position(|it| {
            ticket -= it.share;
            ticket < 0.0
        });
        let place = drawn.unwrap_or(last);
        let transfer = &mut self.transfers[place];
        let part = transfer.left.min(BURST);
        transfer.left -= part;
        let more = u64::from(transfer.left.div_ceil(BURST));
        let Transfer { flow, stamp, .. } = *transfer;
        if more == 0 {
            self.transfers.swap_remove(place);
        }
        let bytes = Packet::wire_bytes(part);
        machine.send_to_host(Packet::new(flow, Kind::Data, bytes, more, stamp));
        let wire = f64::from(bytes) * 8.0 / machine.config().link.bits_per_ns;
        let at = machine.now() + wire as Ns;
        machine.client_timer(at, WIRE);
    }
}

/// The sum of these costs on a CPU whose SMT sibling is busy, as on the server.
fn busy(profile: &Profile, costs: &[&str]) -> Ns {
    let all: f64 = costs.iter().map(|path| profile.get(path)).sum();
    (all / profile.ratio("processor.smt-speed")) as Ns
}

impl Client for TcpRr {
    fn start(&mut self, machine: &mut Machine<'_>) {
        for flow in 0..self.stamps.len() {
            let at = (self.rng.unit() * START) as Ns;
            machine.client_timer(at, flow as u64);
        }
    }

    fn timer(&mut self, machine: &mut Machine<'_>, token: u64) {
        if token == WIRE {
            return self.send_next(machine);
        }
        let flow = token as usize;
        let now = machine.now();
        if self.stamps[flow] > 0 {
            machine.record(now - self.stamps[flow]);
        }
        self.ask(machine, flow as u32);
    }

    fn receive(&mut self, machine: &mut Machine<'_>, packet: Packet) {
        let flow = packet.flow;
        let now = machine.now();
        let segments = packet.segments();
        let free = &mut self.free[usize::from(self.queue[flow as usize])];
        if packet.kind == Kind::Ack {
            *free = now.max(*free) + self.ack;
            return;
        }
        *free = now.max(*free) + self.frame + Ns::from(segments - 1) * self.segment;
        if segments > 1 {
            // An answer of more than one segment is acknowledged when it is read.
            *free += self.completion;
            machine.send_to_host(Packet::new(flow, Kind::Ack, Packet::wire_bytes(0), 0, now));
        }
        let done = *free + self.delay;
        if packet.tag == 0 {
            machine.client_timer(done, u64::from(flow));
        }
    }
}
