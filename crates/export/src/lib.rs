//! NAPI instances as metrics for Prometheus: the kernel's, or an engine's.
//!
//! - [`families`]: a sample as families of metrics.
//! - [`Format`]: how they are written, as OpenMetrics or in Prometheus' own text format.
//! - [`Exporter`]: samples when asked, and not more often than is of use.
//! - [`Server`]: answers `GET /metrics` on a TCP address or a Unix socket, and nothing else.
//! - [`textfile`]: writes a file for node_exporter's textfile collector instead.
//!
//! All numbers are cumulative: rates are the reader's business. What is not known is left out, and
//! never 0. Nothing here changes what it watches, and nothing prints.
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
