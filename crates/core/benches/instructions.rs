//! Counts the instructions that the core's decisions take, with callgrind: the number is the same on every run and
//! under any load, so that a change of a few instructions shows.
//!
//! `cargo bench -p napkin-core --bench instructions` runs itself under valgrind, each scenario with two numbers of
//! iterations, and prints the difference per iteration, so that one-time work is not counted. The same loop then
//! runs around a script: the same steps on the same small device, without decisions. That is the cost of the world
//! (device and loop) and of reading the script; a third run reads every step twice, and the difference is the cost
//! of reading. The core's cost is the total less the world's, and nothing else is subtracted. A scenario above its
//! ceiling fails.

use std::hint::black_box;
use std::iter::Cycle;
use std::process::ExitCode;
use std::slice::Iter;
use std::thread::ScopedJoinHandle;

use napkin_core::{
    Context, CpuId, Did, Enable, EpollContext, EpollWait, Host, Id, Interrupt, Kthread, Ns, Op,
    Pass, Pressure, Queue, RaisedFrom, Softirq, Work,
};
use napkin_policy::{EpollPolicy, InstancePolicy, Policy, Threaded};
use napkin_testing::{callgrind, has_valgrind};

const ID: Id = Id(0);
const CPU: CpuId = CpuId(0);
const PERIOD: Ns = 20_000;

/// A device of one counter: each interrupt stands for one frame.
struct Nic {
    frames: u16,
}

impl Queue for Nic {
    #[inline(never)]
    fn poll(&mut self, budget: u16, _: Ns) -> Work {
        let rx = self.frames.min(budget);
        self.frames -= rx;
        Work { rx, tx: 0 }
    }

    #[inline(never)]
    fn deliver(&mut self, now: Ns) -> Pressure {
        black_box(now);
        Pressure::Room
    }

    #[inline(never)]
    fn mask(&mut self) {
        self.frames = 1;
    }

    #[inline(never)]
    fn unmask(&mut self, now: Ns) -> bool {
        black_box(now);
        self.frames != 0
    }
}

/// Takes a step; `None` where a pass ends, or waits for something.
#[inline]
fn carry_out(pass: &mut impl Pass<Nic>, op: Op, now: Ns) -> Option<Did> {
    Some(match op {
        Op::Poll { budget, .. } => Did::Polled(pass.queue().poll(budget, now)),
        Op::Deliver(_) => Did::Delivered(pass.queue().deliver(now)),
        Op::Mask(_) => {
            pass.queue().mask();
            Did::Ok
        }
        Op::Unmask(_) => Did::Unmasked(pass.queue().unmask(now)),
        Op::Done | Op::Sleep(_) => return None,
        _ => Did::Ok,
    })
}

#[inline]
fn drive(pass: &mut impl Pass<Nic>, now: Ns) {
    let mut did = Did::Start;
    while let Some(next) = {
        let op = pass.next(now, did);
        carry_out(pass, op, now)
    } {
        did = next;
    }
}

/// Takes steps of an endless pass until `what` has come `times` times. Inlined, so that `what` costs
/// the core and the script the same.
#[inline(always)]
fn drive_until(pass: &mut impl Pass<Nic>, what: Op, answer: Did, times: u64) {
    let (mut did, mut left) = (Did::Start, times);
    loop {
        let op = pass.next(1, did);
        did = if op == what {
            left -= 1;
            answer
        } else {
            carry_out(pass, op, 1).expect("an endless pass")
        };
        if left == 0 {
            return;
        }
    }
}

fn host(settings: InstancePolicy) -> Host<Nic> {
    let host = Host::new(1, [(Nic { frames: 0 }, CPU)]);
    host.set(ID, &settings).expect("sound settings");
    drive(&mut Enable::new(&host, ID).expect("a new instance is disabled"), 1);
    host
}

fn softirq(host: &Host<Nic>, now: Ns) {
    let context = Context::Interrupt { competition: false };
    drive(&mut Softirq::new(host, CPU, context), now);
}

