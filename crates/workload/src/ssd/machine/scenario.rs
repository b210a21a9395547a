//! A remote SSD at a fixed rate, as in the kthread polling experiment of 2020.
//!
//! A block service whose threads are much busier than those of `tcp_rr`, and run on any CPU. Polling threads, the
//! instances' own or the pool's, are pinned to a few CPUs; each interrupt has its own CPU. The latency is mainly
//! the device's time, as the profile states it.

use napkin_core::EpollContext;
use napkin_machine::{Affinity, Class, Config, Machine};

use super::load::Ssd as Load;
use super::program::Ssd;
use crate::machine::flows::{distribute_flows, unpinned};
use crate::machine::run::{Outcome, Run, measure};
use napkin_traffic::Rng;

/// Capacity of a receive buffer in packets.
const SOCKET: u32 = 65_536;

/// The number of connections, and the size and rate of operations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Setup {
    /// Connections; the document does not state their number.
    pub connections: u32,
    /// Bytes of an operation's data.
    pub bytes: u32,
    /// Operations per second.
    pub per_second: f64,
}

impl Setup {
    /// Returns a published setup, with as many connections as `tcp_rr` has flows.
    pub fn published(bytes: u32, per_second: f64) -> Self {
        Setup { connections: 1000, bytes, per_second }
    }
}

/// Runs the scenario.
///
/// # Errors
/// If the profile has no `ssd` section, or the setup has no connections, no data or no load.
pub fn run(mut run: Run<'_>, setup: Setup) -> Result<Outcome, String> {
    run.profile.require("ssd").map_err(|error| error.to_string())?;
    let loaded = setup.per_second.is_finite() && setup.per_second > 0.0;
    if setup.connections == 0 || setup.bytes == 0 || !loaded {
        return Err(format!(
            "{setup:?}: connections, bytes and operations a second must be above 0"
        ));
    }
    let config = Config::of(run.profile);
    let cpus = config.processor.cpus;
    let everywhere = Affinity { first: 0, last: cpus - 1 };
    let polling = (run.profile.count("ssd.polling-cpus") as u16).min(cpus);
    let placement = unpinned(config.nic.queues, Affinity { first: 0, last: polling - 1 });
    let host = placement.host(cpus);
    let threads = (run.profile.count("ssd.threads") as u32).min(setup.connections);
    let contexts: Vec<_> = (0..threads).map(|_| EpollContext::new(run.policy.epoll, 0)).collect();
    let mut rng = Rng::new(run.seed);
    // Sockets are numbered in the order of their creation: one per thread for its completions, then those of the
    // flows.
    let completions = (0..setup.connections).map(|flow| flow % threads).collect();
    let load = Load::new(run.profile, completions, setup.bytes, setup.per_second, rng.bits());
    let seed = rng.bits();
    let client = Box::new(load);
    let mut machine = Machine::new(config, run.policy, &placement, &host, &contexts, client, seed);
    let threads: Vec<_> = (0..threads)
        .map(|epoll| {
            let program = Box::new(Ssd::new(run.profile, setup.bytes, rng.split()));
            let thread = machine.add_thread("ssd", everywhere, Class::Fair, program);
            let socket = machine.add_socket(SOCKET);
            machine.watch(thread, epoll, socket);
            thread
        })
        .collect();
    let flows = (setup.connections, SOCKET);
    distribute_flows(&mut machine, &threads, flows, config.nic.queues, &mut rng);
    let counts = measure(&mut machine, &mut run)?;
    let outcome = Outcome::of(&machine, counts, (0..cpus).collect());
    Ok(outcome.offered(machine.due(), machine.latency().count()))
}
