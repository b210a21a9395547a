//! Known races that test builds can re-introduce, to prove that the models and tests detect them.
//!
//! The names are those of the race catalogue in `docs/races.md`. Only test builds (`--cfg loom` or
//! the feature `races`) can switch one on, for the current thread; everywhere else
//! [`on`] is the constant `false` and the optimiser removes the broken branch.

/// A race from the kernel's history, or from this core's own, that can be re-introduced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Race {
    /// R1: an interrupt between the last look at the ring and the release is forgotten.
    LostInterrupt,
    /// R2: the timer is armed before the last poll, and dropped when it finds the instance owned.
    EarlyTimer,
    /// R3: the thread acts on `SCHED`, and so polls an instance that another context owns.
    ThreadTestsSched,
    /// R4: the thread leaves on a pending disable without releasing.
    ThreadQuitsOnDisable,
    /// R5: enable clears `SCHED` and `NPSVC` in two steps.
    EnableInTwoSteps,
    /// R6: disable, retrying, takes an instance that is still owned.
    DisableRetry,
    /// R7: stopping the thread waits for `SCHED` to clear, also on a disabled instance.
    StopWaitsForSched,
    /// R8: leaving threaded busy poll keeps `THREADED_BUSY_POLL` set.
    BusyBitStays,
    /// R10: a wait that a signal ended suspends as if it had found events.
    SuspendOnSignal,
    /// R11: unmasking does not check the ring again.
    UnmaskWithoutLook,
    /// R12: the softirq does not check its poll list again after schedules raise the vector again.
    ListNotRechecked,
    /// R13: a mode change waits for the ring to drain.
    ModeWaitsForDrain,
    /// R14: one idle context's resume ends every context's suspension.
    ResumeCancelsAll,
    /// R18: a wait that finds events prolongs a suspension although the instance was not polled since the last
    /// time.
    ProlongWithoutPoll,
    /// A suspension extends the timer only after its registration is back in the context, which may have been
    /// resumed or closed by then (this core's own bug, until it was modelled).
    TimerMovedLast,
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
