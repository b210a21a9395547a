//! An engine that serves a workload, and the measurement of a window of it.

use std::sync::Arc;

use napkin_core::{Counts, Owner};
use napkin_engine::{Contexts, DeviceConfig, Engine, EngineConfig, Placement as Place};
use napkin_nic::{PacketQueue, QueueCounts};
use napkin_policy::{NEVER, Policy};
use napkin_stack::{Address, Stack};
use serde_json::{Map, Value};

use crate::error::BenchError;
use crate::options::{Options, Placement};
use napkin_measure::report::Measurement;
use napkin_measure::{EngineTotals, EngineWindow, Interruption, WindowUsage};

/// The name of the device under test.
pub const DEVICE: &str = "bench0";

/// Our address on it.
pub const US: Address = Address::v4([2, 0, 0, 0, 0x77, 1], [10, 77, 0, 1], 24);

/// The address at the other end of the wire.
pub const PEER: Address = Address::v4([2, 0, 0, 0, 0x77, 2], [10, 77, 0, 2], 24);

/// An engine with one device. Its first CPUs serve the queues; the application has the last CPU, which may be one
/// of them.
#[derive(Debug)]
pub struct Serving {
    /// The running engine; it ends when this is dropped.
    pub engine: Engine,
    /// The stack on its device.
    pub stack: Arc<Stack>,
    /// The engine's number of the application's CPU.
    pub other: napkin_core::CpuId,
}

impl Serving {
    /// Starts an engine whose queues are all served by one CPU. Delivering a frame costs `delivery_cost` extra
    /// nanoseconds. Threads that poll run on the queues' CPU.
    ///
    /// # Errors
    /// If the engine does not start.
    pub fn start(
        policy: &Policy,
        placement: Placement,
        queues: Vec<Box<dyn PacketQueue>>,
        delivery_cost: u64,
    ) -> Result<Serving, BenchError> {
        Serving::on(policy, &[placement.queue], placement.other, queues, delivery_cost)
    }

    /// Starts an engine that assigns its queues to the serving CPUs in turn. Threads that poll may run on any of
    /// these CPUs.
    ///
    /// # Errors
    /// If the engine does not start.
    pub fn start_on(
        policy: &Policy,
        options: &Options,
        queues: Vec<Box<dyn PacketQueue>>,
    ) -> Result<Serving, BenchError> {
        Serving::on(policy, &options.serving(), options.placement().other, queues, 0)
    }

    fn on(
        policy: &Policy,
        serving: &[usize],
        other: usize,
        queues: Vec<Box<dyn PacketQueue>>,
        delivery_cost: u64,
    ) -> Result<Serving, BenchError> {
        let mut cpus = serving.to_vec();
        if !cpus.contains(&other) {
            cpus.push(other);
        }
        let other = napkin_core::CpuId(cpus.len() as u16 - 1);
        let queues = queues.into_iter().enumerate();
        let queues = queues.map(|(number, queue)| (queue, (number % serving.len()) as u16));
        let device = DeviceConfig {
            name: DEVICE.into(),
            addresses: US.into(),
            queues: queues.collect(),
            delivery_cost,
            settings: policy.instance,
        };
        let placement = Place { cpus: serving.to_vec(), ..Place::default() };
        let config = EngineConfig {
            cpu_policy: policy.cpu,
            contexts: Contexts {
                napi: placement.clone(),
                worker: placement,
                ..Contexts::default()
            },
            ..EngineConfig::new(cpus, vec![device])
        };
        let engine = Engine::start(config)?;
        let stack = engine.stack(DEVICE)?;
        Ok(Serving { engine, stack, other })
    }
}

/// A measured window.
#[derive(Debug)]
pub struct Window<'a> {
    serving: &'a Serving,
    cpus: Vec<usize>,
    threads: EngineWindow,
    /// `None` if interruptions cannot be observed here.
    interruption: Option<Interruption>,
    before: EngineTotals,
}

