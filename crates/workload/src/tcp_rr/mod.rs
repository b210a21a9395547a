//! `tcp-rr` (2020): request and response over a thousand connections.

pub mod engine;
pub mod machine;

use napkin_policy::Policy;

use crate::error::BenchError;
use crate::live::Live;
use crate::machine::Scenario;
use crate::server::{self, CLIENT_PORT, PORT, SERVER, Servers, WIRE};
use crate::setting::{Given, Setting, up_to};
use crate::workload::Workload;
use crate::world::World;

/// Request and response over TCP, with one outstanding request per flow.
pub(crate) struct TcpRr;

/// The form of a load.
const SIZE: &str = "bytes of a request and of its response, from 1 to 16M, as in 1, 5K or 1M";

const SETTINGS: [Setting; 6] = [
    Setting {
        default: Some("1000"),
        check: |text| up_to(text, 10_000),
        ..Setting::engine("flows", "N", "Connections, on the engine.")
    },
    Setting {
        check: |text| up_to(text, 64),
        ..Setting::engine(
            "threads",
            "N",
            "Threads of the program, on the engine: one a queue has that queue's connections, otherwise \
             they share all. [default: seven a queue, as the document's 56 with 8 queues]",
        )
    },
    Setting { choices: server::OURS, ..SERVER },
    WIRE,
    PORT,
    CLIENT_PORT,
];

impl Workload for TcpRr {
    fn name(&self) -> &'static str {
        "tcp-rr"
    }

    fn about(&self) -> &'static str {
        "2020: request and response over a thousand connections, in the machine or on the engine. Does a thread answer more?"
    }

    fn shows(&self) -> &'static str {
        "A thousand connections send a request each and wait for its response. Shows whether a \
         thread for each queue answers more, and sooner, than softirqs do."
    }

    fn worlds(&self) -> &'static [World] {
        &[World::Machine, World::Engine]
    }

    fn policies(&self, world: World) -> Vec<Policy> {
        match world {
            World::Machine => vec![Policy::BASE_6_4, Policy::THREADED, Policy::WORKQUEUE],
            World::Engine => vec![Policy::BASE, Policy::THREADED, Policy::WORKQUEUE],
            World::Linux => Vec::new(),
        }
    }

    fn shared_loads(&self) -> &'static [&'static str] {
        &["1"]
    }

    fn queues(&self) -> bool {
        true
    }

    fn settings(&self) -> &'static [Setting] {
        &SETTINGS
    }

    fn engine(&self, loads: &[String], given: &Given) -> Result<Box<dyn Live>, BenchError> {
        let default = engine::TcpRr::default();
        let bytes = engine::TcpRr::read(loads)?;
        Ok(Box::new(engine::TcpRr {
            bytes: if bytes.is_empty() { default.bytes } else { bytes },
            flows: given.number("flows")?.unwrap_or(default.flows),
            threads: given.number("threads")?,
            servers: Servers::read(given)?,
        }))
    }

    fn machine(&self) -> Option<&'static dyn Scenario> {
        Some(&machine::TcpRr)
    }
}
