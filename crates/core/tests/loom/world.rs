//! A small world under loom: one device (`device.rs`) or more, and actors that drive the core's passes
//! step by step.
//!
//! Nothing blocks. An actor that wakes a sleeping task runs that task once its own pass has ended; waking a running
//! task leaves a mark, which the task takes before it sleeps. So each model ends by itself, and what is left then
//! must be quiet: [`World::still`] and [`World::settled`] are the invariants. A lost wake-up shows as a packet, a
//! masked line or a token that is left over.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use loom::sync::atomic::{
    AtomicU32,
    Ordering::{AcqRel, Acquire},
};
use loom::thread::{JoinHandle, yield_now};
use napkin_core::state::{IN_BUSY_POLL, MISSED, PREFER_BUSY_POLL, SCHED, SCHED_THREADED};
use napkin_core::*;
use napkin_policy::{InstancePolicy, Threaded};

use crate::device::{Line, Nic};

pub(crate) const ID: Id = Id(0);
pub(crate) const CPU: CpuId = CpuId(0);
/// The period of deferral: far beyond what an actor's own steps take.
pub(crate) const PERIOD: Ns = 100_000;
/// The longest suspension.
pub(crate) const SUSPENSION: Ns = 2_000_000;
/// After every timer.
pub(crate) const LATE: Ns = 1_000_000_000;
/// How long a look takes: two of them end a busy poll of one microsecond.
const LOOK: Ns = 700;
/// More steps than any actor that ends can take.
const STEPS: u32 = 400;

/// The states of a task: asleep, running, running and woken again, ended.
const ASLEEP: u32 = 0;
const RUNNING: u32 = 1;
const WOKEN: u32 = 2;
const ENDED: u32 = 3;

/// How a pass stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    Done,
    Slept,
}

/// Everything that the actors of one model share.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) host: Host<Nic>,
    /// The device of each instance, and below the state of its thread.
    lines: Vec<Arc<Line>>,
    napi: Vec<AtomicU32>,
    worker: AtomicU32,
    ksoftirqd: [AtomicU32; 2],
    /// The owner, if any, that has to stop polling once `left` is 1.
    leaving: Option<Owner>,
    left: AtomicU32,
    /// The monotonic clock: each step of an actor takes a nanosecond.
    clock: AtomicU64,
}

impl World {
    /// A host of two CPUs and one instance, still disabled.
    pub(crate) fn new(policy: &InstancePolicy, one_shot: bool) -> Arc<World> {
        Self::leaving(policy, one_shot, None)
    }

    /// The same, for a model in which an owner's mode is left ([`Actor::change`]).
    pub(crate) fn leaving(
        policy: &InstancePolicy,
        one_shot: bool,
        leaving: Option<Owner>,
    ) -> Arc<World> {
        Self::of(1, policy, one_shot, leaving)
    }

    /// A host of two CPUs and that many instances on one of them, still disabled.
    pub(crate) fn of(
        instances: u16,
        policy: &InstancePolicy,
        one_shot: bool,
        leaving: Option<Owner>,
    ) -> Arc<World> {
        let (lines, nics): (Vec<_>, Vec<_>) = (0..instances).map(|_| Line::new(one_shot)).unzip();
        let host = Host::new(2, nics.into_iter().map(|nic| (nic, CPU)));
        for id in host.ids() {
            host.set_weight(id, 1).expect("1 is a weight");
            host.set(id, policy).expect("a policy of the models");
        }
        let thread = matches!(policy.threaded, Threaded::Enabled | Threaded::BusyPoll);
        let thread = |_| AtomicU32::new(if thread { ASLEEP } else { ENDED });
        Arc::new(World {
            napi: host.ids().map(thread).collect(),
            host,
            lines,
            worker: AtomicU32::new(ASLEEP),
            ksoftirqd: [AtomicU32::new(ASLEEP), AtomicU32::new(ASLEEP)],
            leaving,
            left: AtomicU32::new(0),
            clock: AtomicU64::new(1),
        })
    }

    pub(crate) fn line(&self, id: Id) -> &Line {
        &self.lines[usize::from(id.0)]
    }

    fn slot(&self, task: Task) -> &AtomicU32 {
        match task {
            Task::Napi(Id(id)) => &self.napi[usize::from(id)],
            Task::Worker => &self.worker,
            Task::Ksoftirqd(CpuId(cpu)) => &self.ksoftirqd[usize::from(cpu)],
        }
    }

