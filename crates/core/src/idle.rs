//! A pass that spins and finds nothing: the steps it repeats, and for how long.
//!
//! A world in virtual time need not take a million identical steps one by one. It asks a pass that
//! has just returned [`Op::Poll`] whether it goes round in a circle; if so it may let the time of
//! some whole cycles pass at once, tell the instance how many empty polls that were
//! ([`Instance::count_empty_polls`](crate::Instance::count_empty_polls)), and go on with the very
//! poll that was returned. Nothing else of the core would have changed.

use crate::Ns;
use crate::counters::Owner;
use crate::instance::Id;
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
