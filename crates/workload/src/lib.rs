//! Workloads, and runs of them under several policies that may be compared.
//!
//! - [`flood_ping`] (2007), [`udp_sink`] (2018) and [`xsk_rr`] (2025): the proposals' workloads, on the
//!   engine; [`serving`]: the engine that serves them, and the figures of a window of it.
//! - [`linux`]: workloads in the kernel, over a veth between two namespaces.
//! - [`machine`]: scenarios on modelled hosts: planned, swarmed, fitted; [`sweep`]: many points of one.
//! - [`workload`]: what they have in common, and the interleaved run of one; [`short`]: the short round.
//! - [`interrupt`]: being asked to end; [`partial`]: the file from which a run goes on.

pub mod error;
pub mod flood_ping;
pub mod interrupt;
pub mod linux;
pub mod machine;
pub mod partial;
mod ping;
mod rate;
pub mod serving;
pub mod short;
pub mod sweep;
pub mod udp_sink;
pub mod workload;
pub mod xsk_rr;

pub use error::{BenchError, Stopped};
pub use interrupt::{Interrupt, Interrupted};
pub use partial::{Partial, PartialError};
pub use workload::{Options, Workload, resumable, run};
