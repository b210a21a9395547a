//! `xsk-rr` (2025): packets at a fixed rate over a raw socket, answered inline by an application that is then busy
//! for a while.
//!
//! The sender is inside the synthetic queue, which leaves out one host and one wire of the document's setup; or,
//! over a wire ([`XskRr::wire`]), at its other end. The queue and the thread that polls it have one CPU, the
//! application has another. The application spins on its socket like the document's tool: with a receive call
//! whenever there is nothing, unless a thread that never stops polling makes such calls pointless (the tool's
//! `-n`), or another thread makes them (`-t`). The histogram of receive times covers these calls, or those of the
//! other thread, or the epoll waits of a policy that busy polls there. Latency runs from the intended arrival of a
//! packet until its reply is handed to the device, or over a wire until the sender has received it, so a late reply
//! is charged in full. The document's own estimator, which is not a percentile, is reported next to the true
//! percentiles.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use napkin_core::CpuId;
use napkin_engine::{ApplicationWait, sched};
use napkin_nic::synthetic::{Arrivals, SyntheticConfig, SyntheticQueue, Template};
use napkin_nic::{PacketQueue, Pool};
use napkin_policy::{Ns, Policy, Threaded, WaitsIn};
use napkin_stack::{FrameBuilder, RawFilter, RawSocket};
use serde_json::{Map, Value, json};

use super::pace::{self, PACES, Pace};
use super::{PAYLOAD, UDP_PORT};
use crate::client_results::client_notes;
use crate::error::BenchError;
use crate::live::Live;
use crate::sender::{Sender, Shared, client_cpu, own_cpu};
use crate::server::Wire;
use crate::serving::{PEER, Serving, US, Window};
use crate::source::Source;
use crate::wire::queues;
use crate::{live::Trial, options::Options};
use napkin_measure::report::{Column, Measurement, Report, column};
use napkin_measure::{Latency, Pow2, PublishedEstimator};

/// Two ends that exchange frames at a fixed pace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XskRr {
    /// The paces, each a load.
    pub paces: Vec<Pace>,
    /// The wire; `None` for a synthetic queue with the sender inside. A veth has AF_XDP at both ends here.
    pub wire: Option<Wire>,
}

impl Default for XskRr {
    fn default() -> Self {
        XskRr { paces: PACES.to_vec(), wire: None }
    }
}

/// Writes the sender's packets.
struct Packets;

impl Template for Packets {
    fn fill(&mut self, _: u32, seq: u64, buffer: &mut [u8]) -> usize {
        let mut payload = [0; PAYLOAD];
        payload[..8].copy_from_slice(&seq.to_be_bytes());
        // The buffer is large enough; an empty frame would be counted as truncated.
        FrameBuilder::new(PEER, US).udp(buffer, UDP_PORT, UDP_PORT, &payload).unwrap_or(0)
    }
}

/// Creates a queue that generates packets at a pace.
fn synthetic(pace: Pace, seed: u64) -> Result<SyntheticQueue, BenchError> {
    let config = SyntheticConfig {
        seed,
        arrivals: Arrivals::Fixed { per_second: 1e9 / pace.period as f64 },
        start: napkin_engine::now() + 50_000_000,
        rx_ring: 1_024,
        // As with AF_XDP, every poll reaps sent frames. With transmit interrupts, twice as many interrupts would be
        // due as this machine's timers can deliver at this rate, and the interrupts row would show that instead of
        // the policy. The notes mention it.
        tx_interrupts: false,
        tx_ring: 1_024,
        ..SyntheticConfig::default()
    };
    Ok(SyntheticQueue::new(&config, Box::new(Packets), Pool::new(8_192), None)?)
}

/// The application's measurements.
struct DetailedCounts {
    latency: Latency,
    published: PublishedEstimator,
    /// Time of each receive call, in nanoseconds.
    calls: Pow2,
}

