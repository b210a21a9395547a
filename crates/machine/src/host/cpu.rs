//! One CPU: its contexts, its present segment, and the accounting of its time.

use std::collections::VecDeque;

use napkin_core::{CpuCounts, IdleCycle, IdleTimer, Ns};

use crate::checks::SoftirqRound;
use crate::config::Kernel;
use crate::counts::CpuUse;
use crate::host::contexts::{Body, Contexts, Hard, Source, StackedContext};
use crate::host::idle::Idleness;
use crate::host::segment::{Segment, USES, Use};
use crate::sched::id::ThreadId;
use crate::sched::run_queue::RunQueue;
use crate::sched::threads::Threads;

/// A thread's loop of empty polls, which is skipped in bulk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spin {
    pub(super) me: ThreadId,
    pub(super) cycle: IdleCycle,
    /// Start of the first round.
    pub(super) start: Ns,
    /// Nanoseconds per round on this CPU.
    pub(super) length: Ns,
}

/// The timer expiries of an idle CPU that find nothing, skipped in bulk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IdleExpiries {
    pub(super) timer: IdleTimer,
    /// Time of the first expiry.
    pub(super) at: Ns,
}

/// Activity that is not stepped until the CPU is caught up.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bulk {
    /// The thread polls an empty queue in a loop.
    Spin(Spin),
    /// The CPU is idle, and its timer expires without finding work.
    IdleExpiries(IdleExpiries),
}

/// The execution state of a CPU: interrupts and softirqs on top of its current thread. Only `host/` changes it; the
/// scheduler changes the run queue.
#[derive(Debug)]
pub(crate) struct Cpu<'a> {
    pub(super) contexts: Contexts<'a>,
    pub(crate) run_queue: RunQueue,
    pub(super) pending: VecDeque<Source>,
    /// Whether a softirq has been raised and does not run yet.
    pub(super) raised: bool,
    pub(super) segment: Option<Segment>,
    /// Activity that is skipped in bulk at present.
    pub(super) bulk: Option<Bulk>,
    pub(super) started: Ns,
    /// Order of the event that ends the segment; 0: no event does.
    pub(super) ends_by: u64,
    /// Wall time of a segment in thousandths of its length.
    pub(super) dilation: u64,
    pub(super) busy: bool,
    /// Whether it is busy and not slowed down.
    pub(super) full_speed: bool,
    pub(super) idleness: Idleness,
    pub(super) used: [Ns; USES],
    /// Nanoseconds of it: empty rounds of threads and empty polls of softirqs.
    pub(super) empty_poll_time: Ns,
    /// Nanoseconds that threads have waited for this CPU, summed.
    pub(super) waited: Ns,
    pub(super) interrupts: u64,
    /// Frames delivered on this CPU.
    pub(super) delivered: u64,
    /// The round of the network softirq, for invariant 5.
    pub(super) round: SoftirqRound,
}

