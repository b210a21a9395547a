//! Why a store could not be filled, or a client could not start or had to end.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use napkin_os::sched::SchedError;
use thiserror::Error;

/// What stopped a client.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// A value that makes no sense.
    #[error("{0}")]
    Config(String),
    /// The first connection, or one of them, could not be had.
    #[error(
        "connection {number} to {address} was not made: {source}; does the service listen there, and \
         does it allow as many connections (memcached -c)?"
    )]
    Connect {
        /// The server's address and port, as the caller gave it.
        address: SocketAddr,
        /// Which, from 1.
        number: usize,
        /// The operating system's answer.
        source: io::Error,
    },
    /// Not enough file descriptors.
    #[error("{needed} file descriptors are needed and {limit} allowed: raise it with `ulimit -n`")]
    Descriptors {
        /// Descriptors that the connections need.
        needed: u64,
        /// The limit (`RLIMIT_NOFILE`).
        limit: u64,
    },
    /// A thread could not be pinned.
    #[error("a client's thread cannot be pinned: {0}")]
    Pin(#[from] SchedError),
    /// The server closed a connection, and takes no new one.
    #[error("{address} is dead: it closed a connection, and a new one failed: {source}")]
    Dead {
        /// The server's address and port, as the caller gave it.
        address: SocketAddr,
        /// What the new connection met.
        source: io::Error,
    },
    /// The server is there and says nothing.
    #[error(
        "{address} has not answered for {timeout:?}, with {outstanding} requests outstanding: it is \
         stopped, or cut off"
    )]
    Silent {
        /// The server's address and port, as the caller gave it.
        address: SocketAddr,
        /// For how long.
        timeout: Duration,
        /// How many requests waited, of the thread that gave up.
        outstanding: usize,
    },
    /// Connections do not last.
    #[error(
        "{address} is of no use: {times} connections were lost, the last because of {last}; it is \
         out of order, or another service than the one that is asked"
    )]
    Unstable {
        /// The server's address and port, as the caller gave it.
        address: SocketAddr,
        /// How many, of the thread that gave up.
        times: u64,
        /// The name of what ended the last.
        last: &'static str,
    },
    /// Filling the store was answered with something else than agreement.
    #[error("{address} could not be filled with records: {what}")]
    Populate {
        /// The server's address and port, as the caller gave it.
        address: SocketAddr,
        /// What it said or did.
        what: String,
    },
    /// The store has not kept what it was given.
    #[error(
        "{address} has kept {kept} of {records} records as they were set: give it more memory \
         (-m), larger items (-I), and no other user"
    )]
    NotKept {
        /// The server's address and port, as the caller gave it.
        address: SocketAddr,
        /// How many were found again with their size.
        kept: u64,
        /// How many were set.
        records: u64,
    },
    /// The operating system refused something that should work.
    #[error("{what} failed: {source}")]
    Os {
        /// What was tried, as part of the sentence.
        what: &'static str,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The client has been stopped, or has failed and said why.
    #[error("this client has ended; start another")]
    Ended,
    /// A thread of the client panicked.
    #[error("a thread of the client panicked; this is a bug in napkin")]
    Panicked,
}

impl ClientError {
    /// For `map_err`: names the call.
    pub(super) fn os(what: &'static str) -> impl Fn(rustix::io::Errno) -> ClientError {
        move |errno| ClientError::Os { what, source: errno.into() }
    }
}
