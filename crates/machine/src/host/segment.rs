//! A piece of work, and what a CPU's time goes into.

use napkin_core::Ns;

/// What a CPU's time goes into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Use {
    /// Nothing to do, and the way out of an idle state.
    Idle = 0,
    /// Hard interrupts: their entry, handler and exit.
    Interrupt = 1,
    /// Softirqs on top of whatever ran.
    Softirq = 2,
    /// System calls, and the kernel's threads.
    System = 3,
    /// Programs, outside of system calls.
    User = 4,
}

/// The number of uses.
pub const USES: usize = 5;

/// A piece of work that takes time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Left, at the CPU's full speed.
    pub(super) left: Ns,
    pub(super) class: Use,
    /// The piece is of a poll that may yet find nothing.
    pub(super) preemptible: bool,
}

impl Segment {
    /// The kernel's work of a context switch: `preemptible` if a thread that wakes may end it.
    #[inline]
    pub(crate) fn of_switch(left: Ns, preemptible: bool) -> Self {
        Segment { left, class: Use::System, preemptible }
    }

    /// The rest of a piece that was put aside, with so much to do before it.
    #[inline]
    pub(crate) fn after(self, extra: Ns) -> Self {
        Segment { left: self.left + extra, ..self }
    }
}
