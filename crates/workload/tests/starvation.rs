//! An application whose epoll context always has a ready descriptor: `docs/suspension-starves.md`.
//!
//! For half a second, 200 datagrams per second are sent to a sink that waits in epoll. Optionally its context also
//! has an always writable pipe, as in that page's program.

use napkin_core::{EpollContext, MILLISECOND, NEVER, Ns};
use napkin_machine::profile::Profile;
use napkin_machine::*;
use napkin_policy::Policy;
use napkin_traffic::Rng;
use napkin_workload::machine::run::Run;
use napkin_workload::memcached::machine::{self as memcached, Rate};
use napkin_workload::udp_sink::machine::Pktgen;

/// The result of a run.
#[derive(Debug)]
struct Served {
    received: u64,
    /// The longest time from the sender to the application.
    longest: Ns,
    queue: QueueUse,
}

fn profile(settings: &[&str]) -> Profile {
    let mut profile = Profile::named(napkin_workload::schema(), "epyc-7662")
        .unwrap_or_else(|error| panic!("{error}"));
    for setting in settings {
        profile.set_text(setting).unwrap_or_else(|error| panic!("{error}"));
    }
    profile
}

fn serve(policy: &str, rule: &str, pipe: bool) -> Served {
    let config = Config::of(&profile(&[rule]));
    let policy: Policy = policy.parse().unwrap_or_else(|error| panic!("{error}"));
    let placement = Placement::aligned(1, config.processor.cpus);
    let host = placement.host(config.processor.cpus);
    let contexts = [EpollContext::new(policy.epoll, 0)];
    let sender = Box::new(Pktgen::new(0, 200.0, 0, Rng::new(1)));
    let mut machine = Machine::new(config, policy, &placement, &host, &contexts, sender, 1);
    let socket = machine.add_socket(512);
    machine.add_flow(0, Some(socket));
    let program = Box::new(UdpSink::new(0, false));
    let sink = machine.add_thread("sink", Affinity::pinned(0), Class::Fair, program);
    machine.watch(sink, 0, socket);
    if pipe {
        machine.always_ready(0, NEVER);
    }
    machine.wake_thread(sink);
    machine.run(500 * MILLISECOND);
    assert_eq!(machine.broken(), None);
    Served {
        received: machine.latency().count(),
        longest: machine.latency().max(),
        queue: machine.snapshot().queues[0],
    }
}

const LINUX: &str = "kernel.prolongs-without-poll=on";
const FIXED: &str = "kernel.prolongs-without-poll=off";

#[test]
fn under_linuxs_rule_a_pipe_in_the_context_starves_the_queue() {
    let served = serve("suspend20", LINUX, true);
    assert_eq!(served.received, 1, "the one whose softirq told the context whom to follow");
    assert_eq!((served.queue.nic.arrived, served.queue.nic.interrupts), (100, 1));
    // Each wait starts the timer anew, so it never fires.
    assert_eq!(served.queue.nic.timer_expiries, 0);
    assert!(served.queue.nic.timer_starts > 10_000, "{served:?}");
}

#[test]
fn the_mended_rule_keeps_a_datagram_for_the_timeout_at_the_most() {
    let served = serve("suspend20", FIXED, true);
    // The packets of the last 20 ms may still be in the ring.
    assert!((96..=100).contains(&served.received), "{served:?}");
    assert!((10 * MILLISECOND..21 * MILLISECOND).contains(&served.longest), "{served:?}");
    assert_eq!(served.queue.nic.interrupts, 1, "interrupts stay suspended all the same");
}

#[test]
fn without_the_pipe_the_rules_do_the_same() {
    let [linux, fixed] = [LINUX, FIXED].map(|rule| serve("suspend20", rule, false));
    assert_eq!(linux.received, 100);
    assert!(linux.longest < MILLISECOND, "{linux:?}");
    assert_eq!((linux.received, linux.longest), (fixed.received, fixed.longest));
    assert_eq!(linux.queue, fixed.queue);
}

#[test]
fn without_suspension_the_pipe_does_no_harm() {
    for policy in ["base", "defer20", "napibusy", "suspend20,irq-suspend-timeout=0"] {
        let served = serve(policy, LINUX, true);
        assert_eq!(served.received, 100, "{policy}");
        assert!(served.longest < MILLISECOND, "{policy}: {served:?}");
    }
}

#[test]
fn a_memcached_with_a_descriptor_that_is_always_ready_stands_still_under_linuxs_rule() {
    let requests = |rule| {
        let profile = profile(&[rule, "memcached.always-ready=on"]);
        let policy = "suspend20".parse().unwrap_or_else(|error| panic!("{error}"));
        let run = Run {
            warm_up: 50 * MILLISECOND,
            window: 50 * MILLISECOND,
            ..Run::new(&profile, policy)
        };
        let setup = memcached::Setup::published(Rate::PerS(200_000.0));
        memcached::run(run, setup).expect("a run").achieved_per_s
    };
    assert_eq!(requests(LINUX), 0.0);
    assert!(requests(FIXED) > 100_000.0);
}
