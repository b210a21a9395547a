//! A whole world on std threads: a NIC, the contexts of one CPU, and an application. What each does
//! next is the core's decision, by whatever policy. The world itself is `World` (70 lines); around it
//! stand the queue of a driver, what happens (`arrivals`, `application`), and its start and end.
//!
//! ```text
//! cargo run --release -p napkin-core --example std_world [POLICY ...]      # or every preset
//! ```

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use napkin_core::*;
use napkin_policy::{ApplicationPolicy, PRESETS, Policy, SocketPoller};

const ID: Id = Id(0);
const CPU: CpuId = CpuId(0);
const SECOND: Ns = 1_000 * MILLISECOND;
pub(crate) const FRAMES: u32 = 2_000;

/// What the NIC, its driver and the application share. A frame is a number.
#[derive(Default)]
struct Shared {
    ring: Mutex<VecDeque<u32>>,
    masked: AtomicBool,
    socket: Mutex<VecDeque<u32>>,
    epoll: EpollContext,
    threads: Mutex<HashMap<&'static str, Thread>>,
    done: AtomicBool,
}

fn now() -> Ns {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_nanos() as Ns
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic in it")
}

impl Shared {
    /// Gives the calling thread a name by which it is woken.
    fn enter(&self, name: &'static str) {
        lock(&self.threads).insert(name, thread::current());
    }

    fn wake(&self, name: &str) {
        lock(&self.threads).get(name).into_iter().for_each(Thread::unpark);
    }
}

/// The queue, and what the last poll took from it.
struct Driver(Arc<Shared>, Vec<u32>);

impl Queue for Driver {
    fn poll(&mut self, budget: u16, _: Ns) -> Work {
        let mut ring = lock(&self.0.ring);
        let rx = ring.len().min(budget.into());
        self.1.extend(ring.drain(..rx));
        Work { rx: rx as u16, tx: 0 }
    }

    fn deliver(&mut self, _: Ns) -> Pressure {
        self.0.epoll.follow(ID);
        let mut socket = lock(&self.0.socket);
        socket.extend(self.1.drain(..));
        self.0.wake("app");
        // 75 % of a buffer of 64.
        if socket.len() >= 48 { Pressure::Full } else { Pressure::Room }
    }

    fn mask(&mut self) {
        self.0.masked.store(true, SeqCst);
    }

    fn unmask(&mut self, _: Ns) -> bool {
        self.0.masked.store(false, SeqCst);
        !lock(&self.0.ring).is_empty()
    }
}

struct World {
    host: Host<Driver>,
    shared: Arc<Shared>,
}

impl World {
    /// Takes a pass's steps to its end, and then runs the softirq that it has raised. `events`: how
    /// many wait for whoever runs it.
    fn run(&self, mut pass: impl Pass<Driver>, events: impl Fn() -> u32) {
        let (mut did, mut raised) = (Did::Start, None);
        loop {
            let now = now();
            did = match pass.next(now, did) {
                Op::Look => Did::Events(events()),
                op @ Op::Raise(_) => {
                    raised = Some(op);
                    Did::Ok
                }
                Op::Sleep(until) if !self.shared.done.load(SeqCst) => park(until, now),
                Op::Sleep(_) | Op::Done => break,
                op => pass.on_queue(op, now).unwrap_or_else(|| self.carry_out(op)),
            };
        }
        raised.map(|op| self.carry_out(op));
    }

    /// A step that touches no queue.
    fn carry_out(&self, op: Op) -> Did {
        match op {
            // The application has frames to work on, and competes for the CPU.
            Op::Raise(_) => self.softirq(Context::Interrupt { competition: self.events() > 0 }),
            Op::RunHere(_) => self.softirq(Context::Application),
            Op::Wake(Task::Ksoftirqd(_)) => self.shared.wake("ksoftirqd"),
            Op::Wake(Task::Napi(_)) => self.shared.wake("napi"),
            Op::Wake(Task::Worker) => self.shared.wake("kworker"),
            // The core has stored the deadline; who sleeps until the next one looks again.
            Op::Arm { .. } => self.shared.wake("irq"),
            _ => thread::yield_now(),
        }
        Did::Ok
    }

    fn softirq(&self, context: Context) {
        self.run(Softirq::new(&self.host, CPU, context), || 0);
    }

    fn events(&self) -> u32 {
        lock(&self.shared.socket).len() as u32
    }

    /// A thread that takes the steps of one pass.
    fn thread(&self, name: &'static str, pass: impl Pass<Driver>) {
        self.shared.enter(name);
        self.run(pass, || 0);
    }

