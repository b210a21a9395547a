//! A whole world on std threads: a NIC, the contexts of one CPU, and an application. What each does
//! next is the core's decision, by whatever policy.
//!
//! ```text
//! cargo run --release -p napkin-core --example std_world [POLICY ...]      # or every preset
//! ```

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use napkin_core::*;
use napkin_policy::{ApplicationPolicy, PRESETS, Policy, SocketPoller, Threaded};

const ID: Id = Id(0);
const CPU: CpuId = CpuId(0);
const FRAMES: u32 = 2_000;
const SECOND: Ns = 1_000 * MILLISECOND;

/// What the NIC, its driver and the application's socket show each other.
#[derive(Default)]
struct Registers {
    masked: AtomicBool,
    interrupt: AtomicBool,
    in_ring: AtomicU32,
    in_socket: AtomicU32,
}

struct Ring {
    wire: mpsc::Receiver<u32>,
    polled: Vec<u32>,
    socket: mpsc::Sender<u32>,
    registers: Arc<Registers>,
}

impl Queue for Ring {
    fn poll(&mut self, budget: u16, _: Ns) -> Work {
        self.polled.extend(self.wire.try_iter().take(budget.into()));
        self.registers.in_ring.fetch_sub(self.polled.len() as u32, SeqCst);
        Work { rx: self.polled.len() as u16, tx: 0 }
    }

    fn deliver(&mut self, _: Ns) -> Pressure {
        self.registers.in_socket.fetch_add(self.polled.len() as u32, SeqCst);
        self.polled.drain(..).for_each(|frame| self.socket.send(frame).expect("a reader"));
        // 75 % of a buffer of 64.
        let full = self.registers.in_socket.load(SeqCst) >= 48;
        if full { Pressure::Full } else { Pressure::Room }
    }

    fn mask(&mut self) {
        self.registers.masked.store(true, SeqCst);
    }

    fn unmask(&mut self, _: Ns) -> bool {
        self.registers.masked.store(false, SeqCst);
        self.registers.in_ring.load(SeqCst) > 0
    }
}

struct World {
    host: Host<Ring>,
    epoll: EpollContext,
    registers: Arc<Registers>,
    threads: Mutex<Vec<(&'static str, Thread)>>,
    app_wants_cpu: AtomicBool,
    done: AtomicBool,
    start: Instant,
}

impl World {
    fn now(&self) -> Ns {
        self.start.elapsed().as_nanos() as Ns
    }

    /// Gives the calling thread a name by which it is woken.
    fn enter(&self, name: &'static str) {
        self.threads.lock().expect("no panic in it").push((name, thread::current()));
    }

    fn wake(&self, name: &str) {
        let threads = self.threads.lock().expect("no panic in it");
        threads.iter().filter(|(is, _)| *is == name).for_each(|(_, thread)| thread.unpark());
    }

    /// A thread that takes the steps of one pass.
    fn thread(&self, name: &'static str, pass: &mut impl Pass<Ring>) {
        self.enter(name);
        self.run(pass);
    }

    fn run(&self, pass: &mut impl Pass<Ring>) {
        self.run_for(&self.registers.in_socket, pass);
    }

    /// Takes a pass's steps to its end, and after that runs the softirq that it has raised. `events`:
    /// how many wait for whoever runs it.
    fn run_for(&self, events: &AtomicU32, pass: &mut impl Pass<Ring>) {
        let (mut did, mut raised) = (Did::Start, None);
        loop {
            let now = self.now();
            let op = pass.next(now, did);
            did = match op {
                Op::Poll { budget, .. } => Did::Polled(pass.queue().poll(budget, now)),
                Op::Deliver(id) => {
                    self.epoll.follow(id);
                    let pressure = pass.queue().deliver(now);
                    self.wake("app");
                    Did::Delivered(pressure)
                }
                Op::Unmask(_) => Did::Unmasked(pass.queue().unmask(now)),
                Op::Look => Did::Events(events.load(SeqCst)),
                Op::Done => break,
                Op::Sleep(_) if self.done.load(SeqCst) => break,
                _ => {
                    match op {
                        Op::Mask(_) => pass.queue().mask(),
                        Op::Sleep(until) => park(until.saturating_sub(now)),
                        Op::Yield | Op::Pause | Op::Resched => thread::yield_now(),
                        Op::Raise(_) => raised = Some(op),
                        _ => self.carry_out(op),
                    }
                    Did::Ok
                }
            };
        }
        raised.into_iter().for_each(|op| self.carry_out(op));
    }

