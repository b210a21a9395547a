//! An engine with one synthetic queue and a UDP echo on it.
#![allow(dead_code, reason = "each test file uses its part")]

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use napkin_core::{CpuId, Policy};
use napkin_engine::{DeviceConfig, Engine, EngineConfig, Epoll, sched};
use napkin_nic::Pool;
use napkin_nic::synthetic::{Arrivals, Observer, SyntheticConfig, SyntheticQueue, Template};
use napkin_stack::{Address, FrameBuilder};

pub const US: Address =
    Address { mac: [2, 0, 0, 0, 0, 1], ipv4: Ipv4Addr::new(10, 0, 0, 1), prefix: 24 };
pub const PEER: Address =
    Address { mac: [2, 0, 0, 0, 0, 2], ipv4: Ipv4Addr::new(10, 0, 0, 2), prefix: 24 };
pub const PORT: u16 = 7;

/// Writes UDP datagrams to [`PORT`].
pub struct Datagrams;

impl Template for Datagrams {
    fn fill(&mut self, flow: u32, seq: u64, buffer: &mut [u8]) -> usize {
        let port = 1_024 + (flow % 60_000) as u16;
        FrameBuilder::new(PEER, US).udp(buffer, port, PORT, &seq.to_be_bytes()).unwrap_or(0)
    }
}

/// Counts what is transmitted.
#[derive(Default)]
pub struct Count(pub AtomicU64);

impl Observer for Count {
    fn transmitted(&self, _: &[u8], _: u64) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Clone)]
pub struct Setup {
    pub count: u64,
    pub per_second: f64,
    pub seed: u64,
}

impl Default for Setup {
    fn default() -> Self {
        Setup { count: u64::MAX, per_second: 1_000.0, seed: 1 }
    }
}

#[derive(Debug)]
pub struct Outcome {
    pub echoed: u64,
    pub interrupts: u64,
    pub polls: u64,
    pub empty_polls: u64,
    pub panics: u64,
}

pub fn queue(setup: &Setup, observer: Arc<Count>) -> SyntheticQueue {
    let config = SyntheticConfig {
        seed: setup.seed,
        arrivals: Arrivals::Fixed { per_second: setup.per_second },
        // Time for the engine to start and the socket to be bound.
        start: napkin_engine::now() + 100 * napkin_core::MILLISECOND,
        count: setup.count,
        ..SyntheticConfig::default()
    };
    let queue = SyntheticQueue::new(&config, Box::new(Datagrams), Pool::new(4_096), Some(observer));
    queue.expect("a sound configuration")
}

pub fn engine(policy: &Policy, queue: SyntheticQueue) -> Engine {
    let cpu = sched::usable_cpus()[0];
    let device = DeviceConfig {
        name: "syn0".into(),
        address: US,
        queues: vec![(Box::new(queue), 0)],
        delivery_cost: 0,
        settings: policy.instance,
    };
    let config =
        EngineConfig { cpu_policy: policy.cpu, ..EngineConfig::new(vec![cpu], vec![device]) };
    Engine::start(config).expect("the engine starts")
}

/// Echoes until `setup.count` replies have left, or the time is up.
pub fn echo_for(policy: &Policy, setup: &Setup, limit: Duration) -> Outcome {
    let sent = Arc::new(Count::default());
    let engine = engine(policy, queue(setup, Arc::clone(&sent)));
    let socket = engine.stack("syn0").expect("the device").bind_udp(PORT, 512).expect("a port");
    let mut epoll = Epoll::new(&engine, CpuId(0), policy.epoll).expect("parameters");
    epoll.set_spin(policy.application.spin);
    epoll.add(&socket, 0).expect("room");
    let (start, mut events) = (Instant::now(), Vec::new());
    while sent.0.load(Ordering::Relaxed) < setup.count && start.elapsed() < limit {
        epoll.wait(&mut events, 64, Some(Duration::from_millis(100))).expect("a wait");
        for _ in &events {
            for _ in 0..64 {
                let Some(datagram) = socket.try_recv() else { break };
                socket.echo(datagram, napkin_engine::now()).expect("an echo");
            }
        }
    }
    let napi = engine.napi(1).expect("the instance");
    let outcome = Outcome {
        echoed: sent.0.load(Ordering::Relaxed),
        interrupts: napi.counts.interrupts,
        polls: napi.counts.all_polls(),
        empty_polls: napi.counts.all_empty_polls(),
        panics: engine.panics(),
    };
    drop(epoll);
    engine.stop();
    outcome
}
