//! Skipping the rounds of a spinning thread equals stepping them: the same counts, times and latencies.

use napkin_core::{EpollContext, MILLISECOND, Ns};
use napkin_machine::profile::{Profile, Schema};
use napkin_machine::*;
use napkin_policy::Policy;
use napkin_traffic::Rng;

/// Sends frames at random times, to a sink on the CPU of their queue or on another.
#[derive(Debug)]
struct Random {
    rng: Rng,
    mean: f64,
}

impl Client for Random {
    fn start(&mut self, machine: &mut Machine<'_>) {
        machine.client_timer(MILLISECOND, 0);
    }

    fn timer(&mut self, machine: &mut Machine<'_>, _: u64) {
        let now = machine.now();
        machine.send_to_host(Packet::new(0, Kind::Data, 64, 0, now));
        let gap = self.rng.exponential(self.mean) as Ns;
        machine.client_timer(now + gap.max(1), 0);
    }

    fn receive(&mut self, _: &mut Machine<'_>, _: Packet) {}
}

fn sink(profile: &str, policy: &str, cpu: u16, mean: f64, skip: bool) -> (String, u64) {
    let mut profile =
        Profile::named(Schema::host(), profile).unwrap_or_else(|error| panic!("{error}"));
    profile.set_text("processor.shared-clock=off").expect("a choice");
    let config = Config::of(&profile);
    let policy: Policy = policy.parse().expect("a policy");
    let placement = Placement::aligned(1, config.processor.cpus);
    let host = placement.host(config.processor.cpus);
    let contexts = [EpollContext::new(policy.epoll, 0)];
    let client = Box::new(Random { rng: Rng::new(3), mean });
    let mut machine = Machine::new(config, policy, &placement, &host, &contexts, client, 1);
    machine.set_skip(skip);
    let socket = machine.add_socket(10_000);
    machine.add_flow(0, Some(socket));
    let program = Box::new(UdpSink::new(700, false));
    let app = machine.add_thread("sink", Affinity::pinned(cpu), Class::Fair, program);
    machine.watch(app, 0, socket);
    machine.wake_thread(app);
    machine.detailed_counts().detailed = true;
    let mut story = String::new();
    // Reads of the counts in between, at arbitrary moments.
    for moment in [7_777_777, 20_000_001, 33 * MILLISECOND] {
        machine.run(moment);
        story += &format!("{:?} {:?}\n", machine.snapshot(), machine.detailed_counts());
    }
    assert!(machine.latency().count() > 50, "{}", machine.latency().count());
    (story + &format!("{:?}", machine.latency()), machine.steps())
}

#[test]
fn a_sink_is_the_same_whether_its_pollers_are_skipped_or_stepped() {
    let policies = [
        "napibusy",
        "fullbusy",
        "threaded-busy-poll",
        "suspend20",
        "defer20",
        "defer200",
        "hold50",
    ];
    for policy in policies {
        for cpu in [0, 1] {
            for (profile, mean) in [
                ("epyc-7662", 20e3),
                ("epyc-7662", 40e3),
                ("epyc-7662", 300e3),
                ("epyc-7662", 600e3),
                ("emulator-7.2", 200e3),
            ] {
                let (stepped, steps) = sink(profile, policy, cpu, mean, false);
                let (skipped, fewer) = sink(profile, policy, cpu, mean, true);
                assert_eq!(stepped, skipped, "{policy} on {profile}, sink on CPU {cpu}");
                // A reader on another CPU may poll the queue, too: no expiries are skipped then.
                let skips_expiries = cpu == 0 && profile == "epyc-7662" && mean > 200e3;
                if policy == "threaded-busy-poll"
                    || (skips_expiries && ["suspend20", "defer20"].contains(&policy))
                {
                    assert!(fewer * 2 < steps, "{policy} on {profile}: {fewer} of {steps} steps");
                }
            }
        }
    }
}

#[test]
fn a_reader_at_any_moment_of_a_round_leaves_the_poller_at_work() {
    let mut profile =
        Profile::named(Schema::host(), "emulator-7.2").unwrap_or_else(|error| panic!("{error}"));
    profile.set_text("processor.shared-clock=off").expect("a choice");
    let config = Config::of(&profile);
    let policy: Policy = "threaded-busy-poll".parse().expect("a policy");
    let placement = Placement::aligned(1, config.processor.cpus);
    let host = placement.host(config.processor.cpus);
    let client = Box::new(Random { rng: Rng::new(3), mean: 1e12 });
    let mut machine = Machine::new(config, policy, &placement, &host, &[], client, 1);
    machine.add_flow(0, None);
    // The first frame begins the busy polling.
    machine.run(5 * MILLISECOND);
    let idle = machine.used(0)[Use::Idle as usize];
    for step in 1..10_000 {
        machine.run(5 * MILLISECOND + step);
        machine.snapshot();
    }
    machine.run(10 * MILLISECOND);
    assert_eq!(machine.used(0)[Use::Idle as usize], idle, "it polls without end, and never idles");
}
