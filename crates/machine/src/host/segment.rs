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
    pub(crate) left: Ns,
    pub(crate) class: Use,
    /// The piece is of a poll that may yet find nothing.
    pub(crate) preemptible: bool,
}