impl Live for XskRr {
    fn name(&self) -> &'static str {
        "xsk-rr"
    }

    fn loads(&self) -> usize {
        self.paces.len()
    }

    fn load(&self, index: usize) -> Map<String, Value> {
        let mut load = self.paces[index].load();
        if let Some(wire) = &self.wire {
            load.insert("wire".to_owned(), json!(wire.to_string()));
        }
        load
    }

    fn run(&self, index: usize, trial: Trial<'_>) -> Result<Measurement, BenchError> {
        let (options, pace) = (trial.options, self.paces[index]);
        let placement = options.placement();
        // The namespace of a wire must live as long as its ends.
        let (queue, source, _namespace) = match &self.wire {
            None => {
                let queue = synthetic(pace, trial.seed)?;
                let control = queue.control();
                (Box::new(queue) as Box<dyn PacketQueue>, Source::Internal(control), None)
            }
            Some(wire) => {
                let ((queues, queue), namespace) = queues(wire, options)?;
                let cpu = client_cpu(options, true);
                let period = pace.period;
                let sender = Sender { queue, period, port: UDP_PORT, payload: PAYLOAD, cpu };
                (queues, Source::Remote(sender), namespace)
            }
        };
        let serving = Serving::start(trial.policy, placement, vec![queue], 0)?;
        let socket = serving.stack.open_raw(RawFilter::UdpPort(UDP_PORT), 2_048)?;
        let (shared, looking) = (Shared::default(), AtomicU64::new(0));
        let application = Application {
            serving: &serving,
            policy: trial.policy,
            delay: pace.delay,
            placement,
            shared: &shared,
            looking: &looking,
        };
        let (figures, seen) = std::thread::scope(|scope| {
            let receiver = std::thread::Builder::new()
                .name("xsk-rr".into())
                .spawn_scoped(scope, || application.run(scope, &socket))
                .map_err(BenchError::Proc)?;
            // On an error, stop the receiver, because the scope waits for it.
            let source = source
                .start(scope, "xsk-rr-client", &shared)
                .inspect_err(|_| shared.stop.store(true, Ordering::Relaxed))?;
            let warm = trial.warm_up(Duration::from_millis(50));
            let cpus = serving_cpus(trial.policy, placement);
            let window = Window::begin(&serving, &cpus, source.cpu().as_slice());
            shared.measure.store(true, Ordering::Relaxed);
            let before = source.offered();
            let measured = warm.and_then(|()| trial.window());
            // Before measuring stops: requests that are due later do not count.
            let end = source.offered();
            shared.measure.store(false, Ordering::Relaxed);
            let looking = looking.load(Ordering::Relaxed);
            let figures = window.and_then(|window| window.end(looking));
            shared.stop.store(true, Ordering::Relaxed);
            let mut seen = receiver.join().map_err(|_| BenchError::Panicked)??;
            if let Some(times) = source.end()? {
                (seen.latency, seen.published) = times;
            }
            measured?;
            let mut figures = figures?;
            let offered = end.due - before.due;
            figures.extra.insert("offered".into(), json!(offered));
            figures.extra.insert("client_behind".into(), json!(end.behind));
            figures.set_due(offered, seen.latency.count());
            Ok::<_, BenchError>((figures, seen))
        })?;
        serving.engine.stop();
        Ok(self.measurement(figures, seen))
    }

    fn conclude(&self, report: &mut Report) {
        report.rows.iter_mut().for_each(|row| row.notes.extend(client_notes(row)));
    }

    fn overhead(&self) -> Duration {
        Duration::from_millis(100)
    }

    fn columns(&self) -> Vec<&'static Column> {
        vec![
            column::FRAMES_PER_S,
            column::DELAY,
            column::POLICY,
            column::P5,
            column::P50,
            column::P95,
            column::P99,
            column::P999,
            column::PUBLISHED_P5,
            column::PUBLISHED_P50,
            column::PUBLISHED_P95,
            column::PUBLISHED_P99,
            column::ACHIEVED,
            column::SWITCHES_PER_PACKET,
            column::INTERRUPTS_PER_PACKET,
            column::APPLICATION_POLLS,
            column::SOFTIRQ_POLLS,
            column::WORK,
            column::POLL,
            column::WAITING,
            column::INTERRUPTED,
            column::ASLEEP,
        ]
    }

    fn notes(&self, options: &Options) -> Vec<String> {
        let until = if self.wire.is_some() {
            "when a request was due to its reply"
        } else {
            "intended arrival to reply"
        };
        let mut notes = vec![
            pace::of_percentiles(until),
            "sent frames raise no interrupts of their own here: interrupts and context switches are \
             those of receiving"
                .to_owned(),
        ];
        if let Some(wire) = &self.wire {
            let place = match own_cpu(options, true) {
                Some(cpu) => format!("on CPU {cpu}, where it never sleeps"),
                None => "without a CPU of its own, so that it sleeps between frames, and its timers are in the latency".into(),
            };
            notes.push(format!("the client is at the other end ({wire}), on this host, {place}"));
            if matches!(wire, Wire::Xdp | Wire::Ports { .. }) {
                notes.push("the kernel's own NAPI below is not polled from here: it brings the frames by its interrupts".into());
            }
        }
        notes.extend(pace::notes(&self.paces));
        notes
    }
}

impl XskRr {
    fn measurement(&self, mut figures: Measurement, mut seen: DetailedCounts) -> Measurement {
        let seconds = figures.window_ns.unwrap_or(1) as f64 / 1e9;
        let answered = seen.latency.count();
        figures.packets = Some(answered);
        figures.achieved_per_s = Some(answered as f64 / seconds);
        figures.latency_ns = seen.latency.summary(figures.unanswered_beside(answered));
        figures.published_estimator_ns = seen.published.take();
        figures.receive_time_histogram = (seen.calls.count() > 0).then_some(seen.calls);
        figures
    }
}

