//! Workloads and honest measurement of delivery policies.
//!
//! - [`flood_ping`] (2007), [`udp_sink`] (2018) and [`xsk_rr`] (2025): the proposals' workloads.
//! - [`workload`]: what they have in common, and the interleaved run of one under several policies;
//!   [`serving`]: the engine that serves them, and the figures of a window of it; [`short`]: the
//!   short round.
//! - [`linux`]: workloads in the kernel, over a veth between two namespaces; [`memcached`]: the client
//!   that loads a real memcached there.
//! - [`machine`], [`sweep`], [`reproduce`]: modelled hosts, and the published experiments on them.
//! - [`host_costs`]: what this host's own kernel costs, as a profile.
//! - [`serve`]: what `napkin serve` does.
//! - [`interrupt`]: being asked to end; [`partial`]: the file from which a run goes on.

pub mod error;
pub mod flood_ping;
pub mod host_costs;
pub mod interrupt;
pub mod linux;
pub mod machine;
pub mod memcached;
pub mod partial;
mod ping;
mod rate;
pub mod reproduce;
pub mod serve;
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
