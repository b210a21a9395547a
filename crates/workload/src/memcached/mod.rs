//! `memcached` (2024): memcached under mutilate.

pub mod linux;
mod machine;

use napkin_client::Load;
use napkin_policy::{MICROSECOND, Policy};

use crate::error::BenchError;
use crate::linux::rates;
use crate::live::Live;
use crate::machine::Scenario;
use crate::setting::{Given, Setting, up_to};
use crate::workload::Workload;
use crate::world::World;

/// The workload.
pub(crate) struct Memcached;

const CONNECTIONS: Setting = Setting {
    world: World::Linux,
    default: Some("32"),
    check: |text| up_to(text, 20_000),
    ..Setting::engine("connections", "N", "Connections of the client, in linux.")
};

impl Workload for Memcached {
    fn name(&self) -> &'static str {
        "memcached"
    }

    fn about(&self) -> &'static str {
        "2024: memcached under mutilate, in the machine or in linux. Who serves most at the least latency?"
    }

    fn worlds(&self) -> &'static [World] {
        &[World::Machine, World::Linux]
    }

    fn policies(&self, world: World) -> Vec<Policy> {
        let (short, long) = (20 * MICROSECOND, 200 * MICROSECOND);
        let (defer, suspend) = (Policy::defer(short), Policy::suspend(short));
        match world {
            World::Engine => Vec::new(),
            World::Machine => {
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

    fn settings(&self) -> &'static [Setting] {
        &[CONNECTIONS]
    }

    fn machine(&self) -> Option<&'static dyn Scenario> {
        Some(&machine::Memcached)
    }

    fn linux(&self, loads: &[String], given: &Given) -> Result<Box<dyn Live>, BenchError> {
        let mut memcached = linux::Memcached::default();
        if !loads.is_empty() {
            let open = |rate: u64| Load::Open { per_second: rate as f64 };
            let load = |rate: Option<u64>| rate.map_or(Load::Closed, open);
            memcached.loads = rates(loads)?.into_iter().map(load).collect();
        }
        if let Some(connections) = given.number("connections")? {
            memcached.connections = connections;
        }
        Ok(Box::new(memcached))
    }
}
