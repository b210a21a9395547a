//! Wakes a CPU's interrupt thread, once for any number of concurrent requests.
//!
//! Modelled by `tests/loom`.

use crate::os::Event;
use crate::sync::{AtomicBool, Ordering};

/// The pending request, and the descriptor by which the thread learns of it.
#[derive(Debug)]
pub(crate) struct Kick {
    event: Event,
    kicked: AtomicBool,
}

impl Kick {
    pub(crate) fn new(event: Event) -> Kick {
        Kick { event, kicked: AtomicBool::new(false) }
    }

    /// The descriptor that the interrupt thread waits for.
    pub(crate) fn event(&self) -> &Event {
        &self.event
    }

    /// Wakes the interrupt thread, to look at everything.
    pub(crate) fn kick(&self) {
        if !self.kicked.swap(true, Ordering::AcqRel) {
            self.event.signal();
        }
    }

    /// Records that the interrupt thread has woken, and will look at everything. A swap, so that the thread sees
    /// whatever was raised before the kicks so far.
    pub(crate) fn seen(&self) {
        self.kicked.swap(false, Ordering::AcqRel);
    }
}
