//! One poll of one instance, from the poll to its consequences: deliver, stay, hold, defer, park,
//! unmask, release, hand over.
//!
//! Every owner (softirq, thread, worker, an application's session) takes its turns here, so there
//! is one place where the kernel's `napi_poll` and `napi_complete_done` are decided. Two orders
//! differ from the kernel's on purpose: the interrupt is unmasked and the timer armed *before* the
//! release, and a poll by a busy-polling application that is its last is decided after the poll
//! (races R1, R2, R11 of the catalogue).
//!
//! A driver may allow its interrupt before it delivers ([`Order::UnmaskFirst`](crate::Order)). The
//! turn then knows that the line is open, and every outcome that is to stay masked masks before
//! anything else follows from it: the queue can be touched only by who owns it, so there is no
//! masking after a release, as virtio_net has it. What the kernel's window between release and
//! masking lets in finds the instance free there, and scheduled by itself; here it finds the owner
//! and leaves its mark. Either way there is one poll more.

mod end;

use crate::claim::Claim;
use crate::counters::Owner;
use crate::idle::IdleCycle;
use crate::instance::Instance;
use crate::race::{self, Race};
use crate::state::{DISABLE, MISSED, NPSVC, PREFER_BUSY_POLL, State};
use crate::step::{Did, Op, unexpected};
use crate::{Ns, Pressure, Work};

pub(crate) use end::{End, Next};
use end::{Line, keeps, missed, polls_on};

/// Where a turn is: which step its next answer is to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Before the poll.
    Ready,
    /// Before a release to the timer, without another poll.
    Leaving,
    Polled,
    /// Unmasked before the delivery ([`Order::UnmaskFirst`](crate::Order)).
    Opened,
    /// Masked again before the delivery, since the poll does not complete.
    Shut,
    Delivered,
    Armed,
    /// Unmasked, to be released so.
    Unmasked,
    /// Masked again, to be released so.
    Closed,
    /// Masked again, for the turn to end with the claim kept.
    Kept,
}

/// The turns of one owner, one after the other. It stays in its place, for moving it costs more than taking a turn.
/// What stands beside [`At`] outlasts a step and is of others: `last` and `prefers` are the session's, `resched` the
/// scheduler's, `busy` the round's, `line` the card's.
#[derive(Debug)]
pub(crate) struct Turn<'a, Q> {
    /// `None` between two turns that did not keep it.
    claim: Option<Claim<'a, Q>>,
    budget: u16,
    /// The last poll of a session: it completes, other polls of a session do not.
    last: bool,
    /// The session prefers busy polling: a ring that its last poll does not drain is left to the
    /// timer, if there is one (the kernel's `skip_schedule`).
    prefers: bool,
    /// Another thread wants the CPU, as far as the world has said.
    resched: bool,
    /// A poll of the softirq's round found work, or somebody wants another for a reason other than *hold*.
    busy: bool,
    /// What the last poll found.
    work: Work,
    /// For whom polls are counted.
    counted: Owner,
    at: At,
    line: Line,
    /// How it ends once it has masked again.
    end: End,
}

impl<'a, Q> Turn<'a, Q> {
    /// No turn is under way; polls will be counted for `counted`.
    #[inline]
    pub(crate) fn idle(counted: Owner) -> Self {
        Turn {
            claim: None,
            budget: 0,
            last: false,
            prefers: false,
            resched: false,
            busy: false,
            work: Work::NONE,
            counted,
            at: At::Ready,
            line: Line::Masked,
            end: End::Released,
        }
    }

    /// Begins a turn with a new claim, and takes its first step.
    #[inline]
    pub(crate) fn begin(&mut self, claim: Claim<'a, Q>, budget: u16) -> Op {
        let id = claim.id();
        debug_assert!(self.claim.is_none(), "a turn is under way");
        // Nothing is there to be dropped.
        core::mem::forget(self.claim.replace(claim));
        self.budget = budget;
        self.at = At::Polled;
        self.line = Line::Masked;
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
        self.at = At::Ready;
    }

    /// Another turn, after which a session lets go; with `prefers`, to the timer if it has to.
    pub(crate) fn again_last(&mut self, prefers: bool) {
        self.at = At::Ready;
        self.last = true;
        self.prefers = prefers;
    }

    /// Whether another thread wants the CPU, as far as a step of the turns so far was answered so.
    pub(crate) fn resched(&self) -> bool {
        self.resched
    }

