//! The scenarios that a real kernel ran on an emulated machine, with every count that its tracer took.
//!
//! They are not a workload that can be selected by name: they only serve to compare the model with the kernel's
//! recorded counts, and the caller makes that comparison.

mod constants;
mod generator;
mod scenario;

pub(crate) use constants::CONSTANTS;
pub use generator::Arrivals;
pub use scenario::{Disturbance, Event, Observed, Scenario, Wait, run, run_disturbed};
