//! Idle cycles: the steps that a spinning pass repeats, and the expiries that a deferral timer repeats, while no
//! packet arrives.
//!
//! A world in virtual time need not step through a million identical empty polls. It asks a pass that has just
//! returned [`Op::Poll`] whether its steps repeat. If so, it may advance its clock by whole cycles, report the
//! number of empty polls to the instance ([`Instance::count_empty_polls`](crate::Instance::count_empty_polls)), and
//! continue with the poll that was returned. The core's state is then the same as if every step had been taken. The
//! repeated expiries of a timer over an empty ring are predicted in the same way.

use crate::Ns;
use crate::claim::Claim;
use crate::counters::Owner;
use crate::host::Host;
use crate::instance::{CpuId, Id, Instance, Owned};
use crate::state::{DISABLE, IN_BUSY_POLL, MISSED, MODE, NPSVC, Prep, SCHED, SCHED_THREADED};
use crate::step::Op;

/// The steps that a pass repeats for as long as each poll finds no work, each look finds neither an event nor a
/// signal, and no other context changes the instance's state, settings or order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleCycle {
    /// The instance that is polled.
    pub id: Id,
    /// The owner under which the empty polls are counted.
    pub owner: Owner,
    /// When the cycle stops repeating: the end of a busy loop, or [`NEVER`](crate::NEVER) for a thread in threaded
    /// busy poll. A cycle is followed by another if it ends before this time.
    pub until: Ns,
    budget: u16,
    /// Whether the driver unmasks before it delivers, so that the pass masks again.
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

    /// The step at position `place` of a cycle.
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

    /// The number of whole cycles of `length` nanoseconds, begun at `now`, that are each followed by another: the
    /// most that a world may skip while nothing else happens. 0 if `length` is 0.
    pub fn most(&self, now: Ns, length: Ns) -> u64 {
        self.until.saturating_sub(1).saturating_sub(now).checked_div(length).unwrap_or(0)
    }
}

/// A deferral timer that keeps expiring over an empty ring: at each expiry the CPU's softirq polls once, finds
/// nothing, and arms the timer again, until the deferral count (`defer_hard_irqs`) is used up. This holds for as
/// long as no other context touches the instance, its settings, or the softirqs of that CPU.
///
/// A world in virtual time may skip many expiries at once and report their number ([`Host::count_expiries`]); the
/// core's state is then the same as if each had been handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleTimer {
    /// The instance whose timer it is.
    pub id: Id,
    /// The CPU on which the timer fires and whose softirq polls.
    pub cpu: CpuId,
    /// Time from the end of each poll to the next expiry, in nanoseconds.
    pub timeout: Ns,
    /// Number of expiries that arm the timer again; the one after them unmasks the interrupt.
    pub expiries: u32,
    /// Frames that each poll may take.
    pub budget: u16,
}

/// State bits that rule out an idle timer: the instance is owned, about to be owned or disabled, or not the
/// softirq's to poll.
const NOT_IDLE: u32 = SCHED | MISSED | DISABLE | NPSVC | MODE | SCHED_THREADED | IN_BUSY_POLL;

impl<Q> Host<Q> {
    /// Predicts the expiries of an instance's timer, due on `cpu`, while its polls find nothing. `None` if an
    /// expiry leads, or may lead, to anything other than one poll and a re-armed timer. For worlds whose contexts
    /// share a thread ([`Host::contexts_share_a_thread`]).
    ///
    /// # Panics
    /// If there is no such instance, or no such CPU.
    pub fn idle_timer(&self, id: Id, cpu: CpuId) -> Option<IdleTimer> {
        let instance = self.instance(id);
        let settings = &instance.settings;
        let timeout = settings.gro_flush_timeout();
        let defers = timeout > 0 && settings.hold() == 0 && !settings.unmasks_first();
        let free = !instance.state.load().has(NOT_IDLE) && instance.suspending_contexts() == 0;
        if !(defers && free && self.cpu(cpu).is_idle()) {
            return None;
        }
        let left = self.with_claim(instance, |owned| owned.defer_count)?;
        let expiries = left.min(settings.defer_hard_irqs());
        let budget = settings.weight();
        (expiries > 0).then_some(IdleTimer { id, cpu, timeout, expiries, budget })
    }

    /// Counts `n` skipped expiries of a timer, and arms it from `last`, the end of the last skipped poll. `n` is at
    /// most the [predicted number](IdleTimer::expiries).
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

    /// Runs `act` as the owner of a free instance; `None` if the instance is owned or a disable is pending.
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
        // If a schedule was missed meanwhile, the claim comes back, and its drop leaves the instance to the
        // softirq.
        drop(claim.release());
        Some(result)
    }
}
