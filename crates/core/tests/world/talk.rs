//! A small world for dialogues: one thing happens at a time, and the core's steps are written down as a line of
//! words.
//!
//! Time stands still unless a test moves it ([`Talk::at`]) or gives a step a cost.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use napkin_core::*;
use napkin_policy::{InstancePolicy, Policy};

use super::{Device, Port, Socket, Sockets};

/// The first queue, and the first CPU.
pub(crate) const ID: Id = Id(0);
pub(crate) const CPU: CpuId = CpuId(0);

/// A host with devices, every step of which is recorded as words.
pub(crate) struct Talk {
    pub(crate) host: Host<Port>,
    pub(crate) devices: Vec<Rc<RefCell<Device>>>,
    pub(crate) sockets: Sockets,
    pub(crate) now: Cell<Ns>,
    /// Time that a poll takes.
    pub(crate) poll_cost: Cell<Ns>,
    /// Time that a yield takes.
    pub(crate) yield_cost: Cell<Ns>,
    /// Time that a look takes.
    pub(crate) look_cost: Cell<Ns>,
    /// Whether another thread wants the CPU.
    pub(crate) need_resched: Cell<bool>,
    /// Whether the next look is ended by a signal.
    pub(crate) signal: Cell<bool>,
}

impl Talk {
    /// One CPU, one queue, one receiver, under the policy of this name.
    pub(crate) fn new(policy: &str) -> Self {
        Talk::of(policy, 1, 1)
    }

    pub(crate) fn of(policy: &str, cpus: u16, queues: usize) -> Self {
        let policy: Policy = policy.parse().expect(policy);
        let sockets: Sockets = Rc::new(RefCell::new(vec![Socket::new(1 << 20)]));
        let devices: Vec<_> = (0..queues)
            .map(|_| Rc::new(RefCell::new(Device::new(Rc::clone(&sockets), vec![0], 1 << 20))))
            .collect();
        let host = Host::new(cpus, devices.iter().map(|device| (Port(Rc::clone(device)), CPU)));
        for cpu in 0..cpus {
            host.cpu(CpuId(cpu)).set_policy(policy.cpu);
        }
        let talk = Talk {
            host,
            devices,
            sockets,
            now: Cell::new(0),
            poll_cost: Cell::new(0),
            yield_cost: Cell::new(0),
            look_cost: Cell::new(0),
            need_resched: Cell::new(false),
            signal: Cell::new(false),
        };
        for id in talk.host.ids() {
            talk.host.set(id, &policy.instance).expect("a preset is within its limits");
            let steps = talk.enable(id);
            assert!(steps.ends_with("unmask"), "{steps}");
        }
        talk
    }

    pub(crate) fn device(&self, id: Id) -> std::cell::RefMut<'_, Device> {
        self.devices[usize::from(id.0)].borrow_mut()
    }

    /// Frames come off the wire of the first queue.
    pub(crate) fn arrive(&self, frames: usize) {
        self.arrive_at(ID, frames);
    }

    pub(crate) fn arrive_at(&self, id: Id, frames: usize) {
        (0..frames).for_each(|_| self.device(id).arrive(0));
    }

    /// Sets the time.
    pub(crate) fn at(&self, now: Ns) {
        assert!(now >= self.now.get(), "time goes on");
        self.now.set(now);
    }

    pub(crate) fn pass(&self, ns: Ns) {
        self.now.set(self.now.get() + ns);
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut InstancePolicy)) {
        let mut policy = self.host.instance(ID).settings();
        change(&mut policy);
        self.host.set(ID, &policy).expect("within its limits");
    }

    /// Wraps a pass to record its steps.
    pub(crate) fn hear<P: Pass<Port>>(&self, pass: P) -> Speaker<'_, P> {
        Speaker { talk: self, pass, did: Did::Start }
    }

    /// Handles the interrupt of a queue, if its line has fired.
    pub(crate) fn interrupt(&self, id: Id) -> String {
        if !std::mem::take(&mut self.device(id).line) {
            return "no interrupt".into();
        }
        self.hear(Interrupt::new(&self.host, id)).run()
    }

    /// Runs the softirqs of the first CPU as after an interrupt, while no other thread wants the CPU.
    pub(crate) fn softirq(&self) -> String {
        self.dispatch(Context::Interrupt { competition: false })
    }

    pub(crate) fn dispatch(&self, context: Context) -> String {
        self.hear(Softirq::new(&self.host, CPU, context)).run()
    }

    pub(crate) fn enable(&self, id: Id) -> String {
        self.hear(Enable::new(&self.host, id).expect("it is disabled")).run()
    }

    /// Handles the first queue's timer, if it has expired.
    pub(crate) fn timer(&self) -> String {
        self.timer_of(ID)
    }

    pub(crate) fn timer_of(&self, id: Id) -> String {
        match self.host.timer(id, self.host.instance(id).cpu(), self.now.get()) {
            Some(op) => self.word(op),
            None => "nothing".into(),
        }
    }

    /// An epoll context that prefers busy polling or does not.
    pub(crate) fn context(&self, usecs: u32, budget: u16, prefer: bool) -> EpollContext {
        let policy = napkin_policy::EpollPolicy {
            busy_poll_usecs: usecs,
            busy_poll_budget: budget,
            prefer_busy_poll: prefer,
            keep_napi_id: false,
        };
        EpollContext::new(policy, 0)
    }

    /// The application reads its socket empty.
    pub(crate) fn read(&self) -> u32 {
        self.sockets.borrow_mut()[0].read(u32::MAX)
    }

    pub(crate) fn masked(&self) -> bool {
        self.device(ID).masked
    }

    pub(crate) fn counts(&self) -> Counts {
        self.host.instance(ID).counts()
    }

    /// The words for a step that has no result.
    pub(crate) fn word(&self, op: Op) -> String {
        match op {
            Op::Arm { at, .. } => format!("timer +{}", time(at.saturating_sub(self.now.get()))),
            Op::Wake(Task::Napi(_)) => "wake napi".into(),
            Op::Wake(Task::Worker) => "wake worker".into(),
            Op::Wake(Task::Ksoftirqd(_)) => "wake ksoftirqd".into(),
            Op::Raise(_) => "raise".into(),
            Op::RunHere(cpu) => {
                let softirq = Softirq::new(&self.host, cpu, Context::Application);
                format!("run here ({})", self.hear(softirq).run())
            }
            Op::Vector(_, vector) => format!("{vector:?}").to_uppercase(),
            Op::Resched => "resched".into(),
            Op::Yield => "yield".into(),
            Op::Pause => "pause".into(),
            Op::Sleep(NEVER) => "sleep".into(),
            Op::Sleep(until) => format!("sleep {}", time(until.saturating_sub(self.now.get()))),
            other => panic!("{other:?} where nothing is owned"),
        }
    }
}

