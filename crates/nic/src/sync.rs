//! The atomics and locks of what threads decide together in a device.
//!
//! A file that takes its own from here is compiled a second time by `tests/loom`, with loom's, so that the
//! very code that ships is the code that is model-checked.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};
pub(crate) use std::sync::{Mutex, MutexGuard};
