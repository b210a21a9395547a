//! A CPU's run queue: its current thread, the waiting threads, and the scheduler's state of the CPU.
//!
//! Only the scheduler changes it; `host/` reads it.

use napkin_core::Ns;

use crate::config::Fair;
use crate::sched::averages::{IdlePeriods, InterruptLoad};
use crate::sched::id::{Class, ThreadId};
use crate::sched::threads::Threads;

/// The run queue of one CPU.
#[derive(Debug)]
pub(crate) struct RunQueue {
    pub(super) curr: Option<ThreadId>,
    /// Runnable threads that wait for this CPU.
    pub(super) queued: Vec<ThreadId>,
    pub(super) need_resched: bool,
    /// Whether another thread is to get the CPU, at the latest on return to user space.
    pub(super) lazy_resched: bool,
    pub(super) tick_armed: bool,
    slice_generation: u32,
    pub(super) slice_armed: bool,
    pub(super) next_balance: Ns,
    pub(super) interrupt_load: InterruptLoad,
    /// The CPU to which active balance moves the current thread at the next reschedule.
    pub(super) active_balance_to: Option<usize>,
    pub(super) idle_periods: IdlePeriods,
    pub(super) min_vruntime: i64,
    pub(super) switches: u64,
}

impl RunQueue {
    /// Creates an empty run queue.
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
            interrupt_load: InterruptLoad::default(),
            active_balance_to: None,
            idle_periods: IdlePeriods::default(),
            min_vruntime: 0,
            switches: 0,
        }
    }

    /// Returns the current thread.
    #[inline]
    pub(crate) fn curr(&self) -> Option<ThreadId> {
        self.curr
    }

    /// Returns the number of runnable threads other than the current one.
    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        self.queued.len()
    }

    /// Whether no thread runs or waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.curr.is_none() && self.queued.is_empty()
    }

    /// Whether no thread runs or waits, no reschedule is requested, and the tick is armed.
    pub(crate) fn is_quiescent(&self) -> bool {
        let wanted = self.need_resched || self.lazy_resched;
        self.is_empty() && !wanted && self.tick_armed
    }

    /// Returns the current and the waiting threads.
    pub(crate) fn threads(&self) -> impl Iterator<Item = &ThreadId> {
        self.curr.iter().chain(&self.queued)
    }

    /// Whether another thread is to get the CPU.
    #[inline]
    pub(crate) fn need_resched(&self) -> bool {
        self.need_resched
    }

    /// Whether another thread is to get the CPU on return to user space.
    #[inline]
    pub(crate) fn lazy_resched(&self) -> bool {
        self.lazy_resched
    }

    /// Handles a slice timer. Returns whether it is that of the present slice.
    pub(crate) fn slice_expires(&mut self, generation: u32) -> bool {
        let present = self.slice_generation == generation;
        self.slice_armed &= !present;
        present
    }

    /// Arms the timer of a new slice. Returns its generation.
    pub(super) fn arm_slice(&mut self) -> u32 {
        self.void_slice();
        self.slice_armed = true;
        self.slice_generation
    }

    /// Invalidates the timer of the present slice.
    pub(super) fn void_slice(&mut self) {
        self.slice_armed = false;
        self.slice_generation = self.slice_generation.wrapping_add(1);
    }

    /// Whether that thread is the current one and no other waits.
    pub(super) fn has_only(&self, id: ThreadId) -> bool {
        self.curr == Some(id) && self.queued.is_empty()
    }

    /// Removes the current thread, and clears requests to reschedule.
    pub(super) fn clear_curr(&mut self) {
        self.curr = None;
        self.need_resched = false;
        self.lazy_resched = false;
    }

    /// Makes a waiting thread the current one.
    pub(super) fn set_curr(&mut self, id: ThreadId) {
        self.queued.retain(|other| *other != id);
        self.curr = Some(id);
    }

    /// Returns the mean virtual time of the runnable fair threads; `None` without any.
    pub(super) fn average(&self, threads: &Threads<'_>) -> Option<i64> {
        let fair = |id: &ThreadId| {
            let thread = &threads[*id];
            (thread.class == Class::Fair).then_some(thread.vruntime())
        };
        let mut all = self.threads().filter_map(fair);
        let first = all.next()?;
        let (mut sum, mut count) = (i128::from(first), 1);
        for vruntime in all {
            sum += i128::from(vruntime);
            count += 1;
        }
        // Usually there is one thread, and a 128-bit division is expensive.
        Some(if count == 1 { first } else { (sum / count) as i64 })
    }

    /// Advances the minimum virtual time to that of the thread furthest behind, while a thread runs.
    pub(super) fn advance(&mut self, threads: &Threads<'_>) {
        if self.curr.is_none() {
            return;
        }
        let all = self.threads().map(|id| threads[*id].vruntime());
        if let Some(least) = all.min() {
            self.min_vruntime = self.min_vruntime.max(least);
        }
    }

    /// Returns the waiting thread to run next: the first of the highest real-time priority, else the choice of the
    /// fair scheduler.
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
        let least = || self.queued.iter().min_by_key(|id| thread(id).vruntime());
        match fair {
            Fair::Cfs => least().copied(),
            Fair::Eevdf => {
                let average = self.average(threads)?;
                let eligible = self.queued.iter().filter(|id| thread(id).vruntime() <= average);
                eligible.min_by_key(|id| thread(id).deadline).or_else(least).copied()
            }
        }
    }

    /// Returns the number of context switches.
    pub(crate) fn switches(&self) -> u64 {
        self.switches
    }
}