    /// Checks, once every actor has ended, that nothing is owned, and that nothing depends on an event that will
    /// not come (invariants 2 and 3).
    pub(crate) fn still(&self) {
        for cpu in 0..2 {
            let cpu = self.host.cpu(CpuId(cpu));
            assert!(!cpu.running(), "a softirq that nobody runs");
            assert_eq!(cpu.pending(), 0, "softirqs that nobody will run");
            assert!(!cpu.ksoftirqd_runnable(), "ksoftirqd sleeps and is taken for runnable");
        }
        self.host.ids().for_each(|id| self.still_of(id));
    }

    fn still_of(&self, id: Id) {
        let (instance, line) = (self.host.instance(id), self.line(id));
        let state = instance.state();
        let armed = instance.deadline() != NEVER;
        let threaded = matches!(state.mode(), Threaded::Enabled | Threaded::BusyPoll);
        let expected = if threaded { ASLEEP } else { ENDED };
        let thread = self.slot(Task::Napi(id)).load(Acquire);
        assert_eq!(thread, expected, "the thread's state in mode {state:?}");
        if state.disabled() {
            assert!(line.masked(), "disabled and not masked");
            return;
        }
        let held = SCHED | SCHED_THREADED | IN_BUSY_POLL | MISSED | PREFER_BUSY_POLL;
        assert!(!state.has(held), "a token that nobody holds: {state:x?}");
        // Invariant 7: no suspension keeps the queue waiting for longer than the timeout.
        let longest = instance.polled_at() + SUSPENSION;
        let suspended = instance.suspending_contexts() > 0;
        assert!(!suspended || instance.deadline() <= longest, "suspended beyond the timeout");
        let waiting = line.waiting();
        assert!(armed || waiting == 0, "{waiting} packets that nobody will find");
        assert!(armed || !line.masked(), "masked, without an owner and without a timer");
    }

    /// Checks, once every timer has fired, that nothing waits and the interrupt is unmasked.
    fn settled(&self) {
        self.still();
        for id in self.host.ids() {
            if self.host.instance(id).state().disabled() {
                continue;
            }
            let line = self.line(id);
            assert_eq!(line.waiting(), 0, "packets left");
            assert!(!line.masked(), "masked for ever");
            let (delivered, arrived) = (line.socket.load(Acquire), line.arrived.load(SeqCst));
            assert_eq!(delivered, arrived, "delivered of arrived");
        }
    }

    /// Lets time pass, and returns the new time.
    pub(crate) fn pass(&self, time: Ns) -> Ns {
        self.clock.fetch_add(time, SeqCst) + time
    }

    fn polls_of(&self, owner: Owner) -> u64 {
        let counts = self.host.instance(ID).counts();
        counts.polls[owner as usize] + counts.empty_polls[owner as usize]
    }
}

/// One context: a thread of the model, and every task that it runs in turn.
#[derive(Debug)]
pub(crate) struct Actor {
    pub(crate) world: Arc<World>,
    /// The instance that it acts on.
    pub(crate) id: Id,
    /// What the looks of this actor find, in place of the socket's frames.
    pub(crate) events: Option<VecDeque<u32>>,
    raised: Vec<CpuId>,
    todo: Vec<Task>,
    steps: u32,
    /// The leaving owner's polls when this actor first saw that its mode has gone.
    polls_then: Option<u64>,
}

impl Actor {
    pub(crate) fn new(world: &Arc<World>) -> Self {
        Self::of(world, ID)
    }

    /// The same, with another instance than the first.
    pub(crate) fn of(world: &Arc<World>, id: Id) -> Self {
        let world = world.clone();
        Actor { world, id, events: None, raised: vec![], todo: vec![], steps: 0, polls_then: None }
    }

    /// Checks invariant 4: an owner whose mode is gone polls at most twice more, once it can know.
    fn bounded(&mut self) {
        let Some(owner) = self.world.leaving else { return };
        if self.world.left.fetch_or(0, AcqRel) == 0 {
            return;
        }
        let polls = self.world.polls_of(owner);
        let since = polls - *self.polls_then.get_or_insert(polls);
        assert!(since <= 2, "the {} polls on after the mode has changed", owner.name());
    }

    /// Drives a pass until it ends or sleeps. The caller drops the pass, and only then: a model that fails must not
    /// run the core's clean-up without loom.
    pub(crate) fn drive<P: Pass<Nic>>(&mut self, pass: &mut P, first: Did) -> Stop {
        let mut did = first;
        loop {
            self.steps += 1;
            assert!(self.steps < STEPS, "an actor that does not end");
            self.bounded();
            let now = self.world.pass(1);
            did = match pass.next(now, did) {
                Op::Look => {
                    self.world.pass(LOOK);
                    Did::Events(match &mut self.events {
                        Some(events) => events.pop_front().unwrap_or(0),
                        None => self.world.line(self.id).socket.load(Acquire),
                    })
                }
                Op::Sleep(_) => return Stop::Slept,
                Op::Done => return Stop::Done,
                op => pass.on_queue(op, now).unwrap_or_else(|| {
                    self.act(op);
                    Did::Ok
                }),
            };
        }
    }

