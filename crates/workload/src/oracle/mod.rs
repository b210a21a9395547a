//! The scenarios that a real kernel ran on an emulated machine, with all counts that its tracer took.
//!
//! No workload that anybody can ask for by name: only the kernel's own counts are compared with it, and
//! they are the reader's.

mod constants;
mod generator;
mod scenario;

pub(crate) use constants::CONSTANTS;
pub use generator::Arrivals;
pub use scenario::{Disturbance, Event, Observed, Scenario, Wait, run, run_disturbed};
