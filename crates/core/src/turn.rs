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

use crate::claim::Claim;
use crate::counters::Owner;
use crate::idle::IdleCycle;
use crate::instance::Instance;
use crate::race::{self, Race};
use crate::state::{DISABLE, MISSED, NPSVC, PREFER_BUSY_POLL, State};
use crate::step::{Did, Op, unexpected};
use crate::{Ns, Pressure, Work};
use napkin_policy::Threaded;

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
    /// Still owned, and scheduled anew, as by an interrupt: polled once more, and still in the
    /// same round of the softirq.
    Scheduled,
    /// Still owned, in polled mode without work (*hold*).
    Held,
    /// Still owned, but somebody else is to poll from now on.
    HandOver,
}

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
    /// The same, unmasked before the delivery.
    DeliveredOpen {
        waits: bool,
    },
    ArmedOpen,
    /// Unmasked, to be released so.
    Unmasked,
    /// Masked again, to be released so.
    Closed,
    /// Masked again, for the turn to end so.
    Kept(End),
}

/// The interrupt line of an instance whose poll is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    Masked,
    /// Unmasked before the delivery, when work was waiting already or was not.
    Open {
        waits: bool,
    },
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
    /// The session prefers busy polling: a ring that its last poll does not drain is left to the
    /// timer, if there is one (the kernel's `skip_schedule`).
    prefers: bool,
    /// Another thread wants the CPU, as the world has said of a step of this turn.
    resched: bool,
    /// What the last poll found.
    work: Work,
    at: At,
}

