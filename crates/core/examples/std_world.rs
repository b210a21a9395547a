//! A complete world on std threads: a network card, the contexts of one CPU and an application. The core decides
//! what each does next, under any policy. Frames are only counted. It prints the interrupts of 2000 frames, and who
//! polled them; the counts vary from run to run.
//!
//! ```text
//! cargo run --release -p napkin-core --example std_world [POLICY ...]      # or every preset
//! ```

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{LazyLock, Mutex};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use napkin_core::*;
use napkin_policy::{PRESETS, Policy, SocketPoller};

const ID: Id = Id(0);
const CPU: CpuId = CpuId(0);
const SECOND: Ns = 1_000 * MILLISECOND;
pub(crate) const FRAMES: u32 = 2_000;

fn now() -> Ns {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_nanos() as Ns
}

fn sleep(until: Ns) {
    thread::park_timeout(Duration::from_nanos(until.saturating_sub(now())));
}

/// The card, the application's socket and its epoll, and the threads.
#[derive(Default)]
struct World {
    ring: AtomicU32,
    masked: AtomicBool,
    socket: AtomicU32,
    epoll: EpollContext,
    threads: Mutex<Vec<Thread>>,
    done: AtomicBool,
}

/// The queue, and how many frames its last poll took.
struct Driver<'w>(&'w World, u32);

impl Queue for Driver<'_> {
    fn poll(&mut self, budget: u16, _: Ns) -> Work {
        self.1 = self.0.ring.load(SeqCst).min(budget.into());
        self.0.ring.fetch_sub(self.1, SeqCst);
        Work { rx: self.1 as u16, tx: 0 }
    }

    fn deliver(&mut self, _: Ns) -> Pressure {
        self.0.epoll.follow(ID);
        let waiting = self.0.socket.fetch_add(self.1, SeqCst) + self.1;
        self.0.wake();
        // 75 % of a buffer of 64.
        if waiting >= 48 { Pressure::Full } else { Pressure::Room }
    }

    fn mask(&mut self) {
        self.0.masked.store(true, SeqCst);
    }

    fn unmask(&mut self, _: Ns) -> bool {
        self.0.masked.store(false, SeqCst);
        self.0.ring.load(SeqCst) > 0
    }
}

impl World {
    /// Wakes all threads; those without work go back to sleep.
    fn wake(&self) {
        self.threads.lock().expect("no panic").iter().for_each(Thread::unpark);
    }

