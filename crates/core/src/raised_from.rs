//! Where a softirq was raised.

/// From where something is scheduled: it decides who runs the softirq.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RaisedFrom {
    /// An interrupt or a timer: the softirq runs on the way out.
    Interrupt,
    /// An application, as between disabling and enabling bottom halves: it runs the softirq itself.
    Application,
    /// Any other thread: ksoftirqd runs it.
    Thread,
}
