//! What repeats itself while nothing comes: the steps of a pass that spins, the expiries of a timer.
//!
//! A world in virtual time need not take a million identical steps one by one. It asks a pass that
//! has just returned [`Op::Poll`] whether it goes round in a circle; if so it may let the time of
//! some whole cycles pass at once, tell the instance how many empty polls that were
//! ([`Instance::count_empty_polls`](crate::Instance::count_empty_polls)), and go on with the very
//! poll that was returned. Nothing else of the core would have changed. A timer that expires over an empty
//! ring, again and again, is foretold likewise.

use crate::Ns;
use crate::claim::Claim;
use crate::counters::Owner;
use crate::host::Host;
use crate::instance::{CpuId, Id, Instance, Owned};
use crate::state::{DISABLE, IN_BUSY_POLL, MISSED, MODE, NPSVC, Prep, SCHED, SCHED_THREADED};
use crate::step::Op;

/// What a pass repeats for as long as each of its polls finds nothing at all, each of its looks
/// finds no event and is not ended by a signal, and nobody touches the instance's state, settings or
/// order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleCycle {
    /// Whose queue is polled.
    pub id: Id,
    /// For whom an empty poll counts.
    pub owner: Owner,
    /// From then on the pass goes its own way: the end of a busy loop, [`NEVER`](crate::NEVER) for a
    /// thread that polls without end. A cycle is followed by another if it ends before this time.
    pub until: Ns,
    budget: u16,
    /// The driver unmasks before it delivers, and the pass masks again.
    unmasks: bool,
    last: Op,
}

impl IdleCycle {
    /// The cycle of a poll, the driver's steps after it, and `last`.
    pub(crate) fn new(poll: (Id, u16), owner: Owner, until: Ns, unmasks: bool, last: Op) -> Self {
        let (id, budget) = poll;
        IdleCycle { id, owner, until, budget, unmasks, last }
    }

    /// Whether the interrupt is unmasked in each cycle, and masked again.
    #[inline]
    pub fn unmasks(&self) -> bool {
        self.unmasks
    }

    /// The steps of one cycle, the poll first.
    #[inline]
    pub fn steps(&self) -> impl Iterator<Item = Op> {
        (0..).map_while(|place| self.step(place))
    }

    /// The step at that place in a cycle.
    #[inline]
    fn step(&self, place: u8) -> Option<Op> {
        let IdleCycle { id, budget, last, .. } = *self;
        match (place, self.unmasks) {
            (0, _) => Some(Op::Poll { id, budget }),
            (1, true) => Some(Op::Unmask(id)),
            (2, true) => Some(Op::Mask(id)),
            (1, false) | (3, true) => Some(last),
            _ => None,
        }
    }

    /// How many whole cycles of `length` nanoseconds, begun at `now`, are each followed by another:
    /// the most that may be skipped where nothing else happens. 0 for a cycle that takes no time,
    /// which nobody can wait for.
    pub fn most(&self, now: Ns, length: Ns) -> u64 {
        self.until.saturating_sub(1).saturating_sub(now).checked_div(length).unwrap_or(0)
    }
}

/// A timer that goes on expiring over an empty ring: each time its CPU's softirq polls once, finds nothing, and
/// arms it again, until *defer* has used up its empty polls. It is so for as long as nobody touches the
/// instance, its settings, or the softirqs of that CPU.
///
/// A world in virtual time may let many expiries pass at once, and tell their number
/// ([`Host::count_expiries`]); nothing else of the core would have changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleTimer {
    /// Whose timer it is.
    pub id: Id,
    /// On which CPU it fires, and is served.
    pub cpu: CpuId,
    /// From the end of each poll to the next expiry, in nanoseconds.
    pub timeout: Ns,
    /// After how many expiries the next one allows the interrupt again.
    pub expiries: u32,
    /// What each poll may take.
    pub budget: u16,
}

/// Bits of a state in which somebody owns the instance, is about to, or has a thread to do so.
const TAKEN: u32 = SCHED | MISSED | DISABLE | NPSVC | MODE | SCHED_THREADED | IN_BUSY_POLL;

impl<Q> Host<Q> {
    /// How an instance's timer, which is due on a CPU, will go on if its polls find nothing; `None` where
    /// anything else follows from an expiry than one poll and the timer's next start, or may do so. Asked by a
    /// world whose contexts share a thread ([`Host::contexts_share_a_thread`]).
    ///
    /// # Panics
    /// If there is no such instance, or no such CPU.
    pub fn idle_timer(&self, id: Id, cpu: CpuId) -> Option<IdleTimer> {
        let instance = self.instance(id);
        let settings = &instance.settings;
        let timeout = settings.gro_flush_timeout();
        let defers = timeout > 0 && settings.hold() == 0 && !settings.unmasks_first();
        let free = !instance.state.load().has(TAKEN) && instance.suspending_contexts() == 0;
        if !(defers && free && self.cpu(cpu).rests()) {
            return None;
        }
        let left = self.with_claim(instance, |owned| owned.defer_count)?;
        let expiries = left.min(settings.defer_hard_irqs());
        let budget = settings.weight();
        (expiries > 0).then_some(IdleTimer { id, cpu, timeout, expiries, budget })
    }

    /// Counts expiries of a timer that were not taken one by one, and arms it from the end of the last one's
    /// poll, `last`. `n` is at most what was [foretold](IdleTimer::expiries).
    ///
    /// # Panics
    /// If there is no such instance, or no such CPU.
    pub fn count_expiries(&self, timer: &IdleTimer, n: u32, last: Ns) {
        debug_assert!(n <= timer.expiries, "{n} expiries of {timer:?}");
        let instance = self.instance(timer.id);
        let most = instance.settings.defer_hard_irqs();
        let counted = self.with_claim(instance, |owned| {
            owned.defer_count = owned.defer_count.min(most).saturating_sub(n);
        });
        debug_assert!(counted.is_some(), "somebody owns {:?}", timer.id);
        let times = u64::from(n);
        instance.counters.timer_polls.add(times);
        instance.counters.deferrals.add(times);
        instance.count_empty_polls(Owner::Softirq, times, last);
        instance.arm(last + timer.timeout);
        self.cpu(timer.cpu).count_rounds(times);
    }

    /// Takes an instance that nobody owns for a moment.
    fn with_claim<T>(
        &self,
        instance: &Instance<Q>,
        act: impl FnOnce(&mut Owned<Q>) -> T,
    ) -> Option<T> {
        if instance.state.schedule_prep() != Prep::Won {
            return None;
        }
        let mut claim = Claim::from_token(self, instance);
        let result = act(claim.owned());
        // Whoever wanted it meanwhile finds it with the softirq.
        drop(claim.release());
        Some(result)
    }
}
