//! A load generator for a real memcached: the text protocol over TCP, on the operating system's
//! sockets, or over a packet queue with a stack of its own ([`Client::embedded`]); and for an echo server, and a remote disk (NBD).
//!
//! Of a memcached it asks what mutilate asks (sizes of keys and values, times between requests, share of sets:
//! the 2024 experiments' client), from many connections with one request outstanding each, and measures
//! differently. Every connection has a schedule that is drawn from the seed whatever the server
//! does, and a latency counts from the time in that schedule. A request that falls due while the
//! last one is unanswered waits, is charged for its wait and counted as late. Without a schedule
//! ([`Load::Closed`]) a connection asks again as soon as it was answered, which shows the most that
//! the server can do, and no honest percentile.
//!
//! - `records`: keys and values; `answer`: what a memcached said; `disk`: a disk's questions and replies;
//!   `talk`: one connection's requests and answers; `asking`: what is asked when.
//! - `populate`: fills the store. `client`: the threads' handle; `worker`: one thread;
//!   `connection`: what it knows of each of its connections.
//! - `figures`: what a window of it showed.
//!
//! Sockets are made by the thread that calls [`populate()`] and by threads started from the one that
//! calls [`Client::start`], so they are in that thread's network namespace. It does not start a
//! server, choose a policy or print.
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.

mod answer;
mod asking;
mod backlog;
mod client;
mod config;
mod connection;
mod disk;
mod embedded;
mod error;
mod figures;
mod populate;
mod records;
mod talk;
mod worker;

pub use answer::{Answer, Asked, Fault, LONGEST_LINE, LONGEST_VALUE, Parser, Refusal};
pub use client::Client;
pub use config::{Asks, ClientWait, Config, Load};
pub use disk::Disk;
pub use embedded::Host;
pub use error::ClientError;
pub use figures::{ClientFigures, SendDelayNs};
pub use populate::{Populated, populate, populate_telling};
pub use records::{LONGEST_KEY, Records};
