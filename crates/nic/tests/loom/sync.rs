//! loom's atomics and locks in place of the standard library's (`src/sync.rs`).

pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};
pub(crate) use loom::sync::{Mutex, MutexGuard};
