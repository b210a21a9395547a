//! TCP and UDP of the operating system, under the traits of napkin's own stack: the other side of a
//! comparison.
//!
//! A [`TcpApplication`](napkin_stack::TcpApplication), and so every service on byte streams, runs on
//! either; so does a service of datagrams, on an [`Exchange`](napkin_stack::Exchange). [`OsTcp`] and
//! [`OsUdp`] are one thread's share of a port: several of them have the same one, and the kernel spreads
//! connections and datagrams over them by their flows (`SO_REUSEPORT`, Linux 3.9). Whether somebody else
//! has it, [`check_free`] says. They wait with `epoll_pwait2` (Linux 5.11), whose timeouts are nanoseconds
//! where `epoll_wait` rounds to milliseconds.
//!
//! How the kernel delivers is not set here: `napkin run` and `attach` put a program under a policy.
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.

mod connection;
mod port;
mod tcp;
mod udp;
mod waits;
mod waker;

pub use port::{Protocol, check_free};
pub use tcp::{OsTcp, OsTcpCounters};
pub use udp::{OsDatagram, OsUdp};
pub use waker::Waker;
