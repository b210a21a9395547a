//! Waking a CPU's interrupt thread, once however many ask.
//!
//! Modelled by `tests/loom`.

use crate::os::Event;
use crate::sync::{AtomicBool, Ordering};

/// Whether somebody has asked, and how the thread hears of it.
#[derive(Debug)]
pub(crate) struct Kick {
    event: Event,
    kicked: AtomicBool,
}

impl Kick {
    pub(crate) fn new(event: Event) -> Kick {
        Kick { event, kicked: AtomicBool::new(false) }
    }

    /// What the interrupt thread waits for.
    pub(crate) fn event(&self) -> &Event {
        &self.event
    }

    /// Wakes the interrupt thread, to look at everything.
    pub(crate) fn kick(&self) {
        if !self.kicked.swap(true, Ordering::AcqRel) {
            self.event.signal();
        }
    }

    /// The interrupt thread has woken, and will look at everything. A swap: it sees whatever those
    /// who kicked until now had raised.
    pub(crate) fn seen(&self) {
        self.kicked.swap(false, Ordering::AcqRel);
    }
}
