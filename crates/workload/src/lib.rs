//! Workloads, and runs of a workload under several policies whose results can be compared.
//!
//! - [`Workload`]: the interface to a workload, in the worlds that have it. [`flood_ping`] (2007), [`udp_sink`]
//!   (2018), [`tcp_rr`] and [`ssd`] (2020), [`memcached`] (2024) and [`xsk_rr`] (2025) have a folder each, with a
//!   file per world; [`WORKLOADS`] lists them. [`oracle`] is the scenario for comparing the model with a real
//!   kernel's counters.
//! - [`live`]: a workload set up on the engine ([`serving`]) or in the kernel ([`linux`]); [`mod@run`]: its
//!   interleaved run; [`short_round`]: the short round.
//! - [`machine`]: a workload on modelled hosts: plan, swarm, fit; [`sweep`]: many points of it.
//! - [`waiting`]: the call an application waits in, and the parts of a policy that have no effect there.
//! - [`interrupt`]: orderly termination by a signal; [`partial`]: the file from which a run resumes.
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.

mod client_end;
mod client_results;
mod embedded;
pub mod error;
pub mod flood_ping;
pub mod interrupt;
pub mod linux;
mod list;
pub mod live;
pub mod machine;
pub mod memcached;
mod multi_queue;
pub mod options;
pub mod oracle;
mod os_server;
pub mod partial;
mod ping;
mod rate;
pub mod run;
mod sender;
pub mod server;
pub mod serving;
pub mod setting;
pub mod short_round;
mod source;
pub mod ssd;
pub mod sweep;
pub mod tcp_rr;
pub mod udp_sink;
pub mod waiting;
mod wire;
pub mod workload;
mod world;
pub mod xsk_rr;

pub use error::{BenchError, Stopped};
pub use interrupt::{Interrupt, Interrupted};
pub use list::{WORKLOADS, default_worlds, find, load_forms, names, schema};
pub use live::Live;
pub use options::Options;
pub use partial::{Partial, PartialError};
pub use rate::whole_rate;
pub use run::{resumable, run};
pub use server::{Server, Wire, XdpPort};
pub use setting::{Given, Setting};
pub use workload::Workload;
pub use world::World;
