//! A context panics at a step boundary, under traffic, at moments drawn from a seed: traffic goes
//! on, and nothing stays masked or owned. (Conservation, and that nothing is owned at the end, the
//! engine itself checks when it stops.)
//!
//! Panics can be injected in debug builds; in a release build there is no test here.

#[cfg(debug_assertions)]
#[path = "../common/mod.rs"]
mod common;
#[cfg(debug_assertions)]
mod strikes;
#[cfg(debug_assertions)]
mod tcp;

napkin_testing::main!();
