//! All instances and CPUs of one host. Routes a scheduled instance to its owner.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::claim::Claim;
use crate::contract::WorldCheck;
use crate::cpu::Cpu;
use crate::instance::{CpuId, Id, Instance};
use crate::order::Order;
use crate::race::{self, Race};
use crate::raised_from::RaisedFrom;
use crate::rules::{KernelRules, Rules};
use crate::settings::{self, SettingError};
use crate::state::{IN_BUSY_POLL, MODE, Prep, SCHED_THREADED, State};
use crate::step::{Op, Task};
use crate::sync::ArrayQueue;
use crate::vector::Vector;
use crate::{NEVER, Ns};
use napkin_policy::{InstancePolicy, Threaded};

/// Spare slots of the pool's queue beyond one per instance, so that a push never meets a slot that is still being
/// read. It would spin there, and for ever if it has preempted the reader on its own CPU.
const SLACK: usize = 64;

/// The instances and CPUs of one host. Shared by every context; allocates only when made.
#[derive(Debug)]
pub struct Host<Q> {
    instances: Box<[Instance<Q>]>,
    cpus: Box<[Cpu]>,
    /// Items of the shared pool. Lock-free and bounded; each instance is on it at most once.
    pub(crate) work: ArrayQueue<Id>,
    rules: Rules,
    pub(crate) contract: WorldCheck,
}

impl<Q> Host<Q> {
    /// A host with `cpus` CPUs and one instance for each pair of a queue and the CPU that serves it. All instances
    /// are disabled; an [`Enable`](crate::Enable) pass enables each.
    ///
    /// # Panics
    /// If `cpus` is 0, if a queue names a CPU that does not exist, or with 65 535 or more of either: the caller's
    /// inventory is wrong.
    pub fn new(cpus: u16, queues: impl IntoIterator<Item = (Q, CpuId)>) -> Self {
        let instances: Box<[_]> = queues
            .into_iter()
            .enumerate()
            .map(|(id, (queue, cpu))| {
                assert!(cpu.0 < cpus, "a queue names CPU {} of {cpus}", cpu.0);
                Instance::new(Id(id as u16), queue, cpu)
            })
            .collect();
        assert!(cpus > 0 && cpus < u16::MAX, "{cpus} CPUs");
        assert!(instances.len() < usize::from(u16::MAX), "{} instances", instances.len());
        let work = ArrayQueue::new(instances.len() + SLACK);
        let cpus = (0..cpus).map(|id| Cpu::new(CpuId(id))).collect::<Vec<_>>().into();
        Host { instances, cpus, work, rules: Rules::new(), contract: WorldCheck::default() }
    }

    /// One instance.
    ///
    /// # Panics
    /// If there is no such instance; [`Host::ids`] are the valid ones.
    #[inline]
    pub fn instance(&self, id: Id) -> &Instance<Q> {
        &self.instances[usize::from(id.0)]
    }

    #[inline]
    pub(crate) fn instances(&self) -> &[Instance<Q>] {
        &self.instances
    }

    /// Every instance's id.
    pub fn ids(&self) -> impl Iterator<Item = Id> + use<Q> {
        (0..self.instances.len() as u16).map(Id)
    }

    /// One CPU.
    ///
    /// # Panics
    /// If there is no such CPU; [`Host::cpus`] says how many there are.
    #[inline]
    pub fn cpu(&self, id: CpuId) -> &Cpu {
        &self.cpus[usize::from(id.0)]
    }

    /// The number of CPUs.
    pub fn cpus(&self) -> u16 {
        self.cpus.len() as u16
    }

    /// Whether items wait for the shared pool.
    pub fn work_waits(&self) -> bool {
        !self.work.is_empty()
    }

    /// Declares that one thread of this world runs several contexts in turn, as a simulation in virtual time does.
    /// Without it a debug build panics if a task begins inside the step that wakes it, or a softirq inside the pass
    /// that raised it; see [`Op::Wake`].
    pub fn contexts_share_a_thread(&self) {
        self.contract.share_a_thread();
    }

