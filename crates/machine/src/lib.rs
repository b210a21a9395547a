//! A deterministic model of packet delivery on a host, in virtual time.
//!
//! Discrete events in nanoseconds, driven by one seed. Every decision of delivery is made by
//! `napkin-core`'s own code, step by step, so that interrupts, arrivals, timers and preemption fall
//! inside polls; the machine supplies what the steps cost and what they happen to: CPUs, their
//! scheduler, the NIC, the link, clients and applications. A [profile] holds the numbers.
//!
//! An experiment is built from outside. A [`Program`] is what a thread of the host runs, a [`Client`] is
//! the other side of the link; both act through the [`Machine`] that they are given. A [`Placement`] says
//! where queues and threads are, and makes the core's host; [`Machine::new`] takes it with a [`Config`] and
//! a policy. Then [`Machine::add_socket`], [`Machine::add_flow`] and [`Machine::add_thread`], a
//! [`Machine::watch`] or [`Machine::own`] for each thread's socket, [`Machine::wake_thread`],
//! [`Machine::run`], and a [`Machine::snapshot`] at both ends of a window. [`UdpSink`] is the one program
//! that is here; `napkin-workload` has those of the published experiments.
//!
//! The machine never decides who polls, never reads a real clock, and uses no random number that
//! does not come from the seed. The same seed gives the same run.
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.
#![forbid(unsafe_code)]

pub mod abandon;
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
mod tell;
mod trace;

pub use client::{Client, Nobody};
pub use config::{Config, Costs, Fair, Kernel, Link, Locality, NicConfig, Preemption, Processor};
pub use counts::{CpuUse, EpollUse, QueueCounts, QueueUse, Seen, Who};
pub use fault::Fault;
pub use host::segment::{USES, Use};
pub use machine::{Machine, Placement};
pub use net::packet::{Kind, PAYLOAD, Packet};
pub use sched::id::{Affinity, Class, Role, ThreadId};
pub use sched::thread::{Act, Program};
pub use sink::UdpSink;
pub use snapshot::Snapshot;
pub use trace::{Mark, Station, Trace};
