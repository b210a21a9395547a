//! Exports NAPI instances, the kernel's or an engine's, as metrics for Prometheus.
//!
//! - [`families`]: converts a sample into families of metrics.
//! - [`Format`]: writes them as OpenMetrics or in Prometheus' own text format.
//! - [`Exporter`]: samples on request, at a limited rate.
//! - [`Server`]: answers `GET /metrics` on a TCP address or a Unix socket, and nothing else.
//! - [`textfile`]: writes a file for node_exporter's textfile collector instead.
//!
//! All counters are cumulative; rates are left to the reader. An unknown value is left out, and never
//! exported as 0. Nothing here changes what it watches, or prints.
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.

mod client;
mod drift;
mod exporter;
mod families;
mod format;
mod listener;
mod request;
mod server;
pub mod textfile;

pub use drift::Drift;
pub use exporter::Exporter;
pub use families::{Family, Kind, Series, families};
pub use format::Format;
pub use listener::{Address, AddressError, ListenError, Listener};
pub use server::{Server, ServerError};
