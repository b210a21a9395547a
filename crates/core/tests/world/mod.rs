//! A world in virtual time for the core: CPUs, devices, threads and applications, each a coroutine
//! that a seeded scheduler advances by one half-step at a time.
//!
//! A half-step is either a decision of the core (`Pass::next`) or the execution of what it decided, so that
//! anything may happen between the two. Interrupts and timers fall between any two half-steps, also of a running
//! softirq; everything else is interleaved at random, which allows more than a real scheduler would. Every
//! half-step costs virtual time. What must hold is checked after each of them (`invariant.rs`). The same seed gives
//! the same run.
//!
//! The world is not a model of timing: costs are drawn, not measured.
#![allow(dead_code, reason = "each test takes of the world what it needs")]

mod action;
mod app;
mod device;
mod execute;
mod invariant;
mod pass;
mod random;
pub(crate) mod talk;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use napkin_core::*;
use napkin_policy::EpollPolicy;

use app::App;
pub(crate) use device::{Device, Port, Socket, Sockets};
use invariant::{Rounds, Watch};
pub(crate) use pass::Any;
pub(crate) use random::Random;

/// An event, for the trace and to compare two runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EventKind {
    Next(Op),
    Did(Did),
    Act(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) at: Ns,
    pub(crate) task: usize,
    pub(crate) what: EventKind,
}

/// The role of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Irq(CpuId),
    Ksoftirqd(CpuId),
    Napi(Id),
    Worker,
    App(usize),
    Control(Id),
}

/// One pass under way.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    pass: Any<'a>,
    did: Did,
    pending: Option<Op>,
    /// The instance that this pass surely owns.
    touches: Option<Id>,
    /// Whether the last look found nothing, so that a session may still be under way.
    looked_in_vain: bool,
    rounds: Rounds,
}

impl<'a> Frame<'a> {
    fn new(pass: Any<'a>) -> Self {
        Frame {
            pass,
            did: Did::Start,
            pending: None,
            touches: None,
            looked_in_vain: false,
            rounds: Rounds::default(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Task<'a> {
    role: Role,
    stack: Vec<Frame<'a>>,
    asleep: Option<Ns>,
    woken: bool,
}

/// The size of a world, and what may happen in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) cpus: u16,
    pub(crate) instances: u16,
    pub(crate) apps: usize,
    pub(crate) steps: u64,
    /// Whether contexts are abandoned between two steps.
    pub(crate) abandons: bool,
}

impl Plan {
    /// The plan as text, for a replay.
    pub(crate) fn spelt(&self) -> String {
        let Plan { seed, cpus, instances, apps, steps, abandons } = self;
        format!("{seed},{cpus},{instances},{apps},{steps},{}", u8::from(*abandons))
    }

    /// Parses a plan that [`spelt`](Self::spelt) has written.
    pub(crate) fn read(text: &str) -> Option<Plan> {
        let numbers: Result<Vec<u64>, _> = text.split(',').map(str::parse).collect();
        let [seed, cpus, instances, apps, steps, abandons] = numbers.ok()?[..] else {
            return None;
        };
        Some(Plan {
            seed,
            cpus: u16::try_from(cpus).ok()?,
            instances: u16::try_from(instances).ok()?,
            apps: usize::try_from(apps).ok()?,
            steps,
            abandons: abandons != 0,
        })
    }

    /// A plan whose size follows from the seed.
    pub(crate) fn random(seed: u64, steps: u64) -> Plan {
        let mut random = Random::new(!seed);
        Plan {
            seed,
            cpus: 1 + random.below(4) as u16,
            instances: 1 + random.below(6) as u16,
            apps: 1 + random.index(4),
            steps,
            abandons: random.once_in(4),
        }
    }
}

/// The outcome of a run that broke no invariant.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) events: Vec<Event>,
    pub(crate) arrivals: u64,
    pub(crate) delivered: u64,
    pub(crate) counts: Vec<Counts>,
    pub(crate) cpus: Vec<CpuCounts>,
}

/// Runs a plan to its end and then until the world is idle.
///
/// # Errors
/// The violation, with the last events before it.
pub(crate) fn run(plan: Plan) -> Result<Outcome, String> {
    let mut random = Random::new(plan.seed);
    let sockets: Sockets = Rc::new(RefCell::new(
        (0..plan.apps).map(|_| Socket::new(random.pick(&[4, 16, 64, 1000]))).collect(),
    ));
    let devices: Vec<_> = (0..plan.instances)
        .map(|_| {
            let mut receivers: Vec<usize> = (0..plan.apps).filter(|_| random.once_in(2)).collect();
            if receivers.is_empty() {
                receivers.push(random.index(plan.apps));
            }
            let ring = random.pick(&[16, 128, 1024]);
            let mut device = Device::new(Rc::clone(&sockets), receivers, ring);
            device.kicks = random.once_in(2);
            device.tolerates_abandonment = plan.abandons;
            Rc::new(RefCell::new(device))
        })
        .collect();
    let queues: Vec<_> = devices
        .iter()
        .map(|device| (Port(Rc::clone(device)), CpuId(random.below(u64::from(plan.cpus)) as u16)))
        .collect();
    let host = Host::new(plan.cpus, queues);
    host.contexts_share_a_thread();
    for id in host.ids() {
        host.set_order(id, random.pick(&[Order::DeliverFirst, Order::UnmaskFirst]));
    }
    let contexts: Vec<_> =
        (0..plan.apps).map(|_| EpollContext::new(EpollPolicy::default(), 0)).collect();
    let mut world = World::new(plan, random, &host, &contexts, devices, sockets);
    match world.go() {
        Ok(()) => Ok(Outcome {
            arrivals: world.devices.iter().map(|d| d.borrow().arrivals).sum(),
            delivered: world.devices.iter().map(|d| d.borrow().delivered).sum(),
            counts: host.ids().map(|id| host.instance(id).counts()).collect(),
            cpus: (0..plan.cpus).map(|c| host.cpu(CpuId(c)).counts()).collect(),
            events: world.events.into(),
        }),
        Err(what) => Err(world.trace(&what)),
    }
}

pub(crate) struct World<'a> {
    plan: Plan,
    random: Random,
    host: &'a Host<Port>,
    contexts: &'a [EpollContext],
    devices: Vec<Rc<RefCell<Device>>>,
    sockets: Sockets,
    tasks: Vec<Task<'a>>,
    apps: Vec<App>,
    now: Ns,
    step: u64,
    /// Each CPU's own timer: as armed by `Op::Arm`, not as stored by the core.
    timers: Vec<Ns>,
    raised: Vec<bool>,
    worker_tokens: usize,
    next_arrival: Vec<Ns>,
    next_action: Ns,
    /// Whether arrivals and actions have ended.
    draining: bool,
    watch: Watch,
    events: VecDeque<Event>,
}

