//! Where the workers of the shared pool sleep, and which of them is woken for a new item.
//!
//! An item that is put back by the worker that polled it wakes nobody: that worker takes the next one itself.
//! So a worker that goes to sleep beside an item would sleep for as long as another one is busy with
//! both, and none may: whoever brings an item puts it on the queue and then looks who is idle, a worker says
//! that it is idle and then looks at the queue, with a fence between on either side, so that one of the two
//! sees the other. Modelled by `tests/loom`.
//!
//! The queue itself is the core's.

use crate::parker::Parker;
use crate::sync::{AtomicBool, AtomicUsize, Ordering, fence};

/// Where the shared pool's workers sleep.
#[derive(Debug)]
pub(crate) struct Workers {
    pub(crate) parkers: Box<[Parker]>,
    idle: Box<[AtomicBool]>,
    next: AtomicUsize,
}

impl Workers {
    pub(crate) fn new(count: usize) -> Workers {
        Workers {
            parkers: (0..count).map(|_| Parker::default()).collect(),
            idle: (0..count).map(|_| AtomicBool::new(false)).collect(),
            next: AtomicUsize::new(0),
        }
    }

    /// Wakes a worker for an item that has been put on the queue: an idle one if there is one, otherwise
    /// the next in turn, who will look at the queue once more before he sleeps. Says whether he slept.
    pub(crate) fn wake(&self) -> bool {
        fence(Ordering::SeqCst);
        let idle = self
            .idle
            .iter()
            .position(|idle| idle.load(Ordering::Relaxed) && idle.swap(false, Ordering::AcqRel));
        let turn = || self.next.fetch_add(1, Ordering::Relaxed) % self.parkers.len().max(1);
        self.parkers.get(idle.unwrap_or_else(turn)).is_some_and(Parker::unpark)
    }

    /// The worker of that number has found nothing to do: he sleeps (`sleep`, by his parker), unless something
    /// is on the queue by now (`waits`).
    pub(crate) fn rest(
        &self,
        worker: usize,
        waits: impl FnOnce() -> bool,
        sleep: impl FnOnce(&Parker),
    ) {
        let idle = &self.idle[worker];
        idle.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        if !waits() {
            // A wake-up since then ends the sleep.
            sleep(&self.parkers[worker]);
        }
        idle.store(false, Ordering::Release);
    }
}
