//! The programs that time requests. `tables` describes the tables that they share.

mod polls;
mod rows;
mod sockets;

pub(super) use polls::{polled, softirq, waking};
pub(super) use sockets::{Selection, read, ready, sent};