impl<'a> World<'a> {
    fn new(
        plan: Plan,
        mut random: Random,
        host: &'a Host<Port>,
        contexts: &'a [EpollContext],
        devices: Vec<Rc<RefCell<Device>>>,
        sockets: Sockets,
    ) -> Self {
        let cpus = || (0..plan.cpus).map(CpuId);
        let roles = cpus()
            .map(Role::Irq)
            .chain(cpus().map(Role::Ksoftirqd))
            .chain(host.ids().map(Role::Napi))
            .chain(cpus().map(|_| Role::Worker))
            .chain((0..plan.apps).map(Role::App))
            .chain(host.ids().map(Role::Control));
        let tasks: Vec<Task<'a>> = roles
            .map(|role| Task { role, stack: Vec::new(), asleep: None, woken: false })
            .collect();
        let apps = (0..plan.apps).map(|_| App::new(&mut random)).collect();
        let instances = usize::from(plan.instances);
        let mut world = World {
            plan,
            host,
            contexts,
            sockets,
            tasks,
            apps,
            now: 1,
            step: 0,
            timers: vec![NEVER; usize::from(plan.cpus)],
            raised: vec![false; usize::from(plan.cpus)],
            worker_tokens: 0,
            next_arrival: (0..instances).map(|_| random.below(20_000)).collect(),
            next_action: 0,
            draining: false,
            watch: Watch::new(instances),
            events: VecDeque::new(),
            devices,
            random,
        };
        for task in 0..world.tasks.len() {
            world.restart(task);
        }
        for id in host.ids() {
            world.enable(id);
        }
        world
    }

    /// Starts the loop of a task that loops for ever.
    fn restart(&mut self, task: usize) {
        let host = self.host;
        let pass = match self.tasks[task].role {
            Role::Ksoftirqd(cpu) => Any::Softirq(Softirq::new(host, cpu, Context::Ksoftirqd), cpu),
            Role::Napi(id) => Any::Kthread(Kthread::new(host, id)),
            Role::Worker => Any::Worker(Worker::new(host)),
            Role::Irq(_) | Role::App(_) | Role::Control(_) => return,
        };
        self.tasks[task].stack.push(Frame::new(pass));
        self.tasks[task].asleep = None;
    }

    fn task(&self, role: Role) -> usize {
        self.tasks.iter().position(|task| task.role == role).expect("every role has a task")
    }

