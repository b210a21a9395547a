//! `flood-ping` (2007): echo requests as fast as replies come.

pub mod engine;
pub mod linux;
pub mod machine;
mod pinger;

use napkin_measure::conclusion::Rule;
use napkin_policy::{MICROSECOND, MILLISECOND, Policy};

use crate::error::BenchError;
use crate::linux::not_a_load;
use crate::live::Live;
use crate::machine::Scenario;
use crate::server::{CLIENT_PORT, PORT, Wire};
use crate::setting::no_loads;
use crate::setting::{Given, Setting};
use crate::workload::Workload;
use crate::world::World;

/// Round trips of `ping -f`, one at a time.
pub(crate) struct FloodPing;

const WIRE: Setting = Setting {
    default: Some("synthetic"),
    choices: &[
        ("synthetic", "A synthetic queue that floods by itself"),
        ("tap", "A TAP device, and the operating system's ping"),
        ("xdp", "AF_XDP on a veth, and the operating system's ping"),
        ("vhost", "Virtio rings (vhost-user), and a ping of our own"),
    ],
    ..Setting::engine(
        "wire",
        "WIRE",
        "The real ping -f through a TAP device or a veth (needs root), one of our own at the other end of virtio \
         rings, or an embedded flood.",
    )
};

impl Workload for FloodPing {
    fn name(&self) -> &'static str {
        "flood-ping"
    }

    fn about(&self) -> &'static str {
        "2007: echo requests as fast as replies come. What do interrupts cost, and what does hold save?"
    }

    fn shows(&self) -> &'static str {
        "A client sends the next echo request when it has the reply, and the host answers by itself. \
         Shows what an interrupt for every packet costs, and what is saved by holding it back."
    }

    fn rule(&self) -> Rule {
        Rule::Interrupts
    }

    fn worlds(&self) -> &'static [World] {
        &[World::Engine, World::Machine, World::Linux]
    }

    fn policies(&self, world: World) -> Vec<Policy> {
        match world {
            World::Engine | World::Machine => vec![Policy::BASE, Policy::hold(MILLISECOND)],
            World::Linux => vec![Policy::BASE, Policy::THREADED, Policy::defer(20 * MICROSECOND)],
        }
    }

    fn settings(&self) -> &'static [Setting] {
        &[WIRE, PORT, CLIENT_PORT]
    }

    fn engine(&self, loads: &[String], given: &Given) -> Result<Box<dyn Live>, BenchError> {
        no_loads(loads)?;
        Ok(Box::new(match Wire::read(given)? {
            Some(Wire::Tap) => engine::FloodPing::tap(),
            Some(Wire::Xdp) => engine::FloodPing::xdp(),
            Some(wire) => engine::FloodPing::over(wire),
            None => engine::FloodPing::synthetic(),
        }))
    }

    fn machine(&self) -> Option<&'static dyn Scenario> {
        Some(&machine::FloodPing)
    }

    fn linux(&self, loads: &[String], _: &Given) -> Result<Box<dyn Live>, BenchError> {
        match loads.iter().find(|load| *load != "flood") {
            Some(load) => Err(not_a_load(load, "flood")),
            None => Ok(Box::new(linux::FloodPing)),
        }
    }
}
