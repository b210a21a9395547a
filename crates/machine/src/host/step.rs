//! The state of a step: the context that takes it, its progress, and how it continues.

use napkin_core::{CpuId, Did, Ns, Op};

use crate::host::segment::Use;
use crate::sched::id::ThreadId;

/// The context that takes a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
    /// The innermost context on top of the thread.
    Context,
    Thread(ThreadId),
}

/// How a step continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Pay for the next part.
    Spend(Ns, Use),
    /// The next part is paid for and does not follow at once; `true`: its time is over, and only a raised softirq
    /// comes first.
    Paid(bool),
    /// The step is done, with this result for the pass.
    Did(Did),
    /// The step is done, and another thread may run.
    Yielded,
    /// The thread sleeps: its CPU has switched to another, or is idle.
    Blocked,
    /// A softirq of this CPU runs in between.
    Nested(CpuId),
    /// The pass has ended.
    Ended,
}

/// The progress of a pass's step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Exec {
    pub(super) did: Did,
    pub(super) op: Option<Op>,
    /// The part of the step that comes next.
    pub(super) stage: u8,
    /// Frames and completions that the present poll has taken.
    pub(super) rx: u16,
    pub(super) tx: u16,
    /// Whether the driver asks for another poll, whatever the number of frames.
    pub(super) again: bool,
    /// The thread to wake at the end of the part.
    pub(super) wakes: Option<ThreadId>,
    /// Whether bottom halves are disabled: a raised softirq waits, and the thread is not preempted.
    pub(super) bh_disabled: bool,
    /// Whether the present session has claimed the instance.
    pub(super) claimed: bool,
}

impl Exec {
    /// Begins a step with its first part.
    #[inline]
    pub(super) fn begin(&mut self, op: Op) {
        self.op = Some(op);
        self.stage = 0;
    }

    /// Advances to the next part, which begins once `time` is paid for.
    #[inline]
    pub(super) fn pay(&mut self, time: Ns, class: Use) -> Next {
        self.stage += 1;
        Next::Spend(time, class)
    }

    pub(super) const START: Exec = Exec {
        did: Did::Start,
        op: None,
        stage: 0,
        rx: 0,
        tx: 0,
        again: false,
        wakes: None,
        bh_disabled: false,
        claimed: false,
    };
}
