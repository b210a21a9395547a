//! A live view of NAPI instances, the kernel's or an engine's, with the same columns. `napkin-watch` supplies
//! the samples.
//!
//! - [`View`], [`Column`], [`Key`]: the state of the view, without I/O.
//! - [`draw`], [`screen`], [`batch`]: output on a terminal, or as text and JSON for scripts.
//!
//! Nothing here changes what it watches.
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.

pub mod batch;
mod column;
pub mod draw;
mod key;
pub mod screen;
mod signals;
mod terminal;
mod text;
mod view;

pub use column::Column;
pub use key::Key;
pub use view::{Action, View};
