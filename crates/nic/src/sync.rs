//! The atomics and locks of code in which threads synchronise with each other.
//!
//! `tests/loom` compiles the files that import from here a second time, with loom's types, so that the code that is
//! model-checked is the code that ships.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};
pub(crate) use std::sync::{Mutex, MutexGuard};
