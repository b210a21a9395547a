//! The trait of a workload. Each has its own folder and one line in [`WORKLOADS`](crate::WORKLOADS).

use std::fmt;

use napkin_measure::conclusion::Rule;
use napkin_policy::Policy;

use crate::error::BenchError;
use crate::live::Live;
use crate::machine::Scenario;
use crate::setting::{Given, Setting};
use crate::world::World;

/// A workload in all the worlds that have it.
pub trait Workload: Sync {
    /// The name on the command line and in reports.
    fn name(&self) -> &'static str;

    /// A one-line description of the workload and of the question it answers, with its year.
    fn about(&self) -> &'static str;

    /// Two or three sentences on what it does and what its table shows, printed before it runs and on pages.
    fn shows(&self) -> &'static str;

    /// The rule by which the rows of its table are compared.
    fn rule(&self) -> Rule {
        Rule::default()
    }

    /// The worlds that have it, the first by default.
    fn worlds(&self) -> &'static [World];

    /// The policies that show its effect in a world; none in a world that does not have it.
    fn policies(&self, world: World) -> Vec<Policy>;

    /// Loads that make sense in all of its worlds: the default when it runs in several of them at once. If empty,
    /// each world has its own default.
    fn shared_loads(&self) -> &'static [&'static str] {
        &[]
    }

    /// The settings it has besides its loads.
    fn settings(&self) -> &'static [Setting] {
        &[]
    }

    /// Whether it can have several queues on the engine.
    fn queues(&self) -> bool {
        false
    }

    /// Sets it up on the engine under these loads; an empty list selects its default loads.
    ///
    /// # Errors
    /// [`BenchError::Usage`] for invalid values, and if the engine does not have this workload.
    fn engine(&self, _loads: &[String], _given: &Given) -> Result<Box<dyn Live>, BenchError> {
        Err(BenchError::Usage(format!("the engine has no {}", self.name())))
    }

    /// The model of this workload in virtual time.
    fn machine(&self) -> Option<&'static dyn Scenario> {
        None
    }

    /// Sets it up in the kernel under these loads; an empty list selects its default loads.
    ///
    /// # Errors
    /// [`BenchError::Usage`] for an invalid load, and if linux does not have this workload.
    fn linux(&self, _loads: &[String], _given: &Given) -> Result<Box<dyn Live>, BenchError> {
        Err(BenchError::Usage(format!("linux has no {}", self.name())))
    }
}

impl fmt::Debug for dyn Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