    /// Takes a pass's steps to its end, and then runs the softirq that it has raised.
    fn run<'w>(&self, host: &Host<Driver<'w>>, mut pass: impl Pass<Driver<'w>>) {
        pass.drive(now, |op| self.step(host, op)).and_then(|raised| self.step(host, raised));
    }

    /// Takes a step that touches no queue; `None` ends a thread that would sleep.
    fn step(&self, host: &Host<Driver<'_>>, op: Op) -> Option<Did> {
        let waiting = self.socket.load(SeqCst);
        // An application that has frames to work on competes for the CPU.
        let interrupt = Context::Interrupt { competition: waiting > 0 };
        match op {
            Op::Look => return Some(Did::Events(waiting)),
            Op::Sleep(_) if self.done.load(SeqCst) => return None,
            Op::Sleep(until) => sleep(until),
            Op::Raise(_) => self.run(host, Softirq::new(host, CPU, interrupt)),
            Op::RunHere(_) => self.run(host, Softirq::new(host, CPU, Context::Application)),
            // The deadline is stored already: the timer thread reads it again.
            Op::Wake(_) | Op::Arm { .. } => self.wake(),
            _ => thread::yield_now(),
        }
        Some(Did::Ok)
    }

    /// The card receives bursts of eight frames, and interrupts while it is not masked.
    fn card(&self, host: &Host<Driver<'_>>) {
        for burst in 0..FRAMES / 8 {
            // The application is still busy after every second gap, and waits in the others.
            thread::sleep(Duration::from_micros(if burst % 2 == 0 { 200 } else { 50 }));
            self.ring.fetch_add(8, SeqCst);
            if !self.masked.load(SeqCst) {
                self.run(host, Interrupt::new(host, ID));
            }
        }
    }

    fn timer(&self, host: &Host<Driver<'_>>) {
        while !self.done.load(SeqCst) {
            sleep(host.next_deadline(CPU));
            host.timer(ID, CPU, now()).and_then(|op| self.step(host, op));
        }
    }

    /// The application waits as the policy says, works on each frame for 15 us, and waits again.
    /// Returns how many have come within a minute.
    fn application(&self, host: &Host<Driver<'_>>, policy: &Policy) -> u32 {
        let (policy, separate) = (policy.application, policy.application.socket_poller);
        let (mut received, end) = (0, now() + 60 * SECOND);
        while received < FRAMES && now() < end {
            if policy.socket_busy_polls() && separate == SocketPoller::Inline {
                self.run(host, SocketWait::new(host, policy, Some(ID), Some(SECOND)));
            } else {
                self.run(host, EpollWait::new(host, &self.epoll, Some(SECOND), policy.spin));
            }
            let taken = self.socket.load(SeqCst);
            let worked = now() + Ns::from(taken) * 15 * MICROSECOND;
            while now() < worked {}
            self.socket.fetch_sub(taken, SeqCst);
            received += taken;
            // The socket may have been full, and has drained: a queue that feedback has parked is polled again.
            if taken >= 16 {
                host.schedule(ID, RaisedFrom::Application).and_then(|op| self.step(host, op));
            }
        }
        received
    }
}

/// Runs a policy until all frames have arrived; returns how many have, and the counts of the instance.
pub(crate) fn deliver(policy: &Policy) -> (u32, Counts) {
    let world = &World::default();
    world.epoll.set(policy.epoll);
    let host = &Host::new(1, [(Driver(world, 0), CPU)]);
    host.set(ID, &policy.instance).expect("a preset is within the limits");
    host.cpu(CPU).set_policy(policy.cpu);
    let enter = || world.threads.lock().expect("no panic").push(thread::current());
    let received = thread::scope(|scope| {
        scope.spawn(|| (enter(), world.timer(host)));
        scope.spawn(|| (enter(), world.run(host, Softirq::new(host, CPU, Context::Ksoftirqd))));
        scope.spawn(|| (enter(), world.run(host, Worker::new(host))));
        // In a mode that is not its own this thread ends at once.
        scope.spawn(|| (enter(), world.run(host, Kthread::new(host, ID))));
        if policy.application.socket_poller == SocketPoller::Separate {
            // A thread that only busy polls, by receive calls on a socket of its own.
            scope.spawn(|| {
                while !world.done.load(SeqCst) {
                    let mut call = SocketWait::new(host, policy.application, Some(ID), Some(0));
                    let _ = call.drive(now, |op| match op {
                        Op::Look => Some(Did::Events(0)),
                        op => world.step(host, op),
                    });
                }
            });
        }
        enter();
        world.run(host, Enable::new(host, ID).expect("it is disabled"));
        scope.spawn(|| world.card(host));
        let received = world.application(host, policy);
        world.run(host, Disable::new(host, ID).expect("it is enabled"));
        world.done.store(true, SeqCst);
        world.wake();
        received
    });
    (received, host.instance(ID).counts())
}

fn main() {
    let policies = std::env::args().skip(1).map(|it| it.parse());
    let named: Vec<Policy> = policies.collect::<Result<_, _>>().unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(2)
    });
    let presets = PRESETS.iter().map(|preset| preset.policy).filter(|_| named.is_empty());
    for policy in presets.chain(named.iter().copied()) {
        let (received, counts) = deliver(&policy);
        let polls = Owner::ALL.map(|owner| (owner.name(), counts.polls[owner as usize]));
        println!("{policy}: {received} frames, {} interrupts; polls {polls:?}", counts.interrupts);
    }
}