    /// Lets go without another poll: the timer looks after the ring, which stays masked.
    pub(crate) fn leave_to_timer(&mut self) {
        self.at = At::Leaving;
        self.last = true;
    }

    /// What the turn's poll found.
    #[inline]
    pub(crate) fn work(&self) -> Work {
        self.work
    }

    /// The cycle of this turn's steps and `last`, if the turn has just asked for its poll and, should
    /// that find nothing, will end as it does now.
    pub(crate) fn idle_cycle(&self, owner: Owner, until: Ns, last: Op) -> Option<IdleCycle> {
        let (At::Polled, Some(claim)) = (self.at, &self.claim) else { return None };
        let instance = claim.instance();
        if !self.goes_round(owner, instance.state.load()) {
            return None;
        }
        let unmasks = instance.settings.unmasks_first();
        Some(IdleCycle::new((claim.id(), self.budget), owner, until, unmasks, last))
    }

    /// The claim, after an end that kept it.
    #[inline]
    pub(crate) fn take_claim(&mut self) -> Option<Claim<'a, Q>> {
        self.claim.take()
    }

    pub(crate) fn claim_mut(&mut self) -> Option<&mut Claim<'a, Q>> {
        self.claim.as_mut()
    }

    /// Whether a poll that finds nothing is followed by another of this owner, whatever else happens.
    #[inline(always)]
    fn goes_round(&self, owner: Owner, state: State) -> bool {
        polls_on(owner, self.last, state) && keeps(owner, state) && !state.has(DISABLE)
    }

    /// The answer to a poll that found nothing, where the owner polls on and the driver does nothing
    /// about it either: `true`, and the turn has ended with [`End::Again`]. What `next` would decide,
    /// in a few instructions; owners that spin ask here first.
    #[inline(always)]
    pub(crate) fn idles(&mut self, now: Ns, did: Did, owner: Owner) -> bool {
        let (At::Polled, Did::Polled(Work::NONE)) = (self.at, did) else { return false };
        let Some(claim) = &self.claim else { return false };
        let instance = claim.instance();
        let goes_round = self.goes_round(owner, instance.state.load());
        if !goes_round || instance.settings.unmasks_first() {
            return false;
        }
        instance.counters.empty_polls(owner, 1);
        instance.polled(now);
        self.at = At::Ready;
        true
    }

    /// The poll of another turn, if one with the same claim is to begin.
    #[inline(always)]
    pub(crate) fn poll(&mut self, owner: Owner) -> Option<Op> {
        let (At::Ready, Some(claim)) = (self.at, &self.claim) else { return None };
        // A thread may own the instance for good, and its budget is the weight, which may have been
        // set since it began. A session's budget is its own.
        if owner == Owner::Thread {
            self.budget = claim.instance().settings.weight();
        }
        self.at = At::Polled;
        Some(Op::Poll { id: claim.id(), budget: self.budget })
    }

    /// Says whether another thread wants the CPU.
    #[inline]
    pub(crate) fn set_resched(&mut self, resched: bool) {
        self.resched = resched;
    }

    /// Whether a turn since this was last set to `false` has found work.
    #[inline]
    pub(crate) fn busy(&self) -> bool {
        self.busy
    }

    /// Begins a round of turns, or says of one that it is busy for another reason than work.
    #[inline]
    pub(crate) fn set_busy(&mut self, busy: bool) {
        self.busy = busy;
    }

    /// The next step of the owner's turn. (Softirq and ksoftirqd go by the same rules: either says
    /// [`Owner::Softirq`], and they differ in how their polls are counted.)
    // Inlined into each owner's loop, so that what concerns other owners falls away, and so that a
    // step is not copied from one enum to the next on its way out.
    #[inline(always)]
    pub(crate) fn next(&mut self, now: Ns, did: Did, owner: Owner) -> Next {
        let Some(claim) = &mut self.claim else { return Next::End(End::Released) };
        let instance = claim.instance();
        let delivered = match self.at {
            At::Ready => {
                return self.ask(At::Polled, Op::Poll { id: instance.id, budget: self.budget });
            }
            At::Leaving => {
                let state = instance.state.load();
                if state.has(DISABLE) {
                    return self.release(instance);
                }
                if !keeps(owner, state) {
                    return Next::End(End::HandOver);
                }
                return self.defer(instance, now, instance.settings.gro_flush_timeout(), state);
            }
            At::Polled => {
                let Did::Polled(work) = did else { unexpected("Poll", "Polled") };
                debug_assert!(work.rx <= self.budget, "{} of {} frames", work.rx, self.budget);
                instance.counters.poll(self.counted, work);
                instance.polled(now);
                self.work = work;
                if work.any() {
                    self.busy = true;
                    let owned = claim.owned();
                    owned.last_work = now;
                    // Work by whatever owner starts the hold anew.
                    owned.hold_until = 0;
                }
                if instance.settings.unmasks_first() && work.rx < self.budget {
                    return self.ask(At::Opened, Op::Unmask(instance.id));
                }
                None
            }
            At::Opened => {
                self.opened(did);
                // A pass that polls on does not complete: it masks at once.
                if polls_on(owner, self.last, instance.state.load()) {
                    return self.mask(At::Shut, instance);
                }
                None
            }
            At::Shut => {
                self.done(did);
                None
            }
            At::Delivered => {
                let Did::Delivered(pressure) = did else { unexpected("Deliver", "Delivered") };
                Some(pressure)
            }
            At::Unmasked => {
                self.opened(did);
                return self.release_open(instance);
            }
            At::Armed | At::Closed => {
                self.done(did);
                return self.release(instance);
            }
            At::Kept => {
                self.done(did);
                return Next::End(self.end);
            }
        };
        match delivered {
            None if self.work.rx > 0 => self.ask(At::Delivered, Op::Deliver(instance.id)),
            pressure => self.decide(instance, now, pressure.unwrap_or(Pressure::Room), owner),
        }
    }

    /// The answer to an unmasking.
    #[inline(always)]
    fn opened(&mut self, did: Did) {
        let Did::Unmasked(waits) = did else { unexpected("Unmask", "Unmasked") };
        self.line = if waits { Line::Waiting } else { Line::Open };
    }

    /// The answer to a step of which nothing can be said but that it is done.
    #[inline(always)]
    fn done(&mut self, did: Did) {
        self.resched |= did == Did::Resched;
    }

    /// Asks for a step, whose answer comes to `at`.
    #[inline(always)]
    fn ask(&mut self, at: At, op: Op) -> Next {
        self.at = at;
        Next::Op(op)
    }

    /// What follows from a poll.
    #[inline(always)]
    fn decide(
        &mut self,
        instance: &Instance<Q>,
        now: Ns,
        pressure: Pressure,
        owner: Owner,
    ) -> Next {
        let settings = &instance.settings;
        let state = instance.state.load();
        let rx = self.work.rx;

        if state.has(DISABLE) {
            return self.release(instance);
        }
        let exhausted = rx >= self.budget;
        let waits = race::on(Race::ModeWaitsForDrain) && exhausted;
        if !keeps(owner, state) && !waits {
            return self.stay(instance, End::HandOver);
        }
        if polls_on(owner, self.last, state) {
            return self.stay(instance, End::Again);
        }
        debug_assert!(!state.has(NPSVC) || race::on(Race::EnableInTwoSteps), "owned and disabled");
        if race::on(Race::EnableInTwoSteps) && state.has(NPSVC) {
            // Enable gave the instance away in two steps (R5): the completion returned early, and the
            // token was nobody's.
            if let Some(claim) = self.claim.take() {
                claim.into_token();
            }
            return Next::End(End::Released);
        }
        if pressure == Pressure::Full && settings.feedback() {
            if self.line != Line::Masked && state.has(MISSED) {
                return self.release(instance);
            }
            instance.counters.parks.add(1);
            let at = now + settings.load(state.mode()).park_timeout();
            instance.parks_until(at);
            return self.arm(instance, at);
        }

        let Some(claim) = &mut self.claim else { return Next::End(End::Released) };
        let owned = claim.owned();
        let defer_hard_irqs = settings.defer_hard_irqs();
        if rx > 0 {
            owned.defer_count = defer_hard_irqs;
        }
        if exhausted {
            // A ring that never drains makes room for a session that prefers busy polling, if a
            // timer will look after the ring meanwhile. A session that does not prefer it hands the
            // ring over at once (`busy_poll_stop`: `__napi_schedule`).
            let timeout = settings.gro_flush_timeout();
            let makes_room = if self.last { self.prefers } else { state.has(PREFER_BUSY_POLL) };
            if makes_room && timeout != 0 && owned.defer_count > 0 {
                owned.defer_count -= u32::from(!self.last);
                return self.defer(instance, now, timeout, state);
            }
            return Next::End(if self.last { End::HandOver } else { End::Again });
        }

        let hold = settings.hold();
        if hold > 0 && owner != Owner::Application {
            if self.work.any() {
                return self.stay(instance, End::Again);
            }
            // A shorter hold, set meanwhile, holds from now on.
            let end = settings.hold_end(now, hold);
            if owned.hold_until == 0 || end < owned.hold_until {
                owned.hold_until = end;
            }
            if now < owned.hold_until {
                return self.stay(instance, End::Held);
            }
            // It has ended, and stays so until there is work: a deferred poll does not hold again.
        }

        // A smaller count, set meanwhile, counts from now on.
        if defer_hard_irqs > 0 && owned.defer_count > 0 {
            owned.defer_count = owned.defer_count.min(defer_hard_irqs) - 1;
            let timeout = settings.gro_flush_timeout();
            if timeout != 0 {
                return self.defer(instance, now, timeout, state);
            }
        }
        // A suspension ends where the interrupt returns: its timer goes, and a context that has
        // stalled in it must not be waited for (invariant 7).
        instance.cancel_timer();
        instance.suspension.expire();
        if self.line == Line::Masked {
            return self.ask(At::Unmasked, Op::Unmask(instance.id));
        }
        self.release_open(instance)
    }

    /// Releases with the interrupt masked and a timer to look after the ring. While other contexts
    /// suspend the instance its timer is theirs: an ordinary poll does not bring it forward.
    #[inline(always)]
    fn defer(&mut self, instance: &Instance<Q>, now: Ns, timeout: Ns, state: State) -> Next {
        // An interrupt has come since the line was opened. The release will find its mark, so nothing
        // need be prepared for the time after it: the kernel starts no timer then.
        if self.line != Line::Masked && state.has(MISSED) {
            return self.release(instance);
        }
        instance.counters.deferrals.add(1);
        // Registered under a longer timeout than is in force now, or by contexts that have left
        // since, it must not outlast the present one (invariant 7).
        let longest = now + instance.settings.irq_suspend_timeout();
        let suspended = if race::on(Race::ResumeCancelsAll) {
            0
        } else {
            instance.suspension.until().min(longest)
        };
        self.arm(instance, (now + timeout).max(suspended))
    }

    #[inline(always)]
    fn arm(&mut self, instance: &Instance<Q>, at: Ns) -> Next {
        if race::on(Race::EarlyTimer) && self.last {
            // The kernel had armed it before the poll; it may have fired for nothing since.
            return self.release(instance);
        }
        instance.arm(at);
        self.ask(At::Armed, Op::Arm { id: instance.id, at })
    }

    /// Releases with the interrupt masked, which takes a step more if it is allowed.
    #[inline(always)]
    fn release(&mut self, instance: &Instance<Q>) -> Next {
        if self.line != Line::Masked {
            return self.mask(At::Closed, instance);
        }
        if Claim::release_from(&mut self.claim) {
            return Next::End(End::Released);
        }
        instance.cancel_timer();
        Next::End(missed(instance))
    }

    /// Releases with the interrupt allowed. Not if work was waiting at the unmasking, which may have
    /// no interrupt. (The kernel looks after the release, and schedules.)
    #[inline(always)]
    fn release_open(&mut self, instance: &Instance<Q>) -> Next {
        let waits = self.line == Line::Waiting && !race::on(Race::UnmaskWithoutLook);
        if !waits && Claim::release_from(&mut self.claim) {
            return Next::End(End::Released);
        }
        self.stay(instance, missed(instance))
    }

    /// Keeps the instance, and masks first if its interrupt is allowed.
    #[inline(always)]
    fn stay(&mut self, instance: &Instance<Q>, end: End) -> Next {
        if self.line == Line::Masked {
            return Next::End(end);
        }
        self.end = end;
        self.mask(At::Kept, instance)
    }

    /// Masks again, and goes on from `at`.
    #[inline(always)]
    fn mask(&mut self, at: At, instance: &Instance<Q>) -> Next {
        self.line = Line::Masked;
        self.ask(at, Op::Mask(instance.id))
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
