//! The engine's invariants, checked while it runs.
//!
//! Debug builds only. The numbers are those of the design: one owner at a time (1), a poll within its budget (5),
//! nothing left masked with an owner after a disable (4), conservation (8). The core's own tests prove them for the
//! core; here they are checked where a device, a stack and real threads meet.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use napkin_core::{Id, Work};

/// The checked state of one queue.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    inside: AtomicBool,
    /// Frames that polls have taken from the device.
    taken: AtomicU64,
}

/// One call into a queue, until it is dropped, also by unwinding.
#[derive(Debug)]
pub(crate) struct Inside<'a>(&'a AtomicBool);

impl Watched {
    /// Enters the queue; the caller must be alone there (invariant 1).
    pub(crate) fn enter(&self, id: Id) -> Inside<'_> {
        let alone = !self.inside.swap(true, Ordering::AcqRel);
        assert!(alone, "invariant 1: two contexts are inside the queue of instance {}", id.0);
        Inside(&self.inside)
    }

    /// Checks that no context is inside the queue; returns the frames that polls have taken from the device.
    pub(crate) fn at_rest(&self, id: Id) -> u64 {
        let inside = self.inside.load(Ordering::Acquire);
        assert!(!inside, "somebody is inside the queue of instance {}", id.0);
        self.taken.load(Ordering::Relaxed)
    }

    /// Checks that a poll kept to its budget, and gave no more frames than it reported (invariant 5).
    pub(crate) fn polled(&self, budget: u16, work: Work, frames: usize) {
        let rx = work.rx;
        assert!(rx <= budget, "invariant 5: a poll with a budget of {budget} took {rx} frames");
        assert!(frames <= usize::from(rx), "a poll that took {rx} frames gave {frames}");
        self.taken.fetch_add(frames as u64, Ordering::Relaxed);
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
