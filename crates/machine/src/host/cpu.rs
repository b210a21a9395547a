//! One CPU: what it is at, what it was interrupted in, and what its time went into.

use std::collections::VecDeque;

use napkin_core::{CpuCounts, IdleCycle, IdleTimer, Ns};

use crate::checks::Round;
use crate::config::Kernel;
use crate::counts::CpuUse;
use crate::host::contexts::{Body, Contexts, Frame, Hard, Source};
use crate::host::idle::Idleness;
use crate::host::segment::{Segment, USES, Use};
use crate::sched::id::ThreadId;
use crate::sched::run_queue::RunQueue;
use crate::sched::threads::Threads;

/// What a CPU goes round in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spin {
    pub(super) me: ThreadId,
    pub(super) cycle: IdleCycle,
    /// When the first round began.
    pub(super) start: Ns,
    /// A round's time on this CPU.
    pub(super) length: Ns,
}

/// An idle CPU whose timer expires in vain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rest {
    pub(super) timer: IdleTimer,
    /// When it expires first.
    pub(super) at: Ns,
}

/// What a CPU does without its steps being taken one by one, until it is caught up.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bulk {
    /// Its thread polls in vain.
    Spin(Spin),
    /// It is idle, and its timer expires in vain.
    Rest(Rest),
}

/// What runs on a CPU: interrupts and softirqs on top of its current thread. Only what is in this room
/// changes it; the scheduler has its run queue.
#[derive(Debug)]
pub(crate) struct Cpu<'a> {
    pub(super) frames: Contexts<'a>,
    pub(crate) run_queue: RunQueue,
    pub(super) pending: VecDeque<Source>,
    /// A softirq was raised that nobody runs yet.
    pub(super) raised: bool,
    pub(super) segment: Option<Segment>,
    /// What it does is not stepped.
    pub(super) bulk: Option<Bulk>,
    pub(super) started: Ns,
    /// The event that ends the piece of work, by its order; 0: none does.
    pub(super) ends_by: u64,
    /// Time for a piece of work in thousandths of its own length.
    pub(super) dilation: u64,
    pub(super) busy: bool,
    /// It is busy, and nobody slows it down.
    pub(super) full_speed: bool,
    pub(super) idleness: Idleness,
    pub(super) used: [Ns; USES],
    /// Of it: rounds of threads, and polls of softirqs, that found nothing.
    pub(super) polled_in_vain: Ns,
    /// Time that threads have waited here for the CPU, added up.
    pub(super) waited: Ns,
    pub(super) interrupts: u64,
    /// Frames that were delivered here.
    pub(super) delivered: u64,
    /// The network softirq's round that is checked.
    pub(super) round: Round,
}

