//! `udp-sink` (2018): a UDP receiver on the CPU of its queue, offered more than it can take.
//!
//! Delivering a packet and consuming it each spin for a stated time. Their sum determines the peak: the rate at
//! which the CPU is saturated. Above the peak, the policy decides whether the application still gets CPU time.
//! Delivery that preempts the application (`base`) starves it; delivery in a fair thread (`ksoftirqd`) shares the
//! CPU with it; *feedback* takes from the ring only what the application will consume.
//!
//! The source is inside the queue or, over a wire ([`UdpSink::wire`]), a sender at its other end, on the other CPU
//! if there is one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use napkin_core::CpuId;
use napkin_engine::{ApplicationWait, Spin, sched};
use napkin_kernel::namespace::Namespace;
use napkin_nic::synthetic::{Arrivals, SyntheticConfig, SyntheticQueue, Template};
use napkin_nic::{PacketQueue, Pool};
use napkin_policy::{MICROSECOND, NamedPolicy, Ns, Policy, WaitsIn};
use napkin_service::{Service, Sink};
use napkin_stack::{FrameBuilder, UdpSocket};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::saturation::Saturation;
use crate::client_end::ClientCpu;
use crate::client_results::client_notes;
use crate::error::BenchError;
use crate::live::Live;
use crate::sender::{Sender, Shared};
use crate::server::Wire;
use crate::serving::{PEER, Serving, US, Window, set_ratio};
use crate::source::Source;
use crate::waiting::Waiting;
use crate::wire::queues;
use crate::{live::Trial, options::Options, options::Placement};
use napkin_measure::engine::RING_DROPS;
use napkin_measure::report::{Column, Measurement, Report, column};

const PORT: u16 = 9;
/// Bytes of a datagram over a wire: its due time.
const PAYLOAD: usize = 8;
/// Capacity in frames of the synthetic queue's ring, and in datagrams of a socket.
const RING: u32 = 512;
const SOCKET: usize = 256;

/// Why the corner case is refused over a wire.
pub(super) const CORNER_HAS_NO_WIRE: &str = "the corner is of a source that sees when a softirq ends, as only the one within the queue does: leave out \
     --corner, or --wire";

/// The engine's queue, its source, and the namespace that was created for both.
type Ends = (Box<dyn PacketQueue>, Source, Option<Namespace>);

/// The call in which the application waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Waits {
    /// A blocking receive call, as in the document's sink.
    #[default]
    Blocking,
    /// An epoll wait.
    Epoll,
}

/// The schedule of the packets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Offered {
    /// Evenly spaced, at this multiple of the peak.
    TimesPeak(f64),
    /// The document's corner (II): each packet arrives just after a softirq has ended.
    AfterSoftirq,
}

/// A receiver on the engine, and a source that does not wait for it.
#[derive(Debug, Clone, PartialEq)]
pub struct UdpSink {
    /// The offered rates, each a load.
    pub offered: Vec<Offered>,
    /// The call in which the application waits.
    pub waits: Waits,
    /// Time to deliver a packet, in nanoseconds.
    pub delivery: u64,
    /// Time to consume a packet, in nanoseconds.
    pub consume: u64,
    /// The wire; `None` for a synthetic queue with its source inside. A veth has AF_XDP at both ends here.
    pub wire: Option<Wire>,
}

impl Default for UdpSink {
    fn default() -> Self {
        let times = [0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 4.0];
        UdpSink {
            offered: times.into_iter().map(Offered::TimesPeak).collect(),
            waits: Waits::Blocking,
            delivery: 20 * MICROSECOND,
            consume: 20 * MICROSECOND,
            wire: None,
        }
    }
}

impl UdpSink {
    /// Returns the packets per second that saturate a CPU without other work.
    pub fn peak(&self) -> f64 {
        1e9 / self.delivery.saturating_add(self.consume).max(1) as f64
    }