    fn device(&self, id: Id) -> std::cell::RefMut<'_, Device> {
        self.devices[usize::from(id.0)].borrow_mut()
    }

    fn note(&mut self, task: usize, what: EventKind) {
        self.events.push_back(Event { at: self.now, task, what });
    }

    fn act_note(&mut self, text: String) {
        let nobody = self.tasks.len();
        self.note(nobody, EventKind::Act(text));
    }

    fn go(&mut self) -> Result<(), String> {
        while self.step < self.plan.steps {
            self.turn()?;
        }
        self.drain();
        let limit = self.step + 400_000;
        while self.turn()? {
            if self.step > limit {
                return Err("no silence after the last arrival".into());
            }
        }
        self.check_silence()
    }

    /// One half-step of a task, or a jump to the next event; `false` if there is none.
    fn turn(&mut self) -> Result<bool, String> {
        self.step += 1;
        if !self.draining {
            self.arrivals();
            if self.next_action <= self.now {
                self.next_action = self.now + 500 + self.random.below(60_000);
                self.act()?;
            }
        }
        let runnable: Vec<usize> =
            (0..self.tasks.len()).filter(|&task| self.runnable(task)).collect();
        let more = match runnable[..] {
            [] => self.pass_time()?,
            _ => {
                let urgent = runnable.iter().copied().find(|&task| self.hard_work(task).is_some());
                let task = match urgent {
                    Some(task) if self.random.once_in(3) => task,
                    _ => self.random.pick(&runnable),
                };
                self.advance(task)?;
                self.now += self.random.pick(&[0, 20, 100, 100, 300, 1_000]);
                true
            }
        };
        self.check()?;
        Ok(more)
    }

    /// Interrupt work that waits for this task.
    fn hard_work(&self, task: usize) -> Option<HardIrq> {
        let Role::Irq(cpu) = self.tasks[task].role else { return None };
        if matches!(self.tasks[task].stack.last(), Some(Frame { pass: Any::Interrupt(_), .. })) {
            return None;
        }
        let line = self
            .host
            .ids()
            .find(|&id| self.host.instance(id).cpu() == cpu && self.device(id).line)
            .map(HardIrq::Line);
        line.or_else(|| (self.timers[usize::from(cpu.0)] <= self.now).then_some(HardIrq::Timer))
    }

    fn runnable(&self, task: usize) -> bool {
        let this = &self.tasks[task];
        if let Some(until) = this.asleep
            && !this.woken
            && until > self.now
        {
            return false;
        }
        match this.role {
            Role::Irq(cpu) => {
                !this.stack.is_empty()
                    || self.raised[usize::from(cpu.0)]
                    || self.hard_work(task).is_some()
            }
            Role::App(app) if this.stack.is_empty() => self.apps[app].ready_at <= self.now,
            Role::Worker | Role::Ksoftirqd(_) | Role::Napi(_) | Role::Control(_) | Role::App(_) => {
                !this.stack.is_empty()
            }
        }
    }

    /// No task can run: advances the time to the next event. Nothing may be owned or pending now.
    fn pass_time(&mut self) -> Result<bool, String> {
        self.check_idle()?;
        let mut next = self.timers.iter().copied().min().unwrap_or(NEVER);
        for task in &self.tasks {
            next = next.min(task.asleep.unwrap_or(NEVER));
            if let Role::App(app) = task.role
                && task.stack.is_empty()
            {
                next = next.min(self.apps[app].ready_at);
            }
        }
        if !self.draining {
            next = self.next_arrival.iter().copied().fold(next.min(self.next_action), Ns::min);
        }
        if next == NEVER {
            return Ok(false);
        }
        self.now = self.now.max(next);
        Ok(true)
    }

    fn arrivals(&mut self) {
        for index in 0..self.devices.len() {
            if self.next_arrival[index] > self.now {
                continue;
            }
            // Bursts, trickles, silence and floods take turns.
            let burst = self.random.pick(&[1, 1, 1, 3, 8, 64, 100]);
            let gap = self.random.pick(&[300, 2_000, 10_000, 50_000, 400_000]);
            self.next_arrival[index] = self.now + self.random.below(gap);
            let mut device = self.devices[index].borrow_mut();
            for _ in 0..burst {
                let receiver = device.receivers[self.random.index(device.receivers.len())];
                device.arrive(receiver);
            }
            device.completions = (device.completions + self.random.below(3) as u16).min(500);
        }
    }

    /// The last events and what broke.
    fn trace(&self, what: &str) -> String {
        let mut text = format!("{:?}\n", self.plan);
        for event in self.events.iter().skip(self.events.len().saturating_sub(120)) {
            let who = match self.tasks.get(event.task) {
                Some(task) => format!("{:?}", task.role),
                None => "-".into(),
            };
            text += &format!("{:>10} {who:<22} {:?}\n", event.at, event.what);
        }
        text + &format!("at {} (step {}): {what}", self.now, self.step)
    }
}

/// What interrupts a CPU.
enum HardIrq {
    Line(Id),
    Timer,
}