    /// Takes the CPU's interrupts and keeps its timer.
    fn interrupts(&self) {
        self.shared.enter("irq");
        while !self.shared.done.load(SeqCst) {
            park(self.host.next_deadline(CPU), now());
            if !self.shared.masked.load(SeqCst) && !lock(&self.shared.ring).is_empty() {
                self.run(Interrupt::new(&self.host, ID), || 0);
            }
            self.host.timer(ID, CPU, now()).map(|op| self.carry_out(op));
        }
    }

    /// The NIC receives bursts of eight, and interrupts while it may.
    fn arrivals(&self) {
        for frame in 0..FRAMES {
            lock(&self.shared.ring).push_back(frame);
            self.shared.wake("irq");
            // The application is still busy after every second gap, and waits in the others.
            match frame % 16 {
                7 => thread::sleep(Duration::from_micros(50)),
                15 => thread::sleep(Duration::from_micros(200)),
                _ => {}
            }
        }
    }

    /// The application waits as the policy says, takes a few frames, works on each for 15 us, and
    /// waits again. Returns how many have come, in their order, with no more than 20 s between two.
    fn application(&self, policy: ApplicationPolicy) -> u32 {
        self.shared.enter("app");
        let (mut received, mut last) = (0, now());
        while received < FRAMES && now() - last < 20 * SECOND {
            if policy.socket_busy_polls() {
                let call = SocketWait::new(&self.host, policy, Some(ID), Some(SECOND));
                self.run(call, || self.events());
            } else {
                let epoll = &self.shared.epoll;
                let wait = EpollWait::new(&self.host, epoll, Some(SECOND), policy.spin);
                self.run(wait, || self.events());
            }
            let had = self.events();
            for _ in 0..had.min(16) {
                if lock(&self.shared.socket).pop_front() != Some(received) {
                    return received;
                }
                (received, last) = (received + 1, now());
                while now() < last + 15 * MICROSECOND {}
            }
            // Drained to 25 %: a queue that feedback has parked is polled again.
            if had > 16 && had <= 32 {
                self.host.schedule(ID, RaisedFrom::Application).map(|op| self.carry_out(op));
            }
        }
        received
    }
}

fn park(until: Ns, now: Ns) -> Did {
    thread::park_timeout(Duration::from_nanos(until.saturating_sub(now).min(SECOND)));
    Did::Ok
}

/// Runs a policy until all frames have arrived; says how many have, and who has polled.
pub(crate) fn deliver(policy: &Policy) -> (u32, Counts) {
    let shared = Arc::<Shared>::default();
    shared.epoll.set(policy.epoll);
    let driver = Driver(Arc::clone(&shared), vec![]);
    let world = &World { host: Host::new(1, [(driver, CPU)]), shared };
    let (host, mut application) = (&world.host, policy.application);
    host.set(ID, &policy.instance).expect("a preset is within the limits");
    host.cpu(CPU).set_policy(policy.cpu);
    let received = thread::scope(|scope| {
        scope.spawn(|| world.interrupts());
        scope.spawn(|| world.thread("ksoftirqd", Softirq::new(host, CPU, Context::Ksoftirqd)));
        scope.spawn(|| world.thread("kworker", Worker::new(host)));
        // In a mode that is not its own this thread ends at once.
        scope.spawn(|| world.thread("napi", Kthread::new(host, ID)));
        if application.socket_poller == SocketPoller::Separate {
            // A thread of calls that only poll, and an application that sleeps.
            let policy = std::mem::take(&mut application);
            scope.spawn(move || {
                while !world.shared.done.load(SeqCst) {
                    world.run(SocketWait::new(host, policy, Some(ID), Some(0)), || 0);
                }
            });
        }
        world.run(Enable::new(host, ID).expect("it is disabled"), || 0);
        scope.spawn(|| world.arrivals());
        let received = world.application(application);
        host.set(ID, &Policy::BASE.instance).expect("base is within the limits");
        world.shared.wake("napi");
        world.run(Disable::new(host, ID).expect("it is enabled"), || 0);
        world.shared.done.store(true, SeqCst);
        ["irq", "ksoftirqd", "kworker"].iter().for_each(|name| world.shared.wake(name));
        received
    });
    (received, host.instance(ID).counts())
}

fn main() {
    let named = std::env::args().skip(1).map(|name| name.parse().expect("a policy"));
    let mut policies: Vec<Policy> = named.collect();
    if policies.is_empty() {
        policies = PRESETS.iter().map(|preset| preset.policy).collect();
    }
    for policy in policies {
        let (received, counts) = deliver(&policy);
        let polls = Owner::ALL.map(|owner| (owner.name(), counts.polls[owner as usize]));
        println!("{policy}: {received} frames, {} interrupts; polls {polls:?}", counts.interrupts);
    }
}
