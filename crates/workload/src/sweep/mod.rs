//! `napkin sweep`: the machine at every point of a cross product of parameters.
//!
//! - `axis`: what may be varied, and the values of one parameter.
//! - `shard`: the part of the points that one of several processes runs.
//! - `identity`: the columns that tell sweeps and points apart.
//! - `sheet`: the CSV file, which grows a line at a time and can be gone on with.
//! - `table`: such a file, read.
//! - `run`: size, estimate and the run itself, on all cores.
//! - `merge`: the file of a whole sweep from those of its shards.
//! - `plot`: a page of its figures.

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
