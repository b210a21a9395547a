//! The parkers of the shared pool's workers, and the choice of the worker that is woken for a new item.
//!
//! An item that is put back by the worker that polled it wakes no worker: that worker takes the next item itself.
//! So no worker may go to sleep while an item is queued, or the item would wait for as long as another worker is
//! busy. A context that brings an item queues it and then looks for an idle worker; a worker marks itself idle and
//! then checks the queue. Each has a fence in between, so that one of the two sees the other. Modelled by
//! `tests/loom`.
//!
//! The queue itself is the core's.

use crate::parker::Parker;
use crate::sync::{AtomicBool, AtomicUsize, Ordering, fence};

/// The parkers of the shared pool's workers.
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

    /// Wakes a worker for an item that has been put on the queue: an idle one if there is one, otherwise the next
    /// in turn, which will check the queue once more before it sleeps. Returns whether the worker slept.
    pub(crate) fn wake(&self) -> bool {
        fence(Ordering::SeqCst);
        let idle = self
            .idle
            .iter()
            .position(|idle| idle.load(Ordering::Relaxed) && idle.swap(false, Ordering::AcqRel));
        let turn = || self.next.fetch_add(1, Ordering::Relaxed) % self.parkers.len().max(1);
        self.parkers.get(idle.unwrap_or_else(turn)).is_some_and(Parker::unpark)
    }

    /// Puts a worker that has found nothing to do to sleep (`sleep`, on its parker), unless an item is queued by
    /// now (`waits`).
    pub(crate) fn sleep_unless_queued(
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
