//! A CPU's run queue: who has the CPU, who waits for it, and what the scheduler remembers of it.
//!
//! Only the scheduler changes it; whoever runs a CPU asks.

use napkin_core::Ns;

use crate::sched::averages::{IdlePeriods, Stolen};
use crate::sched::id::ThreadId;

/// The run queue of one CPU.
#[derive(Debug)]
pub(crate) struct RunQueue {
    pub(super) curr: Option<ThreadId>,
    /// Runnable threads that wait for this CPU.
    pub(super) queued: Vec<ThreadId>,
    pub(super) need_resched: bool,
    /// Another thread wants the CPU, but only on the way to user space.
    pub(super) lazy_resched: bool,
    pub(super) tick_armed: bool,
    pub(super) slice_generation: u32,
    pub(super) slice_armed: bool,
    pub(super) next_balance: Ns,
    pub(super) stolen: Stolen,
    /// The thread that runs is to go on there.
    pub(super) evicts_to: Option<usize>,
    pub(super) idle_periods: IdlePeriods,
    pub(super) min_vruntime: i64,
    pub(super) switches: u64,
}

impl RunQueue {
    /// Nobody runs, and nobody waits.
    pub(crate) fn new() -> Self {
        RunQueue {
            curr: None,
            queued: Vec::with_capacity(8),
            need_resched: false,
            lazy_resched: false,
            tick_armed: false,
            slice_generation: 0,
            slice_armed: false,
            next_balance: 0,
            stolen: Stolen::default(),
            evicts_to: None,
            idle_periods: IdlePeriods::default(),
            min_vruntime: 0,
            switches: 0,
        }
    }

    /// The thread that has the CPU.
    #[inline]
    pub(crate) fn curr(&self) -> Option<ThreadId> {
        self.curr
    }

    /// Runnable threads that do not have the CPU.
    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        self.queued.len()
    }

    /// Nobody runs, and nobody waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.curr.is_none() && self.queued.is_empty()
    }

    /// Whoever runs or waits.
    pub(crate) fn threads(&self) -> impl Iterator<Item = &ThreadId> {
        self.curr.iter().chain(&self.queued)
    }

    /// Another thread wants the CPU.
    #[inline]
    pub(crate) fn need_resched(&self) -> bool {
        self.need_resched
    }

    /// Another thread wants the CPU, but only on the way to user space.
    #[inline]
    pub(crate) fn lazy_resched(&self) -> bool {
        self.lazy_resched
    }

    /// The timer of a slice expires: whether it is that of the present one.
    pub(crate) fn slice_expires(&mut self, generation: u32) -> bool {
        let present = self.slice_generation == generation;
        self.slice_armed &= !present;
        present
    }

    /// How often the CPU has changed its current thread.
    pub(crate) fn switches(&self) -> u64 {
        self.switches
    }
}
