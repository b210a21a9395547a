//! The state word of one instance: who owns it, and what was asked of it meanwhile.
//!
//! Bits and numbers are the kernel's (`NAPI_STATE_*`), less `LISTED` and `HAS_NOTIFIER`, which are
//! bookkeeping of its device list and of interrupt affinity, plus [`WORKQUEUE`]. Everything that
//! several contexts may decide at once is decided by one compare-and-swap on this one word; that is
//! what makes it small enough for loom to exhaust.

use crate::race::{self, Race};
use crate::sync::{Ordering, Word32};
use napkin_policy::Threaded;

/// The ownership token: whoever set it owns the instance.
pub const SCHED: u32 = 1 << 0;
/// Somebody tried to schedule the instance while it was owned: the owner polls once more.
pub const MISSED: u32 = 1 << 1;
/// A disable is pending: nobody may schedule, and the owner releases after its poll.
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

/// Who polls, if it is not the softirq.
pub(crate) const MODE: u32 = THREADED | THREADED_BUSY_POLL | WORKQUEUE;
/// What a release clears: an instance that nobody owns has no marks. (A kernel's session that leaves
/// to the timer keeps `PREFER_BUSY_POLL`, and the timer clears it.)
const HELD: u32 = SCHED | SCHED_THREADED | PREFER_BUSY_POLL | IN_BUSY_POLL | MISSED;

/// A state, read once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State(pub u32);

impl State {
    /// Whether any of the bits is set.
    #[inline]
    pub const fn has(self, bits: u32) -> bool {
        self.0 & bits != 0
    }

    /// Who is to poll.
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

    /// Whether the instance is disabled (owned by nobody, and nobody may claim it).
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

/// What came of an attempt to schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prep {
    /// The caller owns the instance now.
    Won,
    /// Somebody else owns it and was told to poll once more.
    Missed,
    /// A disable is pending.
    Disabled,
}

/// What came of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// Nobody owns the instance now.
    Free,
    /// Somebody wanted it meanwhile: still owned, poll again.
    Missed,
}

/// The word itself.
#[derive(Debug)]
pub(crate) struct StateWord(Word32);

impl StateWord {
    /// A new instance is disabled, so that nobody can schedule it before it is ready.
    pub(crate) fn new() -> Self {
        StateWord(Word32::new(SCHED | NPSVC))
    }

    #[inline]
    pub(crate) fn load(&self) -> State {
        State(self.0.load(Ordering::Acquire))
    }

    /// One atomic step: `change` returns the new word, or `None` to leave it.
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

    /// `napi_schedule_prep`: always writes, also when the mark is there already, because the write
    /// is what makes the owner's release see everything the caller did before.
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
                // A load may find a disable that has gone since (given up, or followed by an
                // enable), and nobody repeats this event. A write cannot be late; and it makes
                // whoever ends the disable see what the caller did before.
                Err(_) if self.0.fetch_or(0, Ordering::AcqRel) & DISABLE != 0 => {
                    return Prep::Disabled;
                }
                Err(_) => {}
            }
        }
    }

    /// As the timer did until 2026: takes the instance or leaves no trace.
    pub(crate) fn test_and_set_sched(&self) -> Prep {
        match self.step(|old| (old & (SCHED | DISABLE) == 0).then_some(old | SCHED)) {
            Ok(_) => Prep::Won,
            Err(old) if old & DISABLE != 0 => Prep::Disabled,
            Err(_) => Prep::Missed,
        }
    }

    /// A busy-poll session's claim. A loser that prefers busy polling leaves its mark, so that the
    /// owner makes room when its ring never drains.
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

    /// Gives the instance back, unless somebody wanted it meanwhile. With a disable pending it is
    /// given back in any case: nobody may poll it again.
    #[inline]
    pub(crate) fn release(&self) -> Release {
        let free = self.step(|old| {
            debug_assert!(old & SCHED != 0, "released without owning: {old:#x}");
            (old & MISSED == 0).then_some(old & !HELD)
        });
        match free {
            Ok(_) => Release::Free,
            Err(_) => self.release_marked(),
        }
    }

    /// The same where somebody has left a mark, which a disable makes void.
    #[cold]
    #[inline(never)]
    fn release_marked(&self) -> Release {
        let old = self.step(|old| match old & (MISSED | DISABLE) {
            MISSED => Some(old & !(MISSED | PREFER_BUSY_POLL)),
            _ => Some(old & !HELD),
        });
        match old {
            Ok(old) if old & (MISSED | DISABLE) == MISSED => Release::Missed,
            _ => Release::Free,
        }
    }

    /// Clears the marks that the poll which follows makes void.
    pub(crate) fn clear(&self, bits: u32) {
        self.0.fetch_and(!bits, Ordering::AcqRel);
    }

    /// Hands the token to the thread, if the thread is still who polls. One step with the look at
    /// the mode: a thread that has seen its mode gone and no token can end, since none can follow.
    #[inline]
    pub(crate) fn give_to_thread(&self) -> bool {
        self.step(|old| (old & THREADED != 0).then_some((old | SCHED_THREADED) & !IN_BUSY_POLL))
            .is_ok()
    }

    /// The thread takes what was given to it. One step, so that of two threads only one owns it.
    #[inline]
    pub(crate) fn adopt(&self) -> bool {
        self.step(|old| (old & SCHED_THREADED != 0).then_some(old & !SCHED_THREADED)).is_ok()
    }

    /// Takes the token back from the thread (or the session), for another owner.
    pub(crate) fn take_from_thread(&self) {
        self.clear(SCHED_THREADED | IN_BUSY_POLL);
    }

    /// Says who polls from now on. Never waits: the owner sees it after its poll.
    pub(crate) fn set_mode(&self, mode: Threaded) -> State {
        let keep = if race::on(Race::BusyBitStays) { THREADED_BUSY_POLL } else { 0 };
        match self.step(|old| Some(old & !(MODE & !keep) | mode_bits(mode))) {
            Ok(old) | Err(old) => State(old),
        }
    }

    /// Asks for a disable; `false` if the instance is disabled, or about to be, already.
    pub(crate) fn ask_disable(&self) -> bool {
        self.step(|old| (old & (DISABLE | NPSVC) == 0).then_some(old | DISABLE)).is_ok()
    }

    /// Takes the instance for good once nobody owns it.
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

    /// The first step of an enable: from disabled to owned by the caller, marks of the dead time
    /// forgotten. `false` if the instance is not disabled.
    #[inline]
    pub(crate) fn take_enabled(&self) -> bool {
        self.step(|old| {
            (State(old).disabled() && old & DISABLE == 0).then_some(old & !(NPSVC | MISSED))
        })
        .is_ok()
    }

    /// Race R5's first half: ownership goes before the other bit does.
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
