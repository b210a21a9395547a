//! `xsk_rr` (2025): round trips over AF_XDP at a fixed rate, with an application that is busy for a while after
//! each reply.
//!
//! Two equal hosts run the same policy, each with one queue and a CPU for each of its threads, as in the document:
//! one for the queue's interrupt or its polling thread, and one each for receiving, sending and, if the policy asks
//! for it, separate polling, all in real-time classes. The first host is the measured one; the second answers.
//! Latency is the tool's: from the stamp that the sending thread writes into a frame until the receiving thread has
//! read the reply. It therefore includes the wait of a reply while the application is busy.

use napkin_core::{EpollContext, Ns};
use napkin_machine::{Affinity, Class, Config, Kind, Machine, Packet, Placement, Program};
use napkin_policy::WaitsIn;

use super::load::XskPeer;
use super::program::{BYTES, CALL_BUCKETS, End, Kick, Poller, Receiver, Sender, Steps, Tally};
use crate::machine::run::{Outcome, Run, measure};

/// CPUs of each host: the queue's, the receiver's, the sender's, the poller's.
const CPUS: u16 = 4;

/// Capacity of a receive ring in frames; the document gives the NIC's ring the same.
const RING: u32 = 1_024;

/// The real-time priority of all threads, as in the document.
const PRIORITY: u8 = 50;

/// When the first frame is sent: the threads are running by then.
const START: Ns = 1_000_000;

/// The parameters of the tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Nanoseconds between two frames.
    pub period: Ns,
    /// Nanoseconds for which the application does not receive after a reply.
    pub delay: Ns,
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RoundTrips {
    /// The outcome that every scenario has.
    pub outcome: Outcome,
    /// Round trips in buckets of 100 ns for the tool's own estimator; the last bucket takes everything longer.
    pub round_trips: Vec<u64>,
    /// The measured host's receive calls, by powers of two of their duration in nanoseconds.
    pub calls: [u64; CALL_BUCKETS],
}

/// Runs the scenario.
///
/// # Errors
/// If the profile has no `xsk-rr` section, the period is 0, or the model broke an invariant.
pub fn run(mut run: Run<'_>, pace: Pace) -> Result<RoundTrips, String> {
    run.profile.require("xsk-rr").map_err(|error| error.to_string())?;
    if pace.period == 0 {
        return Err("a period of 0 between two frames; give at least 1 ns".to_owned());
    }
    let policy = run.policy;
    let mut config = Config::of(run.profile);
    // Two hosts whose threads share no core.
    config.processor.cpus = 2 * CPUS;
    config.processor.smt = 1;
    // A frame crosses the machine's link twice: out of one host and into the other.
    config.link.latency /= 2;
    let queue_cpus = vec![0, CPUS];
    let placement = Placement {
        napi_threads: queue_cpus.iter().map(|&cpu| Affinity::pinned(cpu)).collect(),
        queue_cpus,
        napi_class: Class::Fifo(PRIORITY),
        workers: Affinity { first: 0, last: 0 },
    };
    let host = placement.host(config.processor.cpus);
    let contexts = [EpollContext::new(policy.epoll, 0), EpollContext::new(policy.epoll, 0)];
    let peer = Box::new(XskPeer);
    let mut machine = Machine::new(config, policy, &placement, &host, &contexts, peer, run.seed);

    let tally = Tally::new(run.warm_up, run.warm_up + run.window);
    let rings = [machine.add_socket(RING), machine.add_socket(RING)];
    let flows = [machine.add_flow(0, Some(rings[0])), machine.add_flow(1, Some(rings[1]))];
    let steps = Steps::of(run.profile);
    let end = |host: u16| End {
        ring: rings[usize::from(host)],
        queue: host,
        to: flows[usize::from(1 - host)],
        steps,
        tally: (host == 0).then(|| tally.clone()),
    };
    let (receiving, sending) = (Kick::receiving(&policy), Kick::sending(&policy));
    let client = Box::new(Receiver::client(end(0), receiving, pace.delay));
    let server = Box::new(Receiver::server(end(1), receiving, sending));
    let sender = Box::new(Sender::new(end(0), sending, pace.period, START));
    let mut threads = Threads { machine: &mut machine };
    threads.add("receiver", 0, 1, client, Some(rings[0]));
    threads.add("sender", 0, 2, sender, None);
    threads.add("server", 1, 1, server, Some(rings[1]));
    if policy.application.has_poller() {
        for host in [0, 1] {
            threads.add("poller", host, 3, Box::new(Poller::new(end(host))), None);
        }
    }

    for queue in [0, 1] {
        // Earlier traffic, which starts a thread that then polls without end.
        let flow = machine.add_flow(queue, None);
        machine.send_to_host(Packet::new(flow, Kind::Data, BYTES, 0, 0));
    }

    let mut counts = measure(&mut machine, &mut run)?;
    // Of the measured host only.
    counts.cpus.truncate(usize::from(CPUS));
    counts.queues.truncate(1);
    counts.epolls.truncate(1);
    let tally = tally.borrow();
    let seconds = run.window as f64 / 1e9;
    let serving = if policy.application.has_poller() { vec![0, 1, 2, 3] } else { vec![0, 1, 2] };
    let mut outcome =
        Outcome::of(&machine, counts, serving).offered(tally.due, machine.latency().count());
    let calls: u64 = tally.calls.iter().sum();
    outcome.figures.insert("receive_calls_per_s".to_owned(), calls as f64 / seconds);
    Ok(RoundTrips { outcome, round_trips: tally.round_trips.clone(), calls: tally.calls })
}

