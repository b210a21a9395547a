//! The interface through which a trace follows a run.

use napkin_core::Ns;

use crate::host::segment::Use;
use crate::net::packet::Packet;

/// A point event on a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark<'a> {
    /// The hard interrupt of this queue is being handled.
    Interrupt(u16),
    /// The CPU begins to run its pending softirqs.
    Softirq,
    /// The timer of this queue was armed for this time; if it was already armed for an earlier one, that remains.
    TimerArmed(u16, Ns),
    /// The timer of this queue has expired.
    TimerExpired(u16),
    /// The thread of this name was woken.
    Wake(&'a str),
}

/// A point on a frame's path through the host. A frame is identified by its flow and stamp; an answer carries those
/// of its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Station {
    /// The frame has entered a queue's ring.
    Ring,
    /// The ring or the socket was full, and the frame was dropped: its path ends.
    Dropped,
    /// The frame was delivered to its socket, on this CPU.
    Socket(u16),
    /// A thread on this CPU has read the frame.
    Read(u16),
    /// The answer, or a part of it, has left the host.
    Answered,
}

/// An observer of a run. All times are virtual; the calls for one CPU come in order of time.
///
/// When a trace is attached it gets the depth and the mask state of every queue. The methods with a default body are
/// optional.
pub trait Trace: core::fmt::Debug {
    /// A CPU executed a context from one time to another. `what` names it: a thread's name, `irq`, `softirq`, or
    /// `idle` for the switch to idle.
    fn ran(&mut self, cpu: u16, what: &str, class: Use, from: Ns, to: Ns);

    /// A queue's ring now holds this many frames.
    fn depth(&mut self, queue: u16, at: Ns, frames: usize);

    /// A queue's interrupt is masked, or not, from now on. The call may repeat the present state.
    fn masked(&mut self, queue: u16, at: Ns, masked: bool);

    /// A poll of a queue on a CPU has ended and took this many frames.
    fn polled(&mut self, cpu: u16, queue: u16, at: Ns, frames: u16) {
        let _ = (cpu, queue, at, frames);
    }

    /// A data frame has reached a station. The time may lie a little in the future.
    fn passed(&mut self, packet: &Packet, at: Ns, station: Station) {
        let _ = (packet, at, station);
    }

    /// Whether at least one epoll context suspends a queue's interrupts, from now on. Called only on a change.
    fn suspended(&mut self, queue: u16, at: Ns, suspended: bool) {
        let _ = (queue, at, suspended);
    }

    /// Whether a queue is held in polled mode without work (*hold*), from now on. The call may repeat the present
    /// state; an unmask ends a hold, too.
    fn held(&mut self, queue: u16, at: Ns, held: bool) {
        let _ = (queue, at, held);
    }

    /// A point event happened on a CPU.
    fn mark(&mut self, cpu: u16, at: Ns, mark: Mark<'_>);
}
