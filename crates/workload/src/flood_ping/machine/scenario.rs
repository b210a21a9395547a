//! The 2007 experiment: a flood ping from the host to a peer that answers after a fixed time.
//!
//! The program pings from CPU 0 through the first queue. Interrupts come from the transmit completions of its
//! requests, and from the answers. The achieved rate is that of the answers, as ping counts them. With a rate, the
//! same program shows the effect of a hold between packets that are further apart.

use napkin_core::{EpollContext, Ns};
use napkin_machine::{Affinity, Class, Config, Machine, Placement};

use super::load::Peer;
use super::program::Ping;
use crate::machine::frame::check_rate;
use crate::machine::run::{Outcome, Run, measure};
use napkin_traffic::Rng;

/// Capacity of the program's socket in datagrams; one is in flight at a time.
const BUFFER: u32 = 128;

/// Runs the scenario: flooding, or with a rate in requests per second.
///
/// # Errors
///
/// If the profile has no `[flood-ping]`, or the rate is invalid.
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
    let (warm_up, counts) = (run.warm_up, measure(&mut machine, &mut run)?);
    let mut outcome = Outcome::of(&machine, counts, vec![0]);
    if let Some(pace) = pace {
        // By the schedule, whether or not the program got to send them.
        let until = |end: Ns| end.div_ceil(pace);
        let due = until(warm_up + outcome.window) - until(warm_up);
        let answered = outcome.latency.count();
        outcome = outcome.offered(due, answered);
    }
    let interrupts = outcome.counts.queues[0].nic.interrupts;
    let per_s = interrupts as f64 * 1e9 / outcome.window as f64;
    outcome.figures.insert("interrupts_per_s".to_owned(), per_s);
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;
    use napkin_machine::profile::Profile;
    use napkin_policy::Policy;

    fn run_with(policy: Policy, paced_per_s: Option<f64>) -> Outcome {
        let profile = Profile::named(crate::schema(), "desktop-2007").expect("built in");
        let run = Run { window: 300_000_000, ..Run::new(&profile, policy) };
        super::run(run, paced_per_s).expect("it runs")
    }

    #[test]
    fn a_flood_has_one_request_under_way_and_an_interrupt_each_way() {
        let outcome = run_with(Policy::BASE, None);
        let nic = outcome.counts.queues[0].nic;
        assert!(nic.sent.abs_diff(nic.arrived) <= 1, "{nic:?}");
        let interrupts = nic.interrupts as f64 / nic.arrived as f64;
        assert!((interrupts - 2.0).abs() < 0.05, "{interrupts} a ping");
    }

    #[test]
    fn a_flood_waits_for_its_answers_and_a_pace_does_not() {
        let flood = run_with(Policy::BASE, None);
        let round = 1e9 / flood.achieved_per_s;
        assert!(round > flood.latency.mean(), "a round has a request's whole time in it");
        let paced = run_with(Policy::BASE, Some(1_000.0));
        assert!((paced.achieved_per_s - 1_000.0).abs() <= 4.0, "{}", paced.achieved_per_s);
    }

    #[test]
    fn latency_counts_from_before_the_send_call() {
        let profile = Profile::named(crate::schema(), "desktop-2007").expect("built in");
        let flood = run_with(Policy::BASE, None);
        let between = 1e9 / flood.achieved_per_s - flood.latency.mean();
        // The time from an answer to the next request includes no send call.
        let own = ["cost.recv", "flood-ping.work"].map(|path| profile.get(path));
        let most = own.iter().sum::<f64>() + profile.get("cost.send");
        assert!(between < most, "{between} ns of {most}");
    }

    #[test]
    fn what_a_pace_s_schedule_says_is_due_whether_or_not_it_could_be_sent() {
        let paced = run_with(Policy::BASE, Some(1_000.0));
        assert_eq!((paced.due, paced.unanswered), (Some(300), Some(0)));
        // More than the host can send and receive.
        let crowded = run_with(Policy::BASE, Some(20_000.0));
        assert_eq!(crowded.due, Some(6_000));
        assert_eq!(crowded.unanswered, Some(6_000 - crowded.latency.count()));
        assert!(crowded.latency.count() < 5_000, "{}", crowded.latency.count());
        let flood = run_with(Policy::BASE, None);
        assert_eq!((flood.due, flood.offered_per_s), (None, None), "a closed loop");
    }

    #[test]
    fn a_hold_that_outlasts_the_gap_leaves_no_interrupts_and_no_idleness() {
        let held = run_with(Policy::hold(2_000_000), Some(1_000.0));
        assert_eq!(held.counts.queues[0].nic.interrupts, 0);
        assert!(held.cpu_percent() > 99.0, "{}", held.cpu_percent());
        let short = run_with(Policy::hold(100_000), Some(1_000.0));
        assert!(short.cpu_percent() < 50.0, "{}", short.cpu_percent());
    }
}
