//! The 2018 experiment: a blocking datagram sink under a generator that ignores losses.
//!
//! pktgen sends to one socket through the first queue. The program receives one datagram per call, on the CPU of
//! that queue, and sleeps when there is none. The result is the program's receive rate per second. The
//! publication's sink prints that rate itself, so the published value is what its name says.

use napkin_core::EpollContext;
use napkin_machine::{Affinity, Class, Config, Machine, Placement};

use super::load::Pktgen;
use crate::machine::frame::check_rate;
use crate::machine::run::{Outcome, Run, measure};
use napkin_machine::UdpSink;
use napkin_traffic::Rng;

/// Runs the sink under an offered rate in datagrams per second.
///
/// # Errors
///
/// If the profile has no `[udp-sink]`, or the rate is invalid.
pub fn run(mut run: Run<'_>, offered_per_s: f64) -> Result<Outcome, String> {
    let profile = run.profile;
    if run.policy.application.has_poller() {
        return Err(
            "the model of udp-sink has no thread of its own that polls (socket-poller=separate): \
                    ask xsk-rr's, or the engine"
                .into(),
        );
    }
    profile.require("udp-sink").map_err(|error| error.to_string())?;
    let config = Config::of(profile);
    check_rate(offered_per_s, &config)?;
    let placement = Placement::aligned(config.nic.queues, config.processor.cpus);
    let host = placement.host(config.processor.cpus);
    let contexts: [EpollContext; 0] = [];
    let mut rng = Rng::new(run.seed);
    let client = Pktgen::new(0, offered_per_s, profile.time("udp-sink.jitter"), rng.split());
    let seed = rng.bits();
    let mut machine =
        Machine::new(config, run.policy, &placement, &host, &contexts, Box::new(client), seed);
    let socket = machine.add_socket(profile.count("udp-sink.buffer") as u32);
    machine.add_flow(0, Some(socket));
    let mut program = UdpSink::new(profile.time("udp-sink.work"), false);
    program.blocking = Some(socket);
    let sink = machine.add_thread("udp_sink", Affinity::pinned(0), Class::Fair, Box::new(program));
    machine.own(sink, socket);
    machine.wake_thread(sink);
    let counts = measure(&mut machine, &mut run)?;
    let mut outcome =
        Outcome::of(&machine, counts, vec![0]).offered(machine.due(), machine.latency().count());
    let nic = outcome.counts.queues[0].nic;
    let per_s = |count: u64| count as f64 * 1e9 / outcome.window as f64;
    let figures = [
        ("socket_drops_per_s", per_s(nic.socket_drops)),
        ("ring_drops_per_s", per_s(nic.ring_drops)),
        ("interrupts_per_s", per_s(nic.interrupts)),
    ];
    outcome.figures.extend(figures.map(|(name, value)| (name.to_owned(), value)));
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;
    use napkin_machine::profile::Profile;
    use napkin_policy::Policy;

    fn run_at(policy: Policy, offered_per_s: f64, seed: u64) -> Result<Outcome, String> {
        let profile = Profile::named(crate::schema(), "qemu-2018").expect("built in");
        let run = Run { seed, window: 300_000_000, ..Run::new(&profile, policy) };
        super::run(run, offered_per_s)
    }

    #[test]
    fn what_arrives_is_received_dropped_or_still_under_way() {
        let outcome = run_at(Policy::BASE_6_4, 50_000.0, 1).expect("it runs");
        let nic = outcome.counts.queues[0].nic;
        let received = outcome.latency.count();
        let gone = received + nic.ring_drops + nic.socket_drops;
        // The fill of the ring and of the buffer may differ between the start and the end of the window.
        assert!(nic.arrived.abs_diff(gone) <= 256 + 277, "{nic:?}, received {received}");
        assert!(nic.ring_drops > 0 && nic.socket_drops > 0, "{nic:?}");
    }

    #[test]
    fn the_generator_offers_what_it_is_asked_for() {
        let outcome = run_at(Policy::BASE_6_4, 20_000.0, 3).expect("it runs");
        let arrived = outcome.counts.queues[0].nic.arrived;
        assert!(arrived.abs_diff(6_000) <= 10, "{arrived} in 0.3 s");
    }

    #[test]
    fn a_seed_replays() {
        let [one, two, other] =
            [5, 5, 6].map(|seed| run_at(Policy::BASE_6_4, 18_000.0, seed).expect("it runs"));
        assert_eq!(one, two);
        assert_ne!(one.latency, other.latency);
    }

    #[test]
    fn a_rate_of_nothing_or_beyond_the_link_is_refused() {
        for rate in [0.0, -1.0, f64::NAN, 1e9] {
            let error = run_at(Policy::BASE, rate, 1).expect_err("no rate");
            assert!(error.contains("name a rate above 0"), "{error}");
        }
    }
}
