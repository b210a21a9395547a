//! Measurement: turns the raw events of a run into figures and reports.
//!
//! Covered are latency, the published estimator of 2025, the duration of receive calls, CPU time in four parts,
//! interruptions by the host, an engine's counters, repetitions, and the host. [`report`] turns figures into
//! tables, JSON, pages and progress lines, and [`conclusion`] summarizes a table. Nothing here chooses a policy or
//! starts a workload.
//!
//! Two rules hold throughout. Code that runs in a thread under test ([`Latency::record`], [`Pow2::record`],
//! [`PublishedEstimator::record`]) neither allocates nor locks. And a value that could not be measured is `None`,
//! never zero.
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod conclusion;
pub mod engine;
pub mod estimator;
pub mod host;
pub mod interleave;
pub mod interruption;
pub mod latency;
pub mod paired;
pub mod pow2;
pub mod report;
pub mod split;
pub mod uncertainty;
pub mod window;

pub use engine::{EngineTotals, EngineWindow};
pub use estimator::{Published, PublishedEstimator};
pub use host::Host;
pub use interleave::{Plan, Spread, Step};
pub use interruption::Interruption;
pub use latency::{Latency, LatencyNs, Percentiles};
pub use pow2::Pow2;
pub use split::{CpuSplit, SplitInputs};
pub use window::{CpuWindow, WindowUsage};
