//! A step of a pass: whose it is, how far it has come, and how it goes on.

use napkin_core::{CpuId, Did, Ns, Op};

use crate::host::segment::Use;
use crate::sched::id::ThreadId;

/// Whose step it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
    /// The innermost context on top of the thread.
    Frame,
    Thread(ThreadId),
}

/// How a step goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Pay for the next part.
    Spend(Ns, Use),
    /// The next part is paid for, and does not follow at once; whether that time is over, since only a
    /// softirq comes first.
    Paid(bool),
    /// It is done, with this answer to the pass.
    Did(Did),
    /// It is done, and somebody else may run.
    Yielded,
    /// The thread sleeps: its CPU has gone on to another, or idles.
    Blocked,
    /// A softirq runs in between.
    Nested(CpuId),
    /// It was the pass's last.
    Ended,
}

/// How far the execution of a pass's step has come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Exec {
    pub(super) did: Did,
    pub(super) op: Option<Op>,
    /// Part of the step that comes next.
    pub(super) stage: u8,
    /// Frames and completions that the poll under way has taken.
    pub(super) rx: u16,
    pub(super) tx: u16,
    /// Its driver asks for another, whatever the frames.
    pub(super) again: bool,
    /// Whom to wake at the end of a part.
    pub(super) wakes: Option<ThreadId>,
    /// Bottom halves are disabled: a pending softirq waits, and so does another thread.
    pub(super) bh_disabled: bool,
    /// The session under way has claimed the instance.
    pub(super) claimed: bool,
}

impl Exec {
    /// The next step, from its first part.
    #[inline]
    pub(super) fn begin(&mut self, op: Op) {
        self.op = Some(op);
        self.stage = 0;
    }

    /// Its next part begins once this is paid.
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
