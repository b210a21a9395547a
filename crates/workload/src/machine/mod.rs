//! The machine world of the bench workloads: models in virtual time, run as a table of policies and loads.
//!
//! - [`scenario`]: the interface to a workload in this world, with its loads and its published testbed; [`run`]:
//!   the parameters and the outcome of one run. A workload's program, clients and set-up are in its own folder;
//!   code that several of them share is in `flows`, `frame`, `requests` and `stream`.
//! - [`plan`]: a table of runs, checked before anything runs, and distributed over all cores ([`pool`]).
//! - [`measurement`] converts the outcome of a run into the other worlds' JSON; [`host`] describes the modelled
//!   host.
//! - [`perfetto`] draws a run as a timeline; [`swarm`] searches for seeds that break an invariant; [`fit`] fits the
//!   constants of a profile.
//!
//! The costs and decisions themselves are in `napkin-machine` and `napkin-core`.

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
