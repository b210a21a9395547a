//! `tcp_rr`, as in the kthread polling experiment of 2020.
//!
//! Flows of requests and responses between two similar hosts. Only the interrupts are pinned, each queue's to its
//! own CPU. Flows hash to random queues, and are distributed over the program's threads. The client stamps a
//! request when it sends it, and the published percentiles are those of all flows.

use napkin_core::EpollContext;
use napkin_machine::{Affinity, Class, Config, Machine};

use super::load::TcpRr as Load;
use super::program::TcpRr;
use crate::machine::flows::{distribute_flows, unpinned};
use crate::machine::run::{Outcome, Run, measure};
use napkin_traffic::Rng;

/// Capacity of a receive buffer in packets: enough for a request.
const SOCKET: u32 = 4096;

/// The number of flows, and the sizes of their messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    /// Flows, each with one request outstanding.
    pub flows: u32,
    /// Bytes of a request.
    pub request: u32,
    /// Bytes of a response.
    pub response: u32,
}

impl Setup {
    /// Returns a published setup: 1000 flows, with requests and responses of the same size.
    pub fn published(bytes: u32) -> Self {
        Setup { flows: 1000, request: bytes, response: bytes }
    }
}

/// Runs the scenario.
///
/// # Errors
/// If the profile has no `tcp-rr` section, or the setup has no flows or empty messages.
pub fn run(mut run: Run<'_>, setup: Setup) -> Result<Outcome, String> {
    run.profile.require("tcp-rr").map_err(|error| error.to_string())?;
    if setup.flows == 0 || setup.request == 0 || setup.response == 0 {
        return Err(format!("{setup:?}: flows, requests and responses must be at least 1"));
    }
    let config = Config::of(run.profile);
    let cpus = config.processor.cpus;
    let everywhere = Affinity { first: 0, last: cpus - 1 };
    let placement = unpinned(config.nic.queues, everywhere);
    let host = placement.host(cpus);
    let threads = (run.profile.count("tcp-rr.threads") as u32).min(setup.flows);
    let contexts: Vec<_> = (0..threads).map(|_| EpollContext::new(run.policy.epoll, 0)).collect();
    let mut rng = Rng::new(run.seed);
    let load = Load::new(run.profile, setup.flows, setup.request, rng.bits());
    let mut machine =
        Machine::new(config, run.policy, &placement, &host, &contexts, Box::new(load), rng.bits());
    let work = run.profile.time("tcp-rr.work");
    let threads: Vec<_> = (0..threads)
        .map(|_| {
            let program = Box::new(TcpRr::new(work, setup.response));
            machine.add_thread("tcp_rr", everywhere, Class::Fair, program)
        })
        .collect();
    distribute_flows(&mut machine, &threads, (setup.flows, SOCKET), config.nic.queues, &mut rng);
    let counts = measure(&mut machine, &mut run)?;
    Ok(Outcome::of(&machine, counts, (0..cpus).collect()))
}
