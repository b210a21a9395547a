//! An engine that serves a workload, and the figures of a window of it.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use napkin_core::{Counts, NEVER, Owner, Policy};
use napkin_engine::{
    Activity, Contexts, DeviceConfig, Engine, EngineConfig, NapiInfo, Placement as Place, Role,
};
use napkin_nic::PacketQueue;
use napkin_nic::QueueCounts;
use napkin_stack::{Address, Stack};
use serde_json::{Value, json};

use crate::error::BenchError;
use crate::measure::{CpuSplit, CpuWindow, SplitInputs, ThreadMeter, ThreadUsage};
use crate::report::Figures;
use crate::workload::Placement;

/// The name of the device under test.
pub const DEVICE: &str = "bench0";

/// Our address on it.
pub const US: Address =
    Address { mac: [2, 0, 0, 0, 0x77, 1], ipv4: Ipv4Addr::new(10, 77, 0, 1), prefix: 24 };

/// The peer's.
pub const PEER: Address =
    Address { mac: [2, 0, 0, 0, 0x77, 2], ipv4: Ipv4Addr::new(10, 77, 0, 2), prefix: 24 };

/// An engine with one device, whose first CPU serves all queues and whose second, if there is one,
/// is the application's.
#[derive(Debug)]
pub struct Serving {
    /// The engine.
    pub engine: Engine,
    /// The stack on its device.
    pub stack: Arc<Stack>,
    /// The engine's number of the CPU that is not the queue's.
    pub other: napkin_core::CpuId,
}

impl Serving {
    /// Starts one. Delivering a frame costs `delivery_cost` nanoseconds on top. Threads that poll
    /// run on the queue's CPU.
    ///
    /// # Errors
    /// If the engine does not start.
    pub fn start(
        policy: &Policy,
        placement: Placement,
        queues: Vec<Box<dyn PacketQueue>>,
        delivery_cost: u64,
    ) -> Result<Serving, BenchError> {
        let cpus = if placement.shared() {
            vec![placement.queue]
        } else {
            vec![placement.queue, placement.other]
        };
        let other = napkin_core::CpuId(cpus.len() as u16 - 1);
        let device = DeviceConfig {
            name: DEVICE.into(),
            address: US,
            queues: queues.into_iter().map(|queue| (queue, 0)).collect(),
            delivery_cost,
            settings: policy.instance,
        };
        let here = Place { cpus: vec![placement.queue], ..Place::default() };
        let config = EngineConfig {
            cpu_policy: policy.cpu,
            contexts: Contexts { napi: here.clone(), worker: here, ..Contexts::default() },
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
    cpus: CpuWindow,
    cpu_count: u32,
    counts: Vec<NapiInfo>,
    activities: Vec<(Arc<Activity>, u64, u64)>,
    drops: BTreeMap<String, u64>,
    squeezes: u64,
}

impl<'a> Window<'a> {
    /// Begins one, over every thread that serves traffic by now and over these CPUs.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn begin(serving: &'a Serving, cpus: &[usize]) -> Result<Window<'a>, BenchError> {
        let activities = serving.engine.activities();
        let tids: Vec<i32> = activities.iter().map(|it| it.tid()).filter(|it| *it != 0).collect();
        let threads = ThreadMeter::of_self(|tid, _| tids.contains(&(tid as i32)));
        let mut cpus: Vec<u32> = cpus.iter().map(|cpu| *cpu as u32).collect();
        cpus.sort_unstable();
        cpus.dedup();
        let cpu_count = cpus.len() as u32;
        let window = CpuWindow::new(threads.map_err(BenchError::Proc)?, cpus);
        let mut window = Window {
            cpus: window.map_err(BenchError::Proc)?,
            cpu_count,
            counts: serving.engine.napis(),
            activities: activities.into_iter().map(|it| (it, 0, 0)).collect(),
            drops: drops(serving),
            squeezes: squeezes(serving),
            serving,
        };
        for (activity, work, poll) in &mut window.activities {
            (*work, *poll) = (activity.work(), activity.poll());
        }
        window.cpus.begin().map_err(BenchError::Proc)?;
        Ok(window)
    }

    /// Ends it: everything but what the application itself counts. `looking` is the time that an
    /// application's own looks at its socket took and found nothing.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn end(mut self, looking: u64) -> Result<Figures, BenchError> {
        let usage = self.cpus.end(0).map_err(BenchError::Proc)?;
        let (counts, queues) = totals(&self.counts, &self.serving.engine.napis());
        let polls: u64 = usage.threads.iter().map(|thread| self.poll_time(thread)).sum();
        let poll_ns = polls + looking;
        let split = usage.split.and_then(|_| {
            CpuSplit::of(SplitInputs {
                wall_ns: usage.wall_ns,
                cpus: self.cpu_count,
                cpu_ns: usage.totals.cpu_ns,
                poll_ns,
                run_delay_ns: usage.totals.run_delay_ns.unwrap_or(0),
                steal_ns: usage.cpus.steal_ns,
            })
        });
        let mut drops = drops(self.serving);
        for (name, before) in &self.drops {
            if let Some(after) = drops.get_mut(name) {
                *after -= before;
            }
        }
        drops.retain(|_, count| *count != 0);
        let mut figures = Figures {
            window_ns: Some(usage.wall_ns),
            cpu: split,
            interrupts: Some(counts.interrupts.saturating_sub(queues.interrupts_tx)),
            interrupts_tx: Some(queues.interrupts_tx),
            polls: Some(counts.all_polls()),
            empty_polls: Some(counts.all_empty_polls()),
            packets: Some(queues.rx_packets),
            drops,
            context_switches: Some(usage.totals.context_switches),
            wakeups: Some(usage.totals.wakeups),
            ..Figures::default()
        };
        for (name, value) in extras(&counts, &queues) {
            figures.extra.insert(name, value);
        }
        let squeezes = squeezes(self.serving) - self.squeezes;
        figures.extra.insert("time_squeeze".into(), squeezes.into());
        Ok(figures)
    }

