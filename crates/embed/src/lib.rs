//! napkin for programs that embed it, as one crate: packet queues, a UDP and TCP stack, and policies that
//! decide how packets get from the queues to the stack.
//!
//! This crate only re-exports. The flat list below has what an echo server needs; everything else is in the
//! modules, each of them a crate of its own:
//!
//! | module | what you find there |
//! |---|---|
//! | [`policy`] | [`Policy`], its keys, presets and warnings |
//! | [`nic`] | packet queues ([`PacketQueue`]): TAP, AF_XDP, virtio, synthetic, a cable, or [one of your own](#a-device-of-your-own) |
//! | [`stack`] | Ethernet to UDP and TCP, sockets, frames built |
//! | [`service`] | echo, sink, memcached and a remote disk; services on byte streams, as HTTP in `examples/http.rs` |
//! | [`engine`] | threads that serve queues as the policy says; waits; control |
//! | [`core`] | the decisions alone, for [threads and queues of your own](#the-core-alone): no I/O, no clock |
//!
//! # An echo server on a TAP device
//!
//! It needs `CAP_NET_ADMIN`. Once it runs, `ping 10.99.0.1` and `echo hello | nc -u -w1 10.99.0.1 7` are
//! answered; Ctrl-C ends it, and the interface goes with it. The crate is not on crates.io yet:
//! `napkin-embed = { path = "napkin/crates/embed" }`. The lines stand in a function that returns
//! `Result<(), Box<dyn std::error::Error>>`.
//!
//! ```no_run
//! use std::net::Ipv4Addr;
//! use napkin_embed::{
//!     Address, CpuId, DeviceConfig, Echo, Engine, EngineConfig, Epoll, Policy, Pool, Service, Tap,
//!     TapConfig, now, sched,
//! };
//!
//! let policy: Policy = "suspend20".parse()?;
//! let us = Address::v4([2, 0, 0, 0, 0, 1], [10, 99, 0, 1], 24);
//!
//! // A queue: where frames come from. (The address is the kernel's, at the other end of the cable.)
//! let kernel = Some((Ipv4Addr::new(10, 99, 0, 2), 24));
//! let config = TapConfig { name: "nk0".into(), address: kernel, ..TapConfig::default() };
//! let queue = Tap::open(&config, &Pool::new(1_024))?.queues.remove(0);
//!
//! // An engine: one CPU serves the queue, as the policy says.
//! let device = DeviceConfig::new("nk0", us, vec![(Box::new(queue), 0)], policy.instance);
//! let cpus = sched::usable_cpus().into_iter().take(1).collect();
//! let config = EngineConfig { cpu_policy: policy.cpu, ..EngineConfig::new(cpus, vec![device]) };
//! let engine = Engine::start(config)?;
//! engine.warnings().iter().for_each(|warning| eprintln!("{warning}"));
//!
//! // An application: it waits as the policy says, and answers what has come.
//! let mut echo = Echo::new(engine.stack("nk0")?.bind_udp(7, 512)?);
//! let mut epoll = Epoll::new(&engine, CpuId(0), policy.epoll)?;
//! epoll.set_spin(policy.application.spin);
//! epoll.add(echo.socket(), 0)?;
//! let mut events = Vec::new();
//! loop {
//!     epoll.wait(&mut events, 1, None)?;
//!     // A batch, then another wait: in between, the policy decides who polls.
//!     echo.serve_ready(now(), 64);
//! }
//! # #[allow(unreachable_code)]
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A policy that busy polls a single socket (`busypoll`) takes a [`Blocking`] in place of the epoll; an
//! [`ApplicationWait`] is the one of the two that the policy needs. A thread has one of them: a thread that
//! waits in both alternately is counted twice. If the policy has another thread poll (`busypoll-separate`),
//! that thread calls [`ApplicationWait::poller`] until the engine stops: see `examples/http.rs`.
//!
//! # The same on a synthetic queue
//!
//! It needs no right, and its frames arrive at a fixed rate: 100 frames at 10 000 per second, beginning after
//! half a second. A frame that arrives before its socket is bound has no receiver; the first ones may be lost
//! so on a host that pauses that long.
//!
//! ```
//! # use std::net::Ipv4Addr;
//! # use std::time::Duration;
//! use napkin_embed::{Arrivals, FrameBuilder, SyntheticConfig, SyntheticQueue};
//! # use napkin_embed::{
//! #     Address, CpuId, DeviceConfig, Echo, Engine, EngineConfig, Epoll, Policy, Pool, Service, now, sched,
//! # };
//! # let policy: Policy = "suspend20".parse()?;
//! # let us = Address::v4([2, 0, 0, 0, 0, 1], [10, 99, 0, 1], 24);
//!
//! let peer = Address::v4([2, 0, 0, 0, 0, 2], [10, 99, 0, 2], 24);
//! let arrivals = Arrivals::Fixed { per_second: 10_000.0 };
//! let start = now() + 500_000_000;
//! let config = SyntheticConfig { arrivals, count: 100, start, ..SyntheticConfig::default() };
//! let frame = move |_flow: u32, seq: u64, buffer: &mut [u8]| {
//!     FrameBuilder::new(peer, us).udp(buffer, 4_000, 7, &seq.to_be_bytes()).unwrap_or(0)
//! };
//! let queue = SyntheticQueue::new(&config, Box::new(frame), Pool::new(1_024), None)?;
//! // ... the engine and the application as above ...
//! # let device = DeviceConfig::new("syn0", us, vec![(Box::new(queue), 0)], policy.instance);
//! # let cpus = sched::usable_cpus().into_iter().take(1).collect();
//! # let config = EngineConfig { cpu_policy: policy.cpu, ..EngineConfig::new(cpus, vec![device]) };
//! # let engine = Engine::start(config)?;
//! # let mut echo = Echo::new(engine.stack("syn0")?.bind_udp(7, 512)?);
//! # let mut epoll = Epoll::new(&engine, CpuId(0), policy.epoll)?;
//! # epoll.add(echo.socket(), 0)?;
//! # let mut events = Vec::new();
//! while engine.napi(1)?.counts.packets < 100 {
//!     epoll.wait(&mut events, 1, Some(Duration::from_millis(100)))?;
//!     echo.serve_ready(now(), 64);
//! }
//! println!("{} of 100 answered", echo.answered());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The core alone
//!
//! A queue of your own implements four calls, and `Pass::drive` carries out the steps that a pass requests.
//! Here the queue is a channel, and one thread acts as interrupt and softirq.
//!
//! ```
//! use std::sync::mpsc;
//! use napkin_embed::core::{
//!     Context, CpuId, Enable, Host, Id, Interrupt, Ns, Op, Pass, Pressure, Queue, Softirq, Work,
//! };
//!
//! struct Channel {
//!     ring: mpsc::Receiver<u32>,
//!     /// What a look has taken: a channel cannot be looked into otherwise.
//!     first: Option<u32>,
//!     batch: Vec<u32>,
//!     received: mpsc::Sender<u32>,
//! }
//!
//! impl Queue for Channel {
//!     fn poll(&mut self, budget: u16, _: Ns) -> Work {
//!         let mut take = || self.first.take().or_else(|| self.ring.try_recv().ok());
//!         self.batch.extend((0..budget).map_while(|_| take()));
//!         Work { rx: self.batch.len() as u16, tx: 0 }
//!     }
//!     fn deliver(&mut self, _: Ns) -> Pressure {
//!         self.batch.drain(..).for_each(|frame| self.received.send(frame).unwrap());
//!         Pressure::Room
//!     }
//!     fn mask(&mut self) {}
//!     // A frame that came while the interrupt was masked has none: without this look it would be lost.
//!     fn unmask(&mut self, _: Ns) -> bool {
//!         self.first = self.first.take().or_else(|| self.ring.try_recv().ok());
//!         self.first.is_some()
//!     }
//! }
//!
//! /// Takes a pass's steps to its end, and the softirq that it has raised after that.
//! fn run(host: &Host<Channel>, pass: &mut impl Pass<Channel>) {
//!     let raised = pass.drive(|| 0, |op| unreachable!("base has no threads and no timer: {op:?}"));
//!     if let Some(Op::Raise(cpu)) = raised {
//!         run(host, &mut Softirq::new(host, cpu, Context::Interrupt { competition: false }));
//!     }
//! }
//!
//! let (wire, ring) = mpsc::channel();
//! let (received, application) = mpsc::channel();
//! let host = Host::new(1, [(Channel { ring, first: None, batch: vec![], received }, CpuId(0))]);
//! run(&host, &mut Enable::new(&host, Id(0))?);
//!
//! (1..=3).for_each(|frame| wire.send(frame).unwrap());
//! run(&host, &mut Interrupt::new(&host, Id(0)));
//! assert_eq!(application.try_iter().collect::<Vec<_>>(), [1, 2, 3]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A world with threads, a timer and an application, which runs every preset, is
//! `crates/core/examples/std_world.rs`: 190 lines, including its network card and its application. Its duties
//! towards the core are documented at [`core::Op`] and [`core::Pass`].
//!
//! # A device of your own
//!
//! To the engine a device is a [`PacketQueue`]; `examples/device.rs` implements one in sixty lines, and
//! `docs/extending.md` explains it.
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.

pub use napkin_core as core;
pub use napkin_engine as engine;
pub use napkin_nic as nic;
pub use napkin_policy as policy;
pub use napkin_service as service;
pub use napkin_stack as stack;

pub use napkin_core::{CpuId, Ns, Work};
pub use napkin_engine::{
    ApplicationWait, Blocking, DeviceConfig, Engine, EngineConfig, EngineError, Epoll, Event,
    Poller, WaitError, now, sched,
};
pub use napkin_nic::synthetic::{Arrivals, SyntheticConfig, SyntheticQueue};
pub use napkin_nic::tap::{Tap, TapConfig};
pub use napkin_nic::{CableQueue, EndConfig, cable};
pub use napkin_nic::{Frame, PacketQueue, Pool, QueueCounters, SendError, Transmitter};
pub use napkin_policy::Policy;
pub use napkin_service::{Echo, Pump, Served, Service, Sink, StreamService};
pub use napkin_stack::{
    Address, Flow, FrameBuilder, Socket, Stack, TcpLimits, TcpWorker, UdpSocket,
};
