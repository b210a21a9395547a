//! The atomics of the engine's lock-free protocols: sleeping and waking, kicks, timers, ready lists, the pool's
//! workers.
//!
//! A file that takes its atomics from here, and the operating system's part from [`os`](crate::os), is compiled a
//! second time by `tests/loom`, with loom's atomics and stand-ins, so that the code that ships is the code that is
//! model-checked.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
pub(crate) use std::sync::atomic::{Ordering, fence};

pub(crate) use crossbeam_queue::ArrayQueue;
