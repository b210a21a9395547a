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
    list: Chain,
    repoll: Chain,
    /// Has a claim while an instance is being polled.
    pub(crate) turn: Turn<'a, Q>,
    /// Frames left of the round's budget.
    budget: i32,
    /// When the round's time is up.
    until: Ns,
    /// A poll of this round found work, or somebody wants another for a reason other than *hold*.
    busy: bool,
}

impl<'a, Q> NetRx<'a, Q> {
    #[inline]
    pub(crate) fn new(host: &'a Host<Q>, owner: Owner) -> Self {
        NetRx {
            host,
            list: Chain::new(),
            repoll: Chain::new(),
            turn: Turn::idle(owner),
            budget: 0,
            until: 0,
            busy: false,
        }
    }

    /// Begins a round.
    #[inline]
    pub(crate) fn begin(&mut self, cpu: &Cpu, now: Ns) -> Result<Op, Round> {
        cpu.enter_net_rx();
        let (budget, time) = cpu.net_rx_limits();
        self.budget = budget;
        self.until = now.saturating_add(time);
        self.busy = false;
        self.list = cpu.list.take(self.host.instances());
        self.pick(cpu)
    }

    /// The next step of the poll under way, or of what follows from it; `None` where the round goes on.
    #[inline(always)]
    pub(crate) fn next(&mut self, cpu: &Cpu, context: Context, now: Ns, did: Did) -> Option<Op> {
        let end = match self.turn.next(now, did, Owner::Softirq) {
            Next::Op(op) => return Some(op),
            Next::End(end) => end,
        };
        let work = self.turn.work();
        self.busy |= work.any();
        self.budget -= i32::from(work.rx);
        if end == End::Released {
            return None;
        }
        self.turn.take_claim().and_then(|claim| self.keep(cpu, context, claim, end))
    }

    /// Goes on with the round, within its limits.
    #[inline]
    pub(crate) fn go_on(&mut self, cpu: &Cpu, now: Ns) -> Result<Op, Round> {
        if self.budget <= 0 || now >= self.until {
            cpu.squeezed();
            return Err(self.leave(cpu));
        }
        self.pick(cpu)
    }

    /// After a turn that did not release.
    fn keep(&mut self, cpu: &Cpu, context: Context, claim: Claim<'a, Q>, end: End) -> Option<Op> {
        if end == End::HandOver {
            claim.instance().counters.handovers.add(1);
            return self.host.route(claim, context.from());
        }
        if end == End::Scheduled {
            // This round looks at the CPU's list again before it ends.
            cpu.list.push(claim.into_token());
            return None;
        }
        self.busy |= end != End::Held;
        self.repoll.push(self.host.instances(), claim.into_token());
        None
    }

    /// Polls the next instance, if there is one.
    #[inline(always)]
    fn pick(&mut self, cpu: &Cpu) -> Result<Op, Round> {
        loop {
            if let Some(instance) = self.list.pop(self.host.instances()) {
                let claim = Claim::from_token(self.host, instance);
                return Ok(self.turn.begin(claim, instance.settings.weight()));
            }
            if !self.repoll.is_empty() {
                return Err(self.leave(cpu));
            }
            cpu.leave_net_rx();
            // A schedule that saw us at the list did not raise: look again (race R12).
            if cpu.list.is_empty() || race::on(Race::ListNotRechecked) {
                return Err(Round::Drained);
            }
            cpu.reenter_net_rx();
            self.list = cpu.list.take(self.host.instances());
        }
    }

    /// Puts everything that is left back: what was not reached, what came meanwhile, what wants
    /// more.
    fn leave(&mut self, cpu: &Cpu) -> Round {
        let instances = self.host.instances();
        let mut all = core::mem::replace(&mut self.list, Chain::new());
        all.append(instances, cpu.list.take(instances));
        let holding = all.is_empty() && !self.busy;
        all.append(instances, core::mem::replace(&mut self.repoll, Chain::new()));
        let mut left = false;
        while let Some(instance) = all.pop(instances) {
            cpu.list.push(instance);
            left = true;
        }
        cpu.leave_net_rx();
        // The look after the leave is for a schedule that saw us at the list (race R12).
        if !left && (cpu.list.is_empty() || race::on(Race::ListNotRechecked)) {
            return Round::Drained;
        }
        cpu.raise(Vector::NetRx.bit());
        if holding { Round::Holding } else { Round::Left }
    }

    /// Puts back what a context that unwound had taken.
    pub(crate) fn abandon(&mut self, cpu: &Cpu) {
        let instances = self.host.instances();
        for chain in [&mut self.list, &mut self.repoll] {
            while let Some(instance) = chain.pop(instances) {
                cpu.list.push(instance);
            }
        }
        drop(self.turn.take_claim());
    }
}
