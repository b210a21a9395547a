//! The invariants of the design, which must hold after every half-step.

use napkin_core::*;
use napkin_policy::Threaded;

use super::{Any, Frame, World};

/// What one softirq dispatch has done so far.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Rounds {
    limits: Limits,
    dispatch_started: Ns,
    rounds: u64,
    started: Ns,
    polls: u32,
    packets: u32,
    /// Whether this round's polls found nothing.
    workless: bool,
    /// Whether another vector ran since this round.
    vectors: bool,
    /// The instances that this round polled.
    met: u64,
    /// The value of `Watch::activity` when this round began.
    activity: u64,
    /// The instances that the last round polled, if it found nothing and there was no activity.
    in_vain: Option<u64>,
}

/// The state that the checks keep.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Interrupts, timers, schedules and looks that found work: reasons for a round to follow one
    /// that found nothing.
    pub(crate) activity: u64,
    /// Polls since a disable was requested.
    pub(crate) disabling: Vec<Option<u32>>,
    /// Polls by an owner whose mode is gone.
    pub(crate) wrong: Vec<u32>,
}

impl Watch {
    pub(crate) fn new(instances: usize) -> Self {
        Watch { activity: 0, disabling: vec![None; instances], wrong: vec![0; instances] }
    }
}

/// What a CPU had counted before a decision.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Before(CpuCounts);

impl<'a> World<'a> {
    pub(super) fn before(&self, frame: &Frame<'a>) -> Before {
        match frame.pass {
            Any::Softirq(_, cpu) => Before(self.host.cpu(cpu).counts()),
            _ => Before::default(),
        }
    }

    /// Checks after a decision: limits of dispatch and round, the length of timers, ownership.
    pub(super) fn decided(
        &mut self,
        frame: &mut Frame<'a>,
        before: Before,
        op: Op,
    ) -> Result<(), String> {
        if let Any::Softirq(_, cpu) = frame.pass {
            self.softirq_decided(frame, cpu, before.0, op)?;
        } else {
            // A step that ends ownership, or a resume, may have put an instance on a CPU's list.
            let goes_on = matches!(
                op,
                Op::Poll { .. } | Op::Deliver(_) | Op::Unmask(_) | Op::Resched | Op::Pause
            );
            self.watch.activity += u64::from(!goes_on);
        }
        if let Op::Arm { id, at } = op {
            let settings = self.host.instance(id).settings();
            let park = if settings.feedback { settings.park_timeout() } else { 0 };
            let most = settings.gro_flush_timeout.max(settings.irq_suspend_timeout).max(park);
            if at > self.now + most {
                return Err(format!("{id:?} is armed for {at}, {most} at the most"));
            }
        }
        frame.touches = match op {
            Op::Poll { id, .. } | Op::Deliver(id) | Op::Mask(id) | Op::Unmask(id) => Some(id),
            // A session stays the owner between its passes.
            Op::Look if frame.looked_in_vain => {
                frame.touches.filter(|&id| self.host.instance(id).state().has(state::IN_BUSY_POLL))
            }
            // So does a thread that polls on.
            Op::Resched | Op::Pause | Op::Yield if matches!(frame.pass, Any::Kthread(_)) => {
                frame.touches
            }
            _ => None,
        };
        Ok(())
    }

    fn softirq_decided(
        &self,
        frame: &mut Frame<'a>,
        cpu: CpuId,
        before: CpuCounts,
        op: Op,
    ) -> Result<(), String> {
        let cpu = self.host.cpu(cpu);
        let after = cpu.counts();
        let repolls = |id| self.host.instance(id).counts().repolls;
        let activity = self.watch.activity + self.host.ids().map(repolls).sum::<u64>();
        let rounds = &mut frame.rounds;
        if after.dispatches != before.dispatches {
            *rounds =
                Rounds { limits: cpu.limits(), dispatch_started: self.now, ..Rounds::default() };
        }
        let new = after.net_rx - before.net_rx;
        if new > 0 {
            let was = *rounds;
            // A round that ran into a limit has not polled every instance, and another vector leads to another pass
            // over all that is pending.
            let excused = after.time_squeeze != before.time_squeeze || was.vectors;
            let in_vain = was.polls > 0 && was.workless;
            if let Some(met) = was.in_vain
                && in_vain
                && !excused
                && was.met & !met == 0
            {
                return Err("holders without work kept the CPU in its softirqs".into());
            }
            let quiet = was.activity == activity;
            rounds.in_vain = (in_vain && !excused && quiet).then_some(was.met);
            rounds.activity = activity;
            rounds.met = 0;
            rounds.rounds += new;
            rounds.started = self.now;
            rounds.polls = 0;
            rounds.packets = 0;
            rounds.workless = true;
            rounds.vectors = false;
            rounds.limits.budget = cpu.limits().budget;
            rounds.limits.budget_time = cpu.limits().budget_time;
            let age = self.now - rounds.dispatch_started;
            // The core may or may not apply changed limits to the dispatch under way: allow both.
            let (then, present) = (rounds.limits, cpu.limits());
            let passes = then.dispatch_passes.max(present.dispatch_passes).max(1);
            let time = then.dispatch_time.max(present.dispatch_time);
            if !was.vectors && rounds.rounds > u64::from(passes) {
                return Err(format!("round {} of a dispatch", rounds.rounds));
            }
            // Between the vectors of one pass the time is not checked.
            if was.rounds > 0 && !was.vectors && age >= time {
                return Err(format!("a new round {age} ns into a dispatch"));
            }
        }
        rounds.vectors |= matches!(op, Op::Vector(..));
        if matches!(op, Op::Poll { .. }) && rounds.polls > 0 {
            let age = self.now - rounds.started;
            if age >= rounds.limits.budget_time {
                return Err(format!("a poll {age} ns into a round"));
            }
            if rounds.packets >= u32::from(rounds.limits.budget) {
                return Err(format!("a poll after {} frames of a round", rounds.packets));
            }
        }
        Ok(())
    }

