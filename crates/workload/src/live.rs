//! A workload that is set up and can be measured, on the engine or in the kernel.
//!
//! A workload in virtual time is planned as a whole, so it has a trait of its own:
//! [`Scenario`](crate::machine::Scenario).

use std::time::Duration;

use napkin_measure::report::{Column, Measurement, Report};
use napkin_policy::{NamedPolicy, Policy};
use serde_json::{Map, Value};

use crate::error::BenchError;
use crate::interrupt::{Interrupt, Interrupted};
use crate::options::Options;
use crate::server::{Server, Subject};

/// One measurement: a policy under a load.
#[derive(Debug, Clone, Copy)]
pub struct Trial<'a> {
    /// The server, if several are compared.
    pub server: Option<Server>,
    /// The policy under test.
    pub policy: &'a Policy,
    /// The options common to all runs.
    pub options: &'a Options,
    /// The run's own seed.
    pub seed: u64,
    /// Interrupts the sleeps of the run when the process is asked to end.
    pub interrupt: &'a Interrupt,
}

impl Trial<'_> {
    /// Sleeps through the warm-up and `more`.
    ///
    /// # Errors
    /// If the process was asked to end.
    pub fn warm_up(&self, more: Duration) -> Result<(), Interrupted> {
        self.interrupt.sleep(self.options.warm_up + more)
    }

    /// Sleeps through the window.
    ///
    /// # Errors
    /// If the process was asked to end.
    pub fn window(&self) -> Result<(), Interrupted> {
        self.interrupt.sleep(self.options.window)
    }
}

/// A workload under a list of loads.
pub trait Live {
    /// The name on the command line.
    fn name(&self) -> &'static str;

    /// The world in which it runs: `engine`, or `linux`.
    fn world(&self) -> &'static str {
        "engine"
    }

    /// The number of loads.
    fn loads(&self) -> usize;

    /// The parameters of a load, for the report.
    fn load(&self, index: usize) -> Map<String, Value>;

    /// Everything else that its results depend on. A resumed run must have the same.
    fn settings(&self) -> Value {
        Value::Null
    }

    /// The subjects to compare under these policies.
    fn subjects(&self, policies: &[NamedPolicy]) -> Vec<Subject> {
        let of = |policy: &NamedPolicy| Subject { server: None, policy: policy.clone() };
        policies.iter().map(of).collect()
    }

    /// Measures a policy under a load.
    ///
    /// # Errors
    /// Whatever prevents the measurement.
    fn run(&self, index: usize, trial: Trial<'_>) -> Result<Measurement, BenchError>;

    /// The columns of its table.
    fn columns(&self) -> Vec<&'static Column>;

    /// Adds the conclusions that need all rows together.
    fn conclude(&self, _report: &mut Report) {}

    /// The duration of a run besides its warm-up and its window, for an estimate.
    fn overhead(&self) -> Duration {
        // Creating and removing namespaces, devices and programs takes longer.
        Duration::from_millis(if self.world() == "linux" { 300 } else { 50 })
    }

    /// Remarks on its results on this machine, for the report.
    fn notes(&self, _options: &Options) -> Vec<String> {
        Vec::new()
    }
}
