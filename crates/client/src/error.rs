//! Errors of filling a store and of running a client.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use napkin_os::sched::SchedError;
use thiserror::Error;

/// Why a client failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// An invalid value.
    #[error("{0}")]
    Config(String),
    /// A connection could not be established.
    #[error(
        "connection {number} to {address} was not made: {source}; does the service listen there, and \
         does it allow as many connections (memcached -c)?"
    )]
    Connect {
        /// The server's address and port, as the caller gave it.
        address: SocketAddr,
        /// The number of the connection, from 1.
        number: usize,
        /// The operating system's answer.
        source: io::Error,
    },
    /// Not enough file descriptors.
    #[error("{needed} file descriptors are needed and {limit} allowed: raise it with `ulimit -n`")]
    Descriptors {
        /// Descriptors needed.
        needed: u64,
        /// The limit (`RLIMIT_NOFILE`).
        limit: u64,
    },
    /// A thread could not be pinned.
    #[error("a client's thread cannot be pinned: {0}")]
    Pin(#[from] SchedError),
    /// The server closed a connection and refused a new one.
    #[error("{address} is dead: it closed a connection, and a new one failed: {source}")]
    Dead {
        /// The server's address and port, as the caller gave it.
        address: SocketAddr,
        /// Why the new connection failed.
        source: io::Error,
    },
    /// The server is connected but does not answer.
    #[error(
        "{address} has not answered for {timeout:?}, with {outstanding} requests outstanding: it is \
         stopped, or cut off"
    )]
    Silent {
        /// The server's address and port, as the caller gave it.
        address: SocketAddr,
        /// The length of the silence.
        timeout: Duration,
        /// Outstanding requests of the thread that gave up.
        outstanding: usize,
    },
    /// Connections are lost again and again.
    #[error(
        "{address} is of no use: {times} connections were lost, the last because of {last}; it is \
         out of order, or another service than the one that is asked"
    )]
    Unstable {
        /// The server's address and port, as the caller gave it.
        address: SocketAddr,
        /// Lost connections of the thread that gave up.
        times: u64,
        /// The name of the trouble that ended the last one.
        last: &'static str,
    },
    /// A set was not acknowledged, or the connection failed, while the store was filled.
    #[error("{address} could not be filled with records: {what}")]
    Populate {
        /// The server's address and port, as the caller gave it.
        address: SocketAddr,
        /// What the server answered or did.
        what: String,
    },
    /// The store did not keep all records.
    #[error(
        "{address} has kept {kept} of {records} records as they were set: give it more memory \
         (-m), larger items (-I), and no other user"
    )]
    NotKept {
        /// The server's address and port, as the caller gave it.
        address: SocketAddr,
        /// Records that were found with the right size.
        kept: u64,
        /// Records that were set.
        records: u64,
    },
    /// A system call failed that should work.
    #[error("{what} failed: {source}")]
    Os {
        /// The call, as part of the sentence.
        what: &'static str,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The client was stopped, or failed and has reported why.
    #[error("this client has ended; start another")]
    Ended,
    /// A thread of the client panicked.
    #[error("a thread of the client panicked; this is a bug in napkin")]
    Panicked,
}

impl ClientError {
    /// Wraps the errno of the call `what`; for `map_err`.
    pub(super) fn os(what: &'static str) -> impl Fn(rustix::io::Errno) -> ClientError {
        move |errno| ClientError::Os { what, source: errno.into() }
    }
}
