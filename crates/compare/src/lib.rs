//! Delivery policies compared on a service that runs: each in turn, for a slice of time, in rounds, put
//! back at the end or at any death; and then a sentence that says what to take.
//!
//! - [`Service`]: the program, its ports, and the device's instances.
//! - [`compare()`]: the rounds. Each slice is what `napkin apply` and `napkin attach` do, journalled as
//!   there, with a time to settle that is not counted.
//! - [`Guard`]: what ends a slice at once and takes its policy out of the rest.
//! - [`Canary`]: the same guard over what `napkin apply` puts in force.
//! - [`Measure`]: a command that prints a number, in the place of the server's own latency.
//! - [`Report`]: the figures, the [`verdict`](mod@verdict) with its uncertainty, as a table, as JSON and as a page.
//!
//! Latency is told from the server's side (`napkin_kernel::count::latency`): what the network and the
//! client add is not in it, and what the card holds back before it writes a frame is not either.
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.

mod canary;
mod command;
mod error;
mod force;
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
