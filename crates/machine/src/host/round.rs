//! Rounds of a thread's loop, and whether they found anything: what of its CPU time is work, and what
//! is poll.
//!
//! A thread that spins goes round: it polls, looks, and polls again; its calls return, and it calls
//! again. All of a round that found neither a frame nor an event is poll: the entry into the kernel
//! and the way back as much as the poll itself. So what a thread uses is divided twice: from one poll
//! to the next, by what the poll found; and the rest from one call that waits to the next (or from one
//! look at a ring in memory to the next), by whether anything came of it.

use napkin_core::Ns;

/// What a thread has used since its last poll, and since its last call.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Round {
    /// CPU time that belongs to the poll under way, or else to no poll.
    open: Ns,
    /// CPU time of the round that belonged to no poll.
    outside: Ns,
    /// From a poll's beginning to the next one's, or to the end of the pass.
    polling: bool,
    /// That poll is over and found nothing.
    vain: bool,
    /// The round has found a frame or an event.
    found: bool,
}

impl Round {
    /// The thread has used so much CPU time.
    #[inline]
    pub(super) fn used(&mut self, time: Ns) {
        self.open += time;
    }

    /// A poll begins: how much of the last one was in vain.
    #[inline]
    pub(super) fn poll_begins(&mut self) -> Ns {
        let vain = self.poll_ends();
        self.polling = true;
        vain
    }

    /// Another round begins: how much of the last one was in vain since its last poll began.
    pub(super) fn begins(&mut self) -> Ns {
        let vain = self.poll_ends();
        let outside = std::mem::take(&mut self.outside);
        if std::mem::take(&mut self.found) { vain } else { vain + outside }
    }

    /// A poll is over.
    #[inline]
    pub(super) fn polled(&mut self, found: bool) {
        self.vain = !found;
        self.found |= found;
    }

    /// A frame or an event has been found.
    #[inline]
    pub(super) fn found(&mut self) {
        self.found = true;
    }

    /// What belonged to a poll does so no longer: how much of it was in vain.
    #[inline]
    pub(super) fn poll_ends(&mut self) -> Ns {
        let open = std::mem::take(&mut self.open);
        let polling = std::mem::take(&mut self.polling);
        match (polling, std::mem::take(&mut self.vain)) {
            (true, true) => open,
            (true, false) => 0,
            (false, _) => {
                self.outside += open;
                0
            }
        }
    }

    /// So much of the open time was whole rounds that found nothing; the poll under way is another.
    pub(super) fn skipped(&mut self, time: Ns) {
        self.open = self.open.saturating_sub(time);
        self.vain = false;
    }
}