fn time(ns: Ns) -> String {
    match ns {
        0 => "0".into(),
        ns if ns % MILLISECOND == 0 => format!("{}ms", ns / MILLISECOND),
        ns if ns % MICROSECOND == 0 => format!("{}us", ns / MICROSECOND),
        ns => format!("{ns}ns"),
    }
}

/// A pass and the answer to its last step.
pub(crate) struct Speaker<'t, P> {
    talk: &'t Talk,
    pub(crate) pass: P,
    did: Did,
}

impl<P: Pass<Port>> Speaker<'_, P> {
    /// Takes its steps until it ends or sleeps, and returns their words.
    pub(crate) fn run(&mut self) -> String {
        self.run_at_most(10_000).0
    }

    /// Takes the next steps, at most `most`.
    pub(crate) fn run_next(&mut self, most: usize) -> String {
        self.run_at_most(most).0
    }

    /// Takes its steps until it ends or sleeps, at most `most`; and returns whether it ended or slept.
    pub(crate) fn run_at_most(&mut self, most: usize) -> (String, bool) {
        let mut words = Vec::new();
        for _ in 0..most {
            let op = self.pass.next(self.talk.now.get(), self.did);
            if op == Op::Done {
                return (words.join(", "), true);
            }
            words.push(self.does(op));
            if let Op::Sleep(_) = op {
                return (words.join(", "), true);
            }
        }
        (words.join(", "), false)
    }

    /// The next step, decided and not yet taken.
    pub(crate) fn decides(&mut self) -> Op {
        self.pass.next(self.talk.now.get(), self.did)
    }

    /// A signal ends its sleep.
    pub(crate) fn signal(&mut self) {
        self.did = Did::Interrupted;
    }

    /// Takes a decided step, and returns its words.
    pub(crate) fn does(&mut self, op: Op) -> String {
        let talk = self.talk;
        let now = talk.now.get();
        let queue = match op {
            Op::Poll { id, .. } | Op::Deliver(id) | Op::Mask(id) | Op::Unmask(id) => Some(id),
            _ => None,
        };
        let which = match queue {
            Some(Id(id)) if talk.devices.len() > 1 => format!("#{id} "),
            _ => String::new(),
        };
        let word = match op {
            Op::Poll { budget, .. } => {
                talk.pass(talk.poll_cost.get());
                let work = self.pass.queue().poll(budget, now);
                self.did = Did::Polled(work);
                let tx = if work.tx > 0 { format!(" tx {}", work.tx) } else { String::new() };
                format!("poll {budget} -> {}{tx}", work.rx)
            }
            Op::Deliver(_) => {
                let pressure = self.pass.queue().deliver(now);
                self.did = Did::Delivered(pressure);
                if pressure == Pressure::Full { "deliver: full".into() } else { "deliver".into() }
            }
            Op::Mask(_) => {
                self.pass.queue().mask();
                self.did = if talk.need_resched.get() { Did::Resched } else { Did::Ok };
                "mask".into()
            }
            Op::Unmask(_) => {
                let waits = self.pass.queue().unmask(now);
                self.did = Did::Unmasked(waits);
                if waits { "unmask: work waits".into() } else { "unmask".into() }
            }
            Op::Look if talk.signal.take() => {
                self.did = Did::Interrupted;
                "look: signal".into()
            }
            Op::Look => {
                talk.pass(talk.look_cost.get());
                let frames = talk.sockets.borrow()[0].frames;
                let wanted = frames == 0 && talk.need_resched.get();
                self.did = if wanted { Did::Resched } else { Did::Events(frames) };
                format!("look -> {frames}")
            }
            other => {
                let resched = talk.need_resched.get();
                self.did = if resched { Did::Resched } else { Did::Ok };
                if let Op::Yield = other {
                    talk.pass(talk.yield_cost.get());
                }
                talk.word(other)
            }
        };
        which + &word
    }
}
