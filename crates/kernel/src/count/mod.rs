//! Activity of NAPI instances, counted in the kernel: polls by owner and by result, packets, the timer armed in
//! place of the interrupt, and the timer's expiries.
//!
//! The kernel keeps no such counts, and a mode that is configured need not be active. So up to five small eBPF
//! programs are attached to its trace points. Three add to a table: after each poll, where timers are armed, and
//! where an instance's timer fires. Two mark a CPU while it runs the receive softirq, for an exact attribution of
//! polls. They are assembled here (`program`, with napkin-bpf), with the offsets of members from the kernel's BTF
//! ([`btf`]), and loaded with `bpf(2)`. Nothing is pinned, so everything ends with the process, however it ends.
//!
//! [`latency`] times requests, from the ring to the answer.
//!
//! [`stopwatch`] records when trace points were passed, to measure costs; the counter itself takes no times.
//!
//! The owners of sockets, and interrupts (which the kernel counts itself), are left to `sample`.

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
