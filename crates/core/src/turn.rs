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
use crate::policy::Threaded;
use crate::race::{self, Race};
use crate::state::{DISABLE, MISSED, NPSVC, PREFER_BUSY_POLL, State};
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
    /// Still owned, and scheduled anew, as by an interrupt: polled once more, and still in the
    /// same round of the softirq.
    Scheduled,
    /// Still owned, in polled mode without work (*hold*).
    Held,
    /// Still owned, but somebody else is to poll from now on.
    HandOver,
}

#[derive(Debug, Clone, Copy)]
enum At {
    Start,
    /// Lets go, with the timer armed.
    Leaving,
    Polled,
    Delivered,
    Armed,
    Unmasked,
    Remasked,
}

/// How far a turn is whose driver unmasks first ([`Order::UnmaskFirst`](crate::Order)).
#[derive(Debug, Clone, Copy)]
enum Stage {
    /// Unmasks before the delivery.
    Opens,
    /// Masks again before the delivery, since the poll does not complete.
    Passes,
    /// Delivers, and decides.
    Decides,
    /// Masks again before a release.
    Closes,
    /// Masks again and keeps the instance.
    Keeps(End),
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
    /// This turn's driver has unmasked first; what follows is said by the stage.
    early: bool,
    stage: Stage,
    /// The interrupt was allowed before the delivery, and is so still.
    open: bool,
    /// Work was waiting when that happened.
    waits: bool,
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
            at: At::Start,
            early: false,
            stage: Stage::Opens,
            open: false,
            waits: false,
        }
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

    /// Another turn, after which a session lets go; with `prefers`, to the timer if it has to.
    pub(crate) fn again_last(&mut self, prefers: bool) {
        self.at = At::Start;
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
        let At::Polled = self.at else { return None };
        let claim = self.claim.as_ref()?;
        let instance = claim.instance();
        let state = instance.state.load();
        let goes_on = polls_on(owner, self.last, state) && keeps(owner, state);
        if !goes_on || state.has(DISABLE) {
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
            At::Leaving => {
                let instance = claim.instance();
                let (timeout, state) =
                    (instance.settings.gro_flush_timeout(), instance.state.load());
                if state.has(DISABLE) {
                    return self.release::<false>(true);
                }
                if !keeps(owner, state) {
                    return Next::End(End::HandOver);
                }
                self.defer::<false>(now, timeout, state)
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
                    self.early = true;
                    self.stage = Stage::Opens;
                    self.at = At::Unmasked;
                    return Next::Op(Op::Unmask(claim.id()));
                }
                if work.rx == 0 {
                    return self.decide::<false>(now, Pressure::Room, owner);
                }
                self.at = At::Delivered;
                Next::Op(Op::Deliver(claim.id()))
            }
            At::Delivered => {
                let Did::Delivered(pressure) = did else { unexpected("Deliver", did) };
                if self.early {
                    return self.unmasked_first(now, pressure == Pressure::Full, owner);
                }
                self.decide::<false>(now, pressure, owner)
            }
            At::Armed if self.early => self.unmasked_first(now, false, owner),
            At::Armed => self.release::<false>(true),
            At::Unmasked => {
                let Did::Unmasked(waits) = did else { unexpected("Unmask", did) };
                if self.early {
                    return self.unmasked_first(now, waits, owner);
                }
                if waits && !race::on(Race::UnmaskWithoutLook) {
                    self.remask()
                } else {
                    self.release::<false>(false)
                }
            }
            At::Remasked if self.early => self.unmasked_first(now, did == Did::Resched, owner),
            At::Remasked => Next::End(End::Again),
        }
    }

    /// The next step of a turn whose driver has unmasked first. `yes`: work waited at the unmasking,
    /// the receivers of the delivery are full, or another thread wants the CPU after the masking.
    // Told a flag in place of the answer, or each answer of the usual order would be taken apart for
    // this one. Out of line where the usual order's own steps are; in line where a turn can lie in
    // registers, which a call would force into memory.
    #[inline(always)]
    fn unmasked_first(&mut self, now: Ns, yes: bool, owner: Owner) -> Next {
        match owner {
            Owner::Thread | Owner::Application => self.early_step(now, yes, owner),
            Owner::Softirq | Owner::Ksoftirqd | Owner::Worker => self.far_step(now, yes, owner),
        }
    }

    #[cold]
    #[inline(never)]
    fn far_step(&mut self, now: Ns, yes: bool, owner: Owner) -> Next {
        self.early_step(now, yes, owner)
    }

    #[inline(always)]
    fn early_step(&mut self, now: Ns, yes: bool, owner: Owner) -> Next {
        let next = match (self.at, self.stage) {
            (At::Unmasked, Stage::Opens) => self.opened(now, yes, owner),
            // Masked again before it was decided that the release is unmasked: the usual order.
            (At::Unmasked, _) if yes && !race::on(Race::UnmaskWithoutLook) => {
                self.mask(Stage::Keeps(End::Again))
            }
            (At::Unmasked, _) => self.release::<true>(false),
            (At::Remasked, Stage::Passes) => {
                self.resched |= yes;
                self.deliver(now, owner)
            }
            (At::Remasked, Stage::Keeps(end)) => Next::End(end),
            (At::Delivered, _) => {
                let pressure = if yes { Pressure::Full } else { Pressure::Room };
                self.decide::<true>(now, pressure, owner)
            }
            _ => self.release::<true>(true),
        };
        self.early = matches!(next, Next::Op(_));
        next
    }

    /// The interrupt is allowed, and the poll not delivered yet. A pass that polls on does not
    /// complete: it masks at once.
    #[inline(always)]
    fn opened(&mut self, now: Ns, waits: bool, owner: Owner) -> Next {
        let Some(claim) = &self.claim else { return Next::End(End::Released) };
        let state = claim.instance().state.load();
        if polls_on(owner, self.last, state) {
            return self.mask(Stage::Passes);
        }
        self.open = true;
        self.waits = waits;
        self.deliver(now, owner)
    }

    /// Delivers what the poll took, if anything, and decides.
    #[inline(always)]
    fn deliver(&mut self, now: Ns, owner: Owner) -> Next {
        let Some(claim) = &self.claim else { return Next::End(End::Released) };
        self.stage = Stage::Decides;
        if self.work.rx == 0 {
            return self.decide::<true>(now, Pressure::Room, owner);
        }
        self.at = At::Delivered;
        Next::Op(Op::Deliver(claim.id()))
    }

    /// What follows from a poll; with `OPEN` the interrupt may be allowed meanwhile. (Known at
    /// compile time, so that an order that is not asked for costs the usual one nothing.)
    #[inline(always)]
    fn decide<const OPEN: bool>(&mut self, now: Ns, pressure: Pressure, owner: Owner) -> Next {
        let Some(claim) = &mut self.claim else { return Next::End(End::Released) };
        let instance = claim.instance();
        let settings = &instance.settings;
        let state = instance.state.load();
        let work = self.work;

        if state.has(DISABLE) {
            return self.release::<OPEN>(true);
        }
        let exhausted = work.rx >= self.budget;
        let waits = race::on(Race::ModeWaitsForDrain) && exhausted;
        if !keeps(owner, state) && !waits {
            return self.stay::<OPEN>(End::HandOver);
        }
        if polls_on(owner, self.last, state) {
            return self.stay::<OPEN>(End::Again);
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
            if OPEN && self.open && state.has(MISSED) {
                return self.release::<OPEN>(true);
            }
            instance.counters.parks();
            let at = now + settings.load().park_timeout();
            return self.arm::<OPEN>(at);
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
                return self.defer::<OPEN>(now, timeout, state);
            }
            return Next::End(if self.last { End::HandOver } else { End::Again });
        }

        let hold = settings.hold();
        if hold > 0 && owner != Owner::Application {
            if work.any() {
                return self.stay::<OPEN>(End::Again);
            }
            // A shorter hold, set meanwhile, holds from now on.
            let end = settings.hold_end(now, hold);
            if owned.hold_until == 0 || end < owned.hold_until {
                owned.hold_until = end;
            }
            if now < owned.hold_until {
                return self.stay::<OPEN>(End::Held);
            }
            // It has ended, and stays so until there is work: a deferred poll does not hold again.
        }

        let timeout = settings.gro_flush_timeout();
        // A smaller count, set meanwhile, counts from now on.
        let count = owned.defer_count.min(settings.defer_hard_irqs());
        if count > 0 {
            owned.defer_count = count - 1;
            if timeout != 0 {
                return self.defer::<OPEN>(now, timeout, state);
            }
        }
        // A suspension ends where the interrupt returns: its timer goes, and a context that has
        // stalled in it must not be waited for (invariant 7).
        instance.cancel_timer();
        instance.suspension.expire();
        if OPEN && self.open {
            // Work that waited at the unmasking may have no interrupt. (The kernel looks after the
            // release, and schedules.)
            let waits = self.waits && !race::on(Race::UnmaskWithoutLook);
            return if waits {
                self.mask(Stage::Keeps(End::Scheduled))
            } else {
                self.release::<true>(false)
            };
        }
        self.at = At::Unmasked;
        Next::Op(Op::Unmask(claim.id()))
    }

    /// Releases with the interrupt masked and a timer to look after the ring. While other contexts
    /// suspend the instance its timer is theirs: an ordinary poll does not bring it forward.
    #[inline(always)]
    fn defer<const OPEN: bool>(&mut self, now: Ns, timeout: Ns, state: State) -> Next {
        // An interrupt has come since the line was opened. The release will find its mark, so nothing
        // need be prepared for the time after it: the kernel starts no timer then.
        if OPEN && self.open && state.has(MISSED) {
            return self.release::<OPEN>(true);
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
        self.arm::<OPEN>((now + timeout).max(suspended))
    }

    #[inline(always)]
    fn arm<const OPEN: bool>(&mut self, at: Ns) -> Next {
        let Some(claim) = &self.claim else { return Next::End(End::Released) };
        self.at = At::Armed;
        if race::on(Race::EarlyTimer) && self.last {
            // The kernel had armed it before the poll; it may have fired for nothing since.
            return self.release::<OPEN>(true);
        }
        claim.instance().arm(at);
        Next::Op(Op::Arm { id: claim.id(), at })
    }

    #[inline(always)]
    fn release<const OPEN: bool>(&mut self, masked: bool) -> Next {
        if OPEN && self.open && masked {
            return self.mask(Stage::Closes);
        }
        if Claim::release_from(&mut self.claim) {
            if OPEN {
                self.open = false;
            }
            return Next::End(End::Released);
        }
        if !masked {
            return if OPEN { self.mask(Stage::Keeps(End::Scheduled)) } else { self.remask() };
        }
        let Some(claim) = &self.claim else { return Next::End(End::Released) };
        let instance = claim.instance();
        instance.cancel_timer();
        // The kernel puts the instance on the list of the softirq that is running. Where drivers
        // unmask late that hardly ever happens, and a new round does.
        let scheduled = OPEN || instance.settings.unmasks_first();
        Next::End(if scheduled { End::Scheduled } else { End::Again })
    }

    /// Keeps the instance, and masks first if its interrupt is allowed.
    #[inline(always)]
    fn stay<const OPEN: bool>(&mut self, end: End) -> Next {
        if OPEN && self.open { self.mask(Stage::Keeps(end)) } else { Next::End(end) }
    }

    #[inline(always)]
    fn remask(&mut self) -> Next {
        let Some(claim) = &self.claim else { return Next::End(End::Released) };
        self.at = At::Remasked;
        Next::Op(Op::Mask(claim.id()))
    }

    /// Masks again, for what the stage says.
    #[inline(always)]
    fn mask(&mut self, stage: Stage) -> Next {
        self.stage = stage;
        self.open = false;
        self.remask()
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
