//! One poll of one instance, from the poll to its consequences: deliver, stay, hold, defer, park,
//! unmask, release, hand over.
//!
//! Every owner (softirq, thread, worker, an application's session) takes its turns here, so there
//! is one place where the kernel's `napi_poll` and `napi_complete_done` are decided. Two orders
//! differ from the kernel's on purpose: the interrupt is unmasked and the timer armed *before* the
//! release, and a poll by a busy-polling application that is its last is decided after the poll
//! (races R1, R2, R11 of the catalogue).

use crate::claim::Claim;
use crate::counters::Owner;
use crate::policy::Threaded;
use crate::race::{self, Race};
use crate::state::{DISABLE, NPSVC, PREFER_BUSY_POLL, State};
use crate::step::{Did, Op, unexpected};
use crate::{Ns, Pressure, Work};

/// The next step of a turn, or its end.
#[derive(Debug)]
pub(crate) enum Next {
    Op(Op),
    End(End),
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The instance was given back; there is no claim any more.
    Released,
    /// Still owned, and there may be more work.
    Again,
    /// Still owned, in polled mode without work (*hold*).
    Held,
    /// Still owned, but somebody else is to poll from now on.
    HandOver,
}

#[derive(Debug, Clone, Copy)]
enum At {
    Start,
    Polled,
    Delivered,
    Armed,
    Unmasked,
    Remasked,
}

/// The turns of one owner, one after the other. It stays in its place from one to the next, for
/// moving it costs more than taking a turn.
#[derive(Debug)]
pub(crate) struct Turn<'a, Q> {
    /// `None` between two turns that did not keep it.
    claim: Option<Claim<'a, Q>>,
    budget: u16,
    /// The last poll of a session: it completes, other polls of a session do not.
    last: bool,
    /// What the last poll found.
    work: Work,
    at: At,
}

impl<'a, Q> Turn<'a, Q> {
    /// No turn is under way.
    #[inline]
    pub(crate) fn idle() -> Self {
        Turn { claim: None, budget: 0, last: false, work: Work::NONE, at: At::Start }
    }

    /// Begins a turn with a new claim, and takes its first step.
    #[inline]
    pub(crate) fn begin(&mut self, claim: Claim<'a, Q>, budget: u16) -> Op {
        let id = claim.id();
        self.claim = Some(claim);
        self.budget = budget;
        self.at = At::Polled;
        Op::Poll { id, budget }
    }

    /// Whether a turn is under way, or its claim kept for the next.
    #[inline]
    pub(crate) fn has_claim(&self) -> bool {
        self.claim.is_some()
    }

    /// Another turn with the same claim.
    #[inline]
    pub(crate) fn again(&mut self) {
        self.at = At::Start;
    }

    /// Another turn, after which a session lets go.
    pub(crate) fn again_last(&mut self) {
        self.at = At::Start;
        self.last = true;
    }

    /// What the turn's poll found.
    #[inline]
    pub(crate) fn work(&self) -> Work {
        self.work
    }