impl Cpu<'_> {
    pub(crate) fn new() -> Self {
        Cpu {
            frames: Contexts::new(),
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
            polled_in_vain: 0,
            waited: 0,
            interrupts: 0,
            delivered: 0,
            round: Round::default(),
        }
    }

    /// Its time up to `now` has gone into that: since when. The thread on it is charged, unless an interrupt
    /// or a softirq is on top of it in a kernel that tells them apart.
    #[inline]
    pub(super) fn uses(
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
        let own = self.frames.is_empty();
        if let Some(curr) = self.run_queue.curr()
            && (own || !kernel.irq_time)
        {
            threads[curr].runs(elapsed, own);
        }
        from
    }

    /// Its time up to `over` was idleness, but for what interrupts and their softirqs took of it.
    pub(super) fn rested(&mut self, over: Ns, interrupts: Ns, softirqs: Ns) {
        let elapsed = over - std::mem::replace(&mut self.started, over);
        self.used[Use::Interrupt as usize] += interrupts;
        self.used[Use::Softirq as usize] += softirqs;
        self.used[Use::Idle as usize] += elapsed - interrupts - softirqs;
    }

    /// It is idle, at full speed, with nobody who wants it and nothing that waits for it, and its tick is on its
    /// way.
    pub(super) fn idles(&self) -> bool {
        let nothing = self.frames.is_empty() && self.pending.is_empty() && !self.raised;
        nothing && self.segment.is_none() && self.run_queue.at_rest() && self.dilation == 1000
    }

    /// The context on top is left: the piece of work that it interrupted; `None` where there is none.
    #[inline]
    pub(super) fn leave(&mut self) -> Option<Option<Segment>> {
        let interrupted = self.frames.top()?.interrupted;
        self.frames.pop();
        Some(interrupted)
    }

    /// What its time up to now went into.
    pub(crate) fn used(&self) -> [Ns; USES] {
        self.used
    }

    /// All its counts, with the core's of its softirqs.
    pub(crate) fn counts(&self, softirq: CpuCounts) -> CpuUse {
        CpuUse {
            used: self.used,
            polled_in_vain: self.polled_in_vain,
            waited: self.waited,
            interrupts: self.interrupts,
            switches: self.run_queue.switches(),
            softirq,
        }
    }

    /// So much of its time was poll that found nothing.
    #[inline]
    pub(crate) fn in_vain(&mut self, time: Ns) {
        self.polled_in_vain += time;
    }

    /// A frame is delivered here: which one it is.
    #[inline]
    pub(crate) fn delivers(&mut self) -> u64 {
        self.delivered += 1;
        self.delivered
    }

    /// Frames that were delivered here.
    #[inline]
    pub(crate) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// The round of that number of its network softirq took frames: all that the round has.
    pub(crate) fn round_takes(&mut self, number: u64, frames: u16) -> u32 {
        self.round.takes(number, frames)
    }

    /// The piece of work that it is at is put aside, or there is none.
    pub(crate) fn put_aside(&mut self) -> Option<Segment> {
        self.segment.take()
    }

    /// Interrupts and softirqs that are on top of its thread, or of its idleness.
    #[inline]
    pub(crate) fn contexts(&self) -> usize {
        self.frames.len()
    }

    /// Whether it is at a piece of work.
    pub(crate) fn at_work(&self) -> bool {
        self.segment.is_some()
    }

    /// Whether it slows CPUs down that share its core or its clock.
    pub(crate) fn busy(&self) -> bool {
        self.busy
    }

    /// A softirq was raised that nobody runs yet.
    pub(crate) fn raised(&self) -> bool {
        self.raised
    }

    /// What does not hold of it, if anything: all its time has gone into something, and if it is not idle
    /// it is at a piece of work.
    pub(crate) fn unsound(&self) -> Option<String> {
        let (used, contexts) = (self.used.iter().sum::<Ns>(), self.contexts());
        if used != self.started {
            return Some(format!("has used {used} of {} ns", self.started));
        }
        let idle = self.run_queue.curr().is_none() && contexts == 0 && self.pending.is_empty();
        let lost = self.segment.is_none() && !idle;
        lost.then(|| format!("is at no work, with {contexts} contexts"))
    }

    /// Whether the scheduler sees it idle: an interrupt or a softirq on it does not count.
    pub(crate) fn available(&self) -> bool {
        self.run_queue.is_empty()
    }

    pub(super) fn in_hard(&self) -> bool {
        matches!(self.frames.top(), Some(Frame { body: Body::Hard(_), .. }))
    }

    /// Whether an interrupt of that source waits to be taken here, or is being taken.
    pub(crate) fn hard_for(&self, source: Source) -> bool {
        let entered = |frame: &Frame<'_>| matches!(&frame.body, Body::Hard(Hard::Entered(it)) if *it == source);
        self.pending.contains(&source) || self.frames.iter().any(entered)
    }

    pub(super) fn in_softirq(&self) -> bool {
        self.frames.iter().any(|frame| matches!(frame.body, Body::Softirq(_)))
    }

    /// It is busy or not, or its dilation has changed.
    pub(super) fn changes_speed(&mut self) {
        self.full_speed = self.busy && self.dilation == 1000;
    }

    /// How long a piece takes at the present speed. A CPU that is stopped may be so for longer than
    /// there is time.
    pub(super) fn wall(&self, work: Ns) -> Ns {
        match self.dilation {
            1000 => work,
            dilation => work.saturating_mul(dilation).div_ceil(1000),
        }
    }
}