    /// Returns the engine's queue, its source, and the namespace that was created for both.
    fn source(&self, index: usize, trial: Trial<'_>) -> Result<Ends, BenchError> {
        let arrivals = match self.offered[index] {
            Offered::TimesPeak(times) => Arrivals::Fixed { per_second: self.peak() * times },
            Offered::AfterSoftirq => Arrivals::AfterUnmask { gap: 1 },
        };
        let Some(wire) = &self.wire else {
            let queue = synthetic(arrivals, trial.seed)?;
            let control = queue.control();
            return Ok((Box::new(queue), Source::Internal(control), None));
        };
        let Arrivals::Fixed { per_second } = arrivals else {
            return Err(BenchError::Usage(CORNER_HAS_NO_WIRE.to_owned()));
        };
        let ((queues, queue), namespace) = queues(wire, trial.options)?;
        let period = (1e9 / per_second).round().max(1.0) as Ns;
        let cpu = ClientCpu::beside_queue(trial.options.placement());
        let sender = Sender { queue, period, port: PORT, payload: PAYLOAD, cpu };
        Ok((queues, Source::Remote(sender), namespace))
    }
}

/// Creates a queue that generates datagrams itself.
fn synthetic(arrivals: Arrivals, seed: u64) -> Result<SyntheticQueue, BenchError> {
    let start = napkin_engine::now() + 20_000_000;
    let config =
        SyntheticConfig { seed, arrivals, start, rx_ring: RING, ..SyntheticConfig::default() };
    // Enough for the ring, a poll and the socket, with a reserve.
    let pool = Pool::new(4 * (RING as usize + SOCKET));
    Ok(SyntheticQueue::new(&config, Box::new(Datagrams), pool, None)?)
}

/// Writes datagrams for the sink.
struct Datagrams;

impl Template for Datagrams {
    fn fill(&mut self, flow: u32, seq: u64, buffer: &mut [u8]) -> usize {
        let from = 1_024 + (flow % 60_000) as u16;
        // The buffer is large enough; an empty frame would be counted as truncated.
        FrameBuilder::new(PEER, US).udp(buffer, from, PORT, &seq.to_be_bytes()).unwrap_or(0)
    }
}

