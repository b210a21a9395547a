//! memcached under mutilate, as in the IRQ suspension experiment of 2024.
//!
//! memcached has a worker per receive queue. Queue `i`, its interrupt and worker `i` are on CPU `i`. Connections
//! are distributed over the queues with the profile's skew, and a worker serves those of its queue. Client machines
//! load the server. Latencies are those of the first client machine, from the intended sending time. `published_*`
//! is what the tool itself would print: from the actual sending time, in the bins of its histogram.

use napkin_core::{EpollContext, MILLISECOND, NEVER};
use napkin_machine::{Act, Affinity, Class, Config, Machine, Placement, Program, ThreadId};

use super::load::{Clients, Mutilate, Rate};
use super::program::Memcached;
use crate::machine::run::{Outcome, Run, measure};
use napkin_machine::profile::Profile;

/// Capacity of a connection's receive buffer in frames: far more than a connection with one outstanding request
/// needs.
const SOCKET: u32 = 16;

/// The numbers of queues, clients and connections, and the rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Setup {
    /// Receive queues, and workers.
    pub queues: u16,
    /// Connections of all client machines.
    pub connections: u32,
    /// Client machines; the latencies are those of the first one.
    pub machines: u32,
    /// The rate of all client machines together.
    pub rate: Rate,
}

impl Setup {
    /// Returns the published setup: 8 queues, and 7 machines with 32 threads of 20 connections each.
    pub fn published(rate: Rate) -> Self {
        Setup { queues: 8, connections: 4480, machines: 7, rate }
    }

    /// Returns the profile's setup, which is the published one for the profile of the published testbed.
    pub fn of(profile: &Profile, rate: Rate) -> Self {
        Setup {
            queues: profile.count("nic.queues") as u16,
            connections: profile.count("memcached.connections") as u32,
            machines: profile.count("memcached.client-machines") as u32,
            rate,
        }
    }
}

/// The client's thread if it shares the host: it never sleeps. Its cost per request is `memcached.client-delay`.
#[derive(Debug)]
struct Sender;

impl Program for Sender {
    fn resume(&mut self, _: &mut Machine<'_>, _: ThreadId) -> Act {
        Act::User(MILLISECOND)
    }
}

/// Runs the scenario.
///
/// # Errors
/// If the profile has no `memcached` section, or fewer CPUs than the queues need.
pub fn run(mut run: Run<'_>, setup: Setup) -> Result<Outcome, String> {
    run.profile.require("memcached").map_err(|error| error.to_string())?;
    let config = Config::of(run.profile);
    let cpus = config.processor.cpus;
    if setup.queues == 0 || setup.queues > cpus {
        return Err(format!(
            "{} queues on {cpus} CPUs; each queue needs a CPU of its own, so give 1 to {cpus}",
            setup.queues
        ));
    }
    let mut placement = Placement::aligned(setup.queues, cpus);
    let sender = (run.profile.choice("nic.interrupt-cpu") == "sender").then_some(cpus - 1);
    if let Some(sender) = sender {
        if setup.queues > sender {
            return Err(format!(
                "{} queues on {cpus} CPUs: nic.interrupt-cpu = sender needs one more CPU than queues",
                setup.queues
            ));
        }
        placement.queue_cpus.fill(sender);
    }
    let host = placement.host(cpus);
    let contexts: Vec<_> =
        (0..setup.queues).map(|_| EpollContext::new(run.policy.epoll, 0)).collect();
    let clients =
        Clients { connections: setup.connections, queues: setup.queues, machines: setup.machines };
    let (client, measured) =
        Mutilate::new(run.profile, clients, setup.rate, run.warm_up, run.seed.wrapping_mul(2));
    let mut machine =
        Machine::new(config, run.policy, &placement, &host, &contexts, Box::new(client), run.seed);
    let work = run.profile.time("memcached.work");
    let workers: Vec<_> = (0..setup.queues)
        .map(|cpu| {
            let program = Box::new(Memcached::new(work));
            machine.add_thread("memcached", Affinity::pinned(cpu), Class::Fair, program)
        })
        .collect();
    let hottest = run.profile.ratio("memcached.hottest-queue");
    for queue in clients.spread(hottest) {
        let socket = machine.add_socket(SOCKET);
        machine.add_flow(queue, Some(socket));
        machine.watch(workers[usize::from(queue)], u32::from(queue), socket);
    }
    if let Some(sender) = sender {
        let thread =
            machine.add_thread("sender", Affinity::pinned(sender), Class::Fair, Box::new(Sender));
        machine.wake_thread(thread);
    }
    if run.profile.on("memcached.always-ready") {
        (0..setup.queues).for_each(|queue| machine.always_ready(u32::from(queue), NEVER));
    }
    for worker in workers {
        machine.wake_thread(worker);
    }
    let counts = measure(&mut machine, &mut run)?;
    let measured = measured.borrow();
    let mut outcome = Outcome {
        window: run.window,
        achieved_per_s: measured.answers as f64 * 1e9 / run.window as f64,
        latency: measured.intended.clone(),
        counts,
        serving: (0..setup.queues).collect(),
        steps: machine.steps(),
        ..Outcome::default()
    };
    let figures = [
        ("published_mean_ns", measured.stamped.mean()),
        ("published_p50_ns", measured.bins.percentile(50.0)),
        ("published_p95_ns", measured.bins.percentile(95.0)),
        ("published_p99_ns", measured.bins.percentile(99.0)),
    ];
    outcome.figures.extend(figures.map(|(name, value)| (name.to_owned(), value)));
    Ok(match setup.rate {
        Rate::PerS(_) => outcome.offered(measured.due, measured.answers),
        Rate::Max => outcome,
    })
}