/// An interrupt, the softirq after it, one frame, and the interrupt unmasked again.
fn cycle(times: u64) {
    let host = host(Policy::BASE.instance);
    for now in 1..=times {
        drive(&mut Interrupt::new(&host, ID), now);
        softirq(&host, now);
    }
    assert_eq!(host.instance(ID).counts().packets, times);
}

/// Passes of one wait that busy polls and finds nothing.
fn busy_poll(times: u64) {
    let host = host(Policy::BASE.instance);
    let policy = EpollPolicy {
        busy_poll_usecs: 1_000_000,
        busy_poll_budget: 8,
        prefer_busy_poll: true,
        ..EpollPolicy::default()
    };
    let context = EpollContext::new(policy, 0);
    context.follow(ID);
    let mut wait = EpollWait::new(&host, &context, None, false);
    drive_until(&mut wait, Op::Look, Did::Events(0), times);
}

/// Passes of a thread that never stops polling and finds nothing.
fn thread(times: u64) {
    let host = host(InstancePolicy { threaded: Threaded::BusyPoll, ..Policy::BASE.instance });
    assert!(host.schedule(ID, RaisedFrom::Interrupt).is_some(), "the thread is to be woken");
    drive_until(&mut Kthread::new(&host, ID), Op::Pause, Did::Ok, times);
}

/// Expiries of the deferral timer, each with the softirq after it and an empty poll.
fn timer(times: u64) {
    let settings = InstancePolicy {
        defer_hard_irqs: i32::MAX as u32,
        gro_flush_timeout: PERIOD,
        ..Policy::BASE.instance
    };
    let host = host(settings);
    // One frame, so that deferral begins.
    drive(&mut Interrupt::new(&host, ID), 1);
    softirq(&host, 1);
    for turn in 1..=times {
        let now = 1 + turn * PERIOD;
        assert!(host.timer(ID, CPU, now).is_some(), "the timer schedules");
        softirq(&host, now);
    }
    assert_eq!(host.instance(ID).counts().timer_polls, times);
}

type Steps = Cycle<Iter<'static, Op>>;

/// A pass that decides nothing: it repeats its steps. With `TWICE` it reads each step twice.
struct Script<const TWICE: bool> {
    steps: Steps,
    twin: Steps,
    nic: Nic,
}

impl<const TWICE: bool> Pass<Nic> for Script<TWICE> {
    #[inline]
    fn next(&mut self, _: Ns, _: Did) -> Op {
        if TWICE {
            black_box(self.twin.next());
        }
        self.steps.next().copied().unwrap_or(Op::Done)
    }

    fn queue(&mut self) -> &mut Nic {
        &mut self.nic
    }
}

fn script<const TWICE: bool>(steps: &'static [Op]) -> Script<TWICE> {
    let steps = || black_box(steps).iter().cycle();
    Script { steps: steps(), twin: steps(), nic: Nic { frames: 0 } }
}

const POLL: Op = Op::Poll { id: ID, budget: 64 };

/// The steps of [`cycle`].
fn cycle_script<const TWICE: bool>(times: u64) {
    let mut interrupt = script::<TWICE>(&[Op::Mask(ID), Op::Raise(CPU), Op::Done]);
    let mut softirq = script::<TWICE>(&[POLL, Op::Deliver(ID), Op::Unmask(ID), Op::Done]);
    for now in 1..=times {
        drive(&mut interrupt, now);
        drive(&mut softirq, now);
    }
}

/// The steps of [`busy_poll`].
fn busy_poll_script<const TWICE: bool>(times: u64) {
    drive_until(&mut script::<TWICE>(&[POLL, Op::Look]), Op::Look, Did::Events(0), times);
}

/// The steps of [`thread`].
fn thread_script<const TWICE: bool>(times: u64) {
    drive_until(&mut script::<TWICE>(&[POLL, Op::Pause]), Op::Pause, Did::Ok, times);
}

/// The steps of [`timer`].
fn timer_script<const TWICE: bool>(times: u64) {
    let mut softirq = script::<TWICE>(&[POLL, Op::Arm { id: ID, at: 0 }, Op::Done]);
    for now in 1..=times {
        drive(&mut softirq, now);
    }
}

