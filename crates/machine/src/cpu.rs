//! One CPU: what it is at, what it was interrupted in, and what its time went into.

use std::collections::VecDeque;

use napkin_core::{Id, Interrupt, Ns, Op, Softirq};

use crate::idle::IdleHistory;
use crate::spin::Spin;
use crate::thread::{Exec, ThreadId};

/// What a CPU's time goes into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Use {
    /// Nothing to do.
    Idle = 0,
    /// Hard interrupts.
    Interrupt = 1,
    /// Softirqs on top of whatever ran.
    Softirq = 2,
    /// System calls, and the kernel's threads.
    System = 3,
    /// User space.
    User = 4,
}

/// The number of uses.
pub const USES: usize = 5;

/// A piece of work that takes time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Left, at the CPU's full speed.
    pub(crate) left: Ns,
    pub(crate) class: Use,
    /// The piece is of a poll that may yet find nothing.
    pub(crate) preemptible: bool,
}

/// What interrupts a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Queue(Id),
    Timer(Id),
    Tick,
    SliceEnd,
    Reschedule,
    /// Something that is not modelled keeps the CPU, its interrupts off, for so long.
    Held(Ns),
}

/// Where a hard interrupt is.
#[derive(Debug)]
pub(crate) enum Hard<'a> {
    Entered(Source),
    Handling(Interrupt<'a, ()>),
    /// A step that a timer asked for.
    Step(Option<Op>),
    Leaving,
    Left,
}

#[derive(Debug)]
pub(crate) enum Body<'a> {
    Hard(Hard<'a>),
    Softirq(Softirq<'a, ()>),
}

/// A context on top of a thread, and what it interrupted.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) body: Body<'a>,
    pub(crate) exec: Exec,
    pub(crate) interrupted: Option<Segment>,
}

/// One CPU.
#[derive(Debug)]
pub(crate) struct Cpu<'a> {
    pub(crate) frames: Vec<Frame<'a>>,
    pub(crate) curr: Option<ThreadId>,
    /// Runnable threads that wait for this CPU.
    pub(crate) queued: Vec<ThreadId>,
    pub(crate) need_resched: bool,
    /// Another thread wants the CPU, but only on the way to user space.
    pub(crate) lazy_resched: bool,
    pub(crate) pending: VecDeque<Source>,
    /// A softirq was raised that nobody runs yet.
    pub(crate) raised: bool,
    pub(crate) segment: Option<Segment>,
    /// The piece of work is a thread's that polls in vain.
    pub(crate) spin: Option<Spin>,
    pub(crate) started: Ns,
    pub(crate) generation: u32,
    /// Time for a piece of work in thousandths of its own length.
    pub(crate) dilation: u64,
    pub(crate) busy: bool,
    pub(crate) idle_since: Ns,
    /// It has gone idle and nothing has come since.
    pub(crate) asleep: bool,
    /// Its last idle intervals, and whether the present one was guessed to be long.
    pub(crate) idles: IdleHistory,
    pub(crate) idle_deep: bool,
    /// Latency of leaving idleness that the next context pays.
    pub(crate) exit_latency: Ns,
    pub(crate) tick_armed: bool,
    pub(crate) slice_generation: u32,
    pub(crate) slice_armed: bool,
    pub(crate) next_balance: Ns,
    /// What interrupts and softirqs had taken at the last look for an imbalance, when that was, and
    /// their share as the scheduler remembers it.
    pub(crate) stolen: Ns,
    pub(crate) balanced_at: Ns,
    pub(crate) stolen_share: f64,
    /// The thread that runs is to go on there.
    pub(crate) evicts_to: Option<usize>,
    /// When the last thread left it.
    pub(crate) no_thread_since: Ns,
    /// Mean length of its idle periods, as far as the scheduler keeps it.
    pub(crate) idle_mean: Ns,
    pub(crate) min_vruntime: i64,
    pub(crate) used: [Ns; USES],
    /// Of it: rounds of threads, and polls of softirqs, that found nothing.
    pub(crate) polled_in_vain: Ns,
    /// Time that threads have waited here for the CPU, added up.
    pub(crate) waited: Ns,
    pub(crate) interrupts: u64,
    pub(crate) ticks: u64,
    pub(crate) switches: u64,
    /// Frames that were delivered here.
    pub(crate) delivered: u64,
    /// The network softirq's round that is checked, and its frames.
    pub(crate) round: u64,
    pub(crate) round_frames: u32,
}

impl Cpu<'_> {
    pub(crate) fn new() -> Self {
        Cpu {
            frames: Vec::with_capacity(4),
            curr: None,
            queued: Vec::with_capacity(8),
            need_resched: false,
            lazy_resched: false,
            pending: VecDeque::with_capacity(8),
            raised: false,
            segment: None,
            spin: None,
            started: 0,
            generation: 0,
            dilation: 1000,
            busy: false,
            idle_since: 0,
            idles: IdleHistory::default(),
            idle_deep: false,
            asleep: true,
            exit_latency: 0,
            tick_armed: false,
            slice_generation: 0,
            slice_armed: false,
            next_balance: 0,
            stolen: 0,
            balanced_at: 0,
            stolen_share: 0.0,
            evicts_to: None,
            no_thread_since: 0,
            idle_mean: 0,
            min_vruntime: 0,
            used: [0; USES],
            polled_in_vain: 0,
            waited: 0,
            interrupts: 0,
            ticks: 0,
            switches: 0,
            delivered: 0,
            round: 0,
            round_frames: 0,
        }
    }

    /// Whether the scheduler sees it idle: an interrupt or a softirq on it does not count.
    pub(crate) fn available(&self) -> bool {
        self.curr.is_none() && self.queued.is_empty()
    }

    pub(crate) fn in_hard(&self) -> bool {
        matches!(self.frames.last(), Some(Frame { body: Body::Hard(_), .. }))
    }

    /// Whether an interrupt of that source waits to be taken here, or is being taken.
    pub(crate) fn hard_for(&self, source: Source) -> bool {
        let entered = |frame: &Frame<'_>| matches!(&frame.body, Body::Hard(Hard::Entered(it)) if *it == source);
        self.pending.contains(&source) || self.frames.iter().any(entered)
    }

    pub(crate) fn in_softirq(&self) -> bool {
        self.frames.iter().any(|frame| matches!(frame.body, Body::Softirq(_)))
    }

    /// How long a piece takes at the present speed. A CPU that is stopped may be so for longer than
    /// there is time.
    pub(crate) fn wall(&self, work: Ns) -> Ns {
        match self.dilation {
            1000 => work,
            dilation => work.saturating_mul(dilation).div_ceil(1000),
        }
    }
}