    /// The earliest deadline of the timers that a CPU serves; [`NEVER`] if none is armed.
    ///
    /// The world drives the timers: one of its threads, or an event of its simulation, waits until then and calls
    /// [`timer`](Self::timer). [`Op::Arm`] asks it to read the deadline again. If it never calls `timer`, `deferN`
    /// and `suspendN` receive only what an application polls for itself: the interrupt stays masked until a timer
    /// has the ring polled. A debug build panics when a wait meets the same overdue deadline for the fourth time,
    /// each time a second or more after the last.
    pub fn next_deadline(&self, cpu: CpuId) -> Ns {
        self.instances
            .iter()
            .filter(|instance| instance.cpu() == cpu)
            .map(Instance::deadline)
            .min()
            .unwrap_or(NEVER)
    }

    /// Changes an instance's settings while traffic flows. A new mode takes effect after the owner's current poll,
    /// on a free instance at its next schedule. Returns the previous state.
    ///
    /// Before it sets a mode in which the instance's own thread polls, the world creates that thread if there is
    /// none. After any change of the mode it wakes the thread, or starts it anew if it has [ended](crate::Kthread).
    ///
    /// # Errors
    /// A value out of the kernel's limits; nothing is changed then.
    ///
    /// # Panics
    /// If there is no such instance.
    pub fn set(&self, id: Id, policy: &InstancePolicy) -> Result<State, SettingError> {
        settings::check(policy)?;
        let instance = self.instance(id);
        instance.settings.store(policy);
        Ok(instance.state.set_mode(policy.threaded))
    }

    /// Changes how many frames a poll outside busy polling may take, from the owner's next poll on.
    ///
    /// # Errors
    /// A weight of 0.
    ///
    /// # Panics
    /// If there is no such instance.
    pub fn set_weight(&self, id: Id, weight: u16) -> Result<(), SettingError> {
        self.instance(id).settings.set_weight(weight)
    }

    /// Sets the order in which the instance's driver ends a poll ([`Order::DeliverFirst`] by default). Meant for
    /// set-up; under traffic it takes effect at the owner's next poll.
    ///
    /// # Panics
    /// If there is no such instance.
    pub fn set_order(&self, id: Id, order: Order) {
        self.instance(id).settings.set_order(order);
    }

    /// Sets in what the modelled kernel differs from the core. Meant for set-up; under traffic it takes effect when
    /// a session next stops or a wait next finds events.
    pub fn set_rules(&self, rules: KernelRules) {
        self.rules.set(rules);
    }

    /// The rules in force.
    pub fn rules(&self) -> KernelRules {
        self.rules.load()
    }

    /// Moves an instance's interrupt and softirq to another CPU, from its next schedule on, and its timer at once.
    /// If the timer is armed, returns the [`Op::Arm`] for the new CPU.
    ///
    /// An owner that arms at the same moment may still address the old CPU's timer. So a world that moves instances
    /// under traffic uses one timer for all its CPUs (the earliest [`next_deadline`](Self::next_deadline)), or has
    /// every CPU's timer read its deadline again at each [`Op::Arm`] and each move.
    ///
    /// # Panics
    /// If there is no such instance, or no such CPU.
    #[must_use = "the step that has the new CPU's timer fire"]
    pub fn set_cpu(&self, id: Id, cpu: CpuId) -> Option<Op> {
        assert!(cpu.0 < self.cpus(), "CPU {} of {}", cpu.0, self.cpus());
        let instance = self.instance(id);
        instance.set_cpu(cpu);
        let at = instance.deadline();
        (at != NEVER).then_some(Op::Arm { id, at })
    }

    /// Allows (as is the default) or forbids applications to busy poll an instance.
    ///
    /// # Panics
    /// If there is no such instance.
    pub fn allow_busy_poll(&self, id: Id, allowed: bool) {
        self.instance(id).state.set_busy_poll(allowed);
    }

    /// Schedules an instance (`napi_schedule`), for example because a receiver has drained. Returns the step that
    /// the caller has to take, if any.
    ///
    /// # Panics
    /// If there is no such instance.
    #[must_use = "the step that runs the softirq, or wakes who polls"]
    pub fn schedule(&self, id: Id, from: RaisedFrom) -> Option<Op> {
        let instance = self.instance(id);
        match instance.state.schedule_prep() {
            Prep::Won => self.route(Claim::from_token(self, instance), from),
            Prep::Missed | Prep::Disabled => None,
        }
    }