    /// A step that touches no queue.
    fn carry_out(&self, op: Op) {
        let competition = self.app_wants_cpu.load(SeqCst);
        match op {
            Op::Raise(_) => self.softirq(Context::Interrupt { competition }),
            Op::RunHere(_) => self.softirq(Context::Application),
            Op::Wake(Task::Ksoftirqd(_)) => self.wake("ksoftirqd"),
            Op::Wake(Task::Napi(_)) => self.wake("napi"),
            Op::Wake(Task::Worker) => self.wake("kworker"),
            // The core has stored the deadline; who sleeps until the next one looks again.
            Op::Arm { .. } => self.wake("irq"),
            _ => unreachable!("{op:?} is no step of its own"),
        }
    }

    fn softirq(&self, context: Context) {
        self.run(&mut Softirq::new(&self.host, CPU, context));
    }

    /// Takes the CPU's interrupts and keeps its timer.
    fn interrupts(&self) {
        self.enter("irq");
        while !self.done.load(SeqCst) {
            park(self.host.next_deadline(CPU).saturating_sub(self.now()));
            if self.registers.interrupt.swap(false, SeqCst) {
                self.run(&mut Interrupt::new(&self.host, ID));
            }
            self.host.timer(ID, CPU, self.now()).into_iter().for_each(|op| self.carry_out(op));
        }
    }

    /// The NIC: bursts of eight, and interrupts while they are not masked.
    fn arrivals(&self, wire: &mpsc::Sender<u32>) {
        for frame in 0..FRAMES {
            self.registers.in_ring.fetch_add(1, SeqCst);
            wire.send(frame).expect("a ring");
            if !self.registers.masked.load(SeqCst) {
                self.registers.interrupt.store(true, SeqCst);
                self.wake("irq");
            }
            // The application is still busy after every second gap, and waits in the others.
            match frame % 16 {
                7 => thread::sleep(Duration::from_micros(50)),
                15 => thread::sleep(Duration::from_micros(200)),
                _ => {}
            }
        }
    }