    /// Checks after a poll: its budget, and whether its owner had the right to it.
    pub(super) fn polled(
        &mut self,
        frame: &mut Frame<'a>,
        id: Id,
        budget: u16,
        work: Work,
    ) -> Result<(), String> {
        let slot = usize::from(id.0);
        if work.rx > budget {
            return Err(format!("{} frames of {budget}", work.rx));
        }
        frame.rounds.polls += 1;
        frame.rounds.met |= 1 << id.0;
        frame.rounds.packets += u32::from(work.rx);
        frame.rounds.workless &= !work.any();
        let state = self.host.instance(id).state();
        if state.disabled() {
            return Err(format!("{id:?} is disabled and polled"));
        }
        if budget == 0 {
            return Ok(());
        }
        if let Some(polls) = &mut self.watch.disabling[slot] {
            *polls += 1;
            if *polls > 2 {
                return Err(format!("{polls} polls of {id:?} after its disable"));
            }
        }
        let right = match (&frame.pass, state.mode()) {
            (Any::Softirq(..), mode) => mode == Threaded::Disabled,
            (Any::Kthread(_), mode) => matches!(mode, Threaded::Enabled | Threaded::BusyPoll),
            (Any::Worker(_), mode) => mode == Threaded::Workqueue,
            (_, mode) => mode != Threaded::BusyPoll,
        };
        self.watch.wrong[slot] = if right { 0 } else { self.watch.wrong[slot] + 1 };
        if self.watch.wrong[slot] > 2 {
            return Err(format!("{id:?}: a third poll by an owner of another mode"));
        }
        Ok(())
    }

    /// Checks before the queue is touched: no other context owns it.
    pub(super) fn alone(&self, id: Id, op: Op) -> Result<(), String> {
        if !self.host.instance(id).state().has(state::SCHED) {
            return Err(format!("{op:?} without owning"));
        }
        // The frame itself has been taken off its stack.
        for other in self.tasks.iter().flat_map(|task| &task.stack) {
            if other.touches == Some(id) {
                return Err(format!("{op:?} while {:?} owns {id:?}", other.pending));
            }
        }
        Ok(())
    }

    /// Checks after every half-step.
    pub(super) fn check(&self) -> Result<(), String> {
        for id in self.host.ids() {
            let instance = self.host.instance(id);
            let state = instance.state();
            let device = self.device(id);
            if let Some(broken) = &device.broken {
                return Err(format!("{id:?}: {broken}"));
            }
            if !device.conserves() {
                return Err(format!("{id:?} lost or made frames"));
            }
            let contexts = self.contexts.len() as u32;
            if instance.suspending_contexts() > contexts {
                return Err(format!("{id:?}: more than {contexts} contexts suspend"));
            }
            let marks = state::MISSED
                | state::PREFER_BUSY_POLL
                | state::IN_BUSY_POLL
                | state::SCHED_THREADED;
            if !state.has(state::SCHED) && state.has(marks) {
                return Err(format!("{id:?} has marks and no owner: {state:?}"));
            }
            if state.has(state::SCHED | state::DISABLE) {
                continue;
            }
            if !device.masked && device.waiting() > 0 {
                return Err(format!("{id:?}: frames wait, unmasked, without an interrupt"));
            }
            if device.masked && !device.line {
                let deadline = instance.deadline();
                if deadline == NEVER {
                    return Err(format!("{id:?} is masked, without owner and without timer"));
                }
                let timer = self.timers[usize::from(instance.cpu().0)];
                let arming = self.tasks.iter().flat_map(|t| &t.stack).any(
                    |frame| matches!(frame.pending, Some(Op::Arm { id: armed, .. }) if armed == id),
                );
                if timer > deadline && !arming {
                    return Err(format!("{id:?}: due at {deadline}, the timer is set to {timer}"));
                }
            }
        }
        Ok(())
    }

    /// Checks when no task can run: nothing may be owned, and nothing may be pending.
    pub(super) fn check_idle(&self) -> Result<(), String> {
        for id in self.host.ids() {
            let state = self.host.instance(id).state();
            if state.has(state::SCHED) && !state.disabled() {
                return Err(format!("{id:?} is owned and nobody runs: {state:?}"));
            }
        }
        for cpu in 0..self.plan.cpus {
            if self.host.cpu(CpuId(cpu)).pending() != 0 {
                return Err(format!("softirqs of CPU {cpu} are pending and nobody runs"));
            }
        }
        Ok(())
    }

    /// Checks at the very end: everything was delivered, everything is free and unmasked.
    pub(super) fn check_silence(&self) -> Result<(), String> {
        for id in self.host.ids() {
            let instance = self.host.instance(id);
            if instance.suspending_contexts() > 0 {
                return Err(format!("{id:?} is still suspended after every context was closed"));
            }
            let (state, device) = (instance.state(), self.device(id));
            if device.waiting() + device.in_batch() > usize::from(self.plan.abandons) * 64 {
                return Err(format!("{id:?} keeps {} frames", device.waiting()));
            }
            if state.disabled() {
                return Err(format!("{id:?} is still disabled"));
            }
        }
        Ok(())
    }
}
