//! What is on top of a CPU's thread: interrupts and softirqs, the innermost last.

use napkin_core::{Id, Interrupt, Ns, Op, Softirq};

use crate::host::segment::Segment;
use crate::host::step::Exec;

/// What interrupts a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Queue(Id),
    Timer(Id),
    Tick,
    SliceEnd,
    Reschedule,
    /// Something that is not modelled keeps the CPU, its interrupts off, for so long.
    Held(Ns),
}

/// Where a hard interrupt is.
#[derive(Debug)]
pub(crate) enum Hard<'a> {
    Entered(Source),
    Handling(Interrupt<'a, ()>),
    /// A step that a timer asked for, while it is still to be taken.
    Step(Option<Op>),
    /// On the way out, which is being paid for.
    Left,
}

#[derive(Debug)]
pub(crate) enum Body<'a> {
    Hard(Hard<'a>),
    Softirq(Softirq<'a, ()>),
}

/// A context on top of a thread, and what it interrupted.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    pub(super) body: Body<'a>,
    pub(super) exec: Exec,
    pub(super) interrupted: Option<Segment>,
}

/// A stack of contexts, of which the innermost has a place of its own: nearly always it is the only one,
/// and every step of it is taken there.
#[derive(Debug)]
pub(crate) struct Contexts<'a> {
    top: Option<Frame<'a>>,
    /// What that one is on top of, the outermost first.
    below: Vec<Frame<'a>>,
}

impl<'a> Contexts<'a> {
    pub(super) fn new() -> Self {
        Contexts { top: None, below: Vec::with_capacity(4) }
    }

    /// Another context begins, on top of all. It is made where it stays, when nothing can go wrong any
    /// more: what might have to be dropped on the way there would first be made elsewhere, and copied.
    #[inline]
    pub(super) fn push(&mut self, frame: impl FnOnce() -> Frame<'a>) {
        if self.top.is_some() {
            self.below.extend(self.top.take());
        }
        // Nothing is there to be dropped.
        std::mem::forget(self.top.replace(frame()));
    }

    /// The innermost one has ended. Its pass holds nothing then: a drop would only look for what it might.
    #[inline]
    pub(super) fn pop(&mut self) {
        std::mem::forget(self.top.take());
        if !self.below.is_empty() {
            self.top = self.below.pop();
        }
    }

    /// The innermost one.
    #[inline]
    pub(super) fn top(&self) -> Option<&Frame<'a>> {
        self.top.as_ref()
    }

    #[inline]
    pub(super) fn top_mut(&mut self) -> Option<&mut Frame<'a>> {
        self.top.as_mut()
    }

    /// Whether there is none.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.top.is_none()
    }

    /// How many there are.
    #[inline]
    pub(super) fn len(&self) -> usize {
        usize::from(self.top.is_some()) + self.below.len()
    }

    /// All of them, the innermost first.
    #[inline]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Frame<'a>> {
        self.top.iter().chain(self.below.iter().rev())
    }
}
