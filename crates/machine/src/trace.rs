//! What a watcher is told.

use napkin_core::Ns;

use crate::host::segment::Use;
use crate::net::packet::Packet;

/// A moment worth a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark<'a> {
    /// A queue's interrupt is being handled.
    Interrupt(u16),
    /// The CPU begins to run its pending softirqs.
    Softirq,
    /// A queue's timer was armed for this time, or an earlier one that it had stays.
    TimerArmed(u16, Ns),
    /// A queue's timer has expired.
    TimerExpired(u16),
    /// A thread was woken; its name.
    Wake(&'a str),
}

/// A station on a frame's way through the host. Frames are told apart by their flow and stamp, which an
/// answer has from its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Station {
    /// It is in a queue's ring.
    Ring,
    /// There was no room, in the ring or in the socket: its way ends.
    Dropped,
    /// It is in its socket, delivered on this CPU.
    Socket(u16),
    /// A thread on this CPU has read it.
    Read(u16),
    /// Its answer, or a part of it, has left the host.
    Answered,
}

/// Somebody who watches a run. All times are virtual; calls come in order of time for each CPU.
///
/// At the start it is told the depth and the mask of every queue. What a watcher does not care for it
/// need not implement.
pub trait Trace: core::fmt::Debug {
    /// A CPU was at something from one time to another. `what` names the context: a thread's name,
    /// `irq`, `softirq`, or `idle` for the way into idleness.
    fn ran(&mut self, cpu: u16, what: &str, class: Use, from: Ns, to: Ns);

    /// A queue's ring holds so many frames now.
    fn depth(&mut self, queue: u16, at: Ns, frames: usize);

    /// A queue's interrupt is masked, or not, from now on. May say again what holds already.
    fn masked(&mut self, queue: u16, at: Ns, masked: bool);

    /// A poll of a queue on a CPU has ended, with so many frames.
    fn polled(&mut self, cpu: u16, queue: u16, at: Ns, frames: u16) {
        let _ = (cpu, queue, at, frames);
    }

    /// A frame for a socket has reached a station. A station may lie a little in the future.
    fn passed(&mut self, packet: &Packet, at: Ns, station: Station) {
        let _ = (packet, at, station);
    }

    /// A queue's interrupts are suspended by somebody, or by nobody, from now on. Said when it changes.
    fn suspended(&mut self, queue: u16, at: Ns, suspended: bool) {
        let _ = (queue, at, suspended);
    }

    /// A queue is held in polled mode without work (*hold*), or has work again. May say again what
    /// holds already; being unmasked ends it, too.
    fn held(&mut self, queue: u16, at: Ns, held: bool) {
        let _ = (queue, at, held);
    }

    /// Something happened on a CPU.
    fn mark(&mut self, cpu: u16, at: Ns, mark: Mark<'_>);
}