    /// Handles an instance's timer on `cpu` (`napi_watchdog`). If it has expired, the instance is scheduled; a
    /// softirq that polls it is this CPU's, whatever the affinity of the instance's interrupt.
    ///
    /// Before the deadline it does nothing, and of several concurrent callers one takes an expiry, so it may be
    /// called too often and by several threads at once. Whatever drives a CPU's timer calls it for each instance of
    /// that CPU once [`next_deadline`](Self::next_deadline) has passed, outside any pass. The returned step is to
    /// be taken at once, an [`Op::Raise`] by running a [`Softirq`](crate::Softirq) as after an interrupt.
    ///
    /// # Panics
    /// If there is no such instance, or, where its timer has expired, no such CPU.
    #[must_use = "the step that runs the softirq, or wakes who polls"]
    pub fn timer(&self, id: Id, cpu: CpuId, now: Ns) -> Option<Op> {
        let instance = self.instance(id);
        if !instance.take_expiry(now) {
            return None;
        }
        // A timeout that was shortened meanwhile ends a longer suspension, too.
        let until = instance.suspension.until();
        if until <= now || until > now + instance.settings.irq_suspend_timeout() {
            instance.suspension.expire();
        }
        let prep = if race::on(Race::EarlyTimer) {
            instance.state.test_and_set_sched()
        } else {
            instance.state.schedule_prep()
        };
        match prep {
            Prep::Won => {
                instance.counters.timer_polls.add(1);
                let claim = Claim::from_token(self, instance);
                self.route_on(claim, self.cpu(cpu), RaisedFrom::Interrupt)
            }
            Prep::Missed => {
                instance.counters.timer_missed.add(1);
                None
            }
            Prep::Disabled => None,
        }
    }

    /// Hands an instance to the owner that its mode names.
    #[inline]
    pub(crate) fn route(&self, claim: Claim<'_, Q>, from: RaisedFrom) -> Option<Op> {
        let cpu = self.cpu(claim.instance().cpu());
        self.route_on(claim, cpu, from)
    }

    /// The same, with the CPU whose softirq polls if the mode names the softirq.
    #[inline]
    fn route_on(&self, claim: Claim<'_, Q>, cpu: &Cpu, from: RaisedFrom) -> Option<Op> {
        let instance = claim.instance();
        loop {
            let state = instance.state.load();
            // Only the owner sets the last two, so a load is enough to know that they are clear.
            if !state.has(MODE | SCHED_THREADED | IN_BUSY_POLL) {
                cpu.list.push(claim.into_token());
                return cpu.raise_from(Vector::NetRx.bit(), from);
            }
            match state.mode() {
                Threaded::Enabled | Threaded::BusyPoll => {
                    // Fails only if the mode has changed since: read the state again.
                    if instance.state.give_to_thread() {
                        return Some(Op::Wake(Task::Napi(claim.into_token().id)));
                    }
                }
                Threaded::Workqueue => {
                    instance.state.take_from_thread();
                    return self.queue_work(claim).then_some(Op::Wake(Task::Worker));
                }
                Threaded::Disabled => {
                    instance.state.take_from_thread();
                    cpu.list.push(claim.into_token());
                    return cpu.raise_from(Vector::NetRx.bit(), from);
                }
            }
        }
    }

    /// Puts an item at the tail of the shared pool's queue.
    pub(crate) fn queue_work(&self, claim: Claim<'_, Q>) -> bool {
        // There is room for every instance, and a token is on it at most once.
        let pushed = self.work.push(claim.into_token().id);
        debug_assert!(pushed.is_ok(), "more items than instances");
        pushed.is_ok()
    }

    /// Marks vectors pending that the core does not handle (a timer tick, a tasklet); the network vectors are
    /// ignored.
    ///
    /// # Panics
    /// If there is no such CPU.
    #[must_use = "the step that runs the softirq"]
    pub fn raise_vectors(&self, cpu: CpuId, vectors: u32, from: RaisedFrom) -> Option<Op> {
        self.cpu(cpu).raise_from(vectors & crate::cpu::VECTORS & !crate::cpu::NET, from)
    }

    /// Leaves an instance whose owner unwound to its CPU's softirq, which the world has to run
    /// ([`Pass`](crate::Pass)).
    pub(crate) fn leave_to_softirq(&self, instance: &Instance<Q>) {
        let cpu = self.cpu(instance.cpu());
        cpu.list.push(instance);
        cpu.raise(Vector::NetRx.bit());
    }
}