struct Scenario {
    name: &'static str,
    /// The core, the script, and the script with every step read twice.
    parts: [fn(u64); 3],
    aim: f64,
    /// The core's count on 27 November 2026 without link-time optimisation, plus 5 %.
    ceiling: f64,
}

const SCENARIOS: [Scenario; 4] = [
    Scenario {
        name: "schedule, poll, complete",
        parts: [cycle, cycle_script::<false>, cycle_script::<true>],
        aim: 300.0,
        ceiling: 312.9,
    },
    Scenario {
        name: "empty busy-poll pass",
        parts: [busy_poll, busy_poll_script::<false>, busy_poll_script::<true>],
        aim: 60.0,
        ceiling: 53.6,
    },
    Scenario {
        name: "empty pass of a polling thread",
        parts: [thread, thread_script::<false>, thread_script::<true>],
        aim: 37.0,
        ceiling: 33.6,
    },
    Scenario {
        name: "poll by the deferral timer",
        parts: [timer, timer_script::<false>, timer_script::<true>],
        aim: 366.0,
        ceiling: 369.6,
    },
];

/// The child's flag, followed by the indices of the scenario and of its part, and the number of iterations.
const CHILD: &str = "--count";

/// The instructions of a whole process that runs the scenario's part `times` times.
fn collected(place: usize, part: usize, times: u64) -> Result<f64, String> {
    let arguments = [CHILD.into(), place.to_string(), part.to_string(), times.to_string()];
    Ok(callgrind(&[], &arguments)?.0)
}

/// Instructions per iteration of each of a scenario's parts. All runs are concurrent: their counts do not depend on
/// the number of CPUs.
fn per_iteration(place: usize) -> Result<Vec<f64>, String> {
    const FEW: u64 = 1_000;
    const MANY: u64 = 11_000;
    std::thread::scope(|scope| {
        let run = |part, times| scope.spawn(move || collected(place, part, times));
        let parts = 0..SCENARIOS[place].parts.len();
        let runs: Vec<_> = parts.map(|part| (run(part, FEW), run(part, MANY))).collect();
        let ended = |it: ScopedJoinHandle<'_, Result<f64, String>>| it.join().expect("no panic");
        runs.into_iter()
            .map(|(few, many)| {
                let (few, many) = (ended(few), ended(many));
                Ok((many? - few?) / (MANY - FEW) as f64)
            })
            .collect()
    })
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|it| it == CHILD) {
        let [place, part, times] = &arguments[at + 1..] else { return ExitCode::FAILURE };
        let (Ok(place), Ok(part), Ok(times)) =
            (place.parse::<usize>(), part.parse::<usize>(), times.parse())
        else {
            return ExitCode::FAILURE;
        };
        let Some(run) = SCENARIOS.get(place).and_then(|it| it.parts.get(part)) else {
            return ExitCode::FAILURE;
        };
        run(times);
        return ExitCode::SUCCESS;
    }
    if !arguments.iter().any(|it| it == "--bench") {
        println!("skipped: instructions are counted in the optimised build, by `cargo bench`");
        return ExitCode::SUCCESS;
    }
    if !has_valgrind() {
        println!("skipped: valgrind is not installed");
        return ExitCode::SUCCESS;
    }
    let [all, world, core, aim, ceiling] = ["all", "world", "core", "aim", "ceiling"];
    println!("{:34}{all:>9}{world:>9}{core:>9}{aim:>10}{ceiling:>10}", "instructions");
    let mut above = false;
    for (place, scenario) in SCENARIOS.iter().enumerate() {
        match per_iteration(place).as_deref() {
            Ok([all, script, twice]) => {
                let world = script - (twice - script);
                let core = all - world;
                let Scenario { name, aim, ceiling, .. } = scenario;
                let aim = format!("< {aim}");
                println!("{name:34}{all:>9.1}{world:>9.1}{core:>9.1}{aim:>10}{ceiling:>10.1}");
                above |= core > *ceiling;
            }
            Ok(_) => unreachable!("three parts"),
            Err(error) => {
                eprintln!("{}: {error}", scenario.name);
                return ExitCode::FAILURE;
            }
        }
    }
    if above {
        eprintln!("the core takes more instructions than its ceiling");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
