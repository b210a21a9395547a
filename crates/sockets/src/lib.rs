//! TCP of the operating system, under the traits of napkin's own stack: the other side of a comparison.
//!
//! A [`TcpApplication`](napkin_stack::TcpApplication), and so every service on byte streams, runs on
//! either. [`OsTcp`] is one thread's share of a port: several of them listen to the same one, and the
//! kernel spreads connections over them by their flows (`SO_REUSEPORT`, Linux 3.9). It waits with
//! `epoll_pwait2` (Linux 5.11), whose timeouts are nanoseconds where `epoll_wait` rounds to
//! milliseconds.
//!
//! How the kernel delivers is not set here: `napkin run` and `attach` put a program under a policy.
//! IPv4 only, as the stack.
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.

mod connection;
mod tcp;
mod waker;

pub use tcp::{OsTcp, OsTcpCounters};
pub use waker::Waker;
