//! The bodies of the engine's threads.
//!
//! Each is a loop around one pass of the core; they differ in how they sleep. A body that panics (because of a bug,
//! or a test) is restarted by [`guard`]: its claims have been handed to the CPU's softirq by then, and every
//! context is woken to look.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use napkin_core::{
    Context, CpuId, Id, Interrupt, Kthread, NEVER, Op, Pass, RaisedFrom, Softirq, Worker,
};
use rustix::buffer::spare_capacity;
use rustix::event::epoll;

use crate::activity::{Activity, Meter};
use crate::drive::{self, Ended, Hooks, Plain};
use crate::line::{KICK, TIMER};
use crate::parker::Parker;
use crate::port::Port;
use crate::shared::Shared;
use napkin_os::clock;

/// Interrupts and timers taken in one wake-up.
const EVENTS: usize = 64;

/// Number of panics up to which a context is restarted at once. A fault that occurs more often is taken for
/// permanent: it must neither flood the log nor take the CPU.
const PROMPT_RESTARTS: u64 = 64;

/// Runs a context until it returns; after a panic, again.
pub(crate) fn guard(shared: &Shared, activity: &Arc<Activity>, body: impl Fn(&mut Meter)) {
    loop {
        let run = || body(&mut Meter::new(Arc::clone(activity), clock::now()));
        if catch_unwind(AssertUnwindSafe(run)).is_ok() {
            return;
        }
        activity.restarted();
        shared.panics.fetch_add(1, Ordering::Relaxed);
        shared.look_everywhere();
        if activity.restarts() > PROMPT_RESTARTS {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

/// The softirqs that the interrupts of one wake-up have raised.
struct Raised {
    cpu: CpuId,
    local: bool,
}

impl Hooks for Raised {
    fn raised(&mut self, shared: &Shared, cpu: CpuId) {
        if cpu == self.cpu {
            self.local = true;
        } else {
            shared.cpu(cpu).kick();
        }
    }
}

/// The same, while taking an interrupt: the one-shot has fired.
struct Taking<'r>(&'r mut Raised);

impl Hooks for Taking<'_> {
    fn raised(&mut self, shared: &Shared, cpu: CpuId) {
        self.0.raised(shared, cpu);
    }

    fn mask(&mut self, port: &mut Port) {
        port.interrupted();
    }
}

/// `irq/<cpu>`: interrupts and timers, then the softirqs that they raised.
pub(crate) fn irq(shared: &Shared, id: CpuId, meter: &mut Meter) {
    let cpu = shared.cpu(id);
    let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS);
    let mut raised = Raised { cpu: id, local: true };
    // The first round looks at everything, also after a restart: events that were taken from the operating system
    // before a panic do not come again.
    cpu.kick_seen();
    cpu.timer.fired();
    if meter.activity.restarts() > 0 {
        reschedule(shared, id, &mut raised);
    }
    drive::expire(shared, &shared.host, id, &mut raised);
    loop {
        if raised.local || shared.host.cpu(id).pending() != 0 {
            raised.local = false;
            let context = Context::Interrupt { competition: cpu.wanted() };
            let mut softirq = Softirq::new(&shared.host, id, context);
            drive::drive(shared, &mut softirq, meter, &mut raised);
        }
        if shared.ended.load(Ordering::Acquire) {
            return;
        }
        meter.leave(clock::now());
        events.clear();
        // A signal wakes the thread without an event.
        let _ = epoll::wait(&cpu.epoll, spare_capacity(&mut events), None);
        meter.woken(clock::now());
        let mut look = false;
        for event in &events {
            match event.data.u64() {
                TIMER => {
                    cpu.timer.fired();
                    look = true;
                }
                KICK => {
                    cpu.kick_seen();
                    look = true;
                    raised.local = true;
                }
                queue => {
                    let mut interrupt = Interrupt::new(&shared.host, Id(queue as u16));
                    drive::drive(shared, &mut interrupt, meter, &mut Taking(&mut raised));
                }
            }
        }
        if look {
            drive::expire(shared, &shared.host, id, &mut raised);
        }
    }
}

/// Schedules every instance of a CPU, as if each had interrupted: one whose one-shot has fired for a
/// context that then unwound would never interrupt again.
fn reschedule(shared: &Shared, id: CpuId, raised: &mut Raised) {
    let host = &shared.host;
    for instance in host.ids().filter(|instance| host.instance(*instance).cpu() == id) {
        match host.schedule(instance, RaisedFrom::Interrupt) {
            Some(Op::Raise(cpu)) => raised.raised(shared, cpu),
            Some(op) => drive::carry_out(shared, op),
            None => {}
        }
    }
}

/// Sleeps; returns whether to go on.
fn sleep(shared: &Shared, parker: &Parker, meter: &mut Meter) -> bool {
    meter.leave(clock::now());
    parker.park(NEVER, || {});
    meter.woken(clock::now());
    !shared.ended.load(Ordering::Acquire)
}

/// Drives a pass that sleeps on a parker until it is done or the engine ends.
fn run<P: Pass<Port>>(shared: &Shared, pass: &mut P, parker: &Parker, meter: &mut Meter) {
    let mut ended = drive::drive(shared, pass, meter, &mut Plain);
    while let Ended::Sleep(_) = ended {
        if !sleep(shared, parker, meter) {
            return;
        }
        ended = drive::resume(shared, pass, meter, &mut Plain);
    }
}

/// The thread `ksoftirqd/<cpu>`.
pub(crate) fn ksoftirqd(shared: &Shared, id: CpuId, meter: &mut Meter) {
    let mut softirq = Softirq::new(&shared.host, id, Context::Ksoftirqd);
    run(shared, &mut softirq, &shared.cpu(id).ksoftirqd, meter);
}

/// The thread `napi/<dev>-<id>`; returns once it is to end and the mode is no longer its own.
pub(crate) fn napi(shared: &Shared, id: Id, meter: &mut Meter) {
    let napi = shared.napi(id);
    loop {
        run(shared, &mut Kthread::new(&shared.host, id), &napi.parker, meter);
        // The thread is started before its mode is set, so a mode that is not its own does not yet mean that it is
        // to end.
        let leaves = napi.leaving.load(Ordering::Acquire) || shared.ended.load(Ordering::Acquire);
        if leaves || !sleep(shared, &napi.parker, meter) {
            return;
        }
    }
}

/// The thread `kworker/u:<n>`.
pub(crate) fn worker(shared: &Shared, index: usize, meter: &mut Meter) {
    let mut worker = Worker::new(&shared.host);
    let mut ended = drive::drive(shared, &mut worker, meter, &mut Plain);
    while let Ended::Sleep(_) = ended {
        let mut go_on = true;
        let waits = || shared.host.work_waits();
        shared
            .workers
            .sleep_unless_queued(index, waits, |parker| go_on = sleep(shared, parker, meter));
        if !go_on {
            return;
        }
        ended = drive::resume(shared, &mut worker, meter, &mut Plain);
    }
}
