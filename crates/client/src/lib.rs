//! A load generator for memcached, echo servers and remote disks (NBD), over TCP: on the operating system's
//! sockets, or on a packet queue with a stack of its own ([`Client::embedded`]).
//!
//! To a memcached it sends the requests that mutilate sends (sizes of keys and values, times between requests,
//! share of sets: the client of the 2024 experiments), over many connections with one outstanding request each, but
//! it measures differently. Every connection has a schedule drawn from the seed, independent of the server, and
//! latency counts from the scheduled time. A request that falls due while the previous one is unanswered waits; the
//! wait is part of its latency, and it is counted as late. In the closed loop ([`Load::Closed`]) a connection sends
//! the next request as soon as the previous one is answered: that shows the server's capacity, but no honest
//! percentile.
//!
//! - `records`: keys and values; `answer`: the memcached protocol; `disk`: the NBD protocol; `session`: one
//!   connection's requests and answers; `generator`: what is sent when.
//! - `populate`: fills the store. `client`: the threads' handle; `worker`: one thread; `connection`: its sockets;
//!   `embedded`: a thread with its own network.
//! - `figures`: the figures of a window.
//!
//! Sockets are created by the thread that calls [`populate()`] and by threads spawned from the one that calls
//! [`Client::start`], so they are in that thread's network namespace. This crate does not start a server, choose a
//! policy or print.
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.

mod answer;
mod backlog;
mod client;
mod config;
mod connection;
mod disk;
mod embedded;
mod error;
mod figures;
mod generator;
mod populate;
mod records;
mod session;
mod worker;

pub use answer::{Answer, Fault, LONGEST_LINE, LONGEST_VALUE, Parser, PendingRequest, Refusal};
pub use client::Client;
pub use config::{ClientWait, Config, Load, RequestKind};
pub use disk::Disk;
pub use embedded::Host;
pub use error::ClientError;
pub use figures::{ClientFigures, SendDelayNs};
pub use populate::{Populated, populate, populate_with_progress};
pub use records::{LONGEST_KEY, Records};
