//! A turn: one poll of one instance and the decision that follows from it, which is to deliver, stay, hold, defer,
//! park, unmask, release or hand over.
//!
//! Every owner (softirq, thread, worker, an application's session) takes its turns here, so this is the one place
//! that decides what the kernel's `napi_poll` and `napi_complete_done` decide. Two orders differ from the kernel's
//! on purpose: the interrupt is unmasked and the timer armed *before* the release, and the outcome of a busy-poll
//! session's last poll is decided after that poll (races R1, R2, R11 of the catalogue).
//!
//! A driver may unmask its interrupt before it delivers ([`Order::UnmaskFirst`](crate::Order)). The turn then
//! records that the line is open, and every outcome that needs it masked masks first: only the owner may touch the
//! queue, so the core cannot mask after the release, as virtio_net does. In the kernel an interrupt between release
//! and masking finds the instance free and schedules it; here it finds an owner and leaves `MISSED`. Either way one
//! more poll follows.

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
use end::{Line, keeps_polling, may_keep, missed};

/// The step whose answer the turn expects next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Before the poll.
    Ready,
    /// Before a release to the timer, without another poll.
    Leaving,
    Polled,
    /// Unmasked before the delivery ([`Order::UnmaskFirst`](crate::Order)).
    UnmaskedEarly,
    /// Masked again before the delivery, since the poll does not complete.
    RemaskedEarly,
    Delivered,
    Armed,
    /// Unmasked; the release follows.
    Unmasked,
    /// Masked again; the release follows.
    RemaskedToRelease,
    /// Masked again; the turn ends with the claim kept.
    RemaskedToKeep,
}

/// The turns of one owner, one after the other, in the same struct, because moving it costs more than a turn. The
/// flags outlast a step: `last` and `prefers` belong to the session, `resched` to the scheduler, `busy` to the
/// softirq's round, `line` to the device.
#[derive(Debug)]
pub(crate) struct Turn<'a, Q> {
    /// `None` between turns, unless the last one kept it.
    claim: Option<Claim<'a, Q>>,
    budget: u16,
    /// Whether this is a session's last poll, which completes; a session's other polls do not.
    last: bool,
    /// Whether the session prefers busy polling: a ring that its last poll does not drain is left to the timer, if
    /// there is one (the kernel's `skip_schedule`).
    prefers: bool,
    /// Whether another thread wants the CPU, as reported by the world.
    resched: bool,
    /// Whether a poll of the softirq's round found work, or an instance wants another for a reason other than
    /// *hold*.
    busy: bool,
    /// The work of the last poll.
    work: Work,
    /// The owner under which polls are counted.
    counted: Owner,
    at: At,
    line: Line,
    /// How the turn ends after [`At::RemaskedToKeep`].
    end: End,
}

impl<'a, Q> Turn<'a, Q> {
    /// No turn is under way; polls will be counted under `counted`.
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

