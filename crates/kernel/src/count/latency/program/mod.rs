//! The programs that tell how long requests take. What they leave, and find, is in `tables`.

mod polls;
mod rows;
mod sockets;

pub(super) use polls::{polled, softirq, waking};
pub(super) use sockets::{Whose, read, ready, sent};