#[cfg(test)]
mod tests {
    use napkin_policy::Policy;

    use super::*;

    fn at(per_s: f64) -> Outcome {
        let profile = Profile::named(crate::schema(), "epyc-7662").expect("built in");
        let run = Run { window: 100 * MILLISECOND, ..Run::new(&profile, Policy::BASE) };
        let setup = Setup { queues: 1, connections: 64, machines: 1, rate: Rate::PerS(per_s) };
        super::run(run, setup).expect("runs")
    }

    /// Returns p99 from the intended time, and as the tool prints it.
    fn p99(per_s: f64) -> (f64, f64) {
        let outcome = at(per_s);
        (outcome.latency.quantile(0.99) as f64, outcome.figures["published_p99_ns"])
    }

    #[test]
    fn what_falls_due_is_counted_whether_it_could_be_sent_or_not() {
        let calm = at(20_000.0);
        assert!((1_700..2_500).contains(&calm.due.unwrap()), "{:?} in 100 ms", calm.due);
        assert!(calm.unanswered.unwrap() < 10, "{:?}", calm.unanswered);
        let flooded = at(400_000.0);
        let (due, unanswered) = (flooded.due.unwrap(), flooded.unanswered.unwrap());
        assert!((38_000..42_000).contains(&due), "{due} in 100 ms");
        let answered = (flooded.achieved_per_s / 10.0).round() as u64;
        assert_eq!(unanswered, due - answered);
        assert!(unanswered > due / 10, "{unanswered} of {due}");
        let max = Setup { queues: 1, connections: 64, machines: 1, rate: Rate::Max };
        let profile = Profile::named(crate::schema(), "epyc-7662").expect("built in");
        let run = Run { window: 10 * MILLISECOND, ..Run::new(&profile, Policy::BASE) };
        let closed = super::run(run, max).expect("runs");
        assert_eq!((closed.due, closed.unanswered, closed.offered_per_s), (None, None, None));
    }

    #[test]
    fn latency_is_from_the_intended_time_and_what_the_tool_prints_stands_beside_it() {
        let (intended, published) = p99(20_000.0);
        assert!(intended < 1.5 * published, "{intended} {published}");
        // One worker cannot answer this rate: the tool delays its requests without counting the delay.
        let (intended, published) = p99(400_000.0);
        assert!(intended > 10.0 * published, "{intended} {published}");
    }
}