    /// The part of a thread's CPU time that went into polls that found nothing.
    fn poll_time(&self, thread: &ThreadUsage) -> u64 {
        let of =
            |(activity, _, _): &&(Arc<Activity>, u64, u64)| activity.tid() as u32 == thread.tid;
        let Some((activity, work, poll)) = self.activities.iter().find(of) else { return 0 };
        let work = activity.work().saturating_sub(*work) as f64;
        let poll = activity.poll().saturating_sub(*poll) as f64;
        if activity.role == Role::Application {
            // Its own work is known only from call to call.
            return thread.cpu_ns.min(poll as u64);
        }
        if poll == 0.0 { 0 } else { (thread.cpu_ns as f64 * poll / (poll + work)) as u64 }
    }
}

fn totals(before: &[NapiInfo], after: &[NapiInfo]) -> (Counts, QueueCounts) {
    let (mut counts, mut queues) = (Counts::default(), QueueCounts::default());
    counts.idle_gap_min = NEVER;
    for (after, before) in after.iter().zip(before) {
        counts.add(&after.counts.since(&before.counts));
        queues.add(&after.queue_counts.since(&before.queue_counts));
    }
    (counts, queues)
}

fn extras(counts: &Counts, queues: &QueueCounts) -> Vec<(String, Value)> {
    let mut extras: Vec<(String, Value)> = [
        ("deferrals", counts.deferrals),
        ("timer_polls", counts.timer_polls),
        ("parks", counts.parks),
        ("interrupts_missed", counts.interrupts_missed),
        ("interrupts_after_hold", counts.interrupts_after_hold),
        ("tx_packets", queues.tx_packets),
        ("tx_completions", queues.tx_completions),
    ]
    .into_iter()
    .map(|(name, count)| (name.to_owned(), count.into()))
    .collect();
    for owner in Owner::ALL {
        let (name, at) = (owner.name(), owner as usize);
        extras.push((format!("polls_{name}"), counts.polls[at].into()));
        extras.push((format!("empty_polls_{name}"), counts.empty_polls[at].into()));
    }
    if counts.idle_gap_min != NEVER {
        extras.push(("idle_gap_min_ns".to_owned(), counts.idle_gap_min.into()));
    }
    extras
}

/// A ratio, to four digits: what a count of this size can say.
pub fn ratio(count: f64, of: f64) -> Value {
    json!((count / of * 10_000.0).round() / 10_000.0)
}

/// Every drop, by the name of its counter: those of the device, and those of the stack.
fn drops(serving: &Serving) -> BTreeMap<String, u64> {
    let mut drops = BTreeMap::new();
    for napi in serving.engine.napis() {
        let counts = napi.queue_counts;
        for (name, count) in [
            ("ring_full", counts.rx_dropped_ring),
            ("oversized", counts.rx_oversized),
            ("truncated", counts.rx_truncated),
            ("no_buffer", counts.rx_no_buffer),
            ("tx_ring_full", counts.tx_dropped),
        ] {
            *drops.entry(name.to_owned()).or_default() += count;
        }
    }
    for (name, count) in serving.stack.counters().drops() {
        *drops.entry(name.to_owned()).or_default() += count;
    }
    drops
}

fn squeezes(serving: &Serving) -> u64 {
    (0..serving.engine.cpus().len() as u16)
        .map(|cpu| serving.engine.cpu_counts(napkin_core::CpuId(cpu)).time_squeeze)
        .sum()
}
