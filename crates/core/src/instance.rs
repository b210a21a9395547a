//! One NAPI instance: a queue, its state word, its settings, its timer's deadline and its counts.

use crate::cell::OwnedCell;
use crate::counters::{Counters, Counts, Owner};
use crate::order::Order;
use crate::settings::Settings;
use crate::state::{State, StateWord};
use crate::suspend::Suspension;
use crate::sync::{AtomicU32, Count, Ordering, Word64};
use crate::{NEVER, Ns};
use napkin_policy::InstancePolicy;

/// An instance's index in its [`Host`](crate::Host).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(pub u16);

/// A CPU's index in its [`Host`](crate::Host).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CpuId(pub u16);

/// State that only the owner reads and writes.
#[derive(Debug)]
pub(crate) struct Owned<Q> {
    pub(crate) queue: Q,
    /// Empty polls left until the interrupt is allowed again (`defer_hard_irqs_count`).
    pub(crate) defer_count: u32,
    /// When the current *hold* ends; 0 if none has begun since there was work.
    pub(crate) hold_until: Ns,
    /// When a poll last found work; 0 before the first.
    pub(crate) last_work: Ns,
}

/// One instance. Made by [`Host::new`](crate::Host::new), disabled, and never moved.
#[derive(Debug)]
pub struct Instance<Q> {
    pub(crate) id: Id,
    pub(crate) state: StateWord,
    /// The next instance of the list this one is on; only its token's holder writes it.
    pub(crate) next: AtomicU32,
    /// When the timer fires; [`NEVER`] if it is not armed.
    deadline: Word64,
    /// When the last park ends or ended; stored by the owner before that deadline.
    parked_until: Count,
    /// When a poll last ended. Only the owner writes it; a stale value read by another thread only ends a
    /// suspension sooner, so relaxed ordering is enough.
    polled_at: Count,
    pub(crate) suspension: Suspension,
    pub(crate) settings: Settings,
    pub(crate) counters: Counters,
    cpu: AtomicU32,
    pub(crate) owned: OwnedCell<Owned<Q>>,
}

impl<Q> Instance<Q> {
    pub(crate) fn new(id: Id, queue: Q, cpu: CpuId) -> Self {
        Instance {
            id,
            state: StateWord::new(),
            next: AtomicU32::new(u32::MAX),
            deadline: Word64::new(NEVER),
            parked_until: Count::new(0),
            polled_at: Count::new(0),
            suspension: Suspension::new(),
            settings: Settings::new(),
            counters: Counters::new(),
            cpu: AtomicU32::new(u32::from(cpu.0)),
            owned: OwnedCell::new(Owned { queue, defer_count: 0, hold_until: 0, last_work: 0 }),
        }
    }

    /// A snapshot of the state word.
    pub fn state(&self) -> State {
        self.state.load()
    }

    /// The settings in force.
    pub fn settings(&self) -> InstancePolicy {
        self.settings.load(self.state.load().mode())
    }

    /// Whether full receivers stop the instance's polling (*feedback*).
    #[inline]
    pub fn feedback(&self) -> bool {
        self.settings.feedback()
    }

    /// Frames that a poll outside busy polling may take.
    pub fn weight(&self) -> u16 {
        self.settings.weight()
    }

    /// The order in which the driver ends a poll.
    pub fn order(&self) -> Order {
        self.settings.order()
    }

    /// A snapshot of the counts.
    pub fn counts(&self) -> Counts {
        self.counters.snapshot()
    }

    /// Counts the `n` empty polls of the cycles of an [`IdleCycle`](crate::IdleCycle) that a world skipped; the
    /// last of these polls would have ended at `last`. Called in place of the skipped steps by the thread that
    /// drives the owning pass, because owners' counts are not atomic additions.
    pub fn count_empty_polls(&self, owner: Owner, n: u64, last: Ns) {
        self.counters.empty_polls(owner, n);
        self.polled(last);
    }

    /// When a poll with a budget above 0 last ended; 0 before the first.
    pub fn polled_at(&self) -> Ns {
        self.polled_at.load(Ordering::Relaxed)
    }

    /// Records the end of a poll; called by the owner.
    #[inline]
    pub(crate) fn polled(&self, now: Ns) {
        self.polled_at.store(now, Ordering::Relaxed);
    }

    /// Resets the shortest idle gap ([`Counts::idle_gap_min`]), so that a measured window has its own. A concurrent
    /// interrupt may fall on either side.
    pub fn restart_idle_gap(&self) {
        self.counters.restart_idle_gap();
    }

    /// The CPU whose interrupt, softirq and timer serve the instance.
    pub fn cpu(&self) -> CpuId {
        CpuId(self.cpu.load(Ordering::Relaxed) as u16)
    }

    pub(crate) fn set_cpu(&self, cpu: CpuId) {
        self.cpu.store(u32::from(cpu.0), Ordering::Relaxed);
    }

    /// The number of epoll contexts that suspend the instance's interrupts.
    pub fn suspending_contexts(&self) -> u32 {
        self.suspension.contexts()
    }

    /// When the instance's timer fires; [`NEVER`] if it is not armed.
    #[inline]
    pub fn deadline(&self) -> Ns {
        self.deadline.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn arm(&self, at: Ns) {
        self.deadline.store(at, Ordering::Release);
    }

    /// Records `at` as the end of a park; called before the owner arms the timer with it.
    pub(crate) fn set_park_end(&self, at: Ns) {
        self.parked_until.store(at, Ordering::Relaxed);
    }

    /// Moves the timer to `at` for a suspension. Returns `false` if the timer stays: a suspension does not extend a
    /// park.
    #[inline]
    pub(crate) fn move_timer(&self, at: Ns) -> bool {
        if self.feedback() {
            return self.move_timer_unless_parked(at);
        }
        self.arm(at);
        true
    }

    fn move_timer_unless_parked(&self, at: Ns) -> bool {
        let mut old = self.deadline();
        // A plain store could overwrite the park that an owner sets in between.
        while old > at || old != self.parked_until.load(Ordering::Relaxed) {
            match self.deadline.compare_exchange(old, at, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => old = now,
            }
        }
        false
    }

    #[inline]
    pub(crate) fn cancel_timer(&self) {
        if self.deadline.load(Ordering::Relaxed) != NEVER {
            self.deadline.store(NEVER, Ordering::Release);
        }
    }

    /// Takes a deadline that has passed; of several callers one gets `true`.
    pub(crate) fn take_expiry(&self, now: Ns) -> bool {
        let deadline = self.deadline();
        deadline <= now
            && self
                .deadline
                .compare_exchange(deadline, NEVER, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use napkin_policy::Threaded;

    #[test]
    fn who_polls_is_what_the_state_says_whichever_of_two_changes_was_the_last() {
        let instance = Instance::new(Id(0), (), CpuId(0));
        let changes = [Threaded::Enabled, Threaded::Disabled]
            .map(|threaded| InstancePolicy { threaded, ..InstancePolicy::default() });
        // Two concurrent changes: one is the last to store its settings, the other the last to set the mode.
        changes.iter().for_each(|change| instance.settings.store(change));
        changes.iter().rev().for_each(|change| {
            instance.state.set_mode(change.threaded);
        });
        assert_eq!(instance.state().mode(), Threaded::Enabled);
        assert_eq!(instance.settings().threaded, Threaded::Enabled);
    }
}
