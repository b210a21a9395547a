//! A segment of CPU work, and the uses of CPU time.

use napkin_core::Ns;

/// A use of CPU time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Use {
    /// No work, or the exit from an idle state.
    Idle = 0,
    /// Hard interrupts: their entry, handler and exit.
    Interrupt = 1,
    /// Softirqs on top of whatever ran.
    Softirq = 2,
    /// System calls, and kernel threads.
    System = 3,
    /// Programs, outside of system calls.
    User = 4,
}

/// The number of variants of [`Use`].
pub const USES: usize = 5;

/// A stretch of work on a CPU that takes time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Nanoseconds left, at the CPU's full speed.
    pub(super) left: Ns,
    pub(super) class: Use,
    /// Whether a reschedule may interrupt it in any preemption model: user code, and the switch to idle.
    pub(super) preemptible: bool,
}

impl Segment {
    /// Creates the segment of a context switch; `preemptible`: a thread that wakes may interrupt it.
    #[inline]
    pub(crate) fn of_switch(left: Ns, preemptible: bool) -> Self {
        Segment { left, class: Use::System, preemptible }
    }

    /// Returns the remainder of a segment that was put aside, preceded by `extra` nanoseconds.
    #[inline]
    pub(crate) fn after(self, extra: Ns) -> Self {
        Segment { left: self.left + extra, ..self }
    }
}
