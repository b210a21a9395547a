//! When invariants are checked, and what was found. What they are is in `invariant.rs`.

use napkin_core::Ns;

/// What is checked and when, and what was found.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    /// Every queue and CPU after every event.
    all: bool,
    /// When the queues are checked next, where they are not after every event.
    next: Ns,
    /// The longest timeout that was in force before the present settings.
    longest_timeout: Ns,
    /// The first invariant that did not hold.
    broken: Option<String>,
}

impl Checks {
    /// Whether every queue and CPU is checked after every event.
    #[inline]
    pub(crate) fn of_everything(&self) -> bool {
        self.all
    }

    /// Checks every queue and CPU after every event from now on.
    pub(crate) fn check_everything(&mut self) {
        self.all = true;
    }

    /// Whether the queues are to be checked now; if so, the next time is `every` later.
    #[inline]
    pub(crate) fn are_due(&mut self, now: Ns, every: Ns) -> bool {
        let due = now >= self.next;
        if due {
            self.next = now + every;
        }
        due
    }

    /// A timeout that was in force may outlast a shorter one that replaces it.
    pub(crate) fn outlasts(&mut self, timeout: Ns) {
        self.longest_timeout = self.longest_timeout.max(timeout);
    }

    /// The longest of them.
    pub(crate) fn longest_timeout(&self) -> Ns {
        self.longest_timeout
    }

    /// What is broken, if anything is.
    pub(crate) fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// Remembers what is broken, unless something was before.
    #[cold]
    pub(crate) fn breaks(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }
}

/// A round of a CPU's network softirq, by its number, and the frames that it has taken.
#[derive(Debug, Default)]
pub(crate) struct Round {
    number: u64,
    frames: u32,
}

impl Round {
    /// A poll of the round of that number took frames: all that the round has.
    pub(crate) fn takes(&mut self, number: u64, frames: u16) -> u32 {
        if self.number != number {
            *self = Round { number, frames: 0 };
        }
        self.frames += u32::from(frames);
        self.frames
    }
}