    /// Drives a pass that ends to its end.
    pub(crate) fn finish<P: Pass<Nic>>(&mut self, pass: P) -> Stop {
        let mut pass = ManuallyDrop::new(pass);
        let stop = self.drive(&mut *pass, Did::Start);
        drop(ManuallyDrop::into_inner(pass));
        stop
    }

    fn act(&mut self, op: Op) {
        match op {
            Op::Wake(task) => self.wake(task),
            Op::Raise(cpu) => self.raised.push(cpu),
            Op::RunHere(cpu) => self.softirq(cpu, Context::Application),
            Op::Yield | Op::Pause => yield_now(),
            Op::Arm { .. } | Op::Vector(..) | Op::Resched => {}
            op => unreachable!("{op:?} is the driver's"),
        }
    }

    fn softirq(&mut self, cpu: CpuId, context: Context) {
        let world = self.world.clone();
        self.finish(Softirq::new(&world.host, cpu, context));
    }

    fn wake(&mut self, task: Task) {
        let slot = self.world.slot(task);
        let woken = slot.fetch_update(AcqRel, Acquire, |old| {
            Some(match old {
                ASLEEP => RUNNING,
                RUNNING => WOKEN,
                other => other,
            })
        });
        if woken == Ok(ASLEEP) {
            self.todo.push(task);
        }
    }

    /// Runs what follows when a context's own pass has ended: softirqs on the way out, then the woken tasks.
    pub(crate) fn way_out(&mut self) {
        loop {
            if let Some(cpu) = self.raised.pop() {
                // Another thread always wants the CPU; only the 2018 rules ask.
                self.softirq(cpu, Context::Interrupt { competition: true });
            } else if let Some(task) = self.todo.pop() {
                self.run(task);
            } else {
                return;
            }
        }
    }

    fn run(&mut self, task: Task) {
        let world = self.world.clone();
        let host = &world.host;
        let slot = world.slot(task);
        let mut tries = 0;
        loop {
            let stop = match task {
                Task::Napi(id) => self.finish(Kthread::new(host, id)),
                Task::Worker => self.finish(Worker::new(host)),
                Task::Ksoftirqd(cpu) => self.finish(Softirq::new(host, cpu, Context::Ksoftirqd)),
            };
            let next = if stop == Stop::Slept { ASLEEP } else { ENDED };
            let old = slot.fetch_update(AcqRel, Acquire, |old| {
                Some(if old == WOKEN { RUNNING } else { next })
            });
            if old == Ok(WOKEN) {
                continue;
            }
            // A mode that was set while the thread was ending found it running: read it again. (A thread that ends
            // all the same has ended.)
            tries += 1;
            let mode = |id| host.instance(id).state().mode();
            let wanted = |id| matches!(mode(id), Threaded::Enabled | Threaded::BusyPoll);
            let restarted = next == ENDED
                && matches!(task, Task::Napi(id) if wanted(id))
                && tries < 3
                && slot.compare_exchange(ENDED, RUNNING, AcqRel, Acquire).is_ok();
            if !restarted {
                return;
            }
        }
    }

    /// A packet arrives, and its interrupt is handled here.
    pub(crate) fn packet(&mut self) {
        if self.world.line(self.id).arrive() {
            self.interrupt();
        }
    }

    /// A packet arrives, and its interrupt alone is handled here.
    pub(crate) fn packet_only(&mut self) {
        if self.world.line(self.id).arrive() {
            self.interrupt_only();
        }
    }

    /// Another actor, which takes over what this one still had to do.
    pub(crate) fn hand_over(&mut self) -> Actor {
        let mut other = Actor::of(&self.world, self.id);
        other.raised.append(&mut self.raised);
        other.todo.append(&mut self.todo);
        other
    }

    /// An interrupt, also a stray one.
    pub(crate) fn interrupt(&mut self) {
        self.interrupt_only();
        self.way_out();
    }

    fn interrupt_only(&mut self) {
        let world = self.world.clone();
        self.finish(Interrupt::new(&world.host, self.id));
    }

    /// The timer fires, if it is armed for `now` or earlier.
    pub(crate) fn timer(&mut self, now: Ns) {
        let world = self.world.clone();
        let now = world.clock.fetch_max(now, SeqCst).max(now);
        if let Some(op) = world.host.timer(self.id, world.host.instance(self.id).cpu(), now) {
            self.act(op);
        }
        self.way_out();
    }

