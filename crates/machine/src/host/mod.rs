//! CPUs: what each is at from moment to moment, what its steps cost, how fast and how deep asleep it is.

pub(crate) mod clock;
pub(crate) mod contexts;
pub(crate) mod cpu;
pub(crate) mod execution;
mod hard;
mod idle;
mod perform;
mod rest;
mod round;
mod run;
pub(crate) mod segment;
mod speed;
mod spend;
mod spin;
mod step;