impl Live for UdpSink {
    fn name(&self) -> &'static str {
        "udp-sink"
    }

    fn loads(&self) -> usize {
        self.offered.len()
    }

    fn load(&self, index: usize) -> Map<String, Value> {
        let load = match self.offered[index] {
            Offered::TimesPeak(times) => ("times_peak", json!(times)),
            Offered::AfterSoftirq => ("corner", json!("after-softirq")),
        };
        let wire = self.wire.as_ref().map(|wire| ("wire".to_owned(), json!(wire.to_string())));
        let load = [
            (load.0.to_owned(), load.1),
            ("delivery_ns".to_owned(), json!(self.delivery)),
            ("consume_ns".to_owned(), json!(self.consume)),
            ("waits".to_owned(), json!(self.waits)),
        ];
        load.into_iter().chain(wire).collect()
    }

    fn run(&self, index: usize, trial: Trial<'_>) -> Result<Measurement, BenchError> {
        // The experiment has everything on one CPU.
        let cpu = trial.options.placement().queue;
        let placement = Placement { queue: cpu, other: cpu, poller: cpu };
        // The namespace of a wire must live as long as its ends.
        let (queue, source, _namespace) = self.source(index, trial)?;
        let serving = Serving::start(trial.policy, placement, vec![queue], self.delivery)?;
        let received = Arc::new(AtomicU64::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let socket = serving.stack.bind_udp(PORT, SOCKET)?;
        let application = Application {
            policy: *trial.policy,
            waits: self.waits,
            work: Spin::new(self.consume),
            received: Arc::clone(&received),
            stop: Arc::clone(&stop),
        };
        let shared = Shared::default();
        let figures = std::thread::scope(|scope| {
            let engine = &serving.engine;
            let named = |name: &str| std::thread::Builder::new().name(name.into());
            let sink = named("udp-sink")
                .spawn_scoped(scope, move || {
                    sched::pin(None, &[cpu])?;
                    application.run(engine, socket)
                })
                .map_err(BenchError::Proc)?;
            // On an error, stop the sink, because the scope waits for it.
            let source = source
                .start(scope, "udp-sink-client", &shared)
                .inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
            let warm = trial.warm_up(Duration::from_millis(20));
            let window = Window::begin(&serving, &[cpu], source.cpu().as_slice());
            let (first, before) = (received.load(Ordering::Relaxed), source.offered());
            let measured = warm.and_then(|()| trial.window());
            let (last, end) = (received.load(Ordering::Relaxed), source.offered());
            let figures = window.and_then(|window| window.end(0));
            stop.store(true, Ordering::Relaxed);
            source.end()?;
            sink.join().map_err(|_| BenchError::Panicked)??;
            measured?;
            let mut figures = figures?;
            let seconds = figures.window_ns.unwrap_or(1) as f64 / 1e9;
            figures.achieved_per_s = Some((last - first) as f64 / seconds);
            figures.set_due(end.due - before.due, last - first);
            figures.packets = Some(last - first);
            if self.wire.is_some() {
                // A full ring drops a frame at its sender.
                let refused = end.refused - before.refused;
                *figures.drops.entry(RING_DROPS.to_owned()).or_default() += refused;
                figures.extra.insert("client_behind".into(), json!(end.behind));
            }
            set_ratios(&mut figures);
            Ok::<_, BenchError>(figures)
        })?;
        serving.engine.stop();
        Ok(figures)
    }

    fn columns(&self) -> Vec<&'static Column> {
        let load = match self.offered.first() {
            Some(Offered::AfterSoftirq) => column::CORNER,
            _ => column::TIMES_PEAK,
        };
        vec![
            load,
            column::POLICY,
            column::OFFERED,
            column::ACHIEVED,
            column::POLLED_PER_RECEIVED,
            column::UNANSWERED,
            column::DROPS,
            column::RING_SHARE,
            column::INTERRUPTS_PER_PACKET,
            column::WORK,
            column::POLL,
            column::WAITING,
            column::INTERRUPTED,
            column::ASLEEP,
        ]
    }

    fn conclude(&self, report: &mut Report) {
        report.rows.iter_mut().for_each(|row| row.notes.extend(client_notes(row)));
        // From the row's own counts: a median of ratios would omit repetitions that have none.
        report.rows.iter_mut().for_each(|row| set_ratios(&mut row.figures));
        let beyond = Saturation::all(&report.rows);
        report.notes.extend(beyond.iter().map(Saturation::to_string));
        report.extra.insert("beyond_peak".into(), json!(beyond));
    }

    fn notes(&self, options: &Options) -> Vec<String> {
        let mut notes = vec![
            format!(
                "peak: {} ns of delivery and {} ns of application a packet fill the CPU at {:.0}/s",
                self.delivery,
                self.consume,
                self.peak()
            ),
            "no request's latency is measured here: nothing is answered".to_owned(),
        ];
        if let Some(wire) = &self.wire {
            let place = match ClientCpu::beside_queue(options.placement()).own() {
                Some(cpu) => format!("on CPU {cpu}, where it never sleeps"),
                None => "on the sink's own CPU, whose time it takes".to_owned(),
            };
            notes.push(format!(
                "the client is at the other end ({wire}), on this host, {place}; what the wire itself costs comes on top of \
                 delivery and application"
            ));
        }
        let epoll = |it: &&NamedPolicy| it.policy.waits_in() == Some(WaitsIn::Epoll);
        let epoll = options.policies.iter().filter(epoll);
        let epoll: Vec<&str> = epoll.map(|it| it.name.as_str()).collect();
        if self.waits == Waits::Blocking && !epoll.is_empty() {
            notes.push(format!(
                "these wait in epoll, whatever the load says, since they are about it: {}",
                epoll.join(", ")
            ));
        }
        if self.waits == Waits::Epoll {
            notes.extend(Waiting::Epoll.note(&options.policies));
        }
        notes
    }
}

/// Sets the polled packets per datagram received, and the share of the drops that happened in the ring, at no cost.
fn set_ratios(figures: &mut Measurement) {
    let received = figures.packets.unwrap_or(0);
    let polled = figures.polled_packets.unwrap_or(0);
    set_ratio(&mut figures.extra, "polled_ratio", polled, received);
    let in_ring = figures.drops.get(RING_DROPS).copied().unwrap_or(0);
    let dropped = figures.dropped();
    set_ratio(&mut figures.extra, "ring_share", in_ring, dropped);
}

