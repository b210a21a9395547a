//! `udp-sink` (2018): a UDP receiver on the CPU of its queue, offered more than it can take.
//!
//! Delivering a packet and consuming it cost a stated time each, spun. Their sum gives the peak: the
//! rate at which the CPU has nothing left. Beyond it the policy decides whether the application
//! still gets anything: delivery that preempts it (`base`) starves it, delivery in a fair thread
//! (`ksoftirqd`) shares with it, and *feedback* takes from the ring only what it will consume.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use napkin_core::CpuId;
use napkin_engine::{ApplicationWait, Spin, sched};
use napkin_nic::synthetic::{Arrivals, SyntheticConfig, SyntheticQueue, Template};
use napkin_nic::{PacketQueue, Pool};
use napkin_policy::{MICROSECOND, Policy};
use napkin_service::{Service, Sink};
use napkin_stack::{FrameBuilder, UdpSocket};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::error::BenchError;
use crate::live::Live;
use crate::serving::{PEER, Serving, US, Window, set_ratio};
use crate::{live::Trial, options::Options, options::Placement};
use napkin_measure::engine::RING_DROPS;
use napkin_measure::report::{Column, Figures, Report, Row, column};

const PORT: u16 = 9;
/// Frames a receive ring, and a socket, hold.
const RING: u32 = 512;
const SOCKET: usize = 256;

/// How the application waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Waits {
    /// In a blocking receive call, as the document's sink did.
    #[default]
    Blocking,
    /// In an epoll wait.
    Epoll,
}

/// When packets come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Offered {
    /// Evenly, so many times the peak.
    TimesPeak(f64),
    /// The document's corner (II): each falls just after a softirq has ended.
    AfterSoftirq,
}

/// A receiver on the engine, and a source inside the queue that does not wait for it.
#[derive(Debug, Clone, PartialEq)]
pub struct UdpSink {
    /// What it is offered, each a load.
    pub offered: Vec<Offered>,
    /// How the application waits.
    pub waits: Waits,
    /// Nanoseconds to deliver a packet.
    pub delivery: u64,
    /// Nanoseconds to consume one.
    pub consume: u64,
}

impl Default for UdpSink {
    fn default() -> Self {
        let times = [0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 4.0];
        UdpSink {
            offered: times.into_iter().map(Offered::TimesPeak).collect(),
            waits: Waits::Blocking,
            delivery: 20 * MICROSECOND,
            consume: 20 * MICROSECOND,
        }
    }
}

impl UdpSink {
    /// Packets a second at which a CPU that does nothing else is full.
    pub fn peak(&self) -> f64 {
        1e9 / self.delivery.saturating_add(self.consume).max(1) as f64
    }

    fn queue(&self, index: usize, seed: u64) -> Result<SyntheticQueue, BenchError> {
        let arrivals = match self.offered[index] {
            Offered::TimesPeak(times) => Arrivals::Fixed { per_second: self.peak() * times },
            Offered::AfterSoftirq => Arrivals::AfterUnmask { gap: 1 },
        };
        let config = SyntheticConfig {
            seed,
            arrivals,
            start: napkin_engine::now() + 20_000_000,
            rx_ring: RING,
            ..SyntheticConfig::default()
        };
        // Enough for the ring, a poll and the socket, with room to spare.
        let pool = Pool::new(4 * (RING as usize + SOCKET));
        Ok(SyntheticQueue::new(&config, Box::new(Datagrams), pool, None)?)
    }
}

/// Writes datagrams to the sink.
struct Datagrams;

impl Template for Datagrams {
    fn fill(&mut self, flow: u32, seq: u64, buffer: &mut [u8]) -> usize {
        let from = 1_024 + (flow % 60_000) as u16;
        // The buffer is large enough; a frame of no bytes would be counted as truncated.
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
        Map::from_iter([
            (load.0.to_owned(), load.1),
            ("delivery_ns".to_owned(), json!(self.delivery)),
            ("consume_ns".to_owned(), json!(self.consume)),
            ("waits".to_owned(), json!(self.waits)),
        ])
    }