    /// The claim, after an end that kept it.
    #[inline]
    pub(crate) fn take_claim(&mut self) -> Option<Claim<'a, Q>> {
        self.claim.take()
    }

    pub(crate) fn claim_mut(&mut self) -> Option<&mut Claim<'a, Q>> {
        self.claim.as_mut()
    }

    /// The next step of the owner's turn.
    // Inlined into each owner's loop, so that what concerns other owners falls away, and so that a
    // step is not copied from one enum to the next on its way out: half of an empty poll's instructions.
    #[inline(always)]
    pub(crate) fn next(&mut self, now: Ns, did: Did, owner: Owner) -> Next {
        let Some(claim) = &mut self.claim else { return Next::End(End::Released) };
        match self.at {
            At::Start => {
                self.at = At::Polled;
                Next::Op(Op::Poll { id: claim.id(), budget: self.budget })
            }
            At::Polled => {
                let Did::Polled(work) = did else { unexpected("Poll", did) };
                debug_assert!(work.rx <= self.budget, "{} of {} frames", work.rx, self.budget);
                claim.instance().counters.poll(owner, work);
                self.work = work;
                if work.any() {
                    let owned = claim.owned();
                    owned.last_work = now;
                    // Work by whatever owner starts the hold anew.
                    owned.hold_until = 0;
                }
                if work.rx == 0 {
                    return self.decide(now, Pressure::Room, owner);
                }
                self.at = At::Delivered;
                Next::Op(Op::Deliver(claim.id()))
            }
            At::Delivered => {
                let Did::Delivered(pressure) = did else { unexpected("Deliver", did) };
                self.decide(now, pressure, owner)
            }
            At::Armed => self.release(true),
            At::Unmasked => {
                let Did::Unmasked(waits) = did else { unexpected("Unmask", did) };
                if waits && !race::on(Race::UnmaskWithoutLook) {
                    self.remask()
                } else {
                    self.release(false)
                }
            }
            At::Remasked => Next::End(End::Again),
        }
    }

    /// What follows from a poll.
    #[inline(always)]
    fn decide(&mut self, now: Ns, pressure: Pressure, owner: Owner) -> Next {
        let Some(claim) = &mut self.claim else { return Next::End(End::Released) };
        let instance = claim.instance();
        let settings = &instance.settings;
        let state = instance.state.load();
        let work = self.work;

        if state.has(DISABLE) {
            return self.release(true);
        }
        let exhausted = work.rx >= self.budget;
        let waits = race::on(Race::ModeWaitsForDrain) && exhausted;
        if !keeps(owner, state) && !waits {
            return Next::End(End::HandOver);
        }
        if owner == Owner::Application && !self.last {
            return Next::End(End::Again);
        }
        if owner == Owner::Thread && state.mode() == Threaded::BusyPoll {
            return Next::End(End::Again);
        }
        if state.has(NPSVC) {
            // Never seen by an owner, unless enable gave the instance away in two steps (R5): then
            // the completion returned early, and the token was nobody's.
            debug_assert!(race::on(Race::EnableInTwoSteps), "owned and disabled");
            if let Some(claim) = self.claim.take() {
                claim.into_token();
            }
            return Next::End(End::Released);
        }
        if pressure == Pressure::Full && settings.feedback() {
            instance.counters.parks();
            let at = now + settings.load().park_timeout();
            return self.arm(at);
        }

        let owned = claim.owned();
        if work.rx > 0 {
            owned.defer_count = settings.defer_hard_irqs();
        }
        if exhausted {
            // A ring that never drains makes room for a session that prefers busy polling, if a
            // timer will look after the ring meanwhile.
            let timeout = settings.gro_flush_timeout();
            if (self.last || state.has(PREFER_BUSY_POLL)) && timeout != 0 && owned.defer_count > 0 {
                owned.defer_count -= 1;
                return self.defer(now, timeout);
            }
            return Next::End(if self.last { End::HandOver } else { End::Again });
        }

        let hold = settings.hold();
        if hold > 0 && owner != Owner::Application {
            if work.any() {
                return Next::End(End::Again);
            }
            if owned.hold_until == 0 {
                owned.hold_until = now + hold;
            }
            // A shorter hold, set meanwhile, holds from now on.
            if now < owned.hold_until.min(now + hold) {
                return Next::End(End::Held);
            }
            // It has ended, and stays so until there is work: a deferred poll does not hold again.
        }

        let timeout = settings.gro_flush_timeout();
        // A smaller count, set meanwhile, counts from now on.
        let count = owned.defer_count.min(settings.defer_hard_irqs());
        if count > 0 {
            owned.defer_count = count - 1;
            if timeout != 0 {
                return self.defer(now, timeout);
            }
        }
        instance.cancel_timer();
        self.at = At::Unmasked;
        Next::Op(Op::Unmask(claim.id()))
    }

    /// Releases with the interrupt masked and a timer to look after the ring. While other contexts
    /// suspend the instance its timer is theirs: an ordinary poll does not bring it forward.
    fn defer(&mut self, now: Ns, timeout: Ns) -> Next {
        let Some(claim) = &self.claim else { return Next::End(End::Released) };
        let instance = claim.instance();
        instance.counters.own_deferral();
        // Registered under a longer timeout than is in force now, or by contexts that have left
        // since, it must not outlast the present one (invariant 7).
        let longest = now + instance.settings.irq_suspend_timeout();
        let suspended = if race::on(Race::ResumeCancelsAll) {
            0
        } else {
            instance.suspension.until().min(longest)
        };
        self.arm((now + timeout).max(suspended))
    }

    fn arm(&mut self, at: Ns) -> Next {
        let Some(claim) = &self.claim else { return Next::End(End::Released) };
        self.at = At::Armed;
        if race::on(Race::EarlyTimer) && self.last {
            // The kernel had armed it before the poll; it may have fired for nothing since.
            return self.release(true);
        }
        claim.instance().arm(at);
        Next::Op(Op::Arm { id: claim.id(), at })
    }

    #[inline]
    fn release(&mut self, masked: bool) -> Next {
        if Claim::release_from(&mut self.claim) {
            return Next::End(End::Released);
        }
        if !masked {
            return self.remask();
        }
        if let Some(claim) = &self.claim {
            claim.instance().cancel_timer();
        }
        Next::End(End::Again)
    }

    fn remask(&mut self) -> Next {
        let Some(claim) = &self.claim else { return Next::End(End::Released) };
        self.at = At::Remasked;
        Next::Op(Op::Mask(claim.id()))
    }

    /// The queue of the claim.
    pub(crate) fn queue(&mut self) -> &mut Q {
        match &mut self.claim {
            Some(claim) => &mut claim.owned().queue,
            None => no_queue(),
        }
    }
}

#[cold]
fn no_queue() -> ! {
    panic!("no step that touches a queue is under way")
}

/// Whether the state's mode leaves this owner in charge. A session is everybody's guest, but
/// not where a thread never stops polling.
#[inline(always)]
fn keeps(owner: Owner, state: State) -> bool {
    let mode = state.mode();
    match owner {
        Owner::Softirq | Owner::Ksoftirqd => mode == Threaded::Disabled,
        Owner::Thread => matches!(mode, Threaded::Enabled | Threaded::BusyPoll),
        Owner::Worker => mode == Threaded::Workqueue,
        Owner::Application => mode != Threaded::BusyPoll,
    }
}
