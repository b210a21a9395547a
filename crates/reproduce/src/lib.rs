//! Published experiments, reproduced: published beside modelled, cell by cell.
//!
//! - [`published`] reads the tables of the five proposals, [`oracle`] those of the real
//!   kernel; [`sheet`] is the CSV file below all of them.
//! - [`experiment`] runs an experiment's tasks on all cores; the experiments themselves stand beside it.
//! - [`cell`] is one figure with its error, [`verdict`] what was asked of many, [`null`] the model that
//!   knows some other row of a table and nothing else.
//! - [`causes`] asks changes of a model why rows of it are off.
//! - [`json`], [`text`], [`plot`] and [`page`] show the result.
//!
//! Nothing here models anything, and nothing is filled in: a figure without a modelled value says why.
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
