//! The sources of traffic for modelled and real clients alike: random numbers whose streams never change,
//! arrival schedules, memcached's sizes, and histograms.
//!
//! Sending is up to the clients.
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.

mod histogram;
mod log_bins;
mod rng;
mod schedule;
pub mod sizes;
pub mod splitmix;

pub use histogram::Histogram;
pub use log_bins::LogBins;
pub use rng::Rng;
pub use schedule::Schedule;
pub use splitmix::SplitMix;
