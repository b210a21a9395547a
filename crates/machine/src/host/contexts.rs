//! The contexts on top of a CPU's thread: interrupts and softirqs, nested.

use napkin_core::{Id, Interrupt, Ns, Op, Softirq};

use crate::host::segment::Segment;
use crate::host::step::Exec;

/// The source of a hard interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Queue(Id),
    Timer(Id),
    Tick,
    SliceEnd,
    Reschedule,
    /// Something that is not modelled occupies the CPU for this time, with its interrupts off.
    Occupied(Ns),
}

/// The progress of a hard interrupt.
#[derive(Debug)]
pub(crate) enum Hard<'a> {
    Entered(Source),
    Handling(Interrupt<'a, ()>),
    /// The step that the core asked for on a timer or tick, until it is taken.
    Step(Option<Op>),
    /// On the way out: the exit cost is being paid.
    Exiting,
}

#[derive(Debug)]
pub(crate) enum Body<'a> {
    Hard(Hard<'a>),
    Softirq(Softirq<'a, ()>),
}

/// A context on top of a thread, and the segment that it interrupted.
#[derive(Debug)]
pub(crate) struct StackedContext<'a> {
    pub(super) body: Body<'a>,
    pub(super) exec: Exec,
    pub(super) interrupted: Option<Segment>,
}

/// A stack of contexts. The innermost has its own field: it is nearly always the only one, and every step runs there.
#[derive(Debug)]
pub(crate) struct Contexts<'a> {
    top: Option<StackedContext<'a>>,
    /// The other contexts, outermost first.
    below: Vec<StackedContext<'a>>,
}

impl<'a> Contexts<'a> {
    pub(super) fn new() -> Self {
        Contexts { top: None, below: Vec::with_capacity(4) }
    }

    /// Pushes a context. It is built in place, in a closure that cannot fail: a value that might have to be dropped
    /// on the way would be built elsewhere first and then copied.
    #[inline]
    pub(super) fn push(&mut self, context: impl FnOnce() -> StackedContext<'a>) {
        if self.top.is_some() {
            self.below.extend(self.top.take());
        }
        // The old value is `None`: there is nothing to drop.
        std::mem::forget(self.top.replace(context()));
    }

    /// Pops the innermost context. Its pass holds nothing at its end, so dropping it would only cost checks.
    #[inline]
    pub(super) fn pop(&mut self) {
        std::mem::forget(self.top.take());
        if !self.below.is_empty() {
            self.top = self.below.pop();
        }
    }

    /// Returns the innermost context.
    #[inline]
    pub(super) fn top(&self) -> Option<&StackedContext<'a>> {
        self.top.as_ref()
    }

    #[inline]
    pub(super) fn top_mut(&mut self) -> Option<&mut StackedContext<'a>> {
        self.top.as_mut()
    }

    /// Whether there is no context.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.top.is_none()
    }

    /// Returns the number of contexts.
    #[inline]
    pub(super) fn len(&self) -> usize {
        usize::from(self.top.is_some()) + self.below.len()
    }

    /// Returns all contexts, innermost first.
    #[inline]
    pub(super) fn iter(&self) -> impl Iterator<Item = &StackedContext<'a>> {
        self.top.iter().chain(self.below.iter().rev())
    }
}