    fn run(&self, index: usize, trial: Trial<'_>) -> Result<Figures, BenchError> {
        // Everything on one CPU: that is the experiment.
        let cpu = trial.options.placement().queue;
        let placement = Placement { queue: cpu, other: cpu, poller: cpu };
        let queue = self.queue(index, trial.seed)?;
        let control = queue.control();
        let queues: Vec<Box<dyn PacketQueue>> = vec![Box::new(queue)];
        let serving = Serving::start(trial.policy, placement, queues, self.delivery)?;
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
        let figures = std::thread::scope(|scope| {
            let engine = &serving.engine;
            let sink = std::thread::Builder::new()
                .name("udp-sink".into())
                .spawn_scoped(scope, move || {
                    sched::pin(None, &[cpu])?;
                    application.run(engine, socket)
                })
                .map_err(BenchError::Proc)?;
            let warm = trial.warm_up(Duration::from_millis(20));
            let window = Window::begin(&serving, &[cpu], &[]);
            let (first, offered) = (received.load(Ordering::Relaxed), control.offered());
            let measured = warm.and_then(|()| trial.window());
            let (last, offered_end) = (received.load(Ordering::Relaxed), control.offered());
            let figures = window.and_then(|window| window.end(0));
            stop.store(true, Ordering::Relaxed);
            control.stop();
            sink.join().map_err(|_| BenchError::Panicked)??;
            measured?;
            let mut figures = figures?;
            let seconds = figures.window_ns.unwrap_or(1) as f64 / 1e9;
            figures.achieved_per_s = Some((last - first) as f64 / seconds);
            figures.set_due(offered_end - offered, last - first);
            figures.packets = Some(last - first);
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
        // Of the row's own counts: the median of ratios would leave out where there is none.
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
        let epoll = options.policies.iter().filter(|it| it.policy.epoll.enabled());
        let epoll: Vec<&str> = epoll.map(|it| it.name.as_str()).collect();
        if self.waits == Waits::Blocking && !epoll.is_empty() {
            notes.push(format!(
                "these wait in epoll, whatever the load says, since they are about it: {}",
                epoll.join(", ")
            ));
        }
        notes
    }
}

/// What was polled for each datagram that the application received, and the part of the drops that
/// cost nothing.
fn set_ratios(figures: &mut Figures) {
    let received = figures.packets.unwrap_or(0);
    let polled = figures.polled_packets.unwrap_or(0);
    set_ratio(&mut figures.extra, "polled_ratio", polled, received);
    let in_ring = figures.drops.get(RING_DROPS).copied().unwrap_or(0);
    let dropped = figures.dropped();
    set_ratio(&mut figures.extra, "ring_share", in_ring, dropped);
}

/// What a policy received up to saturation, and beyond it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Saturation {
    /// What its rows are called.
    pub policy: String,
    /// The most it received a second up to saturation: under any load up to and including the first
    /// that it could not keep up with (received less than 98 % of).
    pub peak_per_s: f64,
    /// The load, in times the peak, at which it received that.
    pub peak_at: f64,
    /// The most it received a second under any load at all.
    pub maximum_per_s: f64,
    /// The load at which it received that.
    pub maximum_at: f64,
    /// The least it received under any load higher than `peak_at`; `None` if there was none.
    pub least_per_s: Option<f64>,
    /// The load at which it received that.
    pub least_at: Option<f64>,
    /// The least as a ratio to `peak_per_s`: 1 or more if it never fell below.
    pub of_peak: Option<f64>,
    /// The least as a ratio to `maximum_per_s`.
    pub of_maximum: Option<f64>,
}

impl Saturation {
    /// One for each policy that was offered more than it could take.
    pub fn all(rows: &[Row]) -> Vec<Saturation> {
        let mut policies: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        policies.sort_unstable();
        policies.dedup();
        policies.into_iter().filter_map(|policy| Saturation::of(policy, rows)).collect()
    }