    /// Schedules the instance.
    pub(crate) fn schedule(&mut self, from: napkin_core::RaisedFrom) {
        let world = self.world.clone();
        if let Some(op) = world.host.schedule(self.id, from) {
            self.act(op);
        }
        self.way_out();
    }

    /// One wait of an application.
    pub(crate) fn wait(&mut self, context: &EpollContext) -> Stop {
        let world = self.world.clone();
        let stop = self.finish(EpollWait::new(&world.host, context, None, false));
        self.way_out();
        stop
    }

    /// Closes a context, as when its last handle is dropped.
    pub(crate) fn close(&mut self, context: &EpollContext) {
        let world = self.world.clone();
        if let Some(op) = context.close(&world.host, napkin_core::RaisedFrom::Application) {
            self.act(op);
        }
        self.way_out();
    }

    /// A poll with budget 0.
    pub(crate) fn tx_poll(&mut self) {
        let world = self.world.clone();
        self.finish(TxPoll::new(&world.host, self.id));
        self.way_out();
    }

    /// Changes the settings, and does the world's part for the thread: one that ends, or has ended, reads the new
    /// mode.
    pub(crate) fn set(&mut self, policy: &InstancePolicy) {
        self.world.host.set(self.id, policy).expect("a policy of the models");
        let threaded = matches!(policy.threaded, Threaded::Enabled | Threaded::BusyPoll);
        let old = self.world.slot(Task::Napi(self.id)).fetch_update(AcqRel, Acquire, |old| {
            Some(match old {
                ASLEEP => RUNNING,
                RUNNING => WOKEN,
                ENDED if threaded => RUNNING,
                other => other,
            })
        });
        if old == Ok(ASLEEP) || old == Ok(ENDED) && threaded {
            self.todo.push(Task::Napi(self.id));
        }
        self.way_out();
    }

    /// Changes the settings; from then on the old owner may poll twice.
    pub(crate) fn change(&mut self, policy: &InstancePolicy) {
        self.world.host.set(self.id, policy).expect("a policy of the models");
        self.world.left.fetch_or(1, AcqRel);
        self.set(policy);
    }

    /// Enables the instance.
    pub(crate) fn enable(&mut self) {
        let world = self.world.clone();
        if let Ok(enable) = Enable::new(&world.host, self.id) {
            world.line(self.id).disabled.store(false, SeqCst);
            self.finish(enable);
        }
        self.way_out();
    }

    /// Disables the instance. A disable that has to sleep sleeps until all other actors have ended, which is long
    /// enough.
    pub(crate) fn disable(&mut self, others: &mut Vec<JoinHandle<()>>) {
        let world = self.world.clone();
        let Ok(disable) = Disable::new(&world.host, self.id) else { return };
        let mut disable = ManuallyDrop::new(disable);
        let mut stop = self.drive(&mut *disable, Did::Start);
        if stop == Stop::Slept {
            join(others);
            stop = self.drive(&mut *disable, Did::Ok);
        }
        assert_eq!(stop, Stop::Done, "a disable that never ends");
        drop(ManuallyDrop::into_inner(disable));
        assert!(world.host.instance(self.id).state().disabled(), "disabled");
        world.line(self.id).disabled.store(true, SeqCst);
        self.way_out();
    }

    /// Abandons a disable at its first sleep, or before its first step.
    pub(crate) fn abandon_disable(&mut self, at_once: bool) {
        let world = self.world.clone();
        let Ok(mut disable) = Disable::new(&world.host, self.id) else { return };
        if !at_once && self.drive(&mut disable, Did::Start) == Stop::Done {
            world.line(self.id).disabled.store(true, SeqCst);
            drop(disable);
            return;
        }
        drop(disable);
        // The world knows that a pass was abandoned, and runs the softirqs.
        self.raised.push(CPU);
        self.way_out();
    }

    /// Lets time pass until no timer is armed, and checks that nothing is left.
    pub(crate) fn settle(&mut self) {
        self.world.still();
        for _ in 0..8 {
            let host = &self.world.host;
            let next = host.ids().map(|id| (host.instance(id).deadline(), id)).min();
            let Some((deadline, id)) = next.filter(|(deadline, _)| *deadline != NEVER) else {
                self.world.settled();
                return;
            };
            Actor::of(&self.world, id).timer(deadline);
            self.world.still();
        }
        panic!("timers without end");
    }
}

/// Waits until all actors have ended.
pub(crate) fn join(others: &mut Vec<JoinHandle<()>>) {
    for other in others.drain(..) {
        other.join().expect("an actor");
    }
}
