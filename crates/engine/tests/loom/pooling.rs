//! The pool's workers: none goes to sleep while an item is queued, even if another worker is busy for ever.

use std::sync::Arc;

use loom::sync::atomic::Ordering::Relaxed;
use loom::thread::spawn;
use napkin_core::NEVER;

use crate::explore;
use crate::parker::Parker;
use crate::sync::{AtomicBool, AtomicU32, Ordering};
use crate::workers::Workers;

/// The worker that is busy all the time, and is woken in turn if none is idle.
const BUSY: usize = 0;
/// The worker that looks for something to do.
const FREE: usize = 1;

/// The protocol, in its present version and in wrong ones.
trait Pools: Send + Sync + 'static {
    fn new() -> Self;
    fn wake(&self);
    /// The free worker sleeps, unless something is on the queue.
    fn sleep_unless_queued(&self, waits: impl FnOnce() -> bool);
}

impl Pools for Workers {
    fn new() -> Workers {
        Workers::new(2)
    }

    fn wake(&self) {
        Workers::wake(self);
    }

    fn sleep_unless_queued(&self, waits: impl FnOnce() -> bool) {
        Workers::sleep_unless_queued(self, FREE, waits, |parker| parker.park(NEVER, || {}));
    }
}

/// The former version, without a look at the queue between marking itself idle and the sleep; or (`LOOKS`) with one
/// and without the fences, so that each side may miss the other's store.
struct Wrong<const LOOKS: bool> {
    parkers: [Parker; 2],
    idle: AtomicBool,
}

impl<const LOOKS: bool> Pools for Wrong<LOOKS> {
    fn new() -> Self {
        Wrong { parkers: [Parker::default(), Parker::default()], idle: AtomicBool::new(false) }
    }

    fn wake(&self) {
        let idle = self.idle.load(Ordering::Relaxed) && self.idle.swap(false, Ordering::AcqRel);
        self.parkers[if idle { FREE } else { BUSY }].unpark();
    }

    fn sleep_unless_queued(&self, waits: impl FnOnce() -> bool) {
        self.idle.store(true, Ordering::Release);
        if !(LOOKS && waits()) {
            self.parkers[FREE].park(NEVER, || {});
        }
        self.idle.store(false, Ordering::Release);
    }
}

struct Scene<P> {
    pool: P,
    /// The number of queued items, at most one. Relaxed: the fences order it.
    items: AtomicU32,
}

/// An item is queued while one worker is busy, and would not sleep before it is done, and the other may be about to
/// sleep: the other takes it.
fn one_is_busy<P: Pools>() {
    let scene = Arc::new(Scene { pool: P::new(), items: AtomicU32::new(0) });
    let shared = scene.clone();
    let thread = spawn(move || {
        shared.items.store(1, Relaxed);
        shared.pool.wake();
    });
    // Finding the item is enough: if it were taken by a swap, loom would order that swap before the store that it
    // has not seen.
    while scene.items.load(Relaxed) == 0 {
        scene.pool.sleep_unless_queued(|| scene.items.load(Relaxed) > 0);
    }
    thread.join().expect("a bringer");
}

#[test]
fn an_item_is_not_left_to_a_worker_that_is_busy() {
    explore(one_is_busy::<Workers>);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_a_look_before_the_sleep_an_item_is_left() {
    explore(one_is_busy::<Wrong<false>>);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_fences_an_item_is_left() {
    explore(one_is_busy::<Wrong<true>>);
}
