//! `ssd` (2020): remote disk operations at a fixed rate.

mod device;
pub mod engine;
mod flash;
pub mod machine;

use napkin_policy::Policy;

use crate::error::BenchError;
use crate::live::Live;
use crate::machine::Scenario;
use crate::server::{CLIENT_PORT, PORT, WIRE, Wire};
use crate::setting::{Given, Setting, up_to};
use crate::tcp_rr::TcpRr;
use crate::workload::Workload;
use crate::world::World;

/// Remote SSD operations at a fixed rate.
pub(crate) struct Ssd;

/// The form of a load of operations.
const OPERATIONS: &str = "bytes of an operation, a colon and operations a second, as in 4K:50000";

/// The document's loads, divided by its 56 CPUs.
const LOADS: &[&str] = &["4K:10200", "64K:2800", "1M:196"];

const CONNECTIONS: Setting = Setting {
    default: Some("64"),
    // Each connection may hold up to a megabyte on either side.
    check: |text| up_to(text, 256),
    ..Setting::engine("connections", "N", "Connections of the client, on the engine.")
};

impl Workload for Ssd {
    fn name(&self) -> &'static str {
        "ssd"
    }

    fn about(&self) -> &'static str {
        "2020: remote disk operations at a fixed rate, in the machine or on the engine. Does a thread answer sooner?"
    }

    fn shows(&self) -> &'static str {
        "Clients read from and write to a remote disk at a fixed rate. Shows which policies keep up, \
         and what CPU they take for it."
    }

    fn worlds(&self) -> &'static [World] {
        &[World::Machine, World::Engine]
    }

    fn policies(&self, world: World) -> Vec<Policy> {
        // This is the other experiment of the same proposal.
        TcpRr.policies(world)
    }

    fn shared_loads(&self) -> &'static [&'static str] {
        LOADS
    }

    fn settings(&self) -> &'static [Setting] {
        &[CONNECTIONS, WIRE, PORT, CLIENT_PORT]
    }

    fn queues(&self) -> bool {
        true
    }

    fn engine(&self, loads: &[String], given: &Given) -> Result<Box<dyn Live>, BenchError> {
        let loads = match loads {
            [] => LOADS.to_vec(),
            loads => loads.iter().map(String::as_str).collect(),
        };
        let loads: Result<_, _> = loads.into_iter().map(engine::Load::read).collect();
        let connections = given.number("connections")?.unwrap_or(64);
        let wire = Wire::read(given)?.unwrap_or_default();
        Ok(Box::new(engine::Ssd { loads: loads?, connections, wire }))
    }

    fn machine(&self) -> Option<&'static dyn Scenario> {
        Some(&machine::Ssd)
    }
}
