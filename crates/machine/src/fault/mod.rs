//! What may go wrong, or be changed, while a machine runs: asked for at a virtual time.
//!
//! Faults are how a swarm shakes the core: interrupts that are lost or late, applications that
//! stall, epoll contexts that vanish, modes that change under load, a link that flaps. A lost
//! interrupt is found by a slow watchdog, as drivers have; it schedules a queue that has frames,
//! no owner and no progress since it last looked.

mod happen;

use napkin_core::Ns;
use napkin_policy::InstancePolicy;

use crate::sched::id::ThreadId;

/// Something that goes wrong, or that is changed, at a time ([`Machine::fault_at`](crate::Machine::fault_at)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The queue's next interrupt never reaches its CPU.
    LoseInterrupt(u16),
    /// The queue's next interrupt is late by so much.
    DelayInterrupt(u16, Ns),
    /// The thread does nothing but compute for so long when it next runs.
    Stall(ThreadId, Ns),
    /// The epoll context goes away: its application has exited, or closed it.
    CloseEpoll(u32),
    /// The instance's settings change.
    Set(u16, InstancePolicy),
    /// The instance is disabled, and enabled again so long after that.
    Disable(u16, Ns),
    /// A signal reaches the thread: its wait ends without events.
    Signal(ThreadId),
    /// Frames to the host are lost for so long.
    LinkDown(Ns),
    /// Something that is not modelled keeps the CPU for so long, with its interrupts off.
    Hold(u16, Ns),
    /// The epoll context's ready list does not run empty for so long.
    AlwaysReady(u32, Ns),
}

/// The faults of a run.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// All that were asked for, in the order of asking.
    asked: Vec<Fault>,
    /// Period of the watchdog; 0: there is none.
    watchdog: Ns,
}
