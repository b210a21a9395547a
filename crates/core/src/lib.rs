//! The rules of NAPI packet delivery, written once for every world (the engine, the machine, models and tests).
//!
//! Every delivery mode is one NAPI instance polled by a different owner: the CPU's softirq, its ksoftirqd, the
//! instance's own thread, a worker of a pool, or the application. This crate holds the instance and the rules by
//! which its ownership passes on, and nothing else: it reads no clock, never sleeps, allocates only when a [`Host`]
//! is made, and knows no device.
//!
//! It is *sans-I/O*: a world makes a pass for the context that runs (an [`Interrupt`], a [`Softirq`] dispatch, a
//! [`Kthread`], an application's [`EpollWait`] ...), asks it for the [next step](Pass::next) and reports [the
//! outcome of the last](Did). Between two steps the world may do anything: the engine goes on at once, the machine
//! charges virtual time and delivers interrupts, loom interleaves.
//!
//! ```
//! use napkin_core::*;
//!
//! // A queue with a few frames in its ring.
//! struct Ring { frames: u16, masked: bool }
//! impl Queue for Ring {
//!     fn poll(&mut self, budget: u16, _: Ns) -> Work {
//!         let rx = self.frames.min(budget);
//!         self.frames -= rx;
//!         Work { rx, tx: 0 }
//!     }
//!     fn deliver(&mut self, _: Ns) -> Pressure { Pressure::Room }
//!     fn mask(&mut self) { self.masked = true }
//!     fn unmask(&mut self, _: Ns) -> bool { self.masked = false; self.frames > 0 }
//! }
//!
//! // Takes a pass's steps to its end.
//! fn run(pass: &mut impl Pass<Ring>) -> Vec<Op> {
//!     let (mut did, mut steps) = (Did::Start, vec![]);
//!     loop {
//!         let op = pass.next(0, did);
//!         did = match op {
//!             Op::Done => return steps,
//!             // Poll, deliver, mask, unmask; what else there is needs threads and a timer.
//!             _ => pass.on_queue(op, 0).unwrap_or(Did::Ok),
//!         };
//!         steps.push(op);
//!     }
//! }
//!
//! let (id, cpu) = (Id(0), CpuId(0));
//! let host = Host::new(1, [(Ring { frames: 3, masked: true }, cpu)]);
//! // Enabling finds frames that were there before, and leaves them to the softirq.
//! run(&mut Enable::new(&host, id)?);
//! let steps = run(&mut Softirq::new(&host, cpu, Context::Interrupt { competition: false }));
//! assert_eq!(steps, [Op::Poll { id, budget: 64 }, Op::Deliver(id), Op::Unmask(id)]);
//! // The next interrupt masks, and asks for the softirq.
//! assert_eq!(run(&mut Interrupt::new(&host, id)), [Op::Mask(id), Op::Raise(cpu)]);
//! # Ok::<(), ControlError>(())
//! ```
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later.
#![cfg_attr(not(any(loom, test, feature = "races")), no_std)]
#![deny(unsafe_code)]

extern crate alloc;

mod busy_loop;
mod cell;
mod claim;
mod contract;
mod control;
mod counters;
mod cpu;
mod epoll;
mod host;
mod idle;
mod instance;
mod interrupt;
mod kthread;
mod list;
mod net_rx;
mod order;
mod queue;
pub mod race;
mod raised_from;
mod rules;
mod session;
mod settings;
mod socket;
mod softirq;
pub mod state;
mod step;
mod suspend;
mod sync;
mod turn;
mod vector;

pub use control::{ControlError, Disable, Enable, TxPoll};
pub use counters::{Counts, OWNERS, Owner};
pub use cpu::{Context, Cpu, CpuCounts, Limits};
pub use epoll::{EpollContext, EpollWait};
pub use host::Host;
pub use idle::{IdleCycle, IdleTimer};
pub use instance::{CpuId, Id, Instance};
pub use interrupt::Interrupt;
pub use kthread::{Kthread, Worker};
pub use napkin_policy::{MICROSECOND, MILLISECOND, NEVER, Ns};
pub use order::Order;
pub use queue::{Pressure, Queue, Work};
pub use raised_from::RaisedFrom;
pub use rules::KernelRules;
pub use settings::{SettingError, WEIGHT, check};
pub use socket::SocketWait;
pub use softirq::Softirq;
pub use step::{Did, Op, Pass, Task};
pub use vector::Vector;
