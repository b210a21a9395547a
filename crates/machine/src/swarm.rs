//! Randomised tests: random machines under random policies, loads and faults, each from a seed.
//!
//! The seed determines everything: the number of CPUs and queues, the cost of every step, the scheduler and the
//! driver, the traffic, and the faults with their times. All invariants are checked after every event; at the end,
//! after a while without traffic, no frame or running context may be left. A seed that breaks something replays
//! exactly.

use std::fmt::Write as _;

use napkin_core::{EpollContext, KernelRules, MICROSECOND, MILLISECOND, Ns, Order};
use napkin_policy::{EpollPolicy, InstancePolicy, Policy, Threaded};

use crate::client::Client;
use crate::config::{Config, Fair, Preemption};
use crate::fault::Fault;
use crate::machine::{Machine, Placement};
use crate::net::packet::{Kind, Packet};
use crate::profile::{Profile, Schema};
use crate::sched::id::{Affinity, Class, ThreadId};
use crate::sink::UdpSink;
use napkin_traffic::Rng;

/// Virtual time with traffic and faults in one run.
pub const TRAFFIC: Ns = 60 * MILLISECOND;

/// Virtual time after it in which the machine must become idle: longer than the longest timeout that a swarm uses
/// plus the watchdog's period.
pub const REST: Ns = 400 * MILLISECOND;

/// The result of one seed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Virtual time of the run, including [`REST`].
    pub virtual_ns: Ns,
    /// Events and steps that the machine handled.
    pub steps: u64,
    /// Frames that reached the host's queues.
    pub frames: u64,
    /// Faults that were drawn.
    pub faults: u64,
    /// The configuration and all counts as text: two runs of a seed give the same bytes.
    pub transcript: String,
}

/// A seed that broke an invariant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("seed {seed}: {what}")]
pub struct Broken {
    /// The seed, which reproduces the failure.
    pub seed: u64,
    /// The violation, with its virtual time and step.
    pub what: String,
}

/// A client that sends single frames, bursts and floods to every flow, with gaps of random length.
#[derive(Debug)]
struct Storm {
    rng: Rng,
    flows: u32,
    sent: u64,
}

impl Client for Storm {
    fn start(&mut self, machine: &mut Machine<'_>) {
        for flow in 0..self.flows {
            machine.client_timer(self.rng.below(MILLISECOND), u64::from(flow));
        }
    }

    fn timer(&mut self, machine: &mut Machine<'_>, token: u64) {
        let now = machine.now();
        if now >= TRAFFIC {
            return;
        }
        let burst = [1, 1, 1, 2, 8, 70][self.rng.below(6) as usize];
        for _ in 0..burst {
            self.sent += 1;
            let kind = if self.rng.below(8) == 0 { Kind::Ack } else { Kind::Data };
            machine.send_to_host(Packet::new(token as u32, kind, 64, self.sent, now));
        }
        let gap = [500, 5_000, 30_000, 200_000, 3_000_000][self.rng.below(5) as usize];
        machine.client_timer(now + self.rng.below(gap), token);
    }

