//! mutilate: several client machines that load a memcached server, one of which measures.
//!
//! Each connection has at most one outstanding request. It draws the times of its requests from a generalised
//! Pareto distribution, independently of the server. But it sends a due request only when the answer to the
//! previous one has been read, and stamps it then, so the wait of a late request is not counted (coordinated
//! omission). The true latency, from the drawn time, is recorded as well. Without a rate, a connection sends its
//! next request as soon as it has read an answer.
//!
//! A client's network card moderates its interrupts, and some of its queues interrupt at fixed periods only, so
//! answers also wait on the client. Its threads spin, and its network stack acknowledges every answer at once,
//! unless the profile says otherwise.

use std::cell::RefCell;
use std::rc::Rc;

use napkin_core::{MILLISECOND, Ns};
use napkin_machine::{Client, Kind, Machine, Packet};

use napkin_machine::profile::Profile;
use napkin_traffic::sizes::{key_size, value_size};
use napkin_traffic::{Histogram, LogBins, Rng, Schedule};

/// The largest value: its answer still fits into one frame.
const LARGEST_VALUE: u32 = 1_400;
/// Share of requests that are sets.
const SETS: f64 = 0.03;
/// The number of records in the store.
const RECORDS: usize = 10_000;
/// Bytes of a frame besides the payload: preamble, headers with timestamps, gap.
const FRAME: u32 = 90;
/// Bytes of a request and of an answer besides the key and the value.
const REQUEST: u32 = 6;
const STORED: u32 = 38;
const ANSWER: u32 = 28;

/// The rate of requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    /// Requests per second of all connections together.
    PerS(f64),
    /// As many as the server answers.
    Max,
}

/// The distribution of the connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Clients {
    /// The number of connections, assigned to the machines in turn.
    pub connections: u32,
    /// The number of the server's queues.
    pub queues: u16,
    /// Client machines; the first one measures.
    pub machines: u32,
}

impl Clients {
    /// Returns the server's queue of each connection. The first queue has the mean share plus `hottest`, the last
    /// one the mean minus as much, and those between them have evenly spaced shares. The skew is fixed, because it
    /// depends on how a card's hash spreads the addresses and ports of a few clients: a property of the testbed,
    /// not of a run.
    pub(super) fn spread(&self, hottest: f64) -> Vec<u16> {
        let last = f64::from(self.queues.saturating_sub(1).max(1));
        let share = |queue: u16| {
            let skew =
                if self.queues > 1 { hottest * (1.0 - 2.0 * f64::from(queue) / last) } else { 0.0 };
            (1.0 + skew) / f64::from(self.queues)
        };
        // Every client machine has the same distribution, including the one that measures.
        let machines = self.machines.max(1);
        let mut dealt = vec![0u32; usize::from(self.queues) * machines as usize];
        (0..self.connections)
            .map(|i| {
                let dealt = &mut dealt[(i % machines) as usize * usize::from(self.queues)..];
                // The queue with the largest deficit from its share.
                let behind = |queue: &u16| {
                    share(*queue) * f64::from(i / machines + 1)
                        - f64::from(dealt[usize::from(*queue)])
                };
                let most =
                    (0..self.queues).reduce(|a, b| if behind(&b) > behind(&a) { b } else { a });
                let queue = most.unwrap_or(0);
                dealt[usize::from(queue)] += 1;
                queue
            })
            .collect()
    }
}

/// The results of the clients, from the answers that were read in the window.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Measured {
    /// Answers that were read, on all machines.
    pub answers: u64,
    /// Requests whose intended time was in the window, on all machines, sent or not; 0 without a rate.
    pub due: u64,
    /// The first machine's latencies from the stamps of the tool.
    pub stamped: Histogram,
    /// The same latencies in the tool's own bins.
    pub bins: LogBins,
    /// The first machine's latencies from the intended sending times.
    pub intended: Histogram,
}

/// A connection of a client machine.
#[derive(Debug, Clone)]
struct Connection {
    flow: u32,
    /// Its receive queue, counted over all client machines.
    rx: u32,
    measures: bool,
    /// The intended sending time of the outstanding request.
    meant: Ns,
    /// The schedule of the next requests; `None` without a rate.
    schedule: Option<Schedule>,
}

/// A receive queue of a client machine.
#[derive(Debug, Clone, Copy)]
struct Receive {
    /// When it interrupts next, or did so last.
    interrupt: Ns,
    /// The phase of its interrupts if it interrupts at fixed periods only.
    phase: Option<Ns>,
}

impl Receive {
    /// Returns when a frame that arrives now is passed to the stack.
    fn handed_up(&mut self, now: Ns, moderation: Ns) -> Ns {
        if let Some(phase) = self.phase {
            return now + moderation - (now + phase) % moderation;
        }
        if self.interrupt <= now {
            self.interrupt = now.max(self.interrupt + moderation);
        }
        self.interrupt
    }
}

/// The load generator: all connections of all client machines.
#[derive(Debug)]
pub(super) struct Mutilate {
    connections: Vec<Connection>,
    /// The receive queues of all machines.
    interrupts: Vec<Receive>,
    moderation: Ns,
    /// Time of one way through a client, without waiting.
    delay: Ns,
    /// Whether each answer is acknowledged with a separate frame.
    acks: bool,
    records: Vec<(u32, u32)>,
    rng: Rng,
    /// The start of the window.
    from: Ns,
    measured: Rc<RefCell<Measured>>,
}

