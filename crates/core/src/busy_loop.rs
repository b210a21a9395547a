//! The loop around a busy-poll session: runs until events have come or the time is up.

use crate::host::Host;
use crate::idle::IdleCycle;
use crate::instance::Id;
use crate::session::{Session, SessionNext};
use crate::step::{Did, Op, unexpected};
use crate::{NEVER, Ns};

/// A microsecond of busy polling is 1024 ns: the kernel shifts nanoseconds by ten.
const BUSY_MICROSECOND: Ns = 1 << 10;

/// The next step of a busy loop, or its end.
#[derive(Debug)]
pub(crate) enum LoopNext {
    /// A step to take.
    Op(Op),
    /// The loop has ended. One more look tells whether events have come, because the session's last poll delivers,
    /// too.
    Ended,
    /// A signal ended it.
    Interrupted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Session,
    Looking,
    /// The session has stopped because another thread wants the CPU; a look checks whether its last poll delivered.
    Stopped,
    /// Yields to that thread.
    Yielding,
}

/// The next step of a loop whose session has stopped for another thread. (Small, so that it is not returned through
/// memory.)
enum YieldStep {
    Yield,
    Look,
    Ended,
    Interrupted,
}

#[derive(Debug)]
pub(crate) struct BusyLoop<'a, Q> {
    session: Session<'a, Q>,
    /// When the loop ends; 0 for a single pass.
    until: Ns,
    at: At,
    interrupted: bool,
    /// Whether the session stops for another thread, and starts over afterwards (the kernel's `need_resched`).
    yields: bool,
}

impl<'a, Q> BusyLoop<'a, Q> {
    /// A loop of at most `usecs` (0: a single pass), but not beyond `deadline`.
    pub(crate) fn new(
        host: &'a Host<Q>,
        id: Id,
        (usecs, budget, prefer): (u32, u16, bool),
        now: Ns,
        deadline: Ns,
    ) -> Self {
        let until = match usecs {
            0 => 0,
            _ => now.saturating_add(Ns::from(usecs) * BUSY_MICROSECOND).min(deadline),
        };
        BusyLoop {
            session: Session::new(host, id, prefer, budget),
            until,
            at: At::Session,
            interrupted: false,
            yields: false,
        }
    }

    /// Whether `did` is an empty poll that a look follows. Callers that spin try this first, then `repoll`, and
    /// `next` only after that.
    #[inline(always)]
    pub(crate) fn look_follows(&mut self, now: Ns, did: Did) -> bool {
        if self.at != At::Session || !self.session.handle_empty_poll(now, did) {
            return false;
        }
        self.at = At::Looking;
        true
    }

    /// The next poll, if `did` is a look without events and the loop continues.
    #[inline(always)]
    pub(crate) fn repoll(&mut self, now: Ns, did: Did) -> Option<Op> {
        let found_nothing = self.at == At::Looking && did == Did::Events(0);
        if !found_nothing || now >= self.until || self.session.resched() {
            return None;
        }
        let op = self.session.repoll()?;
        self.at = At::Session;
        Some(op)
    }

    /// The next step, or the end.
    #[inline]
    pub(crate) fn next(&mut self, now: Ns, did: Did) -> LoopNext {
        if self.at == At::Looking {
            self.at = At::Session;
            match did {
                Did::Events(0) if now < self.until && !self.session.resched() => {
                    self.session.pass();
                }
                Did::Events(events) => self.stop(now, events == 0 && self.session.resched()),
                Did::Resched => self.stop(now, true),
                Did::Interrupted => {
                    self.interrupted = true;
                    self.session.stop(now);
                }
                _ => unexpected("Look", "Events"),
            }
        } else if self.at != At::Session {
            let events = match did {
                Did::Events(events) => Some(events),
                Did::Interrupted => None,
                _ => Some(0),
            };
            return match self.yield_step(now, events) {
                YieldStep::Yield => LoopNext::Op(Op::Resched),
                YieldStep::Look => LoopNext::Op(Op::Look),
                YieldStep::Ended => LoopNext::Ended,
                YieldStep::Interrupted => LoopNext::Interrupted,
            };
        }
        match self.session.next(now, did) {
            SessionNext::Op(op) => LoopNext::Op(op),
            SessionNext::Pass => {
                self.at = At::Looking;
                LoopNext::Op(Op::Look)
            }
            SessionNext::Stopped if self.yields => {
                self.at = At::Stopped;
                LoopNext::Op(Op::Look)
            }
            SessionNext::Stopped if self.interrupted => LoopNext::Interrupted,
            SessionNext::Stopped => LoopNext::Ended,
        }
    }

    /// Stops the session: a look found events, the time is up, or another thread wants the CPU (`resched`).
    #[cold]
    fn stop(&mut self, now: Ns, resched: bool) {
        self.yields = resched && now < self.until;
        self.session.stop(now);
    }

    /// Follows a session that has stopped for another thread: yields to it, and starts the session over unless
    /// events have come or the time is up.
    #[cold]
    fn yield_step(&mut self, now: Ns, events: Option<u32>) -> YieldStep {
        if self.at == At::Yielding {
            self.yields = false;
            self.session.restart();
            self.at = At::Looking;
            return YieldStep::Look;
        }
        match events {
            Some(0) if now < self.until => {
                self.at = At::Yielding;
                YieldStep::Yield
            }
            Some(_) => YieldStep::Ended,
            None => YieldStep::Interrupted,
        }
    }

    /// The cycle that the loop repeats until its end; `None` for a single pass.
    pub(crate) fn idle_cycle(&self) -> Option<IdleCycle> {
        match self.at {
            At::Session if self.until > 0 => self.session.idle_cycle(self.until),
            _ => None,
        }
    }

    pub(crate) fn queue(&mut self) -> &mut Q {
        self.session.queue()
    }
}

/// The deadline of a wait; a timeout of `None` waits for ever.
#[inline]
pub(crate) fn deadline(timeout: Option<Ns>, now: Ns) -> Ns {
    timeout.map_or(NEVER, |timeout| now.saturating_add(timeout))
}
