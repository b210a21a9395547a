//! The control passes: disable, enable, and the poll with budget 0.

use core::fmt;

use crate::claim::Claim;
use crate::host::Host;
use crate::instance::{Id, Instance};
use crate::race::{self, Race};
use crate::raised_from::RaisedFrom;
use crate::state::Prep;
use crate::step::{Did, Op, Pass};
use crate::{MICROSECOND, Ns};

/// Time that a disable sleeps between two attempts (the kernel's is 20 to 200 us).
const DISABLE_RETRY: Ns = 50 * MICROSECOND;

/// A request that the instance's present state does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlError {
    /// It is disabled already, or a disable is pending. (The kernel would wait for ever.)
    AlreadyDisabled(Id),
    /// It is not disabled.
    NotDisabled(Id),
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ControlError::AlreadyDisabled(Id(id)) => {
                write!(
                    f,
                    "instance {id} is disabled already: enable it before it is disabled again"
                )
            }
            ControlError::NotDisabled(Id(id)) => {
                write!(f, "instance {id} is not disabled: disable it first")
            }
        }
    }
}

impl core::error::Error for ControlError {}

/// Disables an instance (`napi_disable`): takes it from its owner within two of the owner's polls, and leaves it
/// masked, without a timer and without an owner. Its settings stay.
#[derive(Debug)]
pub struct Disable<'a, Q> {
    host: &'a Host<Q>,
    instance: &'a Instance<Q>,
    claim: Option<Claim<'a, Q>>,
    done: bool,
}

impl<'a, Q> Disable<'a, Q> {
    /// Requests the disable: from now on the instance cannot be scheduled.
    ///
    /// # Errors
    /// If it is disabled already, or a disable is pending.
    ///
    /// # Panics
    /// If there is no such instance.
    pub fn new(host: &'a Host<Q>, id: Id) -> Result<Self, ControlError> {
        let instance = host.instance(id);
        if !instance.state.ask_disable() {
            return Err(ControlError::AlreadyDisabled(id));
        }
        Ok(Disable { host, instance, claim: None, done: false })
    }
}

impl<Q> Pass<Q> for Disable<'_, Q> {
    fn next(&mut self, now: Ns, _: Did) -> Op {
        let instance = self.instance;
        if self.done {
            return Op::Done;
        }
        if let Some(claim) = self.claim.take() {
            instance.cancel_timer();
            instance.suspension.expire();
            claim.into_token();
            instance.state.end_disable();
            self.done = true;
            return Op::Done;
        }
        if instance.state.take_disabled() {
            self.claim = Some(Claim::from_token(self.host, self.instance));
            return Op::Mask(self.instance.id);
        }
        Op::Sleep(now + DISABLE_RETRY)
    }

    fn queue(&mut self) -> &mut Q {
        queue_of(self.claim.as_mut())
    }
}

impl<Q> Drop for Disable<'_, Q> {
    /// Completes or undoes an abandoned disable: a half-disabled instance could never be enabled again.
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let instance = self.instance;
        match self.claim.take() {
            Some(claim) => {
                instance.cancel_timer();
                instance.suspension.expire();
                claim.into_token();
                instance.state.end_disable();
            }
            None => {
                instance.state.end_disable();
                // Interrupts and timers were refused meanwhile, and the owner may have released with neither of
                // them pending: have the instance polled.
                if instance.state.schedule_prep() == Prep::Won {
                    self.host.leave_to_softirq(instance);
                }
            }
        }
    }
}

/// Enables a disabled instance (`napi_enable`): this pass becomes its owner in one atomic step, and then unmasks
/// and releases like any owner (the kernel's two steps were race R5).
#[derive(Debug)]
pub struct Enable<'a, Q> {
    host: &'a Host<Q>,
    instance: &'a Instance<Q>,
    claim: Option<Claim<'a, Q>>,
    at: EnableAt,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EnableAt {
    Start,
    Unmasked,
    Masked,
    Ended,
}

impl<'a, Q> Enable<'a, Q> {
    /// Takes the disabled instance.
    ///
    /// # Errors
    /// If it is not disabled.
    ///
    /// # Panics
    /// If there is no such instance.
    pub fn new(host: &'a Host<Q>, id: Id) -> Result<Self, ControlError> {
        let instance = host.instance(id);
        if race::on(Race::EnableInTwoSteps) && instance.state.load().disabled() {
            instance.state.clear_sched_only();
            return Ok(Enable { host, instance, claim: None, at: EnableAt::Start });
        }
        if !instance.state.take_enabled() {
            return Err(ControlError::NotDisabled(id));
        }
        let mut claim = Claim::from_token(host, instance);
        let owned = claim.owned();
        owned.defer_count = 0;
        owned.hold_until = 0;
        Ok(Enable { host, instance, claim: Some(claim), at: EnableAt::Start })
    }

    fn route(&mut self) -> Op {
        self.at = EnableAt::Ended;
        let claim = self.claim.take();
        claim.and_then(|claim| self.host.route(claim, RaisedFrom::Thread)).unwrap_or(Op::Done)
    }
}

