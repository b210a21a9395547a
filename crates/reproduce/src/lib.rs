//! Reproductions of published experiments: published and modelled values, cell by cell.
//!
//! - [`published`] reads the tables of the five proposals, [`oracle`] those of the real kernel; both use [`sheet`]
//!   to parse CSV.
//! - [`experiment`] runs an experiment's tasks on all cores; the experiments are modules of this crate.
//! - [`cell`] is one figure with its error, [`verdict`] a criterion over many, [`null`] a model that knows nothing
//!   but some other row of a table.
//! - [`causes`] tests with changes of a model why rows miss.
//! - [`json`], [`text`], [`plot`] and [`page`] output the result.
//!
//! This crate models nothing itself, and never fills in values: a figure without a modelled value gives the reason.
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.

pub mod all;
pub mod busy_poll;
pub mod causes;
pub mod cell;
pub mod experiment;
#[cfg(test)]
mod fake;
mod grid;
pub mod hold;
pub mod json;
pub mod kernel;
pub mod ksoftirqd;
pub mod null;
pub mod oracle;
pub mod page;
pub mod plot;
pub mod published;
mod run;
pub mod sheet;
pub mod suspend;
pub mod text;
pub mod threaded;
pub mod verdict;

pub use cell::{Cell, Estimate, Modelled, Unit};
pub use experiment::{Experiment, Options, Reproduce, ReproduceError, Run, Task};
pub use json::{Document, Reproduction, RunRecord};
pub use null::NullModel;
pub use plot::Figure;
pub use verdict::{Tolerance, Verdict};
