//! What a workload is, and which there are: one folder each, and one line in [`WORKLOADS`].

use std::fmt;

use napkin_policy::Policy;

use crate::error::BenchError;
use crate::live::Live;
use crate::machine::Scenario;
use crate::setting::{Given, Setting};

/// Where a workload runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum World {
    /// Real threads and real packets, on this machine.
    Engine,
    /// A model in virtual time.
    Machine,
    /// The kernel's own NAPI, under programs of the operating system.
    Linux,
}

impl World {
    /// All of them, each with a line of what it is.
    pub const ALL: [(World, &'static str); 3] = [
        (World::Engine, "Real threads and real packets, on this machine"),
        (World::Machine, "A model in virtual time"),
        (World::Linux, "The kernel's own NAPI, under programs of the operating system"),
    ];

    /// As it is named on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            World::Engine => "engine",
            World::Machine => "machine",
            World::Linux => "linux",
        }
    }
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A workload in all the worlds that have it.
pub trait Workload: Sync {
    /// Its name on the command line and in reports.
    fn name(&self) -> &'static str;

    /// A line of what it is and what it asks, with its year.
    fn about(&self) -> &'static str;

    /// The worlds that have it, the first by default.
    fn worlds(&self) -> &'static [World];

    /// The policies that tell its story in a world that has it.
    fn policies(&self, world: World) -> Vec<Policy>;

    /// What can be set beside its loads.
    fn settings(&self) -> &'static [Setting] {
        &[]
    }

    /// Sets it up on the engine.
    ///
    /// # Errors
    /// [`BenchError::Option`] for values that make no sense, and where the engine does not have it.
    fn engine(&self, _given: &Given) -> Result<Box<dyn Live>, BenchError> {
        Err(BenchError::Option(format!("the engine has no {}", self.name())))
    }

    /// What it is in virtual time.
    fn machine(&self) -> Option<&'static dyn Scenario> {
        None
    }

    /// Sets it up in the kernel, under these loads; without any, under some of its own.
    ///
    /// # Errors
    /// [`BenchError::Option`] for a load that is none, and where linux does not have it.
    fn linux(&self, _loads: &[String], _given: &Given) -> Result<Box<dyn Live>, BenchError> {
        Err(BenchError::Option(format!("linux has no {}", self.name())))
    }
}

impl fmt::Debug for dyn Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Every workload, in the order of their years.
pub const WORKLOADS: &[&dyn Workload] = &[
    &crate::flood_ping::FloodPing,
    &crate::udp_sink::UdpSink,
    &crate::tcp_rr::TcpRr,
    &crate::ssd::Ssd,
    &crate::memcached::Memcached,
    &crate::xsk_rr::XskRr,
];

/// The workload of that name.
pub fn find(name: &str) -> Option<&'static dyn Workload> {
    WORKLOADS.iter().find(|it| it.name() == name).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_has_what_its_worlds_take_and_says_what_it_shows() {
        for workload in WORKLOADS {
            let name = workload.name();
            assert_eq!(find(name).map(|it| it.name()), Some(name));
            assert!(napkin_measure::conclusion::shows(name).contains("Shows "), "{name}");
            let has = |world| workload.worlds().contains(&world);
            assert_eq!(workload.machine().is_some(), has(World::Machine), "{name}");
            if let Some(scenario) = workload.machine() {
                assert_eq!(scenario.name(), name);
            }
            let given = Given(
                workload
                    .settings()
                    .iter()
                    .filter_map(|it| Some((it.name, vec![it.default?.to_owned()])))
                    .collect(),
            );
            let live = [
                (World::Engine, workload.engine(&given)),
                (World::Linux, workload.linux(&[], &given)),
            ];
            for (world, live) in live {
                let live = live.map(|it| (it.name(), it.world())).ok();
                assert_eq!(live, has(world).then(|| (name, world.name())), "{name}");
            }
            for (world, _) in World::ALL {
                assert_eq!(!workload.policies(world).is_empty(), has(world), "{name} {world}");
            }
            for setting in workload.settings() {
                assert!(has(setting.world), "{name} {}", setting.name);
                for value in setting.default.iter().flat_map(|it| it.split(',')) {
                    assert_eq!((setting.check)(value), Ok(()), "{name} {}", setting.name);
                }
            }
        }
    }
}
