//! The engine's invariants, checked while it runs.
//!
//! Debug builds only. The numbers are those of the design: one owner at a time (1), a poll within
//! its budget (5), nothing left masked with an owner after a disable (4), conservation (8). The core
//! proves them of itself; here they are checked where a device, a stack and real threads meet.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use napkin_core::{Id, Work};

use crate::shared::Shared;

/// What is watched of one queue.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    inside: AtomicBool,
    /// Frames that polls have taken from the device.
    taken: AtomicU64,
}

/// One call into a queue, from its begin to its end, also while it unwinds.
#[derive(Debug)]
pub(crate) struct Inside<'a>(&'a AtomicBool);

impl Watched {
    /// Whoever calls into the queue is alone there (invariant 1).
    pub(crate) fn enter(&self, id: Id) -> Inside<'_> {
        let alone = !self.inside.swap(true, Ordering::AcqRel);
        assert!(alone, "invariant 1: two contexts are inside the queue of instance {}", id.0);
        Inside(&self.inside)
    }

    /// A poll kept to its budget, and gave no more frames than it says (invariant 5).
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

/// The engine has stopped: nothing is owned (4), and every frame that was taken from a device has
/// had exactly one fate (8). (A wait of the application that found events just before may suspend
/// an instance just after: it does nothing, and ends with its context.)
pub(crate) fn at_rest(shared: &Shared) {
    for id in shared.host.ids() {
        let state = shared.host.instance(id).state();
        assert!(state.disabled(), "invariant 4: instance {} is left in {state:?}", id.0);
        let inside = shared.napi(id).port.watched.inside.load(Ordering::Acquire);
        assert!(!inside, "somebody is inside the queue of instance {}", id.0);
    }
    for device in &shared.devices {
        let taken = |id: &Id| shared.napi(*id).port.watched.taken.load(Ordering::Relaxed);
        let taken: u64 = device.napis.iter().map(taken).sum();
        let counters = device.stack.counters();
        let (frames, accounted) = (counters.frames, counters.accounted());
        assert_eq!((taken, taken), (frames, accounted), "invariant 8: {}", device.name);
    }
}
