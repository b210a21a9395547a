//! A disable of an instance in progress.

use napkin_core::{Did, Disable, Ns, Op, Pass};

/// A disable pass in progress.
#[derive(Debug)]
pub(crate) struct Disabling<'a> {
    pass: Disable<'a, ()>,
    /// Number of polls of the instance when the disable began.
    polls: u64,
    /// How long the instance is to stay disabled, in nanoseconds.
    duration: Ns,
}

impl<'a> Disabling<'a> {
    /// Creates a disable that begins now, of an instance that has been polled `polls` times.
    pub(crate) fn new(pass: Disable<'a, ()>, polls: u64, duration: Ns) -> Self {
        Disabling { pass, polls, duration }
    }

    /// Returns the pass's next step.
    pub(crate) fn next(&mut self, now: Ns, did: Did) -> Op {
        self.pass.next(now, did)
    }

    /// Returns the polls since the disable began; `polls` is the instance's present number.
    pub(crate) fn polls_since(&self, polls: u64) -> u64 {
        polls - self.polls
    }

    /// Returns how long the instance is to stay disabled, in nanoseconds.
    pub(crate) fn duration(&self) -> Ns {
        self.duration
    }
}