    fn of(policy: &str, rows: &[Row]) -> Option<Saturation> {
        let mut points: Vec<(f64, f64, f64)> = rows
            .iter()
            .filter(|row| row.name == policy)
            .filter_map(|row| {
                let times = row.load.get("times_peak")?.as_f64()?;
                Some((times, row.figures.offered_per_s?, row.figures.achieved_per_s?))
            })
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let full = points.iter().position(|(_, offered, received)| *received < 0.98 * offered)?;
        let by_rate = |a: &&(f64, f64, f64), b: &&(f64, f64, f64)| a.2.total_cmp(&b.2);
        let peak = points[..=full].iter().max_by(by_rate)?;
        let maximum = points.iter().max_by(by_rate)?;
        let least = points.iter().filter(|point| point.0 > peak.0).min_by(by_rate);
        // A policy that received nothing at all has no ratio.
        let of = |whole: f64| least.filter(|_| whole > 0.0).map(|least| least.2 / whole);
        Some(Saturation {
            policy: policy.to_owned(),
            peak_per_s: peak.2,
            peak_at: peak.0,
            maximum_per_s: maximum.2,
            maximum_at: maximum.0,
            least_per_s: least.map(|point| point.2),
            least_at: least.map(|point| point.0),
            of_peak: of(peak.2),
            of_maximum: of(maximum.2),
        })
    }
}

impl std::fmt::Display for Saturation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Saturation { policy, peak_per_s, peak_at, maximum_per_s, maximum_at, .. } = self;
        write!(
            f,
            "{policy}: most received up to saturation {peak_per_s:.0}/s (at {peak_at} times the peak)"
        )?;
        let (Some(least), Some(at)) = (self.least_per_s, self.least_at) else {
            return f.write_str("; nothing higher was offered");
        };
        let (Some(of_peak), Some(of_maximum)) = (self.of_peak, self.of_maximum) else {
            return f.write_str("; nothing was received");
        };
        let maximum =
            format!("{of_maximum:.2} of its maximum, {maximum_per_s:.0}/s at {maximum_at}");
        if of_peak >= 1.0 {
            return write!(f, "; never less beyond it (least {least:.0}/s at {at}, {maximum})");
        }
        write!(
            f,
            "; beyond it the least was {least:.0}/s (at {at}), {of_peak:.2} of that ({maximum})"
        )
    }
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
    /// How long a wait lasts at most, so that the end of the run is noticed.
    const TICK: Duration = Duration::from_millis(50);
    /// Messages taken before the application waits in its epoll anew; a receive call takes one.
    const BATCH: usize = 64;

    fn run(self, engine: &napkin_engine::Engine, socket: UdpSocket) -> Result<(), BenchError> {
        let Application { policy, waits, work, received, stop } = self;
        let consume = |_: &napkin_stack::Datagram| {
            work.run();
            received.fetch_add(1, Ordering::Relaxed);
        };
        let (mut waits, batch) = if waits == Waits::Epoll || policy.epoll.enabled() {
            (ApplicationWait::epoll(engine, CpuId(0), &socket, &policy)?, Self::BATCH)
        } else {
            (ApplicationWait::blocking(engine, CpuId(0), &socket, &policy)?, 1)
        };
        let mut sink = Sink::new(socket, consume);
        let stopped = || stop.load(Ordering::Relaxed);
        std::thread::scope(|scope| {
            if let Some(poller) = waits.poller(CpuId(0)) {
                // On the same CPU, as all of the experiment: it inherits where this thread runs.
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
    use napkin_measure::report::Repetition;

    fn row(policy: &str, times: f64, received: f64) -> Row {
        let figures = Figures {
            offered_per_s: Some(times * 25_000.0),
            achieved_per_s: Some(received),
            ..Figures::default()
        };
        let load = Map::from_iter([("times_peak".to_owned(), json!(times))]);
        Row::from_repetitions(policy, load, vec![Repetition { step: 0, figures }], Vec::new())
    }

    #[test]
    fn a_collapse_is_measured_from_the_first_load_that_was_too_much() {
        let rows = [
            row("base", 0.2, 5_000.0),
            row("base", 0.5, 11_500.0),
            row("base", 0.8, 1_100.0),
            row("base", 4.0, 23_000.0),
        ];
        let [beyond] = &Saturation::all(&rows)[..] else { panic!("one policy") };
        assert_eq!((beyond.peak_per_s, beyond.peak_at), (11_500.0, 0.5));
        assert_eq!((beyond.least_per_s, beyond.least_at), (Some(1_100.0), Some(0.8)));
        assert_eq!((beyond.maximum_per_s, beyond.maximum_at), (23_000.0, 4.0));
        assert_eq!(
            beyond.to_string(),
            "base: most received up to saturation 11500/s (at 0.5 times the peak); beyond it the \
             least was 1100/s (at 0.8), 0.10 of that (0.05 of its maximum, 23000/s at 4)"
        );
    }

    #[test]
    fn a_policy_that_stays_where_it_is_does_not_read_like_a_collapse() {
        // The most up to saturation is what it got of the first load that was too much.
        let rows = [
            row("feedback", 0.8, 20_000.0),
            row("feedback", 1.0, 24_000.0),
            row("feedback", 2.0, 24_240.0),
            row("feedback", 4.0, 24_480.0),
        ];
        let [beyond] = &Saturation::all(&rows)[..] else { panic!("one policy") };
        assert_eq!((beyond.peak_per_s, beyond.peak_at), (24_000.0, 1.0));
        assert_eq!(beyond.of_peak, Some(1.01));
        assert_eq!(
            beyond.to_string(),
            "feedback: most received up to saturation 24000/s (at 1 times the peak); never less \
             beyond it (least 24240/s at 2, 0.99 of its maximum, 24480/s at 4)"
        );
    }

    #[test]
    fn a_policy_that_receives_nothing_has_no_ratio() {
        let [beyond] = &Saturation::all(&[row("base", 2.0, 0.0), row("base", 4.0, 0.0)])[..] else {
            panic!("one policy")
        };
        assert_eq!((beyond.of_peak, beyond.of_maximum), (None, None));
        assert!(beyond.to_string().ends_with("nothing was received"));
        let [beyond] = &Saturation::all(&[row("base", 2.0, 9.0)])[..] else { panic!("one policy") };
        assert!(beyond.to_string().ends_with("nothing higher was offered"));
    }

    #[test]
    fn ratios_are_of_the_row_s_own_counts() {
        let figures = |received: u64, in_ring: u64, in_socket: u64| {
            let drops = [(RING_DROPS, in_ring), ("socket_full", in_socket)];
            let drops = drops.into_iter().filter(|(_, count)| *count != 0);
            let mut figures = Figures {
                packets: Some(received),
                polled_packets: Some(10),
                drops: drops.map(|(name, count)| (name.to_owned(), count)).collect(),
                ..Figures::default()
            };
            set_ratios(&mut figures);
            figures
        };
        let starved = figures(0, 0, 0);
        assert!(!starved.extra.contains_key("polled_ratio"), "of nothing, no ratio");
        assert!(!starved.extra.contains_key("ring_share"));
        assert_eq!(figures(5, 3, 1).extra["ring_share"], 0.75);
        // Two repetitions dropped nothing, so the row dropped nothing, wherever the third did.
        let repetitions = [figures(5, 0, 0), figures(5, 0, 2), figures(5, 0, 0)]
            .map(|figures| Repetition { step: 0, figures });
        let mut row = Row::from_repetitions("base", Map::new(), repetitions.to_vec(), Vec::new());
        set_ratios(&mut row.figures);
        assert!(!row.figures.extra.contains_key("ring_share"), "{row:?}");
        assert_eq!(row.figures.extra["polled_ratio"], 2.0);
    }

    #[test]
    fn a_policy_that_always_keeps_up_has_no_peak() {
        assert!(Saturation::all(&[row("base", 0.2, 5_000.0)]).is_empty());
    }

    #[test]
    fn the_peak_follows_from_the_costs() {
        assert_eq!(UdpSink::default().peak(), 25_000.0);
    }
}
