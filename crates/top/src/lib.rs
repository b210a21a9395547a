//! A live view of NAPI instances, of the kernel's or of an engine's, with the same columns. What is
//! seen comes from `napkin-watch`.
//!
//! - [`View`], [`Column`], [`Key`]: what of them is looked at; pure.
//! - [`draw`], [`screen`], [`batch`]: onto a terminal, or as text and JSON for scripts.
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
