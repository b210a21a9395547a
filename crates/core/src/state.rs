//! The state word of one instance: its owner, its mode, and what other contexts requested meanwhile.
//!
//! Bits and numbers are the kernel's (`NAPI_STATE_*`), less `LISTED` and `HAS_NOTIFIER`, which are bookkeeping of
//! its device list and of interrupt affinity, plus [`WORKQUEUE`]. Every decision on which contexts can race is one
//! atomic operation on this one word, which keeps it small enough for loom to explore exhaustively.

use crate::race::{self, Race};
use crate::sync::{Ordering, Word32};
use napkin_policy::Threaded;

/// The ownership token: the context that set it owns the instance.
pub const SCHED: u32 = 1 << 0;
/// A context tried to schedule the instance while it was owned: the owner polls once more.
pub const MISSED: u32 = 1 << 1;
/// A disable is pending: scheduling is refused, and the owner releases after its poll.
pub const DISABLE: u32 = 1 << 2;
/// Together with `SCHED`: disabled.
pub const NPSVC: u32 = 1 << 3;
/// The device does not allow its instance to be busy polled.
pub const NO_BUSY_POLL: u32 = 1 << 5;
/// Owned by an application's busy-poll session.
pub const IN_BUSY_POLL: u32 = 1 << 6;
/// A session that prefers busy polling tried to claim the instance and lost.
pub const PREFER_BUSY_POLL: u32 = 1 << 7;
/// The instance's own thread polls it.
pub const THREADED: u32 = 1 << 8;
/// `SCHED` was given to the thread, which has not taken it yet: the only bit on which the thread may
/// act. (In the kernel it stays for as long as the thread owns the instance.)
pub const SCHED_THREADED: u32 = 1 << 9;
/// The thread never stops polling (with `THREADED`).
pub const THREADED_BUSY_POLL: u32 = 1 << 11;
/// The shared pool polls it; the kernel has no such mode.
pub const WORKQUEUE: u32 = 1 << 16;

/// The mode bits: who polls, if it is not the softirq.
pub(crate) const MODE: u32 = THREADED | THREADED_BUSY_POLL | WORKQUEUE;
/// The bits that a release clears: a free instance has no marks. (A kernel's session that leaves to the timer keeps
/// `PREFER_BUSY_POLL`, and the timer clears it.)
const CLEARED_BY_RELEASE: u32 = SCHED | SCHED_THREADED | PREFER_BUSY_POLL | IN_BUSY_POLL | MISSED;

/// A snapshot of the state word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State(pub u32);

impl State {
    /// Whether any of the bits is set.
    #[inline]
    pub const fn has(self, bits: u32) -> bool {
        self.0 & bits != 0
    }

    /// The mode: who is to poll.
    #[inline]
    pub const fn mode(self) -> Threaded {
        if !self.has(MODE) {
            Threaded::Disabled
        } else if self.has(THREADED_BUSY_POLL) {
            Threaded::BusyPoll
        } else if self.has(THREADED) {
            Threaded::Enabled
        } else {
            Threaded::Workqueue
        }
    }

    /// Whether the instance is disabled: it has no owner, and no context may claim it.
    pub const fn disabled(self) -> bool {
        self.0 & (SCHED | NPSVC) == SCHED | NPSVC
    }
}

const fn mode_bits(mode: Threaded) -> u32 {
    match mode {
        Threaded::Disabled => 0,
        Threaded::Enabled => THREADED,
        Threaded::BusyPoll => THREADED | THREADED_BUSY_POLL,
        Threaded::Workqueue => WORKQUEUE,
    }
}

/// The outcome of an attempt to schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prep {
    /// The caller owns the instance now.
    Won,
    /// Another context owns it, and `MISSED` makes that owner poll once more.
    Missed,
    /// A disable is pending.
    Disabled,
}

/// The outcome of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// The instance is free.
    Free,
    /// `MISSED` was set meanwhile: still owned, poll again.
    Missed,
}

