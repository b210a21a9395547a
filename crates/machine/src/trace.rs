//! What a watcher is told.

use napkin_core::Ns;

use crate::cpu::Use;

/// Somebody who watches a run. All times are virtual; calls come in order of time for each CPU.
pub trait Trace: core::fmt::Debug {
    /// A CPU was at something from one time to another. `what` names the context: a thread's name,
    /// `irq`, `softirq`.
    fn ran(&mut self, cpu: u16, what: &str, class: Use, from: Ns, to: Ns);

    /// A queue's ring holds so many frames now.
    fn depth(&mut self, queue: u16, at: Ns, frames: usize);

    /// A queue's interrupt is masked, or not, from now on.
    fn masked(&mut self, queue: u16, at: Ns, masked: bool);

    /// A moment worth a mark: an interrupt, a timer armed or expired, a wake-up.
    fn mark(&mut self, cpu: u16, at: Ns, what: &str);
}
