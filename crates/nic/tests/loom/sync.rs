//! loom's atomics and locks in the place of the processor's (`src/sync.rs`).

pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};
pub(crate) use loom::sync::{Mutex, MutexGuard};
