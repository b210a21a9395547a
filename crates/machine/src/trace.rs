//! What a watcher is told.

use napkin_core::Ns;

use crate::cpu::Use;

/// A moment worth a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark<'a> {
    /// A queue's interrupt is being handled.
    Interrupt(u16),
    /// A softirq begins.
    Softirq,
    /// A queue's timer was armed for this time, or an earlier one that it had stays.
    TimerArmed(u16, Ns),
    /// A queue's timer has expired.
    TimerExpired(u16),
    /// A thread was woken; its name.
    Wake(&'a str),
}

/// Somebody who watches a run. All times are virtual; calls come in order of time for each CPU.
///
/// At the start it is told the depth and the mask of every queue.
pub trait Trace: core::fmt::Debug {
    /// A CPU was at something from one time to another. `what` names the context: a thread's name,
    /// `irq`, `softirq`, or `idle` for the way into idleness.
    fn ran(&mut self, cpu: u16, what: &str, class: Use, from: Ns, to: Ns);

    /// A queue's ring holds so many frames now.
    fn depth(&mut self, queue: u16, at: Ns, frames: usize);

    /// A queue's interrupt is masked, or not, from now on. May say again what holds already.
    fn masked(&mut self, queue: u16, at: Ns, masked: bool);

    /// Something happened on a CPU.
    fn mark(&mut self, cpu: u16, at: Ns, mark: Mark<'_>);
}
