//! The loop that takes the core's steps on real queues, shared by all contexts.
//!
//! Nothing is decided here: the core chooses the next step, and each context chooses when it begins and where it
//! sleeps.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use napkin_core::{Context, CpuId, Did, Host, Id, NEVER, Ns, Op, Pass, Queue, Softirq, Task};

use crate::activity::Meter;
use crate::port::Port;
use crate::shared::Shared;
use napkin_os::clock;

thread_local! {
    /// Whether this thread is taking steps: instances that it schedules meanwhile are left to other threads.
    static DRIVING: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is inside the engine.
pub(crate) fn driving() -> bool {
    DRIVING.get()
}

/// How a drive ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The pass sleeps until that time.
    Sleep(Ns),
    /// The pass is done.
    Done,
}

/// The parts of the steps that differ between contexts.
pub(crate) trait Hooks {
    /// Notes that a softirq of this CPU is to run on the way out of the current interrupt.
    fn raised(&mut self, shared: &Shared, cpu: CpuId) {
        shared.cpu(cpu).kick();
    }

    /// Returns the number of events that wait for the application.
    fn look(&mut self) -> u32 {
        0
    }

    /// Masks after an interrupt or a repoll.
    fn mask(&mut self, port: &mut Port) {
        port.mask();
    }
}

/// A context without hooks of its own.
#[derive(Debug)]
pub(crate) struct Plain;

impl Hooks for Plain {}

/// Marks the thread as driving until it is dropped, also by unwinding.
struct Driving(bool);

impl Driving {
    fn enter() -> Driving {
        Driving(DRIVING.replace(true))
    }
}

impl Drop for Driving {
    fn drop(&mut self) {
        DRIVING.set(self.0);
    }
}

/// Takes a pass's steps until it sleeps or ends.
pub(crate) fn drive<P: Pass<Port>>(
    shared: &Shared,
    pass: &mut P,
    meter: &mut Meter,
    hooks: &mut impl Hooks,
) -> Ended {
    let _driving = Driving::enter();
    steps(shared, pass, meter, hooks, Did::Start)
}

/// Continues a pass after its sleep.
pub(crate) fn resume<P: Pass<Port>>(
    shared: &Shared,
    pass: &mut P,
    meter: &mut Meter,
    hooks: &mut impl Hooks,
) -> Ended {
    let _driving = Driving::enter();
    steps(shared, pass, meter, hooks, Did::Ok)
}

#[inline]
fn steps<P: Pass<Port>>(
    shared: &Shared,
    pass: &mut P,
    meter: &mut Meter,
    hooks: &mut impl Hooks,
    first: Did,
) -> Ended {
    let mut did = first;
    let mut now = clock::now();
    let mut arm = None;
    // Whether the clock was read, after a poll or at the beginning, since the last look.
    let mut polled = true;
    loop {
        #[cfg(debug_assertions)]
        shared.faults.point(&meter.activity);
        let op = pass.next(now, did);
        // The step after an arm is the release. The system call follows that release, because where timers are slow
        // other contexts would wait for the instance. The deadline is in force since the core has stored it.
        if let Some(armed) = arm.take() {
            carry_out(shared, armed);
            now = clock::now();
        }
        #[cfg(debug_assertions)]
        shared.faults.point(&meter.activity);
        #[cfg(debug_assertions)]
        let _alone = touched(op).map(|id| shared.napi(id).port.watched.enter(id));
        did = match op {
            Op::Poll { budget, .. } => {
                let work = pass.queue().poll(budget, now);
                now = clock::now();
                polled = true;
                meter.polled(now, work.any());
                Did::Polled(work)
            }
            Op::Deliver(_) => {
                let pressure = pass.queue().deliver(now);
                now = clock::now();
                meter.step(now);
                Did::Delivered(pressure)
            }
            Op::Mask(_) => {
                hooks.mask(pass.queue());
                Did::Ok
            }
            Op::Unmask(_) => {
                let waits = pass.queue().unmask(now);
                now = clock::now();
                Did::Unmasked(waits)
            }
            Op::RunHere(cpu) => {
                let mut softirq = Softirq::new(&shared.host, cpu, Context::Application);
                steps(shared, &mut softirq, meter, &mut Plain, Did::Start);
                now = clock::now();
                Did::Ok
            }
            Op::Raise(cpu) => {
                hooks.raised(shared, cpu);
                Did::Ok
            }
            // A busy poll may last for half an hour: a stop of the engine ends it.
            Op::Look if shared.stopping.load(Ordering::Acquire) => Did::Interrupted,
            Op::Look => {
                let found = hooks.look();
                // A busy poll of a queue that another context owns only looks, and ends by the clock.
                if !std::mem::take(&mut polled) {
                    now = clock::now();
                }
                Did::Events(found)
            }
            Op::Resched => {
                now = clock::now();
                Did::Ok
            }
            Op::Yield => {
                rustix::thread::sched_yield();
                now = clock::now();
                Did::Ok
            }
            Op::Pause => {
                std::hint::spin_loop();
                Did::Ok
            }
            Op::Sleep(at) => return Ended::Sleep(at),
            Op::Done => return Ended::Done,
            Op::Arm { .. } => {
                arm = Some(op);
                Did::Ok
            }
            Op::Wake(_) | Op::Vector(..) => {
                carry_out(shared, op);
                Did::Ok
            }
        };
    }
}

