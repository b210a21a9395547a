//! `napkin sweep`: the machine at every point of a cross product of parameters.
//!
//! - `axis`: what may be varied, and the values of one parameter.
//! - `sheet`: the CSV file, which grows a line at a time and can be gone on with.
//! - `run`: size, estimate and the run itself, on all cores.

pub mod axis;
mod run;
mod sheet;

pub use axis::{Axis, AxisError};
pub use run::{Event, Sweep, SweepError, Totals};
pub use sheet::SheetError;
