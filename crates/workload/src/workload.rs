//! What a workload is: one folder each, and one line in [`WORKLOADS`](crate::WORKLOADS).

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
    /// Its name on the command line and in reports.
    fn name(&self) -> &'static str;

    /// A line of what it is and what it asks, with its year.
    fn about(&self) -> &'static str;

    /// What it does, and what its table shows, in two or three sentences: said before it runs and on pages.
    fn shows(&self) -> &'static str;

    /// By which figures the rows of its table are compared.
    fn rule(&self) -> Rule {
        Rule::default()
    }

    /// The worlds that have it, the first by default.
    fn worlds(&self) -> &'static [World];

    /// The policies that tell its story in a world that has it; none in one that has not.
    fn policies(&self, world: World) -> Vec<Policy>;

    /// Loads that make sense in all of its worlds: what it runs under in several of them at once, unless
    /// others are given. Without any, each world has its own.
    fn shared_loads(&self) -> &'static [&'static str] {
        &[]
    }

    /// What can be set beside its loads.
    fn settings(&self) -> &'static [Setting] {
        &[]
    }

    /// Whether it can have several queues on the engine.
    fn queues(&self) -> bool {
        false
    }

    /// Sets it up on the engine, under these loads; without any, under some of its own.
    ///
    /// # Errors
    /// [`BenchError::Usage`] for values that make no sense, and where the engine does not have it.
    fn engine(&self, _loads: &[String], _given: &Given) -> Result<Box<dyn Live>, BenchError> {
        Err(BenchError::Usage(format!("the engine has no {}", self.name())))
    }

    /// What it is in virtual time.
    fn machine(&self) -> Option<&'static dyn Scenario> {
        None
    }

    /// Sets it up in the kernel, under these loads; without any, under some of its own.
    ///
    /// # Errors
    /// [`BenchError::Usage`] for a load that is none, and where linux does not have it.
    fn linux(&self, _loads: &[String], _given: &Given) -> Result<Box<dyn Live>, BenchError> {
        Err(BenchError::Usage(format!("linux has no {}", self.name())))
    }
}

impl fmt::Debug for dyn Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
