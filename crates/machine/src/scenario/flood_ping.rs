//! A flood ping from the host to one that answers at once: the 2007 experiment.
//!
//! The program pings from CPU 0 through the first queue. Its requests' transmit completions and the
//! answers are what interrupts. Achieved are the answers a second, as ping counts them. Paced, the
//! same program shows what a hold does between packets that are further apart.

use napkin_core::{EpollContext, Ns};

use super::{Outcome, Run, measure};
use crate::config::Config;
use crate::load::{Peer, check_rate};
use crate::machine::{Machine, Placement};
use crate::program::Ping;
use crate::rng::Rng;
use crate::thread::{Affinity, Class};

/// Datagrams that the program's socket holds; it has one under way at a time.
const BUFFER: u32 = 128;

/// Runs it: flooding, or with so many requests a second.
///
/// # Errors
///
/// If the profile has no `[flood-ping]`, or the rate is not one.
pub fn run(mut run: Run<'_>, paced_per_s: Option<f64>) -> Result<Outcome, String> {
    let profile = run.profile;
    profile.require("flood-ping").map_err(|error| error.to_string())?;
    let config = Config::of(profile);
    if let Some(rate) = paced_per_s {
        check_rate(rate, &config)?;
    }
    let placement = Placement::aligned(config.nic.queues, config.processor.cpus);
    let host = placement.host(config.processor.cpus);
    let contexts: [EpollContext; 0] = [];
    let seed = Rng::new(run.seed).bits();
    let peer = Peer { delay: profile.time("flood-ping.client-delay") };
    let mut machine =
        Machine::new(config, run.policy, &placement, &host, &contexts, Box::new(peer), seed);
    let socket = machine.add_socket(BUFFER);
    let flow = machine.add_flow(0, Some(socket));
    let pace = paced_per_s.map(|rate| ((1e9 / rate) as Ns).max(1));
    let program = Ping::new(flow, socket, profile.time("flood-ping.work"), pace);
    let ping = machine.add_thread("ping", Affinity::pinned(0), Class::Fair, Box::new(program));
    machine.own(ping, socket);
    machine.wake_thread(ping);
    let counts = measure(&mut machine, &mut run);
    let mut outcome = Outcome {
        window: counts.at,
        offered_per_s: paced_per_s,
        achieved_per_s: machine.latency().count() as f64 * 1e9 / counts.at as f64,
        latency: machine.latency().clone(),
        serving: vec![0],
        steps: machine.steps(),
        counts,
        ..Outcome::default()
    };
    let interrupts = outcome.counts.queues[0].nic.interrupts;
    let per_s = interrupts as f64 * 1e9 / outcome.window as f64;
    outcome.figures.insert("interrupts_per_s".to_owned(), per_s);
    Ok(outcome)
}