impl<'a> Window<'a> {
    /// Begins a window over every thread that serves traffic and over these CPUs. Interruptions are also counted on
    /// the `client` CPUs, if the client is a thread of this process.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn begin(
        serving: &'a Serving,
        cpus: &[usize],
        client: &[usize],
    ) -> Result<Window<'a>, BenchError> {
        let engine = &serving.engine;
        let mut cpus = cpus.to_vec();
        cpus.sort_unstable();
        cpus.dedup();
        let interruption = Interruption::begin(&[&cpus[..], client].concat(), &[]).ok();
        let threads = EngineWindow::begin(engine, cpus.to_vec()).map_err(BenchError::Proc)?;
        engine.restart_idle_gaps();
        let before = EngineTotals::read(engine);
        Ok(Window { serving, cpus, threads, interruption, before })
    }

    /// Ends the window and returns everything except the application's own counts. `looking` is the time in
    /// nanoseconds that the application spent checking its socket without finding anything.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn end(self, looking: u64) -> Result<Measurement, BenchError> {
        self.end_with_usage(looking).map(|(figures, _)| figures)
    }

    /// Ends the window as [`Window::end`] does, and also returns its CPU usage.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub(crate) fn end_with_usage(
        self,
        looking: u64,
    ) -> Result<(Measurement, WindowUsage), BenchError> {
        let engine = &self.serving.engine;
        let usage = self.threads.end(engine, looking).map_err(BenchError::Proc)?;
        let EngineTotals { counts, queues, drops, squeezes } =
            EngineTotals::read(engine).since(&self.before);
        let interrupted = self.interruption.and_then(|it| it.end().ok().flatten());
        let holds = engine.napis().iter().all(|napi| napi.settings.hold > 0);
        let mut extra = extras(&counts, &queues, squeezes, holds);
        extra.insert("serving_cpus".into(), self.cpus.into());
        let figures = Measurement {
            window_ns: Some(usage.wall_ns),
            cpu: usage.split,
            // The device counts acknowledged interrupts: those that won the instance.
            interrupts: Some(queues.interrupts_rx),
            interrupts_tx: Some(queues.interrupts_tx),
            polls: Some(counts.all_polls()),
            empty_polls: Some(counts.all_empty_polls()),
            packets: Some(queues.rx_packets),
            polled_packets: Some(queues.rx_packets),
            interrupted,
            drops: drops.into_iter().map(|(name, count)| (name.to_owned(), count)).collect(),
            context_switches: Some(usage.totals.context_switches),
            wakeups: Some(usage.totals.wakeups),
            extra,
            ..Measurement::default()
        };
        Ok((figures, usage))
    }
}

fn extras(counts: &Counts, queues: &QueueCounts, squeezes: u64, holds: bool) -> Map<String, Value> {
    let mut extras: Map<String, Value> = [
        ("deferrals", counts.deferrals),
        ("watchdogs", counts.watchdogs()),
        ("parks", counts.parks),
        ("interrupts_missed", counts.interrupts_missed),
        // Receive and transmit. Missed interrupts found the instance owned, so no idle gap preceded them.
        ("interrupts_won", counts.interrupts.saturating_sub(counts.interrupts_missed)),
        ("tx_packets", queues.tx_packets),
        ("tx_completions", queues.tx_completions),
        ("time_squeeze", squeezes),
    ]
    .into_iter()
    .map(|(name, count)| (name.to_owned(), count.into()))
    .collect();
    if holds {
        extras.insert("interrupts_after_hold".into(), counts.interrupts_after_hold.into());
    }
    for owner in Owner::ALL {
        let (name, at) = (owner.name(), owner as usize);
        let polls = counts.polls[at] + counts.empty_polls[at];
        extras.insert(format!("polls_{name}"), polls.into());
        extras.insert(format!("empty_polls_{name}"), counts.empty_polls[at].into());
    }
    if counts.idle_gap_min != NEVER {
        extras.insert("idle_gap_min_ns".into(), counts.idle_gap_min.into());
    }
    extras
}

/// Inserts a ratio, rounded to four digits, the precision of counts of this size. Removes the entry if the
/// denominator is 0.
pub fn set_ratio(extra: &mut Map<String, Value>, name: &str, count: u64, of: u64) {
    if of == 0 {
        extra.remove(name);
    } else {
        let ratio = (count as f64 / of as f64 * 10_000.0).round() / 10_000.0;
        extra.insert(name.to_owned(), ratio.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_nothing_there_is_no_ratio() {
        let mut extra = Map::new();
        set_ratio(&mut extra, "per", 1, 3);
        assert_eq!(extra["per"], 0.3333);
        set_ratio(&mut extra, "per", 1, 0);
        assert!(extra.is_empty());
    }

    #[test]
    fn what_has_no_hold_has_no_interrupts_after_it() {
        let counts = Counts { interrupts: 5, interrupts_missed: 2, ..Counts::default() };
        let counts = Counts { interrupts_after_hold: 3, idle_gap_min: NEVER, ..counts };
        let queues = QueueCounts::default();
        let base = extras(&counts, &queues, 0, false);
        assert!(!base.contains_key("interrupts_after_hold") && base["interrupts_won"] == 3);
        assert!(!base.contains_key("idle_gap_min_ns"), "no interrupt, no gap");
        assert_eq!(extras(&counts, &queues, 0, true)["interrupts_after_hold"], 3);
    }
}
