//! The loop around a busy-poll session: until something came, or the time is up.

use crate::host::Host;
use crate::idle::IdleCycle;
use crate::instance::Id;
use crate::session::{Session, SessionNext};
use crate::step::{Did, Op, unexpected};
use crate::{NEVER, Ns};

/// A microsecond of busy polling: the kernel shifts nanoseconds by ten.
const BUSY_MICROSECOND: Ns = 1 << 10;

/// How a busy loop goes on.
#[derive(Debug)]
pub(crate) enum LoopNext {
    /// A step to take.
    Op(Op),
    /// It has ended. Whether something came is for one more look to say: the poll that let go
    /// delivers, too.
    Ended,
    /// A signal ended it.
    Interrupted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Session,
    Looking,
}

#[derive(Debug)]
pub(crate) struct BusyLoop<'a, Q> {
    session: Session<'a, Q>,
    /// When the loop ends; before its start for a single pass.
    until: Ns,
    at: At,
    interrupted: bool,
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
        }
    }

    #[inline(always)]
    pub(crate) fn next(&mut self, now: Ns, did: Did) -> LoopNext {
        if self.at == At::Looking {
            self.at = At::Session;
            match did {
                Did::Events(0) if now < self.until => self.session.pass(),
                Did::Events(_) => self.session.stop(now),
                Did::Interrupted => {
                    self.interrupted = true;
                    self.session.stop(now);
                }
                _ => unexpected("Look", did),
            }
        }
        match self.session.next(now, did) {
            SessionNext::Op(op) => LoopNext::Op(op),
            SessionNext::Pass => {
                self.at = At::Looking;
                LoopNext::Op(Op::Look)
            }
            SessionNext::Stopped if self.interrupted => LoopNext::Interrupted,
            SessionNext::Stopped => LoopNext::Ended,
        }
    }

    /// What it repeats until its end; `None` where it makes a single pass.
    pub(crate) fn idle_cycle(&self) -> Option<IdleCycle> {
        match self.at {
            At::Session if self.until > 0 => self.session.idle_cycle(self.until),
            At::Session | At::Looking => None,
        }
    }

    pub(crate) fn queue(&mut self) -> &mut Q {
        self.session.queue()
    }
}

/// The deadline of a wait: `None` waits for ever.
pub(crate) fn deadline(timeout: Option<Ns>, now: Ns) -> Ns {
    timeout.map_or(NEVER, |timeout| now.saturating_add(timeout))
}
