//! `flood-ping` (2007): echo requests as fast as replies come, answered by the stack itself.
//!
//! Over a TAP device or a veth, the client is the operating system's `ping -f`. Over virtio rings, or two
//! interfaces at the ends of a cable, it is napkin's own; otherwise the synthetic queue generates the flood. No
//! application takes part, so only delivery is measured. The control is an open-loop flood beyond the capacity,
//! under which `hold` and `base` perform alike: if there is always work, there is nothing to hold.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::Duration;

use napkin_nic::synthetic::{Arrivals, SyntheticConfig, SyntheticQueue, Template};
use napkin_nic::tap::{Tap, TapConfig};
use napkin_nic::{PacketQueue, Pool};
use napkin_policy::MICROSECOND;
use napkin_stack::FrameBuilder;
use serde_json::{Map, Value, json};

use super::pinger::{IDENT, Pinger};
use crate::client_end::ClientCpu;
use crate::error::BenchError;
use crate::live::Live;
use crate::ping::{PAYLOAD, Ping};
use crate::server::Wire;
use crate::serving::{DEVICE, PEER, Serving, US, Window, set_ratio};
use crate::waiting::Waiting;
use crate::wire::{open_wire, queues};
use crate::{live::Trial, options::Options, options::Placement};
use napkin_measure::report::{Column, Measurement, column};

/// The sender of the requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Client {
    /// The synthetic queue, which sends a request `turnaround` after each reply.
    Synthetic {
        /// Time from a reply to the next request, in nanoseconds.
        turnaround: u64,
    },
    /// `ping -f` through a TAP device.
    Ping,
    /// `ping -f` on the other end of a veth, over AF_XDP.
    PingOverXdp,
    /// napkin's own `ping -f`, at the other end of a wire with two queues.
    Pinger(Wire),
    /// The control: a synthetic open-loop flood beyond the capacity.
    Extreme {
        /// Requests per second.
        per_second: u32,
        /// Extra cost of delivering a request, in nanoseconds, so that the ring never drains.
        cost: u64,
    },
}

/// Round trips of `ping -f`: a closed loop with one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FloodPing {
    /// The clients, each a load.
    pub clients: Vec<Client>,
}

impl FloodPing {
    /// Returns the loads on embedded devices: the closed loop, and the control.
    pub fn synthetic() -> FloodPing {
        let loop_ = Client::Synthetic { turnaround: 100 * MICROSECOND };
        FloodPing { clients: vec![loop_, FloodPing::extreme()] }
    }

    /// Returns the load of the operating system's ping on a TAP device.
    pub fn tap() -> FloodPing {
        FloodPing { clients: vec![Client::Ping] }
    }

    /// Returns the load of the operating system's ping, over AF_XDP.
    pub fn xdp() -> FloodPing {
        FloodPing { clients: vec![Client::PingOverXdp] }
    }

    /// Returns the load of napkin's own ping, at the other end of virtio rings or of a cable.
    pub fn over(wire: Wire) -> FloodPing {
        FloodPing { clients: vec![Client::Pinger(wire)] }
    }

    /// Returns the control: an open loop that is faster than the ring can be drained.
    pub fn extreme() -> Client {
        Client::Extreme { per_second: 400_000, cost: 5 * MICROSECOND }
    }

    fn synthetic_queue(arrivals: Arrivals, seed: u64) -> Result<SyntheticQueue, BenchError> {
        let start = napkin_engine::now() + 1_000_000;
        let config = SyntheticConfig { seed, arrivals, start, ..SyntheticConfig::default() };
        let pool = Pool::new(4_096);
        Ok(SyntheticQueue::new(&config, Box::new(Requests), pool, None)?)
    }
}

/// Writes echo requests.
struct Requests;

impl Template for Requests {
    fn fill(&mut self, _: u32, seq: u64, buffer: &mut [u8]) -> usize {
        let request =
            FrameBuilder::new(PEER, US).echo_request(buffer, IDENT, seq as u16, &[0x5a; PAYLOAD]);
        // The buffer is large enough; an empty frame would be counted as truncated.
        request.unwrap_or(0)
    }
}

