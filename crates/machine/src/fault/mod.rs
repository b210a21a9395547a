//! Faults and changes that happen while a machine runs, scheduled at a virtual time.
//!
//! A swarm uses them to stress the core: interrupts that are lost or late, applications that stall, epoll contexts
//! that are closed, modes that change under load, a link that flaps. A slow watchdog, as drivers have one, finds lost
//! interrupts: it schedules a queue that has frames, no owner and no poll since it last ran.

mod inject;

use napkin_core::Ns;
use napkin_policy::InstancePolicy;

use crate::sched::id::ThreadId;

/// A fault or a change, to be scheduled with [`Machine::fault_at`](crate::Machine::fault_at).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The queue's next interrupt never reaches its CPU.
    LoseInterrupt(u16),
    /// The queue's next interrupt is late by this time.
    DelayInterrupt(u16, Ns),
    /// The thread computes in user space for this time before its program's next act.
    Stall(ThreadId, Ns),
    /// The epoll context is closed: its application has exited or closed it.
    CloseEpoll(u32),
    /// The instance's settings change.
    Set(u16, InstancePolicy),
    /// The instance is disabled, and enabled again this time after the disable completes.
    Disable(u16, Ns),
    /// A signal reaches the thread: its wait ends without events.
    Signal(ThreadId),
    /// Frames to the host are lost for this time.
    LinkDown(Ns),
    /// Something that is not modelled occupies the CPU for this time, with its interrupts off.
    Hold(u16, Ns),
    /// The epoll context's ready list is never empty for this time.
    AlwaysReady(u32, Ns),
}

/// The faults of a run.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// All scheduled faults, in order of scheduling; an event's token is an index.
    scheduled: Vec<Fault>,
    /// Period of the watchdog; 0: off.
    watchdog: Ns,
}
