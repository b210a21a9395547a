//! Samples NAPI instances repeatedly, the kernel's or an engine's, in one form.
//!
//! - [`Source`]: cumulative counts, from the kernel ([`LinuxSource`]) or an engine ([`EngineSource`]).
//! - [`Meter`]: computes [`Rates`] from two [`Sample`]s.
//! - [`sampler`]: collects the kernel's counts.
//!
//! For a live view, and for exporters. Nothing here changes what it watches, or prints.
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.

mod engine;
mod linux;
mod rates;
mod sample;
pub mod sampler;
mod timing;

pub use engine::EngineSource;
pub use linux::LinuxSource;
pub use napkin_kernel::count::Options as CountOptions;
pub use napkin_kernel::count::latency::{Part, Parts, Percentiles};
pub use rates::{CpuShares, Meter, NapiRates, Rates, between};
pub use sample::{CpuSample, NapiSample, Polls, Sample, Source, SourceError, Squeezes};
pub use timing::Often;
