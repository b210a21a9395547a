//! Theoretical limits: laws that any model of a queue must obey, whatever its costs.
//!
//! The steps of the host cost nothing but the application's own work, so that the machine is a textbook queue; or
//! they have their costs, where a law holds for any.

use napkin_traffic::{Histogram, Rng};
use std::cell::RefCell;
use std::rc::Rc;

use napkin_core::{EpollContext, MICROSECOND, MILLISECOND, Ns};
use napkin_machine::profile::{Profile, Schema};
use napkin_machine::*;
use napkin_policy::Policy;

const SECOND: Ns = 1000 * MILLISECOND;
/// Start of the measurement window.
const BEGIN: Ns = 100 * MILLISECOND;
const WINDOW: Ns = 5 * SECOND;

/// An open loop with exponential gaps.
#[derive(Debug)]
struct Poisson {
    mean_gap: f64,
    rng: Rng,
    until: Ns,
}

impl Client for Poisson {
    fn start(&mut self, machine: &mut Machine<'_>) {
        machine.client_timer(1, 0);
    }

    fn timer(&mut self, machine: &mut Machine<'_>, _: u64) {
        let now = machine.now();
        if now > self.until {
            return;
        }
        machine.send_to_host(Packet::new(0, Kind::Data, 0, 0, now));
        let gap = self.rng.exponential(self.mean_gap);
        machine.client_timer(now + gap.round() as Ns, 0);
    }

    fn receive(&mut self, _: &mut Machine<'_>, _: Packet) {}
}

/// A closed loop with a fixed number of requests in flight.
#[derive(Debug)]
struct Closed {
    requests: u64,
    /// Times from request to answer since the window began.
    answers: Rc<RefCell<Histogram>>,
}

impl Client for Closed {
    fn start(&mut self, machine: &mut Machine<'_>) {
        for request in 0..self.requests {
            machine.client_timer(1 + request * 10 * MICROSECOND, request);
        }
    }

    fn timer(&mut self, machine: &mut Machine<'_>, token: u64) {
        let now = machine.now();
        machine.send_to_host(Packet::new(0, Kind::Data, 100, token, now));
    }

