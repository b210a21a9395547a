//! The schedule of the invariant checks and their result. The invariants themselves are in `invariant.rs`.

use napkin_core::Ns;

/// The schedule of the invariant checks and their result.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    /// Whether every queue and CPU is checked after every event.
    all: bool,
    /// Time of the next check of the queues, where they are not checked after every event.
    next: Ns,
    /// The longest timeout of any settings that have been replaced.
    longest_timeout: Ns,
    /// The first violation that was found.
    violation: Option<String>,
}

impl Checks {
    /// Returns whether every queue and CPU is checked after every event.
    #[inline]
    pub(crate) fn after_every_event(&self) -> bool {
        self.all
    }

    /// From now on checks every queue and CPU after every event.
    pub(crate) fn check_everything(&mut self) {
        self.all = true;
    }

    /// Returns whether the queues are due for a check; if so, sets the next one `every` nanoseconds later.
    #[inline]
    pub(crate) fn take_due(&mut self, now: Ns, every: Ns) -> bool {
        let due = now >= self.next;
        if due {
            self.next = now + every;
        }
        due
    }

    /// Records the timeout of settings that are replaced: a timer already armed with it may outlast a shorter new
    /// one.
    pub(crate) fn note_replaced_timeout(&mut self, timeout: Ns) {
        self.longest_timeout = self.longest_timeout.max(timeout);
    }

    /// Returns the longest of the replaced timeouts.
    pub(crate) fn longest_timeout(&self) -> Ns {
        self.longest_timeout
    }

    /// Returns the first violation, if there was one.
    pub(crate) fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }

    /// Records a violation, unless there is one already.
    #[cold]
    pub(crate) fn record_violation(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }
}

/// A round of a CPU's network softirq: its number, and the frames taken in it so far.
#[derive(Debug, Default)]
pub(crate) struct SoftirqRound {
    number: u64,
    frames: u32,
}

impl SoftirqRound {
    /// Adds the frames of a poll to the round of that number, which may be a new one. Returns the round's total.
    pub(crate) fn add(&mut self, number: u64, frames: u16) -> u32 {
        if self.number != number {
            *self = SoftirqRound { number, frames: 0 };
        }
        self.frames += u32::from(frames);
        self.frames
    }
}