/// The machine to which the tool's threads are added.
struct Threads<'m, 'a> {
    machine: &'m mut Machine<'a>,
}

impl Threads<'_, '_> {
    /// Adds a thread and starts it. Its calls use a socket of its own that is bound to the host's queue and never
    /// gets a frame: a call on an AF_XDP socket polls whether or not the ring is empty. A receiving thread may wait
    /// for its ring in epoll instead.
    fn add(
        &mut self,
        name: &str,
        host: u16,
        cpu: u16,
        program: Box<dyn Program>,
        ring: Option<u32>,
    ) {
        let machine = &mut *self.machine;
        let class = Class::Fifo(PRIORITY);
        let name = if host == 0 { name.to_owned() } else { format!("{name}/peer") };
        let thread = machine.add_thread(&name, Affinity::pinned(host * CPUS + cpu), class, program);
        let waits = machine.policy().waits_in() == Some(WaitsIn::Epoll);
        match ring.filter(|_| waits) {
            Some(ring) => machine.watch(thread, u32::from(host), ring),
            None => {
                let calls_on = machine.add_socket(1);
                machine.bind(calls_on, host);
                machine.own(thread, calls_on);
            }
        }
        machine.wake_thread(thread);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use napkin_core::{MICROSECOND, MILLISECOND};
    use napkin_machine::profile::Profile;
    use napkin_policy::Policy;

    fn ran(policy: &str, pace: Pace) -> RoundTrips {
        let profile = Profile::named(crate::schema(), "xsk-2025").unwrap();
        let policy = policy.parse().unwrap();
        // Longer than any policy's timer, so that a queue that starts masked has reached its steady state.
        let (warm_up, window) = (12 * MILLISECOND, 8 * MILLISECOND);
        run(Run { warm_up, window, ..Run::new(&profile, policy) }, pace).unwrap()
    }

    const IDLE: Pace = Pace { period: 80 * MICROSECOND, delay: 0 };

    #[test]
    fn every_frame_is_answered_whatever_the_policy() {
        let policies = [
            "base",
            "interrupts",
            "busypoll",
            "busypoll-separate",
            "threaded-busy-poll",
            "threaded",
            "workqueue",
            "defer20",
            "napibusy",
            "suspend20",
            "fullbusy",
            "hold",
            "ksoftirqd",
        ];
        for policy in policies {
            let outcome = ran(policy, IDLE).outcome;
            let round_trips = outcome.latency.count();
            assert!((98..=101).contains(&round_trips), "{policy}: {round_trips} of 100");
            let nic = outcome.counts.queues[0].nic;
            assert_eq!((nic.ring_drops, nic.socket_drops), (0, 0), "{policy}");
        }
    }

    #[test]
    fn a_frame_takes_at_least_the_wire_both_ways() {
        let wire = Profile::named(crate::schema(), "xsk-2025").unwrap().time("link.latency");
        for policy in ["interrupts", "threaded-busy-poll"] {
            assert!(ran(policy, IDLE).outcome.latency.min() > 2 * wire, "{policy}");
        }
    }

    #[test]
    fn an_application_that_is_busy_for_longer_than_a_period_falls_behind_and_says_so() {
        let pace = Pace { period: 20 * MICROSECOND, delay: 30 * MICROSECOND };
        let outcome = ran("threaded-busy-poll", pace).outcome;
        assert!(outcome.achieved_per_s < 0.7 * outcome.offered_per_s.unwrap(), "{outcome:?}");
    }

    #[test]
    fn the_tools_histogram_holds_the_same_round_trips() {
        let ran = ran("busypoll", IDLE);
        assert_eq!(ran.round_trips.iter().sum::<u64>(), ran.outcome.latency.count());
        let calls: u64 = ran.calls.iter().sum();
        assert!(calls > ran.outcome.latency.count(), "it calls while it waits: {calls}");
    }

    #[test]
    fn a_policy_of_both_parts_runs_as_the_one_that_its_application_waits_in() {
        for (both, one) in [
            ("napibusy,socket-busy-poll-usecs=50", "napibusy"),
            ("busypoll-separate,epoll-busy-poll-usecs=64", "busypoll-separate"),
        ] {
            assert_eq!(ran(both, IDLE), ran(one, IDLE), "{both}");
        }
    }

    #[test]
    fn who_never_kicks_has_no_calls_to_time() {
        assert_eq!(ran("threaded-busy-poll", IDLE).calls.iter().sum::<u64>(), 0);
    }

    #[test]
    fn the_same_seed_gives_the_same_run() {
        let pace = Pace { period: 8 * MICROSECOND, delay: 6 * MICROSECOND };
        assert_eq!(ran("busypoll", pace), ran("busypoll", pace));
    }

    #[test]
    fn a_profile_without_the_tool_and_a_period_of_nothing_are_refused() {
        let profile = Profile::named(crate::schema(), "emulator-7.2").unwrap();
        let error = run(Run::new(&profile, Policy::BASE), IDLE).unwrap_err();
        assert!(error.contains("xsk-rr"), "{error}");
        let profile = Profile::named(crate::schema(), "xsk-2025").unwrap();
        let none = Pace { period: 0, ..IDLE };
        assert!(run(Run::new(&profile, Policy::BASE), none).unwrap_err().contains("period"));
    }
}
