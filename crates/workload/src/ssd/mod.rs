//! `ssd` (2020): remote disk operations at a fixed rate.

pub mod machine;

use napkin_policy::Policy;

use crate::machine::Scenario;
use crate::workload::Workload;
use crate::world::World;

/// The workload.
pub(crate) struct Ssd;

impl Workload for Ssd {
    fn name(&self) -> &'static str {
        "ssd"
    }

    fn about(&self) -> &'static str {
        "2020: remote disk operations at a fixed rate, in the machine only"
    }

    fn shows(&self) -> &'static str {
        "Clients read from and write to a remote disk at a fixed rate. Shows which policies keep up, \
         and what CPU they take for it."
    }

    fn worlds(&self) -> &'static [World] {
        &[World::Machine]
    }

    fn policies(&self, world: World) -> Vec<Policy> {
        match world {
            World::Machine => vec![Policy::BASE_6_4, Policy::THREADED, Policy::WORKQUEUE],
            World::Engine | World::Linux => Vec::new(),
        }
    }

    fn machine(&self) -> Option<&'static dyn Scenario> {
        Some(&machine::Ssd)
    }
}
