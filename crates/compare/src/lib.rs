//! Comparison of delivery policies on a running service: each policy is in force in turn, for a slice of time, in
//! rounds. Everything is put back at the end, or when napkin dies; the result is a sentence that recommends a
//! policy.
//!
//! - [`Service`]: the program, its ports, and the device's instances.
//! - [`compare()`]: the rounds. Each slice does what `napkin apply` and `napkin attach` do, with their journals; a
//!   time to settle at its start is not measured.
//! - [`Guard`]: ends a slice at once and excludes its policy from the rest.
//! - [`Canary`]: the same guard over a policy that `napkin apply` puts in force.
//! - [`Measure`]: a command that prints a number, which replaces the server's own latency.
//! - [`Report`]: the figures and the [`verdict`](mod@verdict) with its uncertainty, as a table, as JSON and as a
//!   page.
//!
//! Latency is measured on the server (`napkin_kernel::count::latency`): it includes neither the network and the
//! client, nor the time for which the card holds a frame back before writing it to memory.
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.

mod applied;
mod canary;
mod command;
mod error;
mod guard;
mod monitor;
mod options;
mod page;
mod report;
mod run;
mod service;
mod silence;
mod table;
pub mod verdict;
mod window;

pub use canary::{Canary, End};
pub use command::Measure;
pub use error::CompareError;
pub use guard::{Condition, Guard, GuardError};
pub use options::Options;
pub use report::{Report, Row};
pub use run::{CompareEvent, compare};
pub use service::Service;
pub use window::{Cpu, Slice};