    /// The application: it waits as the policy says, takes a few frames, and waits again. Returns how
    /// many have come in their order, each of them once, with no more than 20 s between two.
    fn application(&self, policy: ApplicationPolicy, socket: &mpsc::Receiver<u32>) -> u32 {
        self.enter("app");
        let (mut received, mut last) = (0, self.now());
        while received < FRAMES && self.now() - last < 20 * SECOND {
            self.app_wants_cpu.store(false, SeqCst);
            let timeout = Some(SECOND);
            if policy.socket_busy_polls() {
                self.run(&mut SocketWait::new(&self.host, policy, Some(ID), timeout));
            } else {
                self.run(&mut EpollWait::new(&self.host, &self.epoll, timeout, policy.spin));
            }
            self.app_wants_cpu.store(true, SeqCst);
            let before = received;
            for frame in socket.try_iter().take(16) {
                if frame != received {
                    return received;
                }
                (received, last) = (received + 1, self.now());
                // What it does with one.
                while self.now() < last + 15 * MICROSECOND {}
            }
            // Drained to 25 %: a queue that feedback has parked is polled again.
            let was = self.registers.in_socket.fetch_sub(received - before, SeqCst);
            if was > 16 && was - (received - before) <= 16 {
                let step = self.host.schedule(ID, RaisedFrom::Application);
                step.into_iter().for_each(|op| self.carry_out(op));
            }
        }
        received
    }
}

fn park(at_most: Ns) {
    thread::park_timeout(Duration::from_nanos(at_most.min(SECOND)));
}

/// Runs a policy until all frames have arrived; says how many have, and who has polled.
fn deliver(policy: &Policy) -> (u32, Counts) {
    let ((nic, wire), (socket, frames)) = (mpsc::channel(), mpsc::channel());
    let registers = Arc::<Registers>::default();
    let ring = Ring { wire, polled: vec![], socket, registers: Arc::clone(&registers) };
    let world = &World {
        host: Host::new(1, [(ring, CPU)]),
        epoll: EpollContext::new(policy.epoll, 0),
        registers,
        threads: Mutex::default(),
        app_wants_cpu: AtomicBool::default(),
        done: AtomicBool::default(),
        start: Instant::now(),
    };
    let (host, instance, mut application) = (&world.host, policy.instance, policy.application);
    host.set(ID, &instance).expect("a preset is within the limits");
    host.cpu(CPU).set_policy(policy.cpu);
    let mut received = 0;
    thread::scope(|scope| {
        scope.spawn(|| world.interrupts());
        scope.spawn(|| world.thread("ksoftirqd", &mut Softirq::new(host, CPU, Context::Ksoftirqd)));
        match instance.threaded {
            Threaded::Disabled => {}
            Threaded::Workqueue => {
                scope.spawn(|| world.thread("kworker", &mut Worker::new(host)));
            }
            Threaded::Enabled | Threaded::BusyPoll => {
                scope.spawn(|| world.thread("napi", &mut Kthread::new(host, ID)));
            }
        }
        if application.socket_poller == SocketPoller::Separate {
            // A thread of calls that only poll, and an application that sleeps.
            let policy = std::mem::take(&mut application);
            scope.spawn(move || {
                while !world.done.load(SeqCst) {
                    let mut call = SocketWait::new(host, policy, Some(ID), Some(0));
                    world.run_for(&AtomicU32::new(0), &mut call);
                }
            });
        }
        world.run(&mut Enable::new(host, ID).expect("it is disabled"));
        scope.spawn(|| world.arrivals(&nic));
        let app = scope.spawn(move || world.application(application, &frames));
        received = app.join().unwrap_or(0);
        // In a mode that is not its own the instance's thread ends.
        host.set(ID, &Policy::BASE.instance).expect("base is within the limits");
        world.wake("napi");
        world.run(&mut Disable::new(host, ID).expect("it is enabled"));
        world.done.store(true, SeqCst);
        ["irq", "ksoftirqd", "kworker"].iter().for_each(|name| world.wake(name));
    });
    (received, host.instance(ID).counts())
}

fn main() {
    let named = std::env::args().skip(1).map(|name| name.parse().expect("a policy"));
    let mut policies: Vec<Policy> = named.collect();
    if policies.is_empty() {
        policies = PRESETS.iter().map(|preset| preset.policy).collect();
    }
    policies.iter().for_each(check);
}

/// Every frame arrives, and who is to poll by this policy does. Where that is the application, a host
/// with other work may keep it too busy to wait even once: one run of ten has to show it.
fn check(policy: &Policy) {
    let owner = match policy.instance.threaded {
        Threaded::Enabled | Threaded::BusyPoll => Owner::Thread,
        Threaded::Workqueue => Owner::Worker,
        _ if policy.epoll.enabled() || policy.application.socket_busy_polls() => Owner::Application,
        _ => Owner::Softirq,
    };
    let polled = (0..10).any(|_| {
        let (received, counts) = deliver(policy);
        let polls = Owner::ALL.map(|owner| (owner.name(), counts.polls[owner as usize]));
        println!("{policy}: {received} frames, {} interrupts; polls {polls:?}", counts.interrupts);
        assert_eq!(received, FRAMES, "{policy}");
        counts.polls[owner as usize] > 0
    });
    assert!(polled, "{policy}: no poll by the {}", owner.name());
}

#[test]
fn every_preset_delivers_every_frame() {
    PRESETS.iter().for_each(|preset| check(&preset.policy));
}