impl Live for FloodPing {
    fn name(&self) -> &'static str {
        "flood-ping"
    }

    fn loads(&self) -> usize {
        self.clients.len()
    }

    fn load(&self, index: usize) -> Map<String, Value> {
        let load = match &self.clients[index] {
            Client::Synthetic { turnaround } => {
                json!({ "client": "flood", "turnaround_ns": turnaround })
            }
            Client::Ping => json!({ "client": "ping -f" }),
            Client::PingOverXdp => json!({ "client": "ping -f", "wire": "xdp" }),
            Client::Pinger(wire) => json!({ "client": "pinger", "wire": wire.to_string() }),
            Client::Extreme { per_second, cost } => {
                json!({ "client": "extreme", "requests_per_s": per_second, "cost_ns": cost })
            }
        };
        load.as_object().cloned().unwrap_or_default()
    }

    fn run(&self, index: usize, trial: Trial<'_>) -> Result<Measurement, BenchError> {
        let options = trial.options;
        let placement = options.placement();
        let (mut offers, mut other_end, mut pinger) = (None, None, None);
        let (queue, cost): (Box<dyn PacketQueue>, u64) = match &self.clients[index] {
            Client::Synthetic { turnaround } => {
                let arrivals = Arrivals::Flood { turnaround: *turnaround, outstanding: 1 };
                (Box::new(Self::synthetic_queue(arrivals, trial.seed)?), 0)
            }
            Client::Pinger(wire) => {
                let ((queues, queue), namespace) = queues(wire, options)?;
                let cpu = ClientCpu::beside_queue(placement);
                pinger = Some((Pinger { queue, cpu }, namespace));
                (queues, 0)
            }
            Client::Extreme { per_second, cost } => {
                let arrivals = Arrivals::Fixed { per_second: f64::from(*per_second) };
                let queue = Self::synthetic_queue(arrivals, trial.seed)?;
                offers = Some(queue.control());
                (Box::new(queue), *cost)
            }
            Client::PingOverXdp => {
                let (queues, end) = open_wire(&Wire::Xdp, options)?;
                other_end = Some(end);
                (queues.into_iter().next().ok_or(BenchError::Panicked)?, 0)
            }
            Client::Ping => {
                let IpAddr::V4(host) = PEER.ip else {
                    return Err(BenchError::Usage("a TAP device's address is IPv4".into()));
                };
                let config = TapConfig {
                    name: DEVICE.into(),
                    address: Some((host, PEER.prefix)),
                    ..TapConfig::default()
                };
                let tap = Tap::open(&config, &Pool::new(4_096))?;
                let queue = tap.queues.into_iter().next().ok_or_else(|| {
                    BenchError::Usage("the TAP device came without a queue".into())
                })?;
                (Box::new(queue), 0)
            }
        };
        let serving = Serving::start(trial.policy, placement, vec![queue], cost)?;
        let flood = || Ping::start(trial, placement.other, US.ip);
        let ping = match (&self.clients[index], &other_end) {
            (Client::Ping, _) => Some(flood()?),
            (_, Some(end)) => Some(end.run(flood)?),
            _ => None,
        };
        let offered = || offers.as_ref().map(|queue| queue.offered());
        // The namespace of a wire must live as long as its ends.
        let (pinger, _namespace) = pinger.unzip();
        let client = pinger.as_ref().and_then(|pinger| pinger.cpu.own());
        let measure = || -> Result<_, BenchError> {
            trial.warm_up(Duration::ZERO)?;
            let (answered, due) = (serving.stack.counters().answered(), offered());
            let window = Window::begin(&serving, &[placement.queue], client.as_slice())?;
            trial.window()?;
            let figures = window.end(0)?;
            let answered = serving.stack.counters().answered() - answered;
            Ok((figures, answered, offered().zip(due).map(|(end, begin)| end - begin)))
        };
        let stop = AtomicBool::new(false);
        let (mut figures, answered, due) = std::thread::scope(|scope| {
            let named = Builder::new().name("flood-ping-client".into());
            let start = |pinger: Pinger| named.spawn_scoped(scope, || pinger.run(&stop));
            let pinger = pinger.map(start).transpose().map_err(BenchError::Proc)?;
            let measured = measure();
            stop.store(true, Ordering::Relaxed);
            if let Some(pinger) = pinger {
                pinger.join().map_err(|_| BenchError::Panicked)??;
            }
            measured
        })?;
        if let Some(ping) = ping {
            ping.stop()?;
        }
        let seconds = figures.window_ns.unwrap_or(1) as f64 / 1e9;
        figures.packets = Some(answered);
        figures.achieved_per_s = Some(answered as f64 / seconds);
        // In a closed loop, no request is due at a given time.
        if let Some(due) = due {
            figures.set_due(due, answered);
        }
        let tx = figures.interrupts_tx.unwrap_or(0);
        let polled = figures.polled_packets.unwrap_or(0);
        set_ratio(&mut figures.extra, "interrupts_tx_per_packet", tx, polled);
        serving.engine.stop();
        Ok(figures)
    }

    fn columns(&self) -> Vec<&'static Column> {
        vec![
            column::POLICY,
            column::CLIENT,
            column::ACHIEVED,
            column::PACKETS,
            column::UNANSWERED,
            column::INTERRUPTS,
            column::INTERRUPTS_PER_PACKET,
            column::TX_INTERRUPTS_PER_PACKET,
            column::POLLS,
            column::WORK,
            column::POLL,
            column::WAITING,
            column::INTERRUPTED,
            column::ASLEEP,
            column::INTERRUPTS_WON,
            column::AFTER_HOLD,
            column::IDLE_GAP,
        ]
    }

    fn notes(&self, options: &Options) -> Vec<String> {
        let mut notes = vec![
            "no request's latency is measured here: the client keeps it to itself".to_owned(),
            "interrupts_won and interrupts_after_hold count both kinds, receive and transmit"
                .into(),
        ];
        if self.clients.iter().any(|client| !matches!(client, Client::Extreme { .. })) {
            notes.push(
                "closed loop (every client but extreme): nothing is offered at a rate, and nothing falls due".into(),
            );
        }
        if self.clients.iter().any(|client| matches!(client, Client::Pinger(_))) {
            notes.push(format!(
                "the client is at the other end, on this host, {}",
                match options.placement() {
                    Placement { queue, other, .. } if queue == other =>
                        "on the queue's own CPU, whose time it takes".into(),
                    Placement { other, .. } => format!("on CPU {other}, where it never sleeps"),
                }
            ));
        }
        if self.clients.contains(&Client::Ping) {
            notes.push(
                "tap: a transmission ends within the call that makes it, so there are no transmit \
                 interrupts"
                    .into(),
            );
        }
        notes.extend(Waiting::Nowhere.note(&options.policies));
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use napkin_policy::{NamedPolicy, Policy};

    #[test]
    fn policies_that_need_an_application_are_named() {
        let names = ["base", "napibusy", "fullbusy", "busypoll", "busypoll-separate", "suspend20"];
        let policies = NamedPolicy::read(&names.join(",")).expect("presets");
        let notes = FloodPing::synthetic().notes(&Options { policies, ..Options::default() });
        let [.., note] = &notes[..] else { panic!("there are notes") };
        assert!(note.ends_with(&names[1..].join(", ")), "{note}");
        let policies = [Policy::BASE, Policy::THREADED_BUSY_POLL, Policy::FEEDBACK];
        let policies = NamedPolicy::all(policies);
        let notes = FloodPing::synthetic().notes(&Options { policies, ..Options::default() });
        assert!(!notes.iter().any(|note| note.starts_with("no application")), "{notes:?}");
    }
}
