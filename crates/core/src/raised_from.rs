//! The contexts from which a softirq is raised.

/// The context that schedules an instance or raises a vector; it decides who runs the softirq.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RaisedFrom {
    /// An interrupt or a timer: the softirq runs on the way out.
    Interrupt,
    /// An application with bottom halves disabled: it runs the softirq itself when it enables them.
    Application,
    /// Any other thread: ksoftirqd runs it.
    Thread,
}
