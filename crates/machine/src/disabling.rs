//! An instance that is being disabled.

use napkin_core::{Did, Disable, Ns, Op, Pass};

/// A disable that is under way.
#[derive(Debug)]
pub(crate) struct Disabling<'a> {
    pass: Disable<'a, ()>,
    /// Polls of the instance when it was asked for.
    polls: u64,
    /// For how long the instance is to stay disabled.
    stays: Ns,
}

impl<'a> Disabling<'a> {
    /// A disable that has just begun, of an instance that has been polled `polls` times.
    pub(crate) fn new(pass: Disable<'a, ()>, polls: u64, stays: Ns) -> Self {
        Disabling { pass, polls, stays }
    }

    /// The next step.
    pub(crate) fn next(&mut self, now: Ns, did: Did) -> Op {
        self.pass.next(now, did)
    }

    /// Polls since it began, of an instance that has been polled `polls` times by now.
    pub(crate) fn polls_since(&self, polls: u64) -> u64 {
        polls - self.polls
    }

    /// For how long the instance is to stay disabled, in nanoseconds.
    pub(crate) fn stays(&self) -> Ns {
        self.stays
    }
}