    fn receive(&mut self, _: &mut Machine<'_>, _: Packet) {}
}

/// Runs one seed.
///
/// # Errors
/// Returns the first invariant that was violated.
pub fn run(seed: u64) -> Result<Report, Broken> {
    let mut rng = Rng::new(seed);
    let broken = |what: String| Broken { seed, what };
    let config = config(&mut rng).map_err(broken)?;
    let policy = policy(&mut rng);
    let (cpus, queues) = (config.processor.cpus, config.nic.queues);
    let mut placement = Placement::aligned(queues, cpus);
    if rng.below(3) == 0 {
        placement.napi_threads.clear();
    }
    if rng.below(4) == 0 {
        placement.napi_class = Class::Fifo(50);
    }
    let host = placement.host(cpus);
    // Up to one more than twice the queues, so that several contexts can share a queue.
    let apps = 1 + rng.below(2 * u64::from(queues) + 1) as u16;
    let contexts: Vec<_> = (0..apps).map(|_| EpollContext::new(policy.epoll, 0)).collect();
    let flows = u32::from(queues) * 2;
    let storm = Storm { rng: rng.split(), flows, sent: 0 };
    let mut machine =
        Machine::new(config, policy, &placement, &host, &contexts, Box::new(storm), seed);
    machine.check_everything();
    machine.set_watchdog(50 * MILLISECOND);
    let threads = applications(&mut rng, &mut machine, apps, flows);
    let faults = faults(&mut rng, &mut machine, &threads, queues, apps);
    machine.run(TRAFFIC + REST);
    if let Some(what) = machine.broken() {
        return Err(broken(what.to_owned()));
    }
    // An application that spins never becomes idle.
    if !policy.application.spin
        && let Some(what) = machine.describe_leftovers()
    {
        return Err(broken(what));
    }
    let snapshot = machine.snapshot();
    let mut transcript = String::new();
    // Writing to a string cannot fail.
    let _ = write!(transcript, "{config:?}\n{snapshot:#?}\n{:?}", machine.latency());
    Ok(Report {
        virtual_ns: machine.now(),
        steps: machine.steps(),
        frames: snapshot.queues.iter().map(|queue| queue.nic.arrived).sum(),
        faults,
        transcript,
    })
}

fn config(rng: &mut Rng) -> Result<Config, String> {
    let profile =
        Profile::named(Schema::host(), "emulator-7.2").map_err(|error| error.to_string())?;
    let mut config = Config::of(&profile);
    // Test what the core promises, not the deviations of a kernel.
    config.kernel.rules = KernelRules::default();
    config.processor.cpus = 1 + rng.below(6) as u16;
    config.processor.smt = 1 + rng.below(2) as u16;
    config.processor.smt_dilation = 1_500;
    config.processor.shared_clock = rng.below(8) == 0;
    config.processor.idle_exit = rng.below(3_000);
    config.processor.idle_deep_after = 200 * MICROSECOND;
    config.processor.idle_exit_deep = 20 * MICROSECOND;
    config.kernel.fair = if rng.below(2) == 0 { Fair::Cfs } else { Fair::Eevdf };
    config.kernel.preemption =
        [Preemption::None, Preemption::Voluntary, Preemption::Lazy, Preemption::Full]
            [rng.below(4) as usize];
    config.kernel.tick = [1, 4, 10][rng.below(3) as usize] * MILLISECOND;
    config.kernel.hrtick = rng.below(2) == 0;
    config.kernel.irq_time = rng.below(2) == 0;
    config.nic.queues = 1 + rng.below(u64::from(config.processor.cpus).min(4)) as u16;
    config.nic.ring = [4, 64, 1024][rng.below(3) as usize];
    config.nic.order = if rng.below(2) == 0 { Order::DeliverFirst } else { Order::UnmaskFirst };
    config.nic.gro_batch = [0, 1, 8][rng.below(3) as usize];
    config.nic.interrupt_latency = rng.below(2_000);
    config.nic.coalesce = [0, 0, 8_000, 100_000][rng.below(4) as usize];
    config.nic.coalesce_frames = [0, 8, 128][rng.below(3) as usize];
    config.nic.tx_interrupts = rng.below(2) == 0;
    config.nic.late_frames_interrupt = rng.below(2) == 0;
    config.nic.tx_budget = [0, 0, 1, 8][rng.below(4) as usize];
    config.nic.follows_affinity = rng.below(2) == 0;
    config.link.latency = rng.below(10_000);
    let cost = &mut config.cost;
    // Make each step between a tenth and four times its cost.
    let steps: [&mut Ns; 12] = [
        &mut cost.interrupt_entry,
        &mut cost.nic_handler,
        &mut cost.softirq_entry,
        &mut cost.poll,
        &mut cost.poll_frame,
        &mut cost.deliver_frame,
        &mut cost.wake,
        &mut cost.unmask,
        &mut cost.mask,
        &mut cost.timer_arm,
        &mut cost.switch,
        &mut cost.recv,
    ];
    for step in steps {
        *step = (*step * (1 + rng.below(40)) / 10).max(1);
    }
    Ok(config)
}

fn instance(rng: &mut Rng) -> InstancePolicy {
    let pick = |rng: &mut Rng, of: &[Ns]| of[rng.below(of.len() as u64) as usize];
    // Drawn from a clone of the generator, so that the other draws of each seed are the same as before this setting
    // existed.
    let hold_tick = pick(&mut rng.clone().split(), &[0, 0, 70_000, 4_000_000]);
    InstancePolicy {
        threaded: [
            Threaded::Disabled,
            Threaded::Disabled,
            Threaded::Enabled,
            Threaded::BusyPoll,
            Threaded::Workqueue,
        ][rng.below(5) as usize],
        defer_hard_irqs: pick(rng, &[0, 0, 1, 10, 100]) as u32,
        gro_flush_timeout: pick(rng, &[0, 10_000, 50_000, 200_000, 1_000_000]),
        irq_suspend_timeout: pick(rng, &[0, 0, 1_000_000, 20_000_000]),
        hold: pick(rng, &[0, 0, 0, 50_000, 1_000_000]),
        hold_tick,
        feedback: rng.below(6) == 0,
    }
}

fn policy(rng: &mut Rng) -> Policy {
    let mut policy = Policy { instance: instance(rng), ..Policy::BASE };
    policy.epoll = EpollPolicy {
        busy_poll_usecs: [0, 0, 20, 200][rng.below(4) as usize],
        busy_poll_budget: [0, 1, 8, 64][rng.below(4) as usize],
        prefer_busy_poll: rng.below(2) == 0,
        keep_napi_id: rng.below(4) == 0,
    };
    policy.application.spin = rng.below(8) == 0;
    policy.application.socket_busy_poll_usecs = [0, 50, 400][rng.below(3) as usize];
    policy.application.socket_prefer_busy_poll = rng.below(2) == 0;
    policy.cpu = match rng.below(5) {
        0 => Policy::BASE_6_4.cpu,
        1 => Policy::KSOFTIRQD.cpu,
        2 => Policy::KSOFTIRQD_AS_POSTED.cpu,
        _ => Policy::BASE.cpu,
    };
    policy
}

/// Adds the applications, each with its socket; some receive without epoll.
fn applications(rng: &mut Rng, machine: &mut Machine<'_>, apps: u16, flows: u32) -> Vec<ThreadId> {
    let cpus = machine.config().processor.cpus;
    let mut threads = Vec::new();
    for app in 0..apps {
        let affinity = if rng.below(2) == 0 {
            Affinity::pinned(app % cpus)
        } else {
            Affinity { first: 0, last: cpus - 1 }
        };
        let mut sink = UdpSink::new([0, 2_000, 30_000][rng.below(3) as usize], rng.below(3) == 0);
        sink.max_events = [1, 4, 64][rng.below(3) as usize];
        let socket = machine.add_socket([4, 64, 1000][rng.below(3) as usize]);
        let blocking = rng.below(4) == 0;
        if blocking {
            sink.blocking = Some(socket);
        }
        let thread =
            machine.add_thread(&format!("app{app}"), affinity, Class::Fair, Box::new(sink));
        if blocking {
            machine.own(thread, socket);
        } else {
            machine.watch(thread, u32::from(app), socket);
        }
        threads.push((thread, socket));
    }
    for flow in 0..flows {
        let queue = (flow % u32::from(machine.config().nic.queues)) as u16;
        let (_, socket) = threads[flow as usize % threads.len()];
        machine.add_flow(queue, Some(socket));
    }
    for (thread, _) in &threads {
        machine.wake_thread(*thread);
    }
    threads.into_iter().map(|(thread, _)| thread).collect()
}

fn faults(
    rng: &mut Rng,
    machine: &mut Machine<'_>,
    threads: &[ThreadId],
    queues: u16,
    apps: u16,
) -> u64 {
    let count = rng.below(12);
    for _ in 0..count {
        let at = rng.below(TRAFFIC);
        let queue = rng.below(u64::from(queues)) as u16;
        let thread = threads[rng.below(threads.len() as u64) as usize];
        let fault = match rng.below(10) {
            0 => Fault::LoseInterrupt(queue),
            1 => Fault::DelayInterrupt(queue, rng.below(2 * MILLISECOND)),
            2 => Fault::Stall(thread, rng.below(30 * MILLISECOND)),
            3 => Fault::CloseEpoll(rng.below(u64::from(apps)) as u32),
            4 | 5 => Fault::Set(queue, instance(rng)),
            6 => Fault::Signal(thread),
            7 => Fault::Disable(queue, rng.below(20 * MILLISECOND)),
            8 => Fault::LinkDown(rng.below(5 * MILLISECOND)),
            _ => {
                let epoll = rng.below(u64::from(apps)) as u32;
                Fault::AlwaysReady(epoll, rng.below(200 * MILLISECOND))
            }
        };
        machine.fault_at(at, fault);
    }
    // Before the end, end threaded busy polling, or the machine would not become idle.
    for queue in 0..queues {
        let quiet = InstancePolicy { threaded: Threaded::Disabled, ..InstancePolicy::default() };
        machine.fault_at(TRAFFIC + 100 * MILLISECOND, Fault::Set(queue, quiet));
    }
    count
}
