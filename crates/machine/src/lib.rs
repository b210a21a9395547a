//! A deterministic model of packet delivery on a host, in virtual time.
//!
//! A discrete-event simulation with nanosecond resolution, driven by one seed. `napkin-core`'s own code makes every
//! delivery decision, step by step, so that interrupts, arrivals, timers and preemption can fall inside a poll. The
//! machine supplies the cost of each step and the environment: CPUs, their scheduler, the NIC, the link, clients and
//! applications. A [profile] holds the numbers.
//!
//! Experiments are built outside this crate. A [`Program`] is the code of a thread of the host, a [`Client`] is the
//! peer at the far end of the link; both act through the [`Machine`] that they are given. A [`Placement`] assigns
//! queues and threads to CPUs and creates the core's host; [`Machine::new`] takes it with a [`Config`] and a policy.
//! Then call [`Machine::add_socket`], [`Machine::add_flow`] and [`Machine::add_thread`], [`Machine::watch`] or
//! [`Machine::own`] for each thread's socket, [`Machine::wake_thread`], [`Machine::run`], and [`Machine::snapshot`]
//! at both ends of the measurement window. [`UdpSink`] is the only program in this crate; `napkin-workload` has those
//! of the published experiments.
//!
//! The machine never decides which context polls, never reads a real clock, and draws every random number from the
//! seed. The same seed gives the same run.
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.
#![forbid(unsafe_code)]

pub mod abort;
mod checks;
mod client;
mod config;
mod control;
mod counts;
mod disabling;
mod events;
mod fault;
mod host;
mod invariant;
mod machine;
mod net;
pub mod profile;
mod sched;
mod sink;
mod snapshot;
pub mod swarm;
mod trace;
mod tracer;

pub use client::{Client, SilentClient};
pub use config::{Config, Costs, Fair, Kernel, Link, Locality, NicConfig, Preemption, Processor};
pub use counts::{CpuUse, CurrentTask, DetailedCounts, EpollUse, QueueCounts, QueueUse};
pub use fault::Fault;
pub use host::segment::{USES, Use};
pub use machine::{Machine, Placement};
pub use net::packet::{Kind, PAYLOAD, Packet};
pub use sched::id::{Affinity, Class, Role, ThreadId};
pub use sched::thread::{Act, Program};
pub use sink::UdpSink;
pub use snapshot::Snapshot;
pub use trace::{Mark, Station, Trace};
