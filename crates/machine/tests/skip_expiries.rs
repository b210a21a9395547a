//! Random hosts whose CPUs skip the expiries of timers that find nothing are compared with the same hosts stepped:
//! counts, times and latencies must be equal, byte for byte. Queues may share a CPU, and are read on it or elsewhere.
//!
//! `NAPKIN_SEEDS=5000 cargo test --release -p napkin-machine --test skip_expiries` runs more seeds.

use std::fmt::Write as _;

use napkin_core::{EpollContext, MILLISECOND, Ns, Order};
use napkin_machine::profile::{Profile, Schema};
use napkin_machine::*;
use napkin_policy::Policy;
use napkin_traffic::Rng;

const PROFILES: [&str; 4] = ["epyc-7662", "xsk-2025", "emulator-7.2", "xeon-56"];
const POLICIES: [&str; 5] = ["defer20", "defer200", "suspend10", "suspend200", "base"];

/// Sends frames and small bursts on every flow, each with its own mean gap.
#[derive(Debug)]
struct Storm {
    rng: Rng,
    means: Vec<f64>,
}

impl Client for Storm {
    fn start(&mut self, machine: &mut Machine<'_>) {
        for flow in 0..self.means.len() as u64 {
            machine.client_timer(self.rng.below(300_000), flow);
        }
    }

    fn timer(&mut self, machine: &mut Machine<'_>, flow: u64) {
        let now = machine.now();
        for _ in 0..[1, 1, 1, 12][self.rng.below(4) as usize] {
            machine.send_to_host(Packet::new(flow as u32, Kind::Data, 64, 0, now));
        }
        let gap = self.rng.exponential(self.means[flow as usize]) as Ns;
        machine.client_timer(now + gap.max(1), flow);
    }

    fn receive(&mut self, _: &mut Machine<'_>, _: Packet) {}
}

/// Draws one of these.
fn one<T: Clone>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.below(of.len() as u64) as usize].clone()
}

/// Runs the host of that seed. Returns its counts at several moments, and its number of steps.
fn run(seed: u64, skip: bool) -> (String, u64) {
    let mut rng = Rng::new(seed);
    let name = one(&mut rng, &PROFILES);
    let mut profile =
        Profile::named(Schema::host(), name).unwrap_or_else(|error| panic!("{error}"));
    profile.set_text("processor.shared-clock=off").expect("a choice");
    let mut config = Config::of(&profile);
    let (cpus, queues) = (1 + rng.below(4) as u16, 1 + rng.below(4) as u16);
    (config.processor.cpus, config.processor.smt) = (cpus, 1);
    config.processor.idle_menu = rng.below(2) == 0;
    config.processor.idle_exit_deep = one(&mut rng, &[0, 1_000, 20_000]);
    config.nic.order =
        one(&mut rng, &[Order::DeliverFirst, Order::DeliverFirst, Order::UnmaskFirst]);
    config.nic.queues = queues;
    config.cost.timer_expiry += rng.below(500);
    // A frame sent during a segment does not arrive at its very end, where skipping and stepping may differ.
    config.link.latency = config.link.latency.max(20_000);
    let policy: Policy = one(&mut rng, &POLICIES).parse().expect("a policy");
    let mut placement = Placement::aligned(queues, cpus);
    placement.queue_cpus = (0..queues).map(|_| rng.below(u64::from(cpus)) as u16).collect();
    let host = placement.host(cpus);
    let contexts: Vec<_> = (0..queues).map(|_| EpollContext::new(policy.epoll, 0)).collect();
    let means = (0..queues).map(|_| one(&mut rng, &[20e3, 150e3, 600e3, 8e6])).collect();
    let storm = Box::new(Storm { rng: rng.split(), means });
    let mut machine = Machine::new(config, policy, &placement, &host, &contexts, storm, seed);
    machine.set_skip(skip);
    machine.check_everything();
    let mut sockets = Vec::new();
    for queue in 0..queues {
        let queue_cpu = placement.queue_cpus[usize::from(queue)];
        let cpu = if rng.below(3) == 0 { rng.below(u64::from(cpus)) as u16 } else { queue_cpu };
        let sink = Box::new(UdpSink::new(one(&mut rng, &[0, 700, 30_000]), false));
        let socket = machine.add_socket(one(&mut rng, &[4, 1000]));
        let thread = machine.add_thread("sink", Affinity::pinned(cpu), Class::Fair, sink);
        machine.watch(thread, u32::from(queue), socket);
        sockets.push(socket);
        machine.wake_thread(thread);
    }
    for queue in 0..queues {
        machine.add_flow(queue, Some(one(&mut rng, &sockets)));
    }
    machine.detailed_counts().detailed = true;
    let (mut story, mut at) = (format!("{name} {policy} {:?}", placement.queue_cpus), 0);
    while at < 20 * MILLISECOND {
        at += one(&mut rng, &[300, 30_000, 3 * MILLISECOND]);
        machine.run(at);
        let _ = write!(story, "\n{:?} {:?}", machine.snapshot(), machine.detailed_counts());
    }
    assert_eq!(machine.broken(), None, "seed {seed}");
    let _ = write!(story, "\n{:?}", machine.latency());
    (story, machine.steps())
}

#[test]
fn hosts_that_skip_expiries_equal_hosts_that_are_stepped() {
    let seeds = std::env::var("NAPKIN_SEEDS").map_or(1_000, |it| it.parse().expect("a number"));
    let mut fewer = 0;
    for seed in 0..seeds {
        let ((stepped, steps), (skipped, of)) = (run(seed, false), run(seed, true));
        assert!(stepped == skipped, "seed {seed}:\n{stepped}\nand with skipping\n{skipped}");
        fewer += u64::from(of * 10 < steps * 9);
    }
    assert!(fewer * 8 > seeds, "{fewer} of {seeds} hosts rested for a tenth of their steps");
}
