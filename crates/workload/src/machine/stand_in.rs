//! A scenario for tests: one sink behind one queue, frames at an almost fixed rate.

use crate::machine::run::{Outcome, Run, measure};
use napkin_core::EpollContext;
use napkin_machine::profile::{Constants, Profile};
use napkin_machine::{Affinity, Class, Client, Config, Kind, Machine, Packet, Placement, UdpSink};
use napkin_policy::Ns;
use serde_json::{Map, Value};

use super::scenario::{LoadError, Scenario, per_second};

/// Bytes of a frame on the wire.
const BYTES: u32 = 64;

/// A workload for tests of code that all workloads share: frames to a sink, about evenly spaced.
#[derive(Debug)]
pub(crate) struct StandIn;

#[derive(Debug)]
struct Periodic {
    gap: Ns,
}

impl Client for Periodic {
    fn start(&mut self, machine: &mut Machine<'_>) {
        machine.client_timer(self.gap, 0);
    }

    fn timer(&mut self, machine: &mut Machine<'_>, _: u64) {
        let now = machine.now();
        machine.request_due();
        machine.send_to_host(Packet::new(0, Kind::Data, BYTES, 0, now));
        let jitter = machine.rng().below(self.gap / 4 + 1);
        machine.client_timer(now + self.gap + jitter - self.gap / 8, 0);
    }

    fn receive(&mut self, _: &mut Machine<'_>, _: Packet) {}
}

impl Scenario for StandIn {
    fn name(&self) -> &'static str {
        "stand-in"
    }

    fn profile(&self) -> &'static str {
        "emulator-7.2"
    }

    fn constants(&self) -> Option<Constants> {
        Some(crate::oracle::CONSTANTS)
    }

    fn loads(&self) -> Vec<String> {
        vec!["5000".to_owned(), "20000".to_owned()]
    }

    fn form(&self) -> &'static str {
        "anything"
    }

    fn load(&self, text: &str, profile: &Profile) -> Result<Map<String, Value>, LoadError> {
        let rate = per_second(text, profile, BYTES)?;
        Ok(Map::from_iter([("frames_per_s".to_owned(), rate.into())]))
    }

    fn run(&self, text: &str, mut run: Run<'_>) -> Result<Outcome, String> {
        let rate = per_second(text, run.profile, BYTES).map_err(|error| error.to_string())?;
        let config = Config::of(run.profile);
        let placement = Placement::aligned(1, 1);
        let host = placement.host(config.processor.cpus);
        let contexts = [EpollContext::new(run.policy.epoll, 0)];
        let client = Box::new(Periodic { gap: (1e9 / rate) as Ns });
        let mut machine =
            Machine::new(config, run.policy, &placement, &host, &contexts, client, run.seed);
        let socket = machine.add_socket(1_000);
        machine.add_flow(0, Some(socket));
        let sink = Box::new(UdpSink::new(0, false));
        let thread = machine.add_thread("sink", Affinity::pinned(0), Class::Fair, sink);
        machine.watch(thread, 0, socket);
        machine.wake_thread(thread);
        let counts = measure(&mut machine, &mut run)?;
        let latency = machine.latency().clone();
        let answered = latency.count();
        let outcome = Outcome {
            window: run.window,
            achieved_per_s: latency.count() as f64 / (run.window as f64 / 1e9),
            latency,
            counts,
            serving: vec![0],
            steps: machine.steps(),
            ..Outcome::default()
        };
        Ok(outcome.offered(machine.due(), answered))
    }
}

/// Returns the text of its profile, with every fitted constant turned into a given one, so that a test may set it
/// to any value.
pub(crate) fn text() -> String {
    let text = Profile::built_in_text(StandIn.profile()).unwrap();
    let mut lines = Vec::new();
    for line in text.lines() {
        let basis = line.find("fitted = true");
        lines.push(match basis.and_then(|from| Some((from, from + line[from..].find(']')?))) {
            Some((from, to)) => format!("{}source = \"test\"{}", &line[..from], &line[to + 1..]),
            None => line.to_owned(),
        });
    }
    lines.join("\n")
}

pub(crate) fn profile() -> Profile {
    Profile::parse(crate::schema(), &text(), "stand-in").unwrap_or_else(|error| panic!("{error}"))
}

/// Runs it for a tenth of a virtual second.
pub(crate) fn outcome(policy: &str, load: &str) -> Outcome {
    let profile = profile();
    let mut run = Run::new(&profile, policy.parse().unwrap());
    (run.warm_up, run.window) = (10_000_000, 100_000_000);
    StandIn.run(load, run).unwrap()
}
