//! The network softirq (`net_rx_action`): one round over a CPU's scheduled instances, within a
//! budget of frames and of time.
//!
//! Each instance is polled once a round; those that want more go to the tail of what the next round
//! finds (round robin). A limit is looked at after each poll, so at least one instance always runs.

use crate::Ns;
use crate::claim::Claim;
use crate::counters::Owner;
use crate::cpu::{Context, Cpu};
use crate::host::Host;
use crate::instance::Instance;
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
    /// Whose list it is, and in which context it is worked off.
    pub(crate) cpu: &'a Cpu,
    pub(crate) context: Context,
    list: Chain,
    repoll: Chain,
    /// Has a claim while an instance is being polled.
    pub(crate) turn: Turn<'a, Q>,
    /// Frames left of the round's budget.
    budget: i32,
    /// When the round's time is up.
    until: Ns,
}

impl<'a, Q> NetRx<'a, Q> {
    #[inline]
    pub(crate) fn new(host: &'a Host<Q>, cpu: &'a Cpu, context: Context) -> Self {
        NetRx {
            host,
            cpu,
            context,
            list: Chain::new(),
            repoll: Chain::new(),
            turn: Turn::idle(context.owner()),
            budget: 0,
            until: 0,
        }
    }

    /// Begins a round.
    #[inline]
    pub(crate) fn begin(&mut self, now: Ns) -> Result<Op, Round> {
        let cpu = self.cpu;
        cpu.enter_net_rx();
        let (budget, time) = cpu.net_rx_limits();
        self.budget = budget;
        self.until = now.saturating_add(time);
        self.turn.set_busy(false);
        match cpu.list.take(self.host.instances()) {
            Some((instance, others)) => {
                self.list = others;
                Ok(self.poll(instance))
            }
            None => {
                self.list = Chain::new();
                self.pick()
            }
        }
    }

    /// The next step of the poll under way, or of what follows from it; `None` where the round goes on.
    #[inline(always)]
    pub(crate) fn next(&mut self, now: Ns, did: Did) -> Option<Op> {
        match self.turn.next(now, did, Owner::Softirq) {
            Next::Op(op) => Some(op),
            Next::End(End::Released) => {
                self.spend();
                None
            }
            Next::End(end) => {
                self.spend();
                self.keep(end)
            }
        }
    }

    /// Takes what a poll found off the round's budget.
    #[inline(always)]
    fn spend(&mut self) {
        self.budget -= i32::from(self.turn.work().rx);
    }

    /// Goes on with the round, within its limits.
    #[inline]
    pub(crate) fn go_on(&mut self, now: Ns) -> Result<Op, Round> {
        if self.budget <= 0 || now >= self.until {
            self.cpu.squeezed();
            return Err(self.leave());
        }
        self.pick()
    }

    /// After a turn that did not release.
    #[inline(always)]
    fn keep(&mut self, end: End) -> Option<Op> {
        let claim = self.turn.take_claim()?;
        if end == End::HandOver {
            claim.instance().counters.handovers.add(1);
            return self.host.route(claim, self.context.from());
        }
        if end == End::Scheduled {
            // This round looks at the CPU's list again before it ends.
            self.cpu.list.push(claim.into_token());
            return None;
        }
        if end != End::Held {
            self.turn.set_busy(true);
        }
        self.repoll.push(self.host.instances(), claim.into_token());
        None
    }

    /// Polls the next instance, if there is one.
    #[inline(always)]
    fn pick(&mut self) -> Result<Op, Round> {
        loop {
            if let Some(instance) = self.list.pop(self.host.instances()) {
                return Ok(self.poll(instance));
            }
            if !self.repoll.is_empty() {
                return Err(self.leave());
            }
            let cpu = self.cpu;
            cpu.leave_net_rx();
            // A schedule that saw us at the list did not raise: look again (race R12).
            if cpu.list.is_empty() || race::on(Race::ListNotRechecked) {
                return Err(Round::Drained);
            }
            self.cpu.reenter_net_rx();
            if let Some((instance, others)) = self.cpu.list.take(self.host.instances()) {
                self.list = others;
                return Ok(self.poll(instance));
            }
        }
    }

    /// Polls an instance that has just been taken off a list.
    #[inline(always)]
    fn poll(&mut self, instance: &'a Instance<Q>) -> Op {
        self.turn.begin(Claim::from_token(self.host, instance), instance.settings.weight())
    }

    /// Puts everything that is left back: what was not reached, what came meanwhile, what wants
    /// more.
    fn leave(&mut self) -> Round {
        let instances = self.host.instances();
        let mut all = core::mem::replace(&mut self.list, Chain::new());
        if let Some((instance, others)) = self.cpu.list.take(instances) {
            all.push(instances, instance);
            all.append(instances, others);
        }
        let holding = all.is_empty() && !self.turn.busy();
        all.append(instances, core::mem::replace(&mut self.repoll, Chain::new()));
        let mut left = false;
        while let Some(instance) = all.pop(instances) {
            self.cpu.list.push(instance);
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
            while let Some(instance) = chain.pop(instances) {
                self.cpu.list.push(instance);
            }
        }
        drop(self.turn.take_claim());
    }
}
