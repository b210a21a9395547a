//! `xsk-rr` (2025): packets at a fixed rate, answered inline by a busy application.

pub mod engine;
pub mod machine;
mod sender;

use napkin_policy::Policy;

use crate::error::BenchError;
use crate::live::Live;
use crate::machine::Scenario;
use crate::server::{CLIENT_PORT, PORT, Wire};
use crate::setting::no_loads;
use crate::setting::{Given, Setting, cost, up_to};
use crate::workload::Workload;
use crate::world::World;
use engine::{PACES, Pace};

/// Requests and answers on AF_XDP rings, at a fixed pace.
pub(crate) struct XskRr;

const SETTINGS: [Setting; 5] = [
    Setting {
        check: |text| up_to(text, 10_000_000),
        ..Setting::engine(
            "rate",
            "N",
            "Packets a second. [default: the document's five workloads, each with its delay]",
        )
    },
    Setting {
        requires: Some("rate"),
        check: cost,
        ..Setting::engine(
            "delay",
            "TIME",
            "For how long the application does not receive after a reply, at most 1s; goes with --rate. \
             [default: 0us]",
        )
    },
    Setting {
        choices: &[
            ("synthetic", "None: the frames come from within the queue"),
            ("xdp", "AF_XDP at both ends of a veth; needs root"),
            ("vhost", "Virtio rings (vhost-user)"),
        ],
        ..Setting::engine(
            "wire",
            "WIRE",
            "What the frames come over, from a client at its other end. [default: synthetic]",
        )
    },
    PORT,
    CLIENT_PORT,
];

impl Workload for XskRr {
    fn name(&self) -> &'static str {
        "xsk-rr"
    }

    fn about(&self) -> &'static str {
        "2025: packets at a fixed rate, answered inline by a busy application. How low, how steady?"
    }

    fn shows(&self) -> &'static str {
        "Frames come at a fixed rate, and a program answers each at once. Shows how soon and how \
         steadily each policy lets it answer, and how much CPU goes into looking for frames."
    }

    fn worlds(&self) -> &'static [World] {
        &[World::Engine, World::Machine]
    }

    fn policies(&self, world: World) -> Vec<Policy> {
        match world {
            World::Engine | World::Machine => vec![
                Policy::INTERRUPTS,
                Policy::BUSYPOLL,
                Policy::BUSYPOLL_SEPARATE,
                Policy::THREADED_BUSY_POLL,
            ],
            World::Linux => Vec::new(),
        }
    }

    fn settings(&self) -> &'static [Setting] {
        &SETTINGS
    }

    fn engine(&self, loads: &[String], given: &Given) -> Result<Box<dyn Live>, BenchError> {
        no_loads(loads)?;
        let wire = Wire::read(given)?;
        let Some(name) = given.number("rate")? else {
            return Ok(Box::new(engine::XskRr { wire, ..engine::XskRr::default() }));
        };
        let delay = given.time("delay")?.unwrap_or(0);
        let published = PACES.iter().find(|pace| pace.name == name && pace.delay == delay);
        let pace = Pace { name, period: 1_000_000_000 / u64::from(name).max(1), delay };
        Ok(Box::new(engine::XskRr { paces: vec![published.copied().unwrap_or(pace)], wire }))
    }

    fn machine(&self) -> Option<&'static dyn Scenario> {
        Some(&machine::XskRr)
    }
}
