//! The network softirq (`net_rx_action`): one round over a CPU's scheduled instances, within a
//! budget of frames and of time.
//!
//! Each instance is polled once a round; those that want more go to the tail of what the next round
//! finds (round robin). A limit is looked at after each poll, so at least one instance always runs.

use crate::Ns;
use crate::claim::Claim;
use crate::cpu::{Context, Cpu};
use crate::host::Host;
use crate::list::Chain;
use crate::race::{self, Race};
use crate::step::{Did, Op};
use crate::turn::{End, Next, Turn};
use crate::vector::Vector;

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

/// The rounds of one dispatch, one after the other, each in the same place.
#[derive(Debug)]
pub(crate) struct NetRx<'a, Q> {
    host: &'a Host<Q>,
    cpu: &'a Cpu,
    list: Chain,
    repoll: Chain,
    turn: Turn<'a, Q>,
    context: Context,
    /// Frames left of the round's budget.
    budget: i32,
    /// When the round's time is up.
    until: Ns,
    worked: bool,
    wanting: bool,
}

impl<'a, Q> NetRx<'a, Q> {
    #[inline]
    pub(crate) fn new(host: &'a Host<Q>, cpu: &'a Cpu, context: Context) -> Self {
        NetRx {
            host,
            cpu,
            list: Chain::new(),
            repoll: Chain::new(),
            turn: Turn::idle(),
            context,
            budget: 0,
            until: 0,
            worked: false,
            wanting: false,
        }
    }

    /// Begins a round.
    #[inline]
    pub(crate) fn begin(&mut self, now: Ns) -> Result<Op, Round> {
        self.cpu.enter_net_rx();
        let (budget, time) = self.cpu.net_rx_limits();
        self.budget = budget;
        self.until = now.saturating_add(time);
        self.worked = false;
        self.wanting = false;
        self.list = self.cpu.list.take(self.host.instances());
        self.pick()
    }

    /// The next step of a round that has begun.
    #[inline]
    pub(crate) fn next(&mut self, now: Ns, did: Did) -> Result<Op, Round> {
        // No claim: the turn has ended with a step, such as a hand-over's.
        if self.turn.has_claim() {
            let end = match self.turn.next(now, did, self.context.owner()) {
                Next::Op(op) => return Ok(op),
                Next::End(end) => end,
            };
            let work = self.turn.work();
            self.worked |= work.any();
            self.budget -= i32::from(work.rx);
            if end != End::Released
                && let Some(claim) = self.turn.take_claim()
                && let Some(op) = self.keep(claim, end)
            {
                return Ok(op);
            }
        }
        if self.budget <= 0 || now >= self.until {
            self.cpu.squeezed();
            return Err(self.leave());
        }
        self.pick()
    }

    /// After a turn that did not release.
    fn keep(&mut self, claim: Claim<'a, Q>, end: End) -> Option<Op> {
        if end == End::HandOver {
            claim.instance().counters.handovers();
            return self.host.route(claim, self.context.from());
        }
        if end == End::Scheduled {
            // This round looks at the CPU's list again before it ends.
            self.cpu.list.push(self.host.instances(), claim.into_token());
            return None;
        }
        self.wanting |= end != End::Held;
        self.repoll.push(self.host.instances(), claim.into_token());
        None
    }

    /// Polls the next instance, if there is one.
    #[inline(always)]
    fn pick(&mut self) -> Result<Op, Round> {
        loop {
            if let Some(id) = self.list.pop(self.host.instances()) {
                let claim = Claim::from_token(self.host, id);
                let weight = claim.instance().settings.weight();
                return Ok(self.turn.begin(claim, weight));
            }
            if !self.repoll.is_empty() {
                return Err(self.leave());
            }
            self.cpu.leave_net_rx();
            // A schedule that saw us at the list did not raise: look again (race R12).
            if self.cpu.list.is_empty() || race::on(Race::ListNotRechecked) {
                return Err(Round::Drained);
            }
            self.cpu.reenter_net_rx();
            self.list = self.cpu.list.take(self.host.instances());
        }
    }

    /// Puts everything that is left back: what was not reached, what came meanwhile, what wants
    /// more.
    fn leave(&mut self) -> Round {
        let instances = self.host.instances();
        let mut all = core::mem::replace(&mut self.list, Chain::new());
        all.append(instances, self.cpu.list.take(instances));
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

    /// Puts back what a context that unwound had taken.
    pub(crate) fn abandon(&mut self) {
        let instances = self.host.instances();
        for chain in [&mut self.list, &mut self.repoll] {
            while let Some(id) = chain.pop(instances) {
                self.cpu.list.push(instances, id);
            }
        }
        drop(self.turn.take_claim());
    }

    pub(crate) fn queue(&mut self) -> &mut Q {
        self.turn.queue()
    }
}