/// The atomic word.
#[derive(Debug)]
pub(crate) struct StateWord(Word32);

impl StateWord {
    /// A new instance is disabled, so that it cannot be scheduled before it is ready.
    pub(crate) fn new() -> Self {
        StateWord(Word32::new(SCHED | NPSVC))
    }

    #[inline]
    pub(crate) fn load(&self) -> State {
        State(self.0.load(Ordering::Acquire))
    }

    /// One atomic step: `change` returns the new word, or `None` to leave it. Returns the old word: `Ok` if it was
    /// changed.
    #[inline]
    fn step(&self, mut change: impl FnMut(u32) -> Option<u32>) -> Result<u32, u32> {
        let mut old = self.0.load(Ordering::Acquire);
        while let Some(new) = change(old) {
            match self.0.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(old),
                Err(now) => old = now,
            }
        }
        Err(old)
    }

    /// `napi_schedule_prep`. Writes even if the mark is already set, because the write makes everything the caller
    /// did before visible to the owner's release.
    #[inline]
    pub(crate) fn schedule_prep(&self) -> Prep {
        loop {
            let old = self.step(|old| {
                if old & DISABLE != 0 {
                    return None;
                }
                let missed =
                    if old & SCHED != 0 && !race::on(Race::LostInterrupt) { MISSED } else { 0 };
                Some(old | SCHED | missed)
            });
            match old {
                Ok(old) if old & SCHED == 0 => return Prep::Won,
                Ok(_) => return Prep::Missed,
                // The load may have seen a disable that has ended since (abandoned, or followed by an enable), and
                // this event is not repeated. A write always sees the latest value, and it makes what the caller
                // did before visible to the context that ends the disable.
                Err(_) if self.0.fetch_or(0, Ordering::AcqRel) & DISABLE != 0 => {
                    return Prep::Disabled;
                }
                Err(_) => {}
            }
        }
    }

    /// Takes a free instance, or leaves no mark, as the kernel's timer did until 2026 (race R2).
    pub(crate) fn test_and_set_sched(&self) -> Prep {
        match self.step(|old| (old & (SCHED | DISABLE) == 0).then_some(old | SCHED)) {
            Ok(_) => Prep::Won,
            Err(old) if old & DISABLE != 0 => Prep::Disabled,
            Err(_) => Prep::Missed,
        }
    }

    /// A busy-poll session's attempt to claim. A loser that prefers busy polling sets `PREFER_BUSY_POLL`, so that
    /// an owner whose ring never drains makes room for it.
    #[inline]
    pub(crate) fn busy_claim(&self, prefer: bool) -> bool {
        const TAKEN: u32 = DISABLE | SCHED | IN_BUSY_POLL | NO_BUSY_POLL;
        let old = self.step(|old| {
            if old & TAKEN == 0 {
                Some(old | SCHED | IN_BUSY_POLL)
            } else if prefer && old & (PREFER_BUSY_POLL | NO_BUSY_POLL | DISABLE) == 0 {
                Some(old | PREFER_BUSY_POLL)
            } else {
                None
            }
        });
        matches!(old, Ok(old) if old & TAKEN == 0)
    }

    /// Takes a free instance for a poll with budget 0.
    pub(crate) fn claim_free(&self) -> bool {
        self.test_and_set_sched() == Prep::Won
    }

    /// Releases the instance, unless `MISSED` was set meanwhile. With a disable pending it is released in any case,
    /// because it must not be polled again.
    #[inline]
    pub(crate) fn release(&self) -> Release {
        let free = self.step(|old| {
            debug_assert!(old & SCHED != 0, "released without owning: {old:#x}");
            (old & MISSED == 0).then_some(old & !CLEARED_BY_RELEASE)
        });
        match free {
            Ok(_) => Release::Free,
            Err(_) => self.release_marked(),
        }
    }

    /// The slow path of `release`: `MISSED` is set, which a pending disable overrides.
    #[cold]
    #[inline(never)]
    fn release_marked(&self) -> Release {
        let old = self.step(|old| match old & (MISSED | DISABLE) {
            MISSED => Some(old & !(MISSED | PREFER_BUSY_POLL)),
            _ => Some(old & !CLEARED_BY_RELEASE),
        });
        match old {
            Ok(old) if old & (MISSED | DISABLE) == MISSED => Release::Missed,
            _ => Release::Free,
        }
    }

    /// Clears bits. An owner that clears `MISSED` has to see to it that a poll follows.
    pub(crate) fn clear(&self, bits: u32) {
        self.0.fetch_and(!bits, Ordering::AcqRel);
    }

    /// Hands the token to the thread, if the mode is still the thread's. The mode is checked in the same atomic
    /// step: a thread that sees neither its mode nor a token can end, because no token can follow.
    #[inline]
    pub(crate) fn give_to_thread(&self) -> bool {
        self.step(|old| (old & THREADED != 0).then_some((old | SCHED_THREADED) & !IN_BUSY_POLL))
            .is_ok()
    }

    /// Takes the token that was given to the thread. One atomic step, so that only one of two threads gets it.
    #[inline]
    pub(crate) fn adopt(&self) -> bool {
        self.step(|old| (old & SCHED_THREADED != 0).then_some(old & !SCHED_THREADED)).is_ok()
    }

    /// Takes the token back from the thread (or the session), for another owner.
    pub(crate) fn take_from_thread(&self) {
        self.clear(SCHED_THREADED | IN_BUSY_POLL);
    }

    /// Sets who polls from now on, and returns the state before. Never waits: the owner sees the change after its
    /// poll.
    pub(crate) fn set_mode(&self, mode: Threaded) -> State {
        let keep = if race::on(Race::BusyBitStays) { THREADED_BUSY_POLL } else { 0 };
        match self.step(|old| Some(old & !(MODE & !keep) | mode_bits(mode))) {
            Ok(old) | Err(old) => State(old),
        }
    }

    /// Requests a disable; `false` if the instance is disabled already or a disable is pending.
    pub(crate) fn ask_disable(&self) -> bool {
        self.step(|old| (old & (DISABLE | NPSVC) == 0).then_some(old | DISABLE)).is_ok()
    }

    /// Takes the instance for a disable if it is free.
    pub(crate) fn take_disabled(&self) -> bool {
        let race = race::on(Race::DisableRetry);
        self.step(|old| {
            (race || old & (SCHED | NPSVC) == 0)
                .then_some((old | SCHED | NPSVC) & !(PREFER_BUSY_POLL | MISSED))
        })
        .is_ok()
    }

    /// The last step of a disable.
    pub(crate) fn end_disable(&self) {
        self.clear(DISABLE);
    }

    /// Locks a disabled instance against an enable, to change what only a disabled one may change.
    pub(crate) fn lock_disabled(&self) -> bool {
        self.step(|old| (State(old).disabled() && old & DISABLE == 0).then_some(old | DISABLE))
            .is_ok()
    }

    /// The first step of an enable: from disabled to owned by the caller. A mark left while it was disabled is
    /// cleared. `false` if the instance is not disabled.
    #[inline]
    pub(crate) fn take_enabled(&self) -> bool {
        self.step(|old| {
            (State(old).disabled() && old & DISABLE == 0).then_some(old & !(NPSVC | MISSED))
        })
        .is_ok()
    }

    /// The first half of race R5: clears ownership before `NPSVC`.
    pub(crate) fn clear_sched_only(&self) {
        self.clear(SCHED | MISSED);
    }

    /// Allows or forbids busy polling.
    pub(crate) fn set_busy_poll(&self, allowed: bool) {
        if allowed {
            self.clear(NO_BUSY_POLL);
        } else {
            self.0.fetch_or(NO_BUSY_POLL, Ordering::AcqRel);
        }
    }
}
