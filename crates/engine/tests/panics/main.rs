//! Makes a context panic at a step boundary, under traffic, at moments drawn from a seed: traffic goes on, and
//! nothing stays masked or owned. (When it stops, the engine itself checks conservation, and that nothing is
//! owned.)
//!
//! Panics can be injected in debug builds; in a release build there is no test here.

#[cfg(debug_assertions)]
#[path = "../common/mod.rs"]
mod common;
#[cfg(debug_assertions)]
mod injected;
#[cfg(debug_assertions)]
mod tcp;

napkin_testing::main!();