impl<Q> Pass<Q> for Enable<'_, Q> {
    fn next(&mut self, _: Ns, did: Did) -> Op {
        match self.at {
            EnableAt::Start if self.claim.is_none() => {
                // The second half of race R5. The pass then continues as usual, if no other context has won the
                // instance in between.
                let state = &self.instance.state;
                state.clear(crate::state::NPSVC);
                if state.schedule_prep() != Prep::Won {
                    self.at = EnableAt::Ended;
                    return Op::Done;
                }
                self.claim = Some(Claim::from_token(self.host, self.instance));
                self.at = EnableAt::Unmasked;
                Op::Unmask(self.instance.id)
            }
            EnableAt::Start => {
                self.at = EnableAt::Unmasked;
                Op::Unmask(self.instance.id)
            }
            EnableAt::Unmasked => {
                if did != Did::Unmasked(true)
                    && let Some(claim) = self.claim.take()
                {
                    match claim.release() {
                        Ok(()) => {
                            self.at = EnableAt::Ended;
                            return Op::Done;
                        }
                        Err(claim) => self.claim = Some(claim),
                    }
                }
                self.at = EnableAt::Masked;
                Op::Mask(self.instance.id)
            }
            EnableAt::Masked => self.route(),
            EnableAt::Ended => Op::Done,
        }
    }

    fn queue(&mut self) -> &mut Q {
        queue_of(self.claim.as_mut())
    }
}

/// A poll with budget 0: reaps the transmit completions of a free instance, receives nothing and does not complete.
/// If the instance is owned, reaping is left to its owner.
#[derive(Debug)]
pub struct TxPoll<'a, Q> {
    host: &'a Host<Q>,
    instance: &'a Instance<Q>,
    claim: Option<Claim<'a, Q>>,
    at: TxPollAt,
    reaped: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TxPollAt {
    Start,
    Polled,
    Masked,
    Ended,
}

impl<'a, Q> TxPoll<'a, Q> {
    /// A poll with budget 0 of one instance.
    ///
    /// # Panics
    /// If there is no such instance.
    pub fn new(host: &'a Host<Q>, id: Id) -> Self {
        let instance = host.instance(id);
        TxPoll { host, instance, claim: None, at: TxPollAt::Start, reaped: 0 }
    }

    /// Completions reaped; valid after [`Op::Done`].
    pub fn reaped(&self) -> u16 {
        self.reaped
    }
}

impl<Q> Pass<Q> for TxPoll<'_, Q> {
    fn next(&mut self, _: Ns, did: Did) -> Op {
        if self.at == TxPollAt::Start {
            if self.instance.state.claim_free() {
                self.claim = Some(Claim::from_token(self.host, self.instance));
                self.at = TxPollAt::Polled;
                return Op::Poll { id: self.instance.id, budget: 0 };
            }
            self.at = TxPollAt::Ended;
        }
        let Some(claim) = self.claim.take() else { return Op::Done };
        if self.at == TxPollAt::Masked {
            self.at = TxPollAt::Ended;
            return self.host.route(claim, RaisedFrom::Thread).unwrap_or(Op::Done);
        }
        if let Did::Polled(work) = did {
            debug_assert_eq!(work.rx, 0, "a poll with budget 0 receives nothing");
            self.reaped = work.tx;
            // Counted before the release, because only the owner may write this count.
            claim.instance().counters.completions.add(u64::from(work.tx));
        }
        match claim.release() {
            Ok(()) => {
                self.at = TxPollAt::Ended;
                Op::Done
            }
            // A schedule was missed meanwhile. The line may be open, and every owner polls masked: mask first.
            Err(claim) => {
                self.claim = Some(claim);
                self.at = TxPollAt::Masked;
                Op::Mask(self.instance.id)
            }
        }
    }

    fn queue(&mut self) -> &mut Q {
        queue_of(self.claim.as_mut())
    }
}

impl<Q> Host<Q> {
    /// Calls `change` on the queue of a disabled instance whose device was re-created or goes away. The instance's
    /// settings, id and counts stay.
    ///
    /// # Errors
    /// If the instance is not disabled.
    ///
    /// # Panics
    /// If there is no such instance.
    pub fn change_queue<T>(
        &self,
        id: Id,
        change: impl FnOnce(&mut Q) -> T,
    ) -> Result<T, ControlError> {
        let instance = self.instance(id);
        if !instance.state.lock_disabled() {
            return Err(ControlError::NotDisabled(id));
        }
        let mut locked = Locked(Some(Claim::from_token(self, instance)));
        Ok(change(queue_of(locked.0.as_mut())))
    }
}

/// A disabled instance, locked against an enable. It stays disabled when the lock is dropped, also if the change
/// unwinds.
struct Locked<'a, Q>(Option<Claim<'a, Q>>);

impl<Q> Drop for Locked<'_, Q> {
    fn drop(&mut self) {
        if let Some(claim) = self.0.take() {
            let state = &claim.instance().state;
            claim.into_token();
            state.end_disable();
        }
    }
}

fn queue_of<'t, Q>(claim: Option<&'t mut Claim<'_, Q>>) -> &'t mut Q {
    match claim {
        Some(claim) => &mut claim.owned().queue,
        None => panic!("no step that touches a queue is under way"),
    }
}
