//! World 2 for the bench workloads: the machine, run as a table of policies and loads.
//!
//! - [`scenario`]: what a workload is in this world, with its loads and its published testbed; [`run`]: what
//!   one run of it is given, and what comes of it. Its program, clients and set-up are in its folder; what
//!   several of them share is in `flows`, `frame`, `requests` and `stream`.
//! - [`plan`]: a table of runs, checked before anything runs, and spread over all cores ([`pool`]).
//! - [`measurement`] turns what came of a run into the figures of the other worlds' JSON; [`host`] says
//!   what was modelled.
//! - [`perfetto`] draws a run as a timeline; [`swarm`] looks for seeds that break an invariant;
//!   [`fit`] finds the fitted constants of a profile.
//!
//! Costs and decisions are `napkin-machine`'s and `napkin-core`'s.

pub mod fit;
pub(crate) mod flows;
pub(crate) mod frame;
pub mod host;
mod journey;
pub mod measurement;
pub mod perfetto;
pub mod plan;
pub mod pool;
pub(crate) mod requests;
pub mod run;
pub mod scenario;
#[cfg(test)]
pub(crate) mod stand_in;
pub(crate) mod stream;
pub mod swarm;

pub use plan::{Plan, PlanError, Point};
pub use scenario::Scenario;
