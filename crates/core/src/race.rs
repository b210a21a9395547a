//! Known races, re-introduced on purpose: a model that cannot fail proves nothing.
//!
//! The names are those of the race catalogue in `docs/races.md`. Only test builds (`--cfg loom` or
//! the feature `races`) can switch one on, for the current thread; everywhere else
//! [`on`] is the constant `false` and the optimiser removes the broken branch.

/// A race of the kernel's history, or of this core's own, that it can be made to repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Race {
    /// R1: an interrupt between the last look at the ring and the release is forgotten.
    LostInterrupt,
    /// R2: the timer is armed before the last poll, and dropped when it finds the instance owned.
    EarlyTimer,
    /// R3: the thread takes any scheduled instance for its own.
    ThreadTestsSched,
    /// R4: the thread leaves on a pending disable without releasing.
    ThreadQuitsOnDisable,
    /// R5: enable clears `SCHED` and `NPSVC` in two steps.
    EnableInTwoSteps,
    /// R6: disable, retrying, takes an instance that is still owned.
    DisableRetry,
    /// R7: stopping the thread waits for `SCHED` to clear, also on a disabled instance.
    StopWaitsForSched,
    /// R8: leaving threaded busy poll forgets one of its bits.
    BusyBitStays,
    /// R10: a wait that a signal ended suspends as if it had found events.
    SuspendOnSignal,
    /// R11: unmasking does not look at the ring again.
    UnmaskWithoutLook,
    /// R12: the softirq does not look at its list again after allowing raises.
    ListNotRechecked,
    /// R13: a mode change waits for the ring to drain.
    ModeWaitsForDrain,
    /// R14: one idle context's resume ends every context's suspension.
    ResumeCancelsAll,
    /// R18: a wait that finds events prolongs a suspension although nobody has polled since.
    ProlongWithoutPoll,
    /// A suspension puts the timer off only after its context has its part in it, and may have let go (this
    /// core's own, until it was modelled).
    PutOffLast,
}

#[cfg(any(loom, feature = "races"))]
mod switch {
    use super::Race;
    use core::cell::Cell;

    std::thread_local! {
        static ON: Cell<Option<Race>> = const { Cell::new(None) };
    }

    /// Whether this race is re-introduced on the current thread.
    #[inline]
    pub fn on(race: Race) -> bool {
        ON.with(|on| on.get() == Some(race))
    }

    /// Re-introduces a race on the current thread, or (`None`) none.
    pub fn set(race: Option<Race>) {
        ON.with(|on| on.set(race));
    }
}

#[cfg(any(loom, feature = "races"))]
pub use switch::{on, set};

/// Whether this race is re-introduced: never, outside test builds.
#[cfg(not(any(loom, feature = "races")))]
#[inline(always)]
pub const fn on(_: Race) -> bool {
    false
}
