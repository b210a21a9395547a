//! The decisions of packet delivery. (Module list grows with the commits that follow.)
#![cfg_attr(not(any(loom, test, feature = "races")), no_std)]
extern crate alloc;

pub mod policy;
pub mod queue;
pub mod time;

pub use queue::{Pressure, Queue, Work};
pub use time::{MICROSECOND, MILLISECOND, NEVER, Ns};