/// The receiving application.
struct Application {
    policy: Policy,
    waits: Waits,
    work: Spin,
    received: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Application {
    /// The longest wait, so that the application notices the end of the run.
    const TICK: Duration = Duration::from_millis(50);
    /// Datagrams taken between two epoll waits; after a receive call, only one is taken.
    const BATCH: usize = 64;

    fn run(self, engine: &napkin_engine::Engine, socket: UdpSocket) -> Result<(), BenchError> {
        let Application { policy, waits, work, received, stop } = self;
        let consume = |_: &napkin_stack::Datagram| {
            work.run();
            received.fetch_add(1, Ordering::Relaxed);
        };
        let in_epoll = waits == Waits::Epoll || policy.waits_in() == Some(WaitsIn::Epoll);
        let (mut waits, batch) = if in_epoll {
            (ApplicationWait::epoll(engine, CpuId(0), &socket, &policy)?, Self::BATCH)
        } else {
            (ApplicationWait::blocking(engine, CpuId(0), &socket, &policy)?, 1)
        };
        let mut sink = Sink::new(socket, consume);
        let stopped = || stop.load(Ordering::Relaxed);
        std::thread::scope(|scope| {
            if let Some(poller) = waits.poller(CpuId(0)) {
                // On the same CPU, like everything here: it inherits this thread's affinity.
                let polls = move || {
                    while !stopped() && poller.poll().is_ok() {
                        std::hint::spin_loop();
                    }
                };
                let named = std::thread::Builder::new().name("udp-sink-poll".into());
                named.spawn_scoped(scope, polls).map_err(BenchError::Proc)?;
            }
            while !stopped() {
                if waits.wait(Some(Self::TICK))? {
                    sink.serve_ready(napkin_engine::now(), batch);
                }
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use napkin_measure::report::{Repetition, Row};

    #[test]
    fn ratios_are_of_the_row_s_own_counts() {
        let figures = |received: u64, in_ring: u64, in_socket: u64| {
            let drops = [(RING_DROPS, in_ring), ("socket_full", in_socket)];
            let drops = drops.into_iter().filter(|(_, count)| *count != 0);
            let mut figures = Measurement {
                packets: Some(received),
                polled_packets: Some(10),
                drops: drops.map(|(name, count)| (name.to_owned(), count)).collect(),
                ..Measurement::default()
            };
            set_ratios(&mut figures);
            figures
        };
        let starved = figures(0, 0, 0);
        assert!(!starved.extra.contains_key("polled_ratio"), "of nothing, no ratio");
        assert!(!starved.extra.contains_key("ring_share"));
        assert_eq!(figures(5, 3, 1).extra["ring_share"], 0.75);
        // Two of three repetitions dropped nothing, so the row's median is 0, whatever the third dropped.
        let repetitions = [figures(5, 0, 0), figures(5, 0, 2), figures(5, 0, 0)]
            .map(|figures| Repetition { step: 0, figures });
        let mut row = Row::from_repetitions("base", Map::new(), repetitions.to_vec(), Vec::new());
        set_ratios(&mut row.figures);
        assert!(!row.figures.extra.contains_key("ring_share"), "{row:?}");
        assert_eq!(row.figures.extra["polled_ratio"], 2.0);
    }

    #[test]
    fn policies_that_wait_otherwise_than_the_load_says_are_named() {
        let policies = "base,busypoll,suspend20,busypoll-separate";
        let policies = NamedPolicy::read(policies).expect("presets");
        let options = Options { policies, ..Options::default() };
        let note = |waits: Waits| {
            UdpSink { waits, ..UdpSink::default() }.notes(&options).pop().expect("there are notes")
        };
        assert!(note(Waits::Blocking).ends_with("they are about it: suspend20"));
        let note = note(Waits::Epoll);
        assert!(note.ends_with("measured: busypoll, busypoll-separate"), "{note}");
    }

    #[test]
    fn the_peak_follows_from_the_costs() {
        assert_eq!(UdpSink::default().peak(), 25_000.0);
    }
}