impl Cpu<'_> {
    pub(crate) fn new() -> Self {
        Cpu {
            contexts: Contexts::new(),
            run_queue: RunQueue::new(),
            pending: VecDeque::with_capacity(8),
            raised: false,
            segment: None,
            bulk: None,
            started: 0,
            ends_by: 0,
            dilation: 1000,
            busy: false,
            full_speed: false,
            idleness: Idleness::new(),
            used: [0; USES],
            empty_poll_time: 0,
            waited: 0,
            interrupts: 0,
            delivered: 0,
            round: SoftirqRound::default(),
        }
    }

    /// Accounts the time up to `now` to `class`. Returns when that time began. The current thread is charged, too,
    /// unless an interrupt or a softirq is on top of it and the kernel accounts those separately (`irq_time`).
    #[inline]
    pub(super) fn account(
        &mut self,
        now: Ns,
        class: Use,
        threads: &mut Threads<'_>,
        kernel: &Kernel,
    ) -> Ns {
        let from = std::mem::replace(&mut self.started, now);
        let elapsed = now - from;
        self.used[class as usize] += elapsed;
        self.waited += elapsed * self.run_queue.waiting() as Ns;
        let own = self.contexts.is_empty();
        if let Some(curr) = self.run_queue.curr()
            && (own || !kernel.irq_time)
        {
            threads[curr].charge(elapsed, own);
        }
        from
    }

    /// Accounts the time up to `over` as idle, except for the given nanoseconds of interrupts and softirqs.
    pub(super) fn account_idle(&mut self, over: Ns, interrupts: Ns, softirqs: Ns) {
        let elapsed = over - std::mem::replace(&mut self.started, over);
        self.used[Use::Interrupt as usize] += interrupts;
        self.used[Use::Softirq as usize] += softirqs;
        self.used[Use::Idle as usize] += elapsed - interrupts - softirqs;
    }

    /// Whether it is idle at full speed, with no context or thread pending and its tick armed.
    pub(super) fn is_quiescent(&self) -> bool {
        let nothing = self.contexts.is_empty() && self.pending.is_empty() && !self.raised;
        nothing && self.segment.is_none() && self.run_queue.is_quiescent() && self.dilation == 1000
    }

    /// Pops the context on top. Returns the segment that it interrupted, `Some(None)` for none; `None` without a
    /// context.
    #[inline]
    pub(super) fn pop_context(&mut self) -> Option<Option<Segment>> {
        let interrupted = self.contexts.top()?.interrupted;
        self.contexts.pop();
        Some(interrupted)
    }

    /// Returns the time by use, as last accounted.
    pub(crate) fn used(&self) -> [Ns; USES] {
        self.used
    }

    /// Returns all counts, with the core's counts of its softirqs.
    pub(crate) fn counts(&self, softirq: CpuCounts) -> CpuUse {
        CpuUse {
            used: self.used,
            empty_poll_time: self.empty_poll_time,
            waited: self.waited,
            interrupts: self.interrupts,
            switches: self.run_queue.switches(),
            softirq,
        }
    }

    /// Adds time of empty polling.
    #[inline]
    pub(crate) fn add_empty_poll_time(&mut self, time: Ns) {
        self.empty_poll_time += time;
    }

    /// Counts a frame that is delivered here. Returns its number.
    #[inline]
    pub(crate) fn count_delivery(&mut self) -> u64 {
        self.delivered += 1;
        self.delivered
    }

    /// Returns the number of frames delivered here.
    #[inline]
    pub(crate) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Adds frames to the round of that number of the network softirq. Returns the round's total.
    pub(crate) fn add_to_round(&mut self, number: u64, frames: u16) -> u32 {
        self.round.add(number, frames)
    }

    /// Takes the present segment, if any.
    pub(crate) fn take_segment(&mut self) -> Option<Segment> {
        self.segment.take()
    }

    /// Returns the number of interrupts and softirqs on top of the thread or of idleness.
    #[inline]
    pub(crate) fn contexts(&self) -> usize {
        self.contexts.len()
    }

    /// Whether it has a segment in progress.
    pub(crate) fn at_work(&self) -> bool {
        self.segment.is_some()
    }

    /// Whether it counts as busy for CPUs that share its core or its clock.
    pub(crate) fn busy(&self) -> bool {
        self.busy
    }

    /// Whether a softirq has been raised and does not run yet.
    pub(crate) fn raised(&self) -> bool {
        self.raised
    }

    /// Returns a description of a violated invariant, if any: all its time is accounted, and it is idle or has a
    /// segment.
    pub(crate) fn unsound(&self) -> Option<String> {
        let (used, contexts) = (self.used.iter().sum::<Ns>(), self.contexts());
        if used != self.started {
            return Some(format!("has used {used} of {} ns", self.started));
        }
        let idle = self.run_queue.curr().is_none() && contexts == 0 && self.pending.is_empty();
        let lost = self.segment.is_none() && !idle;
        lost.then(|| format!("is at no work, with {contexts} contexts"))
    }

    /// Whether the scheduler considers it idle: interrupts and softirqs on it do not count.
    pub(crate) fn available(&self) -> bool {
        self.run_queue.is_empty()
    }

    pub(super) fn in_hard(&self) -> bool {
        matches!(self.contexts.top(), Some(StackedContext { body: Body::Hard(_), .. }))
    }

    /// Whether an interrupt from this source is pending here, or has been entered and not yet handled.
    pub(crate) fn hard_for(&self, source: Source) -> bool {
        let entered = |context: &StackedContext<'_>| matches!(&context.body, Body::Hard(Hard::Entered(it)) if *it == source);
        self.pending.contains(&source) || self.contexts.iter().any(entered)
    }

    pub(super) fn in_softirq(&self) -> bool {
        self.contexts.iter().any(|context| matches!(context.body, Body::Softirq(_)))
    }

    /// Updates `full_speed` after a change of `busy` or `dilation`.
    pub(super) fn update_full_speed(&mut self) {
        self.full_speed = self.busy && self.dilation == 1000;
    }

    /// Returns the wall time of a segment at the present speed. It saturates, since a stopped CPU's may exceed the
    /// range.
    pub(super) fn wall_time(&self, work: Ns) -> Ns {
        match self.dilation {
            1000 => work,
            dilation => work.saturating_mul(dilation).div_ceil(1000),
        }
    }
}
