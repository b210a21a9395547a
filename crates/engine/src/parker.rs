//! The sleep of one thread, and its wake-up.
//!
//! A wake-up that comes before the sleep makes the sleep return at once. So a thread that has looked and found
//! nothing may go to sleep without a lock, because a context that brings something wakes it afterwards. Waking a
//! thread that does not sleep costs one atomic exchange and no system call.
//!
//! Modelled by `tests/loom`.

use napkin_core::Ns;

use crate::os;
use crate::sync::{AtomicU32, Ordering};

const EMPTY: u32 = 0;
const NOTIFIED: u32 = 1;
const PARKED: u32 = 2;

/// The sleep state of one thread.
#[derive(Debug, Default)]
pub(crate) struct Parker(AtomicU32);

impl Parker {
    /// Sleeps until woken or until `deadline`; may return spuriously. `before` runs once it is certain that the
    /// thread is about to block.
    pub(crate) fn park(&self, deadline: Ns, before: impl FnOnce()) {
        if self.0.compare_exchange(EMPTY, PARKED, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // A swap, not a store: it must see everything that came before the wake-up that it consumes, and no
            // look may be ordered before it.
            self.0.swap(EMPTY, Ordering::AcqRel);
            return;
        }
        before();
        os::sleep(&self.0, PARKED, deadline);
        self.0.swap(EMPTY, Ordering::AcqRel);
    }

    /// Discards a wake-up that came so far. The caller looks afterwards, and sees what the wake-up was for.
    #[inline]
    pub(crate) fn forget(&self) {
        if self.0.load(Ordering::Relaxed) != EMPTY {
            self.0.swap(EMPTY, Ordering::AcqRel);
        }
    }

    /// Wakes the thread, or its next sleep. Returns whether it was asleep.
    #[inline]
    pub(crate) fn unpark(&self) -> bool {
        let asleep = self.0.swap(NOTIFIED, Ordering::AcqRel) == PARKED;
        if asleep {
            os::wake(&self.0);
        }
        asleep
    }
}
