//! CPUs: execution, cost of steps, speed, and idle states.

pub(crate) mod clock;
pub(crate) mod contexts;
pub(crate) mod cpu;
pub(crate) mod execution;
mod hard;
mod idle;
mod perform;
mod round;
mod run;
pub(crate) mod segment;
mod skip_expiries;
mod speed;
mod spend;
mod spin;
mod step;
