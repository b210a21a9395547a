//! A workload that is set up, and can be measured: on the engine, or in the kernel.
//!
//! What runs in virtual time is planned as a whole, and so is no part of this: that is a
//! [`Scenario`](crate::machine::Scenario).

use std::time::Duration;

use napkin_measure::report::{Column, Measurement, Report};
use napkin_policy::{NamedPolicy, Policy};
use serde_json::{Map, Value};

use crate::error::BenchError;
use crate::interrupt::{Interrupt, Interrupted};
use crate::options::Options;
use crate::server::{Server, Subject};

/// One run: a policy under a load, once.
#[derive(Debug, Clone, Copy)]
pub struct Trial<'a> {
    /// Who serves, where several are compared.
    pub server: Option<Server>,
    /// What is compared with the other policies.
    pub policy: &'a Policy,
    /// What is common to all runs.
    pub options: &'a Options,
    /// The run's own seed.
    pub seed: u64,
    /// Where it sleeps, so that it can be given up.
    pub interrupt: &'a Interrupt,
}

impl Trial<'_> {
    /// Sleeps through the warm-up, and a little more.
    ///
    /// # Errors
    /// If the run is to be given up.
    pub fn warm_up(&self, more: Duration) -> Result<(), Interrupted> {
        self.interrupt.sleep(self.options.warm_up + more)
    }

    /// Sleeps through the window.
    ///
    /// # Errors
    /// If the run is to be given up.
    pub fn window(&self) -> Result<(), Interrupted> {
        self.interrupt.sleep(self.options.window)
    }
}

/// Some loads, and how to run a policy under one of them.
pub trait Live {
    /// Its name, as on the command line.
    fn name(&self) -> &'static str;

    /// The world in which it runs: `engine`, or `linux`.
    fn world(&self) -> &'static str {
        "engine"
    }

    /// How many loads it has.
    fn loads(&self) -> usize;

    /// A load in the workload's own terms, for the report.
    fn load(&self, index: usize) -> Map<String, Value>;

    /// What its figures depend on beside that, for a run that goes on: it must be the same.
    fn settings(&self) -> Value {
        Value::Null
    }

    /// What is compared, under each of these policies.
    fn subjects(&self, policies: &[NamedPolicy]) -> Vec<Subject> {
        let of = |policy: &NamedPolicy| Subject { server: None, policy: policy.clone() };
        policies.iter().map(of).collect()
    }

    /// Runs a policy under a load.
    ///
    /// # Errors
    /// Whatever keeps it from running.
    fn run(&self, index: usize, trial: Trial<'_>) -> Result<Measurement, BenchError>;

    /// The columns of its table.
    fn columns(&self) -> Vec<&'static Column>;

    /// What follows from all rows together.
    fn conclude(&self, _report: &mut Report) {}

    /// What a run takes beside its warm-up and its window, for an estimate.
    fn overhead(&self) -> Duration {
        // Namespaces, devices and programs are made and removed.
        Duration::from_millis(if self.world() == "linux" { 300 } else { 50 })
    }

    /// What a reader should know about its figures on this machine.
    fn notes(&self, _options: &Options) -> Vec<String> {
        Vec::new()
    }
}
