//! `napkin sweep`: the machine at every point of a cross product of parameters.
//!
//! - `axis`: the parameters that can be varied, and the values of one.
//! - `shard`: the part of the points that one of several processes runs.
//! - `identity`: the columns that identify a sweep and its points.
//! - `sheet`: the CSV file, which is written line by line and can be resumed.
//! - `table`: a CSV file that was read.
//! - `run`: the size, the estimate and the run itself, on all cores.
//! - `merge`: joins the files of all shards into that of the whole sweep.
//! - `plot`: a page of its results.

pub mod axis;
mod columns;
mod error;
mod identity;
mod merge;
mod plot;
mod run;
mod shard;
mod sheet;
mod table;

pub use axis::{Axis, AxisError};
pub use error::SweepError;
pub use merge::{MergeError, Merged, merge};
pub use plot::{PlotError, SweepPlot};
pub use run::{Event, Sweep, Totals};
pub use shard::{Shard, ShardError};
pub use sheet::SheetError;