    /// Begins a turn with a new claim, and returns its first step.
    #[inline]
    pub(crate) fn begin(&mut self, claim: Claim<'a, Q>, budget: u16) -> Op {
        let id = claim.id();
        debug_assert!(self.claim.is_none(), "a turn is under way");
        // The slot is empty: `forget` avoids the drop glue.
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

    /// Prepares another turn with the same claim.
    #[inline]
    pub(crate) fn prepare_next(&mut self) {
        self.at = At::Ready;
    }

    /// Prepares a session's last turn, which releases; with `prefers`, to the timer if the ring is not drained.
    pub(crate) fn prepare_last(&mut self, prefers: bool) {
        self.at = At::Ready;
        self.last = true;
        self.prefers = prefers;
    }

    /// Whether the world has reported that another thread wants the CPU.
    pub(crate) fn resched(&self) -> bool {
        self.resched
    }

    /// Prepares a release without another poll: the interrupt stays masked and the timer has the ring polled.
    pub(crate) fn leave_to_timer(&mut self) {
        self.at = At::Leaving;
        self.last = true;
    }

    /// The work of the turn's poll.
    #[inline]
    pub(crate) fn work(&self) -> Work {
        self.work
    }

    /// The idle cycle of this turn's steps and `last`, if the turn has just asked for its poll and would ask for
    /// the same one again after an empty poll.
    pub(crate) fn idle_cycle(&self, owner: Owner, until: Ns, last: Op) -> Option<IdleCycle> {
        let (At::Polled, Some(claim)) = (self.at, &self.claim) else { return None };
        let instance = claim.instance();
        if !self.repeats_if_empty(owner, instance.state.load()) {
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

    /// Whether an empty poll is always followed by another of the same owner.
    #[inline(always)]
    fn repeats_if_empty(&self, owner: Owner, state: State) -> bool {
        keeps_polling(owner, self.last, state) && may_keep(owner, state) && !state.has(DISABLE)
    }

    /// Fast path of `next` for owners that spin, in a few instructions: if `did` is an empty poll after which the
    /// owner polls on, and the driver does not unmask first, ends the turn as with [`End::Again`] and returns
    /// `true`.
    #[inline(always)]
    pub(crate) fn handle_empty_poll(&mut self, now: Ns, did: Did, owner: Owner) -> bool {
        let (At::Polled, Did::Polled(Work::NONE)) = (self.at, did) else { return false };
        let Some(claim) = &self.claim else { return false };
        let instance = claim.instance();
        let repeats = self.repeats_if_empty(owner, instance.state.load());
        if !repeats || instance.settings.unmasks_first() {
            return false;
        }
        instance.counters.empty_polls(owner, 1);
        instance.polled(now);
        self.at = At::Ready;
        true
    }

    /// The poll of the next turn, if one with the same claim is due.
    #[inline(always)]
    pub(crate) fn poll(&mut self, owner: Owner) -> Option<Op> {
        let (At::Ready, Some(claim)) = (self.at, &self.claim) else { return None };
        // A thread may keep the claim for ever, and its budget, the weight, may have changed: read it at each turn.
        // A session's budget is its own.
        if owner == Owner::Thread {
            self.budget = claim.instance().settings.weight();
        }
        self.at = At::Polled;
        Some(Op::Poll { id: claim.id(), budget: self.budget })
    }

    /// Sets whether another thread wants the CPU.
    #[inline]
    pub(crate) fn set_resched(&mut self, resched: bool) {
        self.resched = resched;
    }

    /// Whether a turn has found work since this was last set to `false`.
    #[inline]
    pub(crate) fn busy(&self) -> bool {
        self.busy
    }

    /// Clears the flag at the start of a round, or sets it for a reason other than work.
    #[inline]
    pub(crate) fn set_busy(&mut self, busy: bool) {
        self.busy = busy;
    }

    /// The next step of the owner's turn. (Softirq and ksoftirqd follow the same rules: both pass
    /// [`Owner::Softirq`], and only their polls are counted apart.)
    // Inlined into each owner's loop, so that the branches of other owners are optimised away, and a step is not
    // copied from enum to enum on return.
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
                if !may_keep(owner, state) {
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
                    // Work found by any owner restarts the hold.
                    owned.hold_until = 0;
                }
                if instance.settings.unmasks_first() && work.rx < self.budget {
                    return self.ask(At::UnmaskedEarly, Op::Unmask(instance.id));
                }
                None
            }
            At::UnmaskedEarly => {
                self.record_unmask(did);
                // An owner that polls on does not complete: mask at once.
                if keeps_polling(owner, self.last, instance.state.load()) {
                    return self.mask(At::RemaskedEarly, instance);
                }
                None
            }
            At::RemaskedEarly => {
                self.record_done(did);
                None
            }
            At::Delivered => {
                let Did::Delivered(pressure) = did else { unexpected("Deliver", "Delivered") };
                Some(pressure)
            }
            At::Unmasked => {
                self.record_unmask(did);
                return self.release_open(instance);
            }
            At::Armed | At::RemaskedToRelease => {
                self.record_done(did);
                return self.release(instance);
            }
            At::RemaskedToKeep => {
                self.record_done(did);
                return Next::End(self.end);
            }
        };
        match delivered {
            None if self.work.rx > 0 => self.ask(At::Delivered, Op::Deliver(instance.id)),
            pressure => self.decide(instance, now, pressure.unwrap_or(Pressure::Room), owner),
        }
    }

    /// Records the answer to an unmasking.
    #[inline(always)]
    fn record_unmask(&mut self, did: Did) {
        let Did::Unmasked(waits) = did else { unexpected("Unmask", "Unmasked") };
        self.line = if waits { Line::Waiting } else { Line::Open };
    }

    /// Records the answer to a step that has no result.
    #[inline(always)]
    fn record_done(&mut self, did: Did) {
        self.resched |= did == Did::Resched;
    }

    /// Asks for a step, whose answer is handled at `at`.
    #[inline(always)]
    fn ask(&mut self, at: At, op: Op) -> Next {
        self.at = at;
        Next::Op(op)
    }