    fn receive(&mut self, machine: &mut Machine<'_>, packet: Packet) {
        if machine.now() > BEGIN {
            self.answers.borrow_mut().add(machine.now() - packet.stamp);
        }
        machine.client_timer(machine.now(), packet.tag);
    }
}

/// The emulator's profile, with all steps free of cost.
fn free() -> Config {
    let mut config = costly();
    config.cost = Costs::default();
    config.nic.gro_batch = 0;
    config.processor.cpus = 1;
    config.processor.shared_clock = false;
    config.link.latency = 0;
    config
}

fn costly() -> Config {
    let profile =
        Profile::named(Schema::host(), "emulator-7.2").unwrap_or_else(|error| panic!("{error}"));
    let mut config = Config::of(&profile);
    config.processor.shared_clock = false;
    config
}

struct Ran {
    latency: Histogram,
    growth: Snapshot,
}

fn run(config: Config, policy: &str, work: Ns, echo: bool, client: Box<dyn Client>) -> Ran {
    let policy: Policy = policy.parse().expect("a policy");
    let placement = Placement::aligned(1, 1);
    let host = placement.host(config.processor.cpus);
    let contexts = [EpollContext::new(policy.epoll, 0)];
    let mut machine = Machine::new(config, policy, &placement, &host, &contexts, client, 3);
    let socket = machine.add_socket(1_000_000);
    machine.add_flow(0, Some(socket));
    let sink = UdpSink::new(work, echo);
    let thread = machine.add_thread("app", Affinity::pinned(0), Class::Fair, Box::new(sink));
    machine.watch(thread, 0, socket);
    machine.wake_thread(thread);
    machine.run(BEGIN);
    machine.restart_latency();
    let before = machine.snapshot();
    machine.run(BEGIN + WINDOW);
    assert_eq!(machine.broken(), None);
    Ran { latency: machine.latency().clone(), growth: machine.snapshot().since(&before) }
}

#[test]
fn m_d_1_waits_as_long_as_pollaczek_and_khinchine_say() {
    let service = 10 * MICROSECOND;
    for load in [0.3, 0.6, 0.8] {
        let client =
            Poisson { mean_gap: service as f64 / load, rng: Rng::new(11), until: 10 * SECOND };
        let ran = run(free(), "base", service, false, Box::new(client));
        let expected = load * service as f64 / (2.0 * (1.0 - load));
        let waited = ran.latency.mean();
        // There are hundreds of thousands of packets. Waits are correlated within a busy period, which is short at
        // these loads: the deviation of the mean is below half a percent.
        let error = waited / expected - 1.0;
        println!("load {load}: waited {waited:.0} ns, theory {expected:.0} ns, {error:+.4}");
        assert!(error.abs() < 0.02, "load {load}: {waited} against {expected}");
    }
}

#[test]
fn littles_law_holds_in_a_closed_loop_under_every_policy() {
    let names =
        ["base", "threaded", "workqueue", "defer20", "napibusy", "fullbusy", "suspend20", "hold"];
    for policy in names {
        for requests in [1, 10, 200] {
            let answers = Rc::new(RefCell::new(Histogram::default()));
            let client = Closed { requests, answers: Rc::clone(&answers) };
            run(costly(), policy, 5 * MICROSECOND, true, Box::new(client));
            let answers = answers.borrow();
            let rate = answers.count() as f64 / WINDOW as f64;
            let inside = rate * answers.mean();
            println!("{policy} {requests}: {:.0}/s, {inside:.3} inside", rate * 1e9);
            // Exact except for requests that straddle an end of the window.
            let straddles = requests as f64 * answers.max() as f64 / WINDOW as f64;
            let bound = 0.001 * requests as f64 + straddles;
            assert!((inside - requests as f64).abs() <= bound, "{policy}: {inside} of {requests}");
        }
    }
}

#[test]
fn a_cpu_with_a_backlog_is_never_idle_and_no_packet_gets_lost_on_the_way() {
    for policy in ["base", "threaded", "workqueue", "suspend20", "defer200"] {
        // Twice the host's capacity.
        let client = Poisson { mean_gap: 10_000.0, rng: Rng::new(5), until: 10 * SECOND };
        let ran = run(costly(), policy, 20 * MICROSECOND, false, Box::new(client));
        let idle = ran.growth.cpus[0].used[Use::Idle as usize];
        assert_eq!(idle, 0, "{policy}: idle with a backlog");
        let all: Ns = ran.growth.cpus[0].used.iter().sum();
        assert_eq!(all, ran.growth.at, "{policy}: every nanosecond is accounted");
    }
}

#[test]
fn a_machine_keeps_no_more_later_than_it_did_before() {
    for policy in ["base", "threaded", "suspend20", "defer200", "hold"] {
        let config = costly();
        let policy: Policy = policy.parse().expect("a policy");
        let placement = Placement::aligned(1, 1);
        let host = placement.host(config.processor.cpus);
        let contexts = [EpollContext::new(policy.epoll, 0)];
        let client = Poisson { mean_gap: 60_000.0, rng: Rng::new(9), until: 90 * SECOND };
        let client = Box::new(client);
        let mut machine = Machine::new(config, policy, &placement, &host, &contexts, client, 3);
        let socket = machine.add_socket(1_000);
        machine.add_flow(0, Some(socket));
        let sink = UdpSink::new(5 * MICROSECOND, true);
        let thread = machine.add_thread("app", Affinity::pinned(0), Class::Fair, Box::new(sink));
        machine.watch(thread, 0, socket);
        machine.wake_thread(thread);
        let mut most = [0, 0];
        for second in 0..20 {
            machine.run((second + 1) * SECOND);
            let half = usize::from(second >= 10);
            most[half] = most[half].max(machine.items_kept());
        }
        println!("{policy}: at most {} things kept, later {}", most[0], most[1]);
        assert!(most[1] <= most[0] * 2 + 64, "{policy}: {most:?}");
    }
}
