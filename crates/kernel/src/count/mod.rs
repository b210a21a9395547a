//! What NAPI instances really do, counted in the kernel: polls by who polled and by what they found,
//! packets, the timer armed in the place of the interrupt, and the timer's expiries.
//!
//! The kernel keeps no such counts, and a mode that is set need not be active. So up to five small eBPF
//! programs are put at its trace points: three add to a table, after each poll, where timers are
//! armed, and where an instance's timer fires; two mark a CPU while it serves network softirqs, where polls are to be told exactly. They
//! are assembled here (`program`, by napkin-bpf), with the places of members from the kernel's own
//! description of its types ([`btf`]), and loaded with `bpf(2)`; nothing is pinned, so all of it
//! goes when the process does, however it ends.
//!
//! [`latency`] times requests, from the ring to the answer.
//!
//! [`stopwatch`] records when trace points were passed, for as long as costs are measured; `count`
//! itself takes no times.
//!
//! Not who owns the sockets, nor interrupts (the kernel counts these itself): that is
//! `sample`'s.

mod attached;
pub mod btf;
mod counter;
mod counts;
mod error;
pub mod latency;
mod layout;
mod program;
pub mod stopwatch;
mod table;

pub use attached::ProgramStats;
#[doc(hidden)]
pub use counter::verifier;
pub use counter::{Counter, Options};
pub use counts::{Counts, Key, Lost, Polled};
pub use error::CountError;
pub use napkin_bpf::RunStats;