    /// Decides what follows from a poll.
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
        if !may_keep(owner, state) && !waits {
            return self.stay(instance, End::HandOver);
        }
        if keeps_polling(owner, self.last, state) {
            return self.stay(instance, End::Again);
        }
        debug_assert!(!state.has(NPSVC) || race::on(Race::EnableInTwoSteps), "owned and disabled");
        if race::on(Race::EnableInTwoSteps) && state.has(NPSVC) {
            // Race R5: enable gave the instance away in two steps. The completion returned early, and the token is
            // lost.
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
            instance.set_park_end(at);
            return self.arm(instance, at);
        }

        let Some(claim) = &mut self.claim else { return Next::End(End::Released) };
        let owned = claim.owned();
        let defer_hard_irqs = settings.defer_hard_irqs();
        if rx > 0 {
            owned.defer_count = defer_hard_irqs;
        }
        if exhausted {
            // A full poll makes room for a session that prefers busy polling, if a timer covers the ring meanwhile.
            // The last poll of a session without that preference hands the ring over at once (`busy_poll_stop`:
            // `__napi_schedule`).
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
            // A hold that was shortened meanwhile applies from now on.
            let end = settings.hold_end(now, hold);
            if owned.hold_until == 0 || end < owned.hold_until {
                owned.hold_until = end;
            }
            if now < owned.hold_until {
                return self.stay(instance, End::Held);
            }
            // The hold is over until there is work again: a deferred poll does not hold anew.
        }

        // A `defer_hard_irqs` that was lowered meanwhile applies from now on.
        if defer_hard_irqs > 0 && owned.defer_count > 0 {
            owned.defer_count = owned.defer_count.min(defer_hard_irqs) - 1;
            let timeout = settings.gro_flush_timeout();
            if timeout != 0 {
                return self.defer(instance, now, timeout, state);
            }
        }
        // Unmasking ends every suspension: its timer is cancelled, and a context that has stalled in it must not
        // hold up the queue (invariant 7).
        instance.cancel_timer();
        instance.suspension.expire();
        if self.line == Line::Masked {
            return self.ask(At::Unmasked, Op::Unmask(instance.id));
        }
        self.release_open(instance)
    }

    /// Releases with the interrupt masked and the timer armed. While contexts suspend the instance the timer is
    /// theirs: an ordinary poll does not bring it forward.
    #[inline(always)]
    fn defer(&mut self, instance: &Instance<Q>, now: Ns, timeout: Ns, state: State) -> Next {
        // An interrupt has come since the unmasking. The release will find `MISSED` and keep the claim, so no timer
        // is needed; the kernel starts none either.
        if self.line != Line::Masked && state.has(MISSED) {
            return self.release(instance);
        }
        instance.counters.deferrals.add(1);
        // A suspension that was registered under a longer timeout, or by contexts that have left since, must not
        // outlast the current timeout (invariant 7).
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
            // Race R2: the timer was armed before the poll, and may have fired in vain since.
            return self.release(instance);
        }
        instance.arm(at);
        self.ask(At::Armed, Op::Arm { id: instance.id, at })
    }

    /// Releases with the interrupt masked; masks it first if the line is open.
    #[inline(always)]
    fn release(&mut self, instance: &Instance<Q>) -> Next {
        if self.line != Line::Masked {
            return self.mask(At::RemaskedToRelease, instance);
        }
        if Claim::release_from(&mut self.claim) {
            return Next::End(End::Released);
        }
        instance.cancel_timer();
        Next::End(missed(instance))
    }

    /// Releases with the interrupt unmasked, unless work was waiting at the unmasking: no interrupt may come for
    /// it. (The kernel checks after the release, and schedules.)
    #[inline(always)]
    fn release_open(&mut self, instance: &Instance<Q>) -> Next {
        let waits = self.line == Line::Waiting && !race::on(Race::UnmaskWithoutLook);
        if !waits && Claim::release_from(&mut self.claim) {
            return Next::End(End::Released);
        }
        self.stay(instance, missed(instance))
    }

    /// Keeps the instance; masks first if the line is open.
    #[inline(always)]
    fn stay(&mut self, instance: &Instance<Q>, end: End) -> Next {
        if self.line == Line::Masked {
            return Next::End(end);
        }
        self.end = end;
        self.mask(At::RemaskedToKeep, instance)
    }

    /// Masks again; the answer is handled at `at`.
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