impl<'a, Q> Turn<'a, Q> {
    /// No turn is under way.
    #[inline]
    pub(crate) fn idle() -> Self {
        Turn {
            claim: None,
            budget: 0,
            last: false,
            prefers: false,
            resched: false,
            work: Work::NONE,
            at: At::Ready,
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
        let Some(claim) = &self.claim else { return false };
        let (At::Polled, Did::Polled(Work::NONE)) = (self.at, did) else { return false };
        let instance = claim.instance();
        let goes_round = self.goes_round(owner, instance.state.load());
        if !goes_round || instance.settings.unmasks_first() {
            return false;
        }
        instance.counters.empty_polls(owner, 1);
        instance.polled(now);
        self.work = Work::NONE;
        self.at = At::Ready;
        true
    }

    /// The poll of another turn, if one with the same claim is to begin.
    #[inline(always)]
    pub(crate) fn poll(&mut self) -> Option<Op> {
        let (At::Ready, Some(claim)) = (self.at, &self.claim) else { return None };
        self.at = At::Polled;
        Some(Op::Poll { id: claim.id(), budget: self.budget })
    }

    /// The next step of the owner's turn.
    // Inlined into each owner's loop, so that what concerns other owners falls away, and so that a
    // step is not copied from one enum to the next on its way out.
    #[inline(always)]
    pub(crate) fn next(&mut self, now: Ns, did: Did, owner: Owner) -> Next {
        let Some(claim) = &mut self.claim else { return Next::End(End::Released) };
        match self.at {
            At::Ready => {
                self.at = At::Polled;
                Next::Op(Op::Poll { id: claim.id(), budget: self.budget })
            }
            At::Leaving => {
                let instance = claim.instance();
                let (timeout, state) =
                    (instance.settings.gro_flush_timeout(), instance.state.load());
                if state.has(DISABLE) {
                    return self.release_masked();
                }
                if !keeps(owner, state) {
                    return Next::End(End::HandOver);
                }
                self.defer(now, timeout, state, Line::Masked)
            }
            At::Polled => {
                let Did::Polled(work) = did else { unexpected("Poll", did) };
                debug_assert!(work.rx <= self.budget, "{} of {} frames", work.rx, self.budget);
                claim.instance().counters.poll(owner, work);
                claim.instance().polled(now);
                self.work = work;
                if work.any() {
                    let owned = claim.owned();
                    owned.last_work = now;
                    // Work by whatever owner starts the hold anew.
                    owned.hold_until = 0;
                }
                if claim.instance().settings.unmasks_first() && work.rx < self.budget {
                    self.at = At::Opened;
                    return Next::Op(Op::Unmask(claim.id()));
                }
                self.deliver(now, owner, Line::Masked)
            }
            At::Delivered => {
                let Did::Delivered(pressure) = did else { unexpected("Deliver", did) };
                self.decide(now, pressure, owner, Line::Masked)
            }
            At::Armed => self.release_masked(),
            At::Unmasked => {
                let Did::Unmasked(waits) = did else { unexpected("Unmask", did) };
                if waits && !race::on(Race::UnmaskWithoutLook) {
                    // Masked again before it was released: the ring is polled like any other.
                    return self.mask(At::Kept(End::Again));
                }
                self.release_open()
            }
            At::Kept(end) => Next::End(end),
            At::Opened => {
                let Did::Unmasked(waits) = did else { unexpected("Unmask", did) };
                // A pass that polls on does not complete: it masks at once.
                if polls_on(owner, self.last, claim.instance().state.load()) {
                    return self.mask(At::Shut);
                }
                self.deliver(now, owner, Line::Open { waits })
            }
            At::Shut => {
                self.resched |= did == Did::Resched;
                self.deliver(now, owner, Line::Masked)
            }
            At::DeliveredOpen { waits } => {
                let Did::Delivered(pressure) = did else { unexpected("Deliver", did) };
                self.decide(now, pressure, owner, Line::Open { waits })
            }
            At::ArmedOpen => self.mask(At::Closed),
            At::Closed => self.release_masked(),
        }
    }

    /// Delivers what the poll took, if anything, and decides.
    #[inline(always)]
    fn deliver(&mut self, now: Ns, owner: Owner, line: Line) -> Next {
        let Some(claim) = &self.claim else { return Next::End(End::Released) };
        if self.work.rx == 0 {
            return self.decide(now, Pressure::Room, owner, line);
        }
        self.at = match line {
            Line::Masked => At::Delivered,
            Line::Open { waits } => At::DeliveredOpen { waits },
        };
        Next::Op(Op::Deliver(claim.id()))
    }

    /// What follows from a poll. (Inlined, so that an order that is not asked for costs the usual one
    /// nothing: its line is a constant there.)
    #[inline(always)]
    fn decide(&mut self, now: Ns, pressure: Pressure, owner: Owner, line: Line) -> Next {
        let Some(claim) = &mut self.claim else { return Next::End(End::Released) };
        let instance = claim.instance();
        let settings = &instance.settings;
        let state = instance.state.load();
        let work = self.work;

        if state.has(DISABLE) {
            return self.release(line);
        }
        let exhausted = work.rx >= self.budget;
        let waits = race::on(Race::ModeWaitsForDrain) && exhausted;
        if !keeps(owner, state) && !waits {
            return self.stay(End::HandOver, line);
        }
        if polls_on(owner, self.last, state) {
            return self.stay(End::Again, line);
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
            if line != Line::Masked && state.has(MISSED) {
                return self.release(line);
            }
            instance.counters.parks();
            let at = now + settings.load().park_timeout();
            return self.arm(at, line);
        }

        let owned = claim.owned();
        if work.rx > 0 {
            owned.defer_count = settings.defer_hard_irqs();
        }
        if exhausted {
            // A ring that never drains makes room for a session that prefers busy polling, if a
            // timer will look after the ring meanwhile. A session that does not prefer it hands the
            // ring over at once (`busy_poll_stop`: `__napi_schedule`).
            let timeout = settings.gro_flush_timeout();
            let makes_room = if self.last { self.prefers } else { state.has(PREFER_BUSY_POLL) };
            if makes_room && timeout != 0 && owned.defer_count > 0 {
                owned.defer_count -= u32::from(!self.last);
                return self.defer(now, timeout, state, line);
            }
            return Next::End(if self.last { End::HandOver } else { End::Again });
        }

        let hold = settings.hold();
        if hold > 0 && owner != Owner::Application {
            if work.any() {
                return self.stay(End::Again, line);
            }
            // A shorter hold, set meanwhile, holds from now on.
            let end = settings.hold_end(now, hold);
            if owned.hold_until == 0 || end < owned.hold_until {
                owned.hold_until = end;
            }
            if now < owned.hold_until {
                return self.stay(End::Held, line);
            }
            // It has ended, and stays so until there is work: a deferred poll does not hold again.
        }

        let timeout = settings.gro_flush_timeout();
        // A smaller count, set meanwhile, counts from now on.
        let count = owned.defer_count.min(settings.defer_hard_irqs());
        if count > 0 {
            owned.defer_count = count - 1;
            if timeout != 0 {
                return self.defer(now, timeout, state, line);
            }
        }
        // A suspension ends where the interrupt returns: its timer goes, and a context that has
        // stalled in it must not be waited for (invariant 7).
        instance.cancel_timer();
        instance.suspension.expire();
        match line {
            Line::Masked => {
                self.at = At::Unmasked;
                Next::Op(Op::Unmask(claim.id()))
            }
            // Work that waited at the unmasking may have no interrupt. (The kernel looks after the
            // release, and schedules.)
            Line::Open { waits: true } if !race::on(Race::UnmaskWithoutLook) => {
                self.mask(At::Kept(End::Scheduled))
            }
            Line::Open { .. } => self.release_open(),
        }
    }

    /// Releases with the interrupt masked and a timer to look after the ring. While other contexts
    /// suspend the instance its timer is theirs: an ordinary poll does not bring it forward.
    #[inline(always)]
    fn defer(&mut self, now: Ns, timeout: Ns, state: State, line: Line) -> Next {
        // An interrupt has come since the line was opened. The release will find its mark, so nothing
        // need be prepared for the time after it: the kernel starts no timer then.
        if line != Line::Masked && state.has(MISSED) {
            return self.release(line);
        }
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
        self.arm((now + timeout).max(suspended), line)
    }

    #[inline(always)]
    fn arm(&mut self, at: Ns, line: Line) -> Next {
        let Some(claim) = &self.claim else { return Next::End(End::Released) };
        if race::on(Race::EarlyTimer) && self.last {
            // The kernel had armed it before the poll; it may have fired for nothing since.
            return self.release(line);
        }
        claim.instance().arm(at);
        self.at = if line == Line::Masked { At::Armed } else { At::ArmedOpen };
        Next::Op(Op::Arm { id: claim.id(), at })
    }

    /// Releases with the interrupt masked.
    #[inline(always)]
    fn release(&mut self, line: Line) -> Next {
        match line {
            Line::Masked => self.release_masked(),
            Line::Open { .. } => self.mask(At::Closed),
        }
    }

    #[inline(always)]
    fn release_masked(&mut self) -> Next {
        if Claim::release_from(&mut self.claim) {
            return Next::End(End::Released);
        }
        let Some(claim) = &self.claim else { return Next::End(End::Released) };
        claim.instance().cancel_timer();
        Next::End(missed(claim.instance()))
    }

    /// Releases with the interrupt allowed.
    #[inline(always)]
    fn release_open(&mut self) -> Next {
        if Claim::release_from(&mut self.claim) {
            return Next::End(End::Released);
        }
        let Some(claim) = &self.claim else { return Next::End(End::Released) };
        let end = missed(claim.instance());
        self.mask(At::Kept(end))
    }

    /// Keeps the instance, and masks first if its interrupt is allowed.
    #[inline(always)]
    fn stay(&mut self, end: End, line: Line) -> Next {
        match line {
            Line::Masked => Next::End(end),
            Line::Open { .. } => self.mask(At::Kept(end)),
        }
    }

    /// Masks again, and goes on from `at`.
    #[inline(always)]
    fn mask(&mut self, at: At) -> Next {
        let Some(claim) = &self.claim else { return Next::End(End::Released) };
        self.at = at;
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

/// How a turn ends whose release found a mark. The kernel puts the instance on the list of the softirq
/// that is running. Where drivers unmask late that hardly ever happens, and a new round does.
#[inline(always)]
fn missed<Q>(instance: &Instance<Q>) -> End {
    if instance.settings.unmasks_first() { End::Scheduled } else { End::Again }
}

#[cold]
fn no_queue() -> ! {
    panic!("no step that touches a queue is under way")
}

/// Whether a poll completes nothing, because its owner goes on polling anyway (the kernel's
/// `IN_BUSY_POLL`). `last` is a session's poll that lets go.
#[inline(always)]
fn polls_on(owner: Owner, last: bool, state: State) -> bool {
    match owner {
        Owner::Application => !last,
        Owner::Thread => state.mode() == Threaded::BusyPoll,
        _ => false,
    }
}

/// Whether the state's mode leaves this owner in charge. A busy-poll session may own an instance in
/// any mode but threaded busy poll.
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
