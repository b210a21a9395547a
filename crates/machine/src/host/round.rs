//! Rounds of a thread's loop: divides its CPU time into work and empty polling.
//!
//! A thread that spins repeats a round: it polls, checks, and polls again; its calls return, and it calls again. All
//! CPU time of a round without a frame or an event counts as empty polling, including the entry to the kernel and the
//! return. So the time is divided twice. The time from one poll to the next counts by the result of that poll. The
//! remaining time from one waiting call to the next (or from one look at a ring in memory to the next) counts by
//! whether the round found anything.

use napkin_core::Ns;

/// CPU time that a thread has used since its last poll and since its last waiting call.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Round {
    /// CPU time since the last poll began, or since the last one was closed.
    open: Ns,
    /// CPU time of the round that belongs to no poll.
    outside: Ns,
    /// Whether `open` belongs to a poll: from its beginning to that of the next one, or to the end of the pass.
    polling: bool,
    /// Whether that poll is over and was empty.
    empty: bool,
    /// Whether the round has found a frame or an event.
    found: bool,
}

impl Round {
    /// Adds CPU time of the thread.
    #[inline]
    pub(super) fn used(&mut self, time: Ns) {
        self.open += time;
    }

    /// Begins a poll. Returns the time of empty polling since the last one began.
    #[inline]
    pub(super) fn begin_poll(&mut self) -> Ns {
        let empty = self.close_poll();
        self.polling = true;
        empty
    }

    /// Begins another round. Returns the time of empty polling in the last one that has not been returned before.
    pub(super) fn begin_round(&mut self) -> Ns {
        let empty = self.close_poll();
        let outside = std::mem::take(&mut self.outside);
        if std::mem::take(&mut self.found) { empty } else { empty + outside }
    }

    /// Records the result of a poll.
    #[inline]
    pub(super) fn polled(&mut self, found: bool) {
        self.empty = !found;
        self.found |= found;
    }

    /// Records that a frame or an event has been found.
    #[inline]
    pub(super) fn found(&mut self) {
        self.found = true;
    }

    /// Closes the time that belongs to a poll. Returns how much of it was empty polling.
    #[inline]
    pub(super) fn close_poll(&mut self) -> Ns {
        let open = std::mem::take(&mut self.open);
        let polling = std::mem::take(&mut self.polling);
        match (polling, std::mem::take(&mut self.empty)) {
            (true, true) => open,
            (true, false) => 0,
            (false, _) => {
                self.outside += open;
                0
            }
        }
    }

    /// Removes the time of empty rounds that were skipped in bulk; the poll in progress belongs to another round.
    pub(super) fn remove_skipped(&mut self, time: Ns) {
        self.open = self.open.saturating_sub(time);
        self.empty = false;
    }
}