impl Mutilate {
    /// Returns clients whose connection `i` is flow `i` of the machine. Answers that are read before `from` are not
    /// counted.
    pub(super) fn new(
        profile: &Profile,
        clients: Clients,
        rate: Rate,
        from: Ns,
        seed: u64,
    ) -> (Self, Rc<RefCell<Measured>>) {
        let mut rng = Rng::new(seed);
        let rx_queues = profile.count("memcached.client-queues").max(1) as u32;
        let machines = clients.machines.max(1);
        let mean = match rate {
            Rate::PerS(rate) => Some(f64::from(clients.connections) * 1e9 / rate),
            Rate::Max => None,
        };
        let connections: Vec<_> = (0..clients.connections)
            .map(|i| {
                let machine = i % machines;
                let place = rng.below(u64::from(rx_queues)) as u32;
                Connection {
                    flow: i,
                    rx: machine * rx_queues + place,
                    measures: machine == 0,
                    meant: 0,
                    schedule: mean.map(|mean| Schedule::new(rng.split(), mean, 0)),
                }
            })
            .collect();
        let records: Vec<_> = (0..RECORDS)
            .map(|_| (key_size(&mut rng), value_size(&mut rng, LARGEST_VALUE)))
            .collect();
        let moderation = profile.time("memcached.client-moderation");
        let slow = profile.ratio("memcached.client-slow") * f64::from(rx_queues);
        let receive: Vec<_> = (0..machines * rx_queues)
            .map(|queue| {
                let slow = f64::from(queue % rx_queues) < slow && moderation > 0;
                Receive { interrupt: 0, phase: slow.then(|| rng.below(moderation)) }
            })
            .collect();
        let measured = Rc::new(RefCell::new(Measured::default()));
        let client = Mutilate {
            connections,
            interrupts: receive,
            moderation,
            delay: profile.time("memcached.client-delay") / 2,
            acks: profile.on("memcached.client-acks"),
            records,
            rng: rng.split(),
            from,
            measured: Rc::clone(&measured),
        };
        (client, measured)
    }

    /// Sends a connection's next request at its due time, but not before `free`.
    fn issue(&mut self, machine: &mut Machine<'_>, index: usize, free: Ns) {
        let sets = self.rng.unit() < SETS;
        let (key, value) = self.records[self.rng.below(RECORDS as u64) as usize];
        let bytes = FRAME + REQUEST + key + if sets { STORED + value } else { 0 };
        let answer = FRAME + if sets { REQUEST } else { ANSWER + key + value };
        let connection = &mut self.connections[index];
        let meant = match &mut connection.schedule {
            Some(schedule) => {
                let due = schedule.due();
                schedule.advance();
                due
            }
            None => free,
        };
        connection.meant = meant;
        let at = meant.max(free);
        let tag = index as u64 | u64::from(answer) << 32;
        let packet = Packet::new(connection.flow, Kind::Data, bytes, tag, at);
        machine.send_to_host_later(at + self.delay, packet);
    }
}

/// Returns the size of a request's answer in bytes, from its tag.
pub(super) fn answer_bytes(tag: u64) -> u32 {
    (tag >> 32) as u32
}

impl Client for Mutilate {
    fn start(&mut self, machine: &mut Machine<'_>) {
        for index in 0..self.connections.len() {
            // Without a rate, the connections start at random times.
            let free = match self.connections[index].schedule {
                Some(_) => 0,
                None => self.rng.below(MILLISECOND),
            };
            self.issue(machine, index, free);
        }
    }

    fn timer(&mut self, _: &mut Machine<'_>, _: u64) {}

    fn receive(&mut self, machine: &mut Machine<'_>, packet: Packet) {
        let now = machine.now();
        let index = (packet.tag & u64::from(u32::MAX)) as usize;
        let connection = &self.connections[index];
        let queue = &mut self.interrupts[connection.rx as usize];
        let interrupt = queue.handed_up(now, self.moderation);
        if self.acks {
            let ack = Packet::new(connection.flow, Kind::Ack, FRAME, 0, interrupt);
            machine.send_to_host_later(interrupt, ack);
        }
        let read = interrupt + self.delay;
        if now >= self.from {
            let mut measured = self.measured.borrow_mut();
            measured.answers += 1;
            measured.due +=
                u64::from(connection.schedule.is_some() && connection.meant >= self.from);
            if connection.measures {
                let latency = read.saturating_sub(packet.stamp);
                measured.stamped.add(latency);
                measured.bins.add(latency);
                measured.intended.add(read.saturating_sub(connection.meant));
            }
        }
        self.issue(machine, index, read);
    }

    /// Counts the requests of each connection that are due and unanswered: the outstanding one, and those behind
    /// it.
    fn end(&mut self, end: Ns) {
        let mut measured = self.measured.borrow_mut();
        for connection in &mut self.connections {
            let Some(schedule) = &mut connection.schedule else { continue };
            let mut meant = connection.meant;
            while meant < end {
                measured.due += u64::from(meant >= self.from);
                meant = schedule.due();
                schedule.advance();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fullest_queue_has_its_share_of_every_client() {
        let clients = Clients { connections: 4480, queues: 8, machines: 7 };
        let spread = clients.spread(0.1);
        let on = |queue: u16| spread.iter().filter(|&&it| it == queue).count();
        assert_eq!([on(0), on(7)], [616, 504]);
        assert!((1..8).all(|queue| on(queue) < on(queue - 1)));
        let driver = spread.iter().step_by(7).filter(|&&it| it == 0).count();
        assert!((82..=94).contains(&driver), "{driver} of 640");
        let even = clients.spread(0.0);
        assert!((0..8).all(|queue| even.iter().filter(|&&it| it == queue).count() == 560));
    }

    #[test]
    fn one_queue_has_them_all() {
        let clients = Clients { connections: 3, queues: 1, machines: 1 };
        assert_eq!(clients.spread(0.1), [0, 0, 0]);
    }
}
