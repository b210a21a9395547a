//! An application's busy-poll session (`napi_busy_loop`): claim, pass, release.
//!
//! Each pass tries to claim the instance and, once it owns it, polls with the session's budget; the interrupt stays
//! as it was. The session stops with one more poll, which completes like any other poll (so a claim costs at least
//! two polls); a ring that it does not drain is handed to the softirq at once. With `prefer` and deferral it stops
//! without that poll: the deferral count is reloaded, and a timer, not an interrupt, has the ring polled until the
//! application comes back. That is Linux since 7599c13dbe7a; before, it polled once more in this case, too
//! ([`KernelRules::session_polls_once_more`](crate::KernelRules)).

use crate::Ns;
use crate::claim::Claim;
use crate::counters::Owner;
use crate::host::Host;
use crate::idle::IdleCycle;
use crate::instance::Id;
use crate::race::{self, Race};
use crate::raised_from::RaisedFrom;
use crate::state::{IN_BUSY_POLL, MISSED, NO_BUSY_POLL, NPSVC};
use crate::step::{Did, Op};
use crate::turn::{End, Next, Turn};
use napkin_policy::effective_budget;

/// The next step of a session, or its end.
#[derive(Debug)]
pub(crate) enum SessionNext {
    /// A step to take.
    Op(Op),
    /// A pass has ended, whether or not the session owns the instance. Call `pass` for another, or
    /// `stop`.
    Pass,
    /// The session has released the instance, or has stopped without one.
    Stopped,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Passing,
    Stopping,
    Stopped,
}

#[derive(Debug)]
pub(crate) struct Session<'a, Q> {
    host: &'a Host<Q>,
    id: Id,
    prefer: bool,
    budget: u16,
    turn: Turn<'a, Q>,
    at: At,
}

impl<'a, Q> Session<'a, Q> {
    pub(crate) fn new(host: &'a Host<Q>, id: Id, prefer: bool, budget: u16) -> Self {
        let budget = effective_budget(budget);
        Session { host, id, prefer, budget, turn: Turn::idle(Owner::Application), at: At::Passing }
    }

    /// Begins another pass.
    #[inline]
    pub(crate) fn pass(&mut self) {
        self.turn.prepare_next();
    }

    /// Starts over after the session has stopped.
    pub(crate) fn restart(&mut self) {
        self.turn = Turn::idle(Owner::Application);
        self.at = At::Passing;
    }

    /// Whether the world has reported that another thread wants the CPU.
    pub(crate) fn resched(&self) -> bool {
        self.turn.resched()
    }

    /// Begins to stop. With `prefer` and deferral the interrupt stays masked and a timer has the ring polled;
    /// otherwise one more poll completes, and may unmask the interrupt.
    pub(crate) fn stop(&mut self, now: Ns) {
        self.at = At::Stopping;
        let prefer = self.prefer;
        self.turn.prepare_last(prefer);
        let mut leaves = false;
        if let Some(claim) = self.turn.claim_mut() {
            let instance = claim.instance();
            // `MISSED` may be cleared: the poll that follows, now or at the timer, sees the work that it stood for.
            instance.state.clear(MISSED | IN_BUSY_POLL);
            if prefer {
                let settings = &instance.settings;
                let (count, timeout) = (settings.defer_hard_irqs(), settings.gro_flush_timeout());
                claim.owned().defer_count = count;
                if race::on(Race::EarlyTimer) {
                    if timeout != 0 {
                        claim.instance().arm(now + timeout);
                    }
                } else {
                    let once_more = self.host.rules().session_polls_once_more;
                    leaves = count > 0 && timeout != 0 && !once_more;
                }
            }
        }
        if leaves {
            self.turn.leave_to_timer();
        }
    }

    /// Whether `did` is an empty poll after which the session polls on; the pass has then ended.
    #[inline(always)]
    pub(crate) fn handle_empty_poll(&mut self, now: Ns, did: Did) -> bool {
        self.turn.handle_empty_poll(now, did, Owner::Application)
    }

    /// Begins another pass and returns its poll, if the session owns the instance.
    #[inline(always)]
    pub(crate) fn repoll(&mut self) -> Option<Op> {
        self.turn.poll(Owner::Application)
    }

    pub(crate) fn next(&mut self, now: Ns, did: Did) -> SessionNext {
        if !self.turn.has_claim() {
            if self.at != At::Passing {
                self.at = At::Stopped;
                return SessionNext::Stopped;
            }
            let instance = self.host.instance(self.id);
            if !instance.state.busy_claim(self.prefer) {
                // An instance that must not be busy polled, or is disabled, ends the session: the kernel's loop
                // does not find it by its id. Any other owner may release it, so the session tries again.
                if instance.state.load().has(NO_BUSY_POLL | NPSVC) {
                    self.at = At::Stopped;
                    return SessionNext::Stopped;
                }
                return SessionNext::Pass;
            }
            instance.counters.busy_claims.add(1);
            let claim = Claim::from_token(self.host, instance);
            return SessionNext::Op(self.turn.begin(claim, self.budget));
        }
        let end = match self.turn.next(now, did, Owner::Application) {
            Next::Op(op) => return SessionNext::Op(op),
            Next::End(end) => end,
        };
        match (end, self.at) {
            (End::Again, At::Passing) => return SessionNext::Pass,
            // A stopping session missed an interrupt, or did not drain the ring and has no timer for it; or the
            // mode has changed. The owner that the mode names takes over.
            (End::Again | End::Scheduled | End::Held | End::HandOver, _) => {
                self.at = At::Stopping;
                if let Some(claim) = self.turn.take_claim()
                    && let Some(op) = self.host.route(claim, RaisedFrom::Application)
                {
                    return SessionNext::Op(op);
                }
            }
            (End::Released, _) => {}
        }
        self.at = At::Stopped;
        SessionNext::Stopped
    }

    /// The cycle of a pass and the look after it; the caller knows that no look is under way.
    pub(crate) fn idle_cycle(&self, until: Ns) -> Option<IdleCycle> {
        match self.at {
            At::Passing => self.turn.idle_cycle(Owner::Application, until, Op::Look),
            At::Stopping | At::Stopped => None,
        }
    }

    pub(crate) fn queue(&mut self) -> &mut Q {
        self.turn.queue()
    }
}