/// Returns the serving CPUs, including the poller's if there is one.
fn serving_cpus(policy: &Policy, placement: crate::options::Placement) -> Vec<usize> {
    let mut cpus = vec![placement.queue, placement.other];
    if policy.application.has_poller() {
        cpus.push(placement.poller);
    }
    cpus
}

/// The application and, if the policy asks for one, its polling thread.
#[derive(Clone, Copy)]
struct Application<'a> {
    serving: &'a Serving,
    policy: &'a Policy,
    delay: Ns,
    placement: crate::options::Placement,
    shared: &'a Shared,
    /// Nanoseconds in the window that the application spent checking the socket without finding anything.
    looking: &'a AtomicU64,
}

impl<'a> Application<'a> {
    fn run<'s>(
        self,
        scope: &'s std::thread::Scope<'s, 'a>,
        socket: &RawSocket,
    ) -> Result<DetailedCounts, BenchError> {
        sched::pin(None, &[self.placement.other])?;
        let cpu = self.serving.other;
        let engine = &self.serving.engine;
        let epoll = self.policy.waits_in() == Some(WaitsIn::Epoll);
        let (mut waits, tick) = if epoll {
            (ApplicationWait::epoll(engine, cpu, socket, self.policy)?, Duration::from_millis(50))
        } else {
            (ApplicationWait::blocking(engine, cpu, socket, self.policy)?, Duration::ZERO)
        };
        let poller = waits.poller(CpuId(0));
        let others_poll = poller.is_some() || self.policy.instance.threaded == Threaded::BusyPoll;
        let waits_itself = epoll || !others_poll;
        // The engine counts the time of calls that poll; all other checks of the socket are the application's own
        // polling.
        let spins = !epoll && (others_poll || !self.policy.application.socket_busy_polls());
        let poller = poller.map(|poller| {
            let (stop, cpu) = (&self.shared.stop, self.placement.poller);
            std::thread::Builder::new().name("xsk-rr-poll".into()).spawn_scoped(scope, move || {
                sched::pin(None, &[cpu])?;
                let mut calls = Pow2::default();
                while !stop.load(Ordering::Relaxed) {
                    self.timed(&mut calls, || poller.poll())?;
                }
                Ok::<_, BenchError>(calls)
            })
        });
        if !epoll {
            // A first call registers this thread with the engine, even if it never calls again.
            waits.wait(Some(tick))?;
        }
        let (mut seen, mut calls) = (DetailedCounts::new(), Pow2::default());
        let result = self.receive(socket, &mut seen, spins, || {
            let frame = socket.try_recv();
            if frame.is_none() && waits_itself {
                self.timed(&mut calls, || waits.wait(Some(tick)))?;
            }
            Ok(frame)
        });
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(poller) = poller {
            calls =
                poller.map_err(BenchError::Proc)?.join().map_err(|_| BenchError::Panicked)??;
        }
        seen.calls = calls;
        result.map(|()| seen)
    }

    /// Makes a call and, during the window, records its duration.
    fn timed<T>(self, calls: &mut Pow2, call: impl FnOnce() -> T) -> T {
        let called = napkin_engine::now();
        let result = call();
        if self.shared.measure.load(Ordering::Relaxed) {
            calls.record(napkin_engine::now() - called);
        }
        result
    }

    /// Receives, replies and is busy, until the run stops. With `spins`, checks of the socket that find nothing are
    /// the application's own polling.
    fn receive(
        self,
        socket: &RawSocket,
        seen: &mut DetailedCounts,
        spins: bool,
        mut next: impl FnMut() -> Result<Option<napkin_nic::Frame>, BenchError>,
    ) -> Result<(), BenchError> {
        let mut busy_until = 0;
        while !self.shared.stop.load(Ordering::Relaxed) {
            let called = napkin_engine::now();
            if called < busy_until {
                std::hint::spin_loop();
                continue;
            }
            let Some(frame) = next()? else {
                std::hint::spin_loop();
                if spins && self.shared.measure.load(Ordering::Relaxed) {
                    let looked = napkin_engine::now() - called;
                    self.looking.fetch_add(looked, Ordering::Relaxed);
                }
                continue;
            };
            let arrived = frame.arrived();
            let now = napkin_engine::now();
            // The ring counts a reply that it has no room for; no latency is recorded.
            if socket.reply_in_place(frame, now).is_ok()
                && self.shared.measure.load(Ordering::Relaxed)
            {
                let latency = now.saturating_sub(arrived);
                seen.latency.record(latency);
                seen.published.record(latency);
            }
            if self.delay > 0 {
                busy_until = now.saturating_add(self.delay);
            }
        }
        Ok(())
    }
}

impl DetailedCounts {
    fn new() -> DetailedCounts {
        DetailedCounts {
            latency: Latency::new(),
            published: PublishedEstimator::new(),
            calls: Pow2::default(),
        }
    }
}
