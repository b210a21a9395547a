//! The operating system's TCP and UDP under the traits of napkin's own stack, for comparisons with it.
//!
//! A [`TcpApplication`](napkin_stack::TcpApplication), and so every service on byte streams, runs on either; so
//! does a datagram service, on an [`Exchange`](napkin_stack::Exchange). [`OsTcp`] and [`OsUdp`] are one
//! thread's share of a port: several can share one, and the kernel distributes connections and datagrams over
//! them by flow (`SO_REUSEPORT`, Linux 3.9). [`check_free`] tells whether another program uses the port. They
//! wait with `epoll_pwait2` (Linux 5.11), whose timeouts are in nanoseconds, whereas `epoll_wait` rounds to
//! milliseconds.
//!
//! The kernel's delivery is not configured here: `napkin run` and `attach` put a program under a policy.
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.

mod connection;
mod epoll;
mod port;
mod tcp;
mod udp;
mod waker;

pub use port::{Protocol, check_free};
pub use tcp::{OsTcp, OsTcpCounters};
pub use udp::{OsDatagram, OsUdp};
pub use waker::Waker;
