//! Output of a run: JSON, tables, pages, and a progress line while it runs.
//!
//! [`json`] has the report's types, from which every printed number comes; [`median`] combines repetitions into a
//! row; [`mod@file`] writes files; [`mod@column`] defines the columns, [`table`] prints them, [`mod@bench`] draws a
//! page; [`text`] formats units and lines, [`mod@length`] durations. Nothing here measures.

pub mod bench;
pub mod column;
pub mod file;
pub mod fit;
pub mod json;
pub mod length;
pub mod median;
pub mod page;
pub mod page_check;
pub mod plot;
pub mod progress;
pub mod proposal;
pub mod provenance;
pub mod round;
pub mod table;
pub mod text;
pub mod ties;

pub use bench::Page;
pub use column::Column;
pub use file::WriteError;
pub use json::{Measurement, Repetition, Report, Row};
pub use length::length;
pub use progress::Progress;
pub use provenance::Provenance;
