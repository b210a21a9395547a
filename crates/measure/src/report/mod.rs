//! What a run leaves behind: JSON, tables, and a progress line while it lasts.
//!
//! [`json`] holds the report's types, the one source of every printed number; [`median`] makes a row
//! from its repetitions; [`mod@file`] writes the JSON form; [`mod@column`] says what there is to be shown
//! of a row, [`table`] shows it, [`mod@bench`] makes a page of it, [`text`] has units and lines,
//! [`mod@length`] times. Nothing here measures.

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
