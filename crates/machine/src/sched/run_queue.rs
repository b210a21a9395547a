//! A CPU's run queue: who has the CPU, who waits for it, and what the scheduler remembers of it.
//!
//! Only the scheduler changes it; whoever runs a CPU asks.

use napkin_core::Ns;

use crate::config::Fair;
use crate::sched::averages::{IdlePeriods, Stolen};
use crate::sched::id::{Class, ThreadId};
use crate::sched::threads::Threads;

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
    slice_generation: u32,
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

    /// Nobody runs, waits or is wanted, and the tick is on its way.
    pub(crate) fn at_rest(&self) -> bool {
        let wanted = self.need_resched || self.lazy_resched;
        self.is_empty() && !wanted && self.tick_armed
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

    /// The timer of a new slice starts: what it is known by.
    pub(super) fn arm_slice(&mut self) -> u32 {
        self.void_slice();
        self.slice_armed = true;
        self.slice_generation
    }

    /// The timer of the present slice, if there is one, is of no use any more.
    pub(super) fn void_slice(&mut self) {
        self.slice_armed = false;
        self.slice_generation = self.slice_generation.wrapping_add(1);
    }

    /// Whether that thread is all that the CPU has to run, and runs.
    pub(super) fn has_only(&self, id: ThreadId) -> bool {
        self.curr == Some(id) && self.queued.is_empty()
    }

    /// Nobody has the CPU, and nobody has asked for it who was not heard.
    pub(super) fn gives_up(&mut self) {
        self.curr = None;
        self.need_resched = false;
        self.lazy_resched = false;
    }

    /// A thread that waited has the CPU.
    pub(super) fn gives_to(&mut self, id: ThreadId) {
        self.queued.retain(|other| *other != id);
        self.curr = Some(id);
    }

    /// The mean virtual time of the fair threads that run or wait; `None` without any.
    pub(super) fn average(&self, threads: &Threads<'_>) -> Option<i64> {
        let fair = |id: &ThreadId| {
            let thread = &threads[*id];
            (thread.class == Class::Fair).then_some(thread.vruntime)
        };
        let mut all = self.threads().filter_map(fair);
        let first = all.next()?;
        let (mut sum, mut count) = (i128::from(first), 1);
        for vruntime in all {
            sum += i128::from(vruntime);
            count += 1;
        }
        // Mostly one thread is there, and a division of this width is dear.
        Some(if count == 1 { first } else { (sum / count) as i64 })
    }

    /// The least virtual time goes on to that of whoever is furthest behind, while somebody runs.
    pub(super) fn advance(&mut self, threads: &Threads<'_>) {
        if self.curr.is_none() {
            return;
        }
        let all = self.threads().map(|id| threads[*id].vruntime);
        if let Some(least) = all.min() {
            self.min_vruntime = self.min_vruntime.max(least);
        }
    }

    /// Who of those that wait is to run next: the first in line of the highest real-time priority, else
    /// whom the fair scheduler has first.
    pub(super) fn pick(&self, threads: &Threads<'_>, fair: Fair) -> Option<ThreadId> {
        let thread = |id: &ThreadId| &threads[*id];
        let mut best: Option<(u8, ThreadId)> = None;
        for id in &self.queued {
            if let Class::Fifo(priority) = thread(id).class
                && best.is_none_or(|(most, _)| priority > most)
            {
                best = Some((priority, *id));
            }
        }
        if let Some((_, id)) = best {
            return Some(id);
        }
        let least = || self.queued.iter().min_by_key(|id| thread(id).vruntime);
        match fair {
            Fair::Cfs => least().copied(),
            Fair::Eevdf => {
                let average = self.average(threads)?;
                let eligible = self.queued.iter().filter(|id| thread(id).vruntime <= average);
                eligible.min_by_key(|id| thread(id).deadline).or_else(least).copied()
            }
        }
    }

    /// How often the CPU has changed its current thread.
    pub(crate) fn switches(&self) -> u64 {
        self.switches
    }
}
