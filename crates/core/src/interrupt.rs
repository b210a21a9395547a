//! An interrupt of a queue.

use crate::claim::Claim;
use crate::contract::PendingStep;
use crate::host::Host;
use crate::instance::{Id, Instance};
use crate::raised_from::RaisedFrom;
use crate::state::Prep;
use crate::step::{Did, Op, Pass};
use crate::{NEVER, Ns};

/// The interrupt handler of a queue: masks the interrupt *after* it has won the instance, and hands the instance to
/// the owner that its mode names. If the instance is owned already, the handler sets `MISSED` and touches nothing.
/// A one-shot interrupt has then masked itself, and the owner, which will see the mark, unmasks it again.
#[derive(Debug)]
pub struct Interrupt<'a, Q> {
    host: &'a Host<Q>,
    instance: &'a Instance<Q>,
    taken: bool,
    claim: Option<Claim<'a, Q>>,
    pending_step: PendingStep,
}

impl<'a, Q> Interrupt<'a, Q> {
    /// An interrupt of one queue.
    ///
    /// # Panics
    /// If there is no such instance.
    pub fn new(host: &'a Host<Q>, id: Id) -> Self {
        Interrupt {
            host,
            instance: host.instance(id),
            taken: false,
            claim: None,
            pending_step: PendingStep::default(),
        }
    }
}

impl<Q> Pass<Q> for Interrupt<'_, Q> {
    #[inline(always)]
    fn next(&mut self, now: Ns, _: Did) -> Op {
        if let Some(claim) = self.claim.take() {
            let op = self.host.route(claim, RaisedFrom::Interrupt).unwrap_or(Op::Done);
            return self.pending_step.returned(op);
        }
        if core::mem::replace(&mut self.taken, true) {
            self.pending_step.answered();
            return Op::Done;
        }
        let instance = self.instance;
        instance.counters.interrupts.add(1);
        match instance.state.schedule_prep() {
            Prep::Won => {
                let mut claim = Claim::from_token(self.host, instance);
                let last_work = claim.owned().last_work;
                let gap = if last_work == 0 { NEVER } else { now.saturating_sub(last_work) };
                instance.counters.idle_gap(gap);
                if gap >= instance.settings.hold() {
                    instance.counters.interrupts_after_hold.add(1);
                }
                self.claim = Some(claim);
                Op::Mask(instance.id)
            }
            Prep::Missed => {
                instance.counters.interrupts_missed.add(1);
                Op::Done
            }
            Prep::Disabled => Op::Done,
        }
    }

    fn queue(&mut self) -> &mut Q {
        match &mut self.claim {
            Some(claim) => &mut claim.owned().queue,
            None => panic!("no step that touches a queue is under way"),
        }
    }
}
