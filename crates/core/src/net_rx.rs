//! The network softirq (`net_rx_action`): one round over a CPU's scheduled instances, within a
//! budget of frames and of time.
//!
//! Each instance is polled once a round; those that want more go to the tail of what the next round
//! finds (round robin). A limit is looked at after each poll, so at least one instance always runs.

use crate::claim::Claim;
use crate::counters::Owner;
use crate::cpu::{Cpu, Limits, Vector};
use crate::host::{From, Host};
use crate::instance::CpuId;
use crate::list::Chain;
use crate::race::{self, Race};
use crate::step::{Did, Op};
use crate::turn::{End, Next, Turn};
use crate::{Ns, Work};

/// How a round ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    /// Nothing is left.
    Drained,
    /// Instances are left, and the vector was raised again.
    Left,
    /// Nothing but holders without work is left, and the vector was raised again. It is no reason
    /// to keep the CPU in its softirqs (invariant 9).
    Holding,
}

#[derive(Debug)]
pub(crate) struct NetRx<'a, Q> {
    host: &'a Host<Q>,
    cpu: &'a Cpu,
    list: Chain,
    repoll: Chain,
    turn: Option<Turn<'a, Q>>,
    owner: Owner,
    from: From,
    limits: Limits,
    budget: i32,
    started: Ns,
    worked: bool,
    wanting: bool,
    /// A turn has ended since the limits were last looked at.
    polled: bool,
}

impl<'a, Q> NetRx<'a, Q> {
    #[inline]
    pub(crate) fn new(host: &'a Host<Q>, cpu: CpuId, owner: Owner, from: From, now: Ns) -> Self {
        let cpu = host.cpu(cpu);
        cpu.enter_net_rx();
        let mut list = Chain::new();
        cpu.list.take(host.instances(), &mut list);
        let limits = cpu.limits();
        NetRx {
            host,
            cpu,
            list,
            repoll: Chain::new(),
            turn: None,
            owner,
            from,
            limits,
            budget: i32::from(limits.budget),
            started: now,
            worked: false,
            wanting: false,
            polled: false,
        }
    }

    #[inline]
    pub(crate) fn next(&mut self, now: Ns, did: Did) -> Result<Op, Round> {
        loop {
            if let Some(turn) = &mut self.turn {
                let end = match turn.next(now, did) {
                    Next::Op(op) => return Ok(op),
                    Next::End(end) => end,
                };
                let Work { rx, .. } = turn.work();
                self.worked |= turn.work().any();
                self.budget -= i32::from(rx);
                self.polled = true;
                let claim = self.turn.take().and_then(Turn::into_claim);
                if let Some(claim) = claim {
                    match end {
                        End::HandOver => {
                            claim.instance().counters.handovers();
                            if let Some(op) = self.host.route(claim, self.from) {
                                return Ok(op);
                            }
                        }
                        End::Again | End::Released => {
                            self.wanting = true;
                            self.repoll.push(self.host.instances(), claim.into_token());
                        }
                        End::Held => self.repoll.push(self.host.instances(), claim.into_token()),
                    }
                }
            }
            // Also after a turn that ended with a step, such as a hand-over's.
            if core::mem::take(&mut self.polled)
                && (self.budget <= 0 || now.saturating_sub(self.started) >= self.limits.budget_time)
            {
                self.cpu.squeezed();
                return Err(self.leave());
            }
            match self.list.pop(self.host.instances()) {
                Some(id) => {
                    self.turn = Some(Turn::new(Claim::from_token(self.host, id), self.owner));
                }
                None if !self.repoll.is_empty() => return Err(self.leave()),
                None => {
                    self.cpu.leave_net_rx();
                    // A schedule that saw us at the list did not raise: look again (race R12).
                    if self.cpu.list.is_empty() || race::on(Race::ListNotRechecked) {
                        return Err(Round::Drained);
                    }
                    self.cpu.reenter_net_rx();
                    self.cpu.list.take(self.host.instances(), &mut self.list);
                }
            }
        }
    }

    /// Puts everything that is left back: what was not reached, what came meanwhile, what wants
    /// more.
    fn leave(&mut self) -> Round {
        let instances = self.host.instances();
        let mut all = core::mem::replace(&mut self.list, Chain::new());
        self.cpu.list.take(instances, &mut all);
        let holding = all.is_empty() && !self.worked && !self.wanting;
        all.append(instances, core::mem::replace(&mut self.repoll, Chain::new()));
        let mut left = false;
        while let Some(id) = all.pop(instances) {
            self.cpu.list.push(instances, id);
            left = true;
        }
        self.cpu.leave_net_rx();
        // The look after the leave is for a schedule that saw us at the list (race R12).
        if !left && (self.cpu.list.is_empty() || race::on(Race::ListNotRechecked)) {
            return Round::Drained;
        }
        self.cpu.raise(Vector::NetRx.bit());
        if holding { Round::Holding } else { Round::Left }
    }

    pub(crate) fn queue(&mut self) -> &mut Q {
        match &mut self.turn {
            Some(turn) => turn.queue(),
            None => panic!("no step that touches a queue is under way"),
        }
    }
}

impl<Q> Drop for NetRx<'_, Q> {
    /// Only after an unwinding are the lists not empty here; the claim under way goes by itself.
    fn drop(&mut self) {
        let instances = self.host.instances();
        for mut chain in [self.list, self.repoll] {
            while let Some(id) = chain.pop(instances) {
                self.cpu.list.push(instances, id);
            }
        }
    }
}
