//! A live view of NAPI instances, of the kernel's or of an engine's, with the same columns.
//!
//! - [`Source`]: cumulative counts, of the kernel ([`LinuxSource`]) or an engine ([`EngineSource`]).
//! - [`Meter`]: two samples become [`Rates`].
//! - [`View`], [`Column`], [`Key`]: what of them is looked at; pure.
//! - [`draw`], [`screen`], [`batch`]: onto a terminal, or as text and JSON for scripts.
//!
//! Nothing here changes what it watches.

pub mod batch;
mod column;
pub mod draw;
mod key;
mod rates;
mod sample;
pub mod screen;
mod signals;
mod source;
mod terminal;
mod text;
mod view;

pub use column::Column;
pub use key::Key;
pub use rates::{CpuShares, Meter, NapiRates, Rates, between};
pub use sample::{CpuSample, NapiSample, Polls, Sample, Source, SourceError, Squeezes};
pub use source::{EngineSource, LinuxSource};
pub use view::{Action, View};