/// The instance whose queue a step touches.
#[cfg(debug_assertions)]
fn touched(op: Op) -> Option<Id> {
    match op {
        Op::Poll { id, .. } | Op::Deliver(id) | Op::Mask(id) | Op::Unmask(id) => Some(id),
        _ => None,
    }
}

/// Takes a step that touches no queue, from any context.
pub(crate) fn carry_out(shared: &Shared, op: Op) {
    match op {
        Op::Arm { id, at } => shared.arm(id, at),
        Op::Wake(task) => wake(shared, task),
        Op::Raise(cpu) | Op::RunHere(cpu) => shared.cpu(cpu).kick(),
        // The engine has no softirqs but the network's.
        Op::Vector(..) => {}
        _ => debug_assert!(false, "{op:?} is no step of its own"),
    }
}

fn wake(shared: &Shared, task: Task) {
    match task {
        Task::Napi(id) => shared.napi(id).parker.unpark(),
        Task::Worker => shared.workers.wake(),
        Task::Ksoftirqd(cpu) => shared.cpu(cpu).ksoftirqd.unpark(),
    };
}

/// Schedules an instance from a thread of the application, or from inside the engine.
pub(crate) fn schedule(shared: &Shared, id: Id) {
    use napkin_core::RaisedFrom;
    if driving() {
        if let Some(op) = shared.host.schedule(id, RaisedFrom::Thread) {
            carry_out(shared, op);
        }
        return;
    }
    match shared.host.schedule(id, RaisedFrom::Application) {
        Some(Op::RunHere(cpu)) => run_here(shared, cpu),
        Some(op) => carry_out(shared, op),
        None => {}
    }
}

/// Runs a CPU's softirqs on the calling thread, unless another thread is running them.
pub(crate) fn run_here(shared: &Shared, cpu: CpuId) {
    let _found = shared.on_unwind();
    let mut softirq = Softirq::new(&shared.host, cpu, Context::Application);
    let mut meter = shared.anonymous_meter();
    drive(shared, &mut softirq, &mut meter, &mut Plain);
}

/// Drives a control pass (disable, enable) to its end, and sleeps on the calling thread where the pass does. If a
/// device panics in it, the pass's instance is left to the softirq, and every context is woken to look.
pub(crate) fn control<P: Pass<Port>>(shared: &Shared, pass: P) {
    let _found = shared.on_unwind();
    // Dropped before the guard.
    let mut pass = pass;
    let mut meter = shared.anonymous_meter();
    let mut ended = drive(shared, &mut pass, &mut meter, &mut Plain);
    while let Ended::Sleep(at) = ended {
        std::thread::sleep(std::time::Duration::from_nanos(at.saturating_sub(clock::now())));
        ended = resume(shared, &mut pass, &mut meter, &mut Plain);
    }
}

/// Handles all deadlines of a CPU that have passed, and sets the timer for the next one.
pub(crate) fn expire(shared: &Shared, host: &Host<Port>, cpu: CpuId, hooks: &mut impl Hooks) {
    let now = clock::now();
    let mut next = NEVER;
    for id in host.ids() {
        let instance = host.instance(id);
        if instance.cpu() != cpu {
            continue;
        }
        let slack = &shared.napi(id).slack;
        if instance.deadline() <= now {
            slack.passed();
            match host.timer(id, cpu, now) {
                Some(Op::Raise(cpu)) => hooks.raised(shared, cpu),
                Some(op) => carry_out(shared, op),
                None => {}
            }
        }
        next = next.min(slack.looked(instance.deadline(), now));
    }
    shared.cpu(cpu).timer.bring_forward(next);
}
