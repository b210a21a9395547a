//! Workloads, and runs of them under several policies that may be compared.
//!
//! - [`Workload`]: what one is, in the worlds that have it. [`flood_ping`] (2007), [`udp_sink`] (2018),
//!   [`xsk_rr`] (2025), [`memcached`] (2024), and two of 2020 have a folder each, with a file a world;
//!   [`WORKLOADS`] lists them. [`oracle`] is what a real kernel's counts are compared with.
//! - [`live`]: one that is set up on the engine ([`serving`]) or in the kernel ([`linux`]); [`mod@run`]: the
//!   interleaved run of it; [`short`]: the short round.
//! - [`machine`]: one on modelled hosts, planned, swarmed, fitted; [`sweep`]: many points of it.
//! - [`waiting`]: in what an application waits, and what of a policy takes no part there.
//! - [`interrupt`]: being asked to end; [`partial`]: the file from which a run goes on.
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.

mod beside;
mod client_end;
mod embedded;
pub mod error;
pub mod flood_ping;
pub mod interrupt;
mod joined;
pub mod linux;
mod list;
pub mod live;
pub mod machine;
pub mod memcached;
pub mod options;
pub mod oracle;
pub mod partial;
mod ping;
mod rate;
pub mod run;
mod sender;
pub mod server;
pub mod serving;
pub mod setting;
pub mod short;
mod source;
pub mod ssd;
pub mod sweep;
pub mod tcp_rr;
mod told;
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
