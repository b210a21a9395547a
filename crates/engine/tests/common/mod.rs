//! Engines with synthetic queues, and applications on them, for the tests of this folder.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

pub mod app;
pub mod tap;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use napkin_core::CpuId;
use napkin_engine::{DeviceConfig, Engine, EngineConfig, Epoll, sched};
use napkin_nic::Pool;
use napkin_nic::synthetic::{
    Arrivals, Flows, Observer, SourceControl, SyntheticConfig, SyntheticQueue, Template,
};
use napkin_policy::{CpuPolicy, InstancePolicy, Policy};
use napkin_stack::{Address, FrameBuilder};

pub const US: Address = Address::v4([2, 0, 0, 0, 0, 1], [10, 0, 0, 1], 24);
pub const PEER: Address = Address::v4([2, 0, 0, 0, 0, 2], [10, 0, 0, 2], 24);
pub const PORT: u16 = 7;

/// A time that nothing takes unless it hangs.
pub const HANGS: Duration = Duration::from_secs(20);

/// Every preset, and one hold that is long.
pub const POLICIES: [&str; 14] = [
    "base",
    "hold",
    "ksoftirqd",
    "threaded",
    "workqueue",
    "defer20",
    "defer200",
    "napibusy",
    "fullbusy",
    "threaded-busy-poll",
    "suspend20",
    "suspend200",
    "feedback",
    "hold1000",
];

pub fn policy(text: &str) -> Policy {
    text.parse().expect(text)
}

/// Sets the policy of all CPUs.
pub fn set_cpu_policy(engine: &Engine, policy: CpuPolicy) {
    for cpu in 0..engine.cpus().len() as u16 {
        engine.set_cpu_policy_of(CpuId(cpu), policy);
    }
}

/// Makes the tests of one file run one after the other: their engines share CPUs and priorities.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for something that will happen unless the engine hangs.
pub fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < HANGS, "{what} did not happen");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Writes UDP datagrams to [`PORT`] and the ports behind it, by flow.
pub struct Datagrams {
    pub ports: u16,
}

impl Template for Datagrams {
    fn fill(&mut self, flow: u32, seq: u64, buffer: &mut [u8]) -> usize {
        let from = 1_024 + (flow % 60_000) as u16;
        let to = PORT + (flow % u32::from(self.ports)) as u16;
        FrameBuilder::new(PEER, US).udp(buffer, from, to, &seq.to_be_bytes()).unwrap_or(0)
    }
}

/// Counts what is transmitted.
#[derive(Default)]
pub struct Count(pub AtomicU64);

impl Count {
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

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
    /// Queues, and CPUs to serve them in turn; fewer if the machine has fewer.
    pub queues: u32,
    pub cpus: u16,
    /// Ports, from [`PORT`] on, that get datagrams in turn.
    pub ports: u16,
    /// Nanoseconds from now until the source starts.
    pub start: u64,
    /// Nanoseconds that a delivery costs.
    pub delivery_cost: u64,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            count: u64::MAX,
            per_second: 1_000.0,
            seed: 1,
            queues: 1,
            cpus: 1,
            ports: 1,
            // Time for the engine to start and the socket to be bound.
            start: 100 * napkin_core::MILLISECOND,
            delivery_cost: 0,
        }
    }
}

/// The controls of an engine's sources, and the count of what it sent.
pub struct Source {
    pub controls: Vec<SourceControl>,
    pub sent: Arc<Count>,
}

impl Source {
    pub fn stop(&self) {
        self.controls.iter().for_each(SourceControl::stop);
    }

    pub fn resume(&self) {
        self.controls.iter().for_each(|control| control.resume_at(napkin_engine::now()));
    }

    pub fn offered(&self) -> u64 {
        self.controls.iter().map(SourceControl::offered).sum()
    }
}

/// One more queue as `setup` describes it, and its control.
pub fn queue(setup: &Setup) -> (SyntheticQueue, SourceControl) {
    let config = SyntheticConfig {
        seed: setup.seed,
        arrivals: Arrivals::Fixed { per_second: setup.per_second },
        start: napkin_engine::now(),
        ..SyntheticConfig::default()
    };
    let template = Box::new(Datagrams { ports: setup.ports });
    let queue = SyntheticQueue::new(&config, template, Pool::new(2_048), None);
    let queue = queue.expect("a sound configuration");
    let control = queue.control();
    (queue, control)
}

/// An engine with one device, `syn0`.
pub fn start(policy: &Policy, setup: &Setup) -> (Engine, Source) {
    let config = SyntheticConfig {
        seed: setup.seed,
        arrivals: Arrivals::Fixed { per_second: setup.per_second },
        start: napkin_engine::now() + setup.start,
        count: setup.count,
        flows: Flows { count: 64, ..Flows::default() },
        ..SyntheticConfig::default()
    };
    let cpus: Vec<usize> = sched::usable_cpus().into_iter().take(setup.cpus.into()).collect();
    let pool = Pool::new(1_024 + 1_024 * setup.queues as usize);
    let mut source = Source { controls: Vec::new(), sent: Arc::default() };
    let mut queues: Vec<(Box<dyn napkin_nic::PacketQueue>, u16)> = Vec::new();
    for (index, config) in config.split(setup.queues).iter().enumerate() {
        let template = Box::new(Datagrams { ports: setup.ports });
        let observer = Arc::clone(&source.sent);
        let queue = SyntheticQueue::new(config, template, pool.clone(), Some(observer));
        let queue = queue.expect("a sound configuration");
        source.controls.push(queue.control());
        queues.push((Box::new(queue), (index % cpus.len()) as u16));
    }
    let device = DeviceConfig {
        name: "syn0".into(),
        addresses: US.into(),
        queues,
        delivery_cost: setup.delivery_cost,
        settings: policy.instance,
    };
    let config = EngineConfig { cpu_policy: policy.cpu, ..EngineConfig::new(cpus, vec![device]) };
    (Engine::start(config).expect("the engine starts"), source)
}

/// Settings of one mode, and everything else off.
pub fn mode(threaded: napkin_policy::Threaded) -> InstancePolicy {
    InstancePolicy { threaded, ..Policy::BASE.instance }
}

#[derive(Debug)]
pub struct Outcome {
    pub echoed: u64,
    pub interrupts: u64,
    pub polls: u64,
    pub empty_polls: u64,
    pub panics: u64,
}

/// Echoes until `setup.count` replies have left, or the time is up.
pub fn echo_for(policy: &Policy, setup: &Setup, limit: Duration) -> Outcome {
    let (engine, source) = start(policy, setup);
    let sent = Arc::clone(&source.sent);
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
