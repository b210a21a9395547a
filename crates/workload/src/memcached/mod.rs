//! `memcached` (2024): memcached under mutilate.

pub mod engine;
pub mod linux;
pub mod machine;
mod program;

use napkin_client::Load;
use napkin_policy::{MICROSECOND, Policy};

use crate::error::BenchError;
use crate::linux::rates;
use crate::live::Live;
use crate::machine::Scenario;
use crate::server::{self, CLIENT_PORT, PORT, SERVER, Servers, WIRE};
use crate::setting::{Given, Setting, up_to};
use crate::workload::Workload;
use crate::world::World;

/// A memcached and its clients.
pub(crate) struct Memcached;

const CONNECTIONS: Setting = Setting {
    worlds: &[World::Engine, World::Linux],
    default: Some("32"),
    check: |text| up_to(text, 20_000),
    ..Setting::engine("connections", "N", "Connections of the client, on the engine and in linux.")
};

const SETTINGS: [Setting; 5] =
    [CONNECTIONS, Setting { choices: server::ALL, ..SERVER }, WIRE, PORT, CLIENT_PORT];

impl Workload for Memcached {
    fn name(&self) -> &'static str {
        "memcached"
    }

    fn about(&self) -> &'static str {
        "2024: memcached under mutilate, in the machine, on the engine or in linux. Who serves most at the least latency?"
    }

    fn shows(&self) -> &'static str {
        "A memcached answers requests at several rates. Shows which policies answer soonest, which \
         answer most, and what CPU they take for it."
    }

    fn worlds(&self) -> &'static [World] {
        &[World::Machine, World::Engine, World::Linux]
    }

    fn policies(&self, world: World) -> Vec<Policy> {
        let (short, long) = (20 * MICROSECOND, 200 * MICROSECOND);
        let (defer, suspend) = (Policy::defer(short), Policy::suspend(short));
        match world {
            World::Engine | World::Machine => {
                vec![Policy::BASE, defer, Policy::NAPIBUSY, Policy::FULLBUSY, suspend]
            }
            World::Linux => vec![
                Policy::BASE,
                Policy::THREADED,
                defer,
                Policy::NAPIBUSY,
                Policy::FULLBUSY,
                suspend,
                Policy::suspend(long),
            ],
        }
    }

    fn shared_loads(&self) -> &'static [&'static str] {
        &["20k", "max"]
    }

    fn queues(&self) -> bool {
        true
    }

    fn settings(&self) -> &'static [Setting] {
        &SETTINGS
    }

    fn machine(&self) -> Option<&'static dyn Scenario> {
        Some(&machine::Memcached)
    }

    fn engine(&self, loads: &[String], given: &Given) -> Result<Box<dyn Live>, BenchError> {
        let mut memcached = engine::Memcached::default();
        if let Some(loads) = read(loads)? {
            memcached.loads = loads;
        }
        if let Some(connections) = given.number("connections")? {
            memcached.connections = connections;
        }
        memcached.servers = Servers::read(given)?;
        Ok(Box::new(memcached))
    }

    fn linux(&self, loads: &[String], given: &Given) -> Result<Box<dyn Live>, BenchError> {
        let mut memcached = linux::Memcached::default();
        if let Some(loads) = read(loads)? {
            memcached.loads = loads;
        }
        if let Some(connections) = given.number("connections")? {
            memcached.connections = connections;
        }
        Ok(Box::new(memcached))
    }
}

/// Parses loads; `None` for an empty list.
fn read(loads: &[String]) -> Result<Option<Vec<Load>>, BenchError> {
    let open = |rate: u64| Load::Open { per_second: rate as f64 };
    let load = |rate: Option<u64>| rate.map_or(Load::Closed, open);
    let all = rates(loads)?;
    Ok((!all.is_empty()).then(|| all.into_iter().map(load).collect()))
}
