//! The network softirq (`net_rx_action`): one round over a CPU's scheduled instances, within a
//! budget of frames and of time.
//!
//! Each instance is polled once a round; those that want more go to the tail of the next round's list (round
//! robin). The limits are checked after each poll, so at least one instance always runs.

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
    /// No instance is left to poll.
    Drained,
    /// Instances are left, and the vector was raised again.
    Left,
    /// Only instances in *hold* without work are left, and the vector was raised again. They are no reason to keep
    /// the CPU in its softirqs (invariant 9).
    Holding,
}

/// The network softirq of one dispatch. Its rounds follow one another in the same struct.
#[derive(Debug)]
pub(crate) struct NetRx<'a, Q> {
    host: &'a Host<Q>,
    /// The CPU whose poll list is served.
    pub(crate) cpu: &'a Cpu,
    pub(crate) context: Context,
    list: Chain,
    repoll: Chain,
    /// Holds the claim while an instance is being polled.
    pub(crate) turn: Turn<'a, Q>,
    /// Frames left of the round's budget.
    budget: i32,
    /// When the round reaches its time limit.
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
                self.next_instance()
            }
        }
    }

    /// The next step of the current turn, or of the hand-over that it ends with; `None` when neither has a further
    /// step.
    #[inline(always)]
    pub(crate) fn next(&mut self, now: Ns, did: Did) -> Option<Op> {
        match self.turn.next(now, did, Owner::Softirq) {
            Next::Op(op) => Some(op),
            Next::End(End::Released) => {
                self.charge();
                None
            }
            Next::End(end) => {
                self.charge();
                self.dispose(end)
            }
        }
    }

    /// Charges the frames of a poll to the round's budget.
    #[inline(always)]
    fn charge(&mut self) {
        self.budget -= i32::from(self.turn.work().rx);
    }

    /// Continues the round, or ends it at its limits.
    #[inline]
    pub(crate) fn go_on(&mut self, now: Ns) -> Result<Op, Round> {
        if self.budget <= 0 || now >= self.until {
            self.cpu.squeezed();
            return Err(self.end_round());
        }
        self.next_instance()
    }

    /// Disposes of the claim after a turn that did not release.
    #[inline(always)]
    fn dispose(&mut self, end: End) -> Option<Op> {
        let claim = self.turn.take_claim()?;
        if end == End::HandOver {
            claim.instance().counters.handovers.add(1);
            return self.host.route(claim, self.context.from());
        }
        if end == End::Scheduled {
            // This round checks the CPU's list again before it ends.
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
    fn next_instance(&mut self) -> Result<Op, Round> {
        loop {
            if let Some(instance) = self.list.pop(self.host.instances()) {
                return Ok(self.poll(instance));
            }
            if !self.repoll.is_empty() {
                return Err(self.end_round());
            }
            let cpu = self.cpu;
            cpu.leave_net_rx();
            // A schedule that saw `IN_NET_RX` did not raise: check the list again (race R12).
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

    /// Puts the remaining instances back on the CPU's list: those not reached, those scheduled meanwhile, and those
    /// to be polled again.
    fn end_round(&mut self) -> Round {
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
        // Checked after `leave_net_rx`, because a schedule that saw `IN_NET_RX` did not raise (race R12).
        if !left && (self.cpu.list.is_empty() || race::on(Race::ListNotRechecked)) {
            return Round::Drained;
        }
        self.cpu.raise(Vector::NetRx.bit());
        if holding { Round::Holding } else { Round::Left }
    }

    /// Puts back the instances that a context had taken when it unwound.
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
