//! What can go wrong at the edge where an application calls the stack.
//!
//! What goes wrong with a frame from the wire is no error but a [`Fate`](crate::Fate), which is
//! counted: a peer must not be able to make the receive path fail.

use std::net::IpAddr;

/// Why a socket could not be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// Another socket has this port, or this raw filter.
    #[error("{0} is taken by another socket")]
    InUse(Taken),
    /// Every ephemeral port (49152 to 65535) is taken.
    #[error("no ephemeral port is free")]
    NoPortLeft,
    /// The stack has as many sockets as it allows.
    #[error("the stack already has its limit of {limit} such sockets")]
    TooMany {
        /// The limit that was reached.
        limit: usize,
    },
    /// A receive buffer holds at least one frame and at most [`crate::receiver::CAPACITY_LIMIT`].
    #[error("a receive buffer of {0} frames: it must be at least 1 and at most {limit}", limit = crate::receiver::CAPACITY_LIMIT)]
    Capacity(usize),
}

/// What two sockets cannot both have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// A UDP port.
    Port(u16),
    /// A raw socket's filter.
    Filter(crate::RawFilter),
    /// The TCP of the queue with this NAPI id.
    Tcp(u32),
}

impl std::fmt::Display for Taken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Taken::Port(port) => write!(f, "UDP port {port}"),
            Taken::Tcp(napi_id) => write!(f, "the TCP of queue {napi_id}"),
            Taken::Filter(filter) => write!(f, "the raw filter \"{filter}\""),
        }
    }
}

/// Why a frame was not sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// Nobody has told us this host's Ethernet address, or it is outside our network.
    #[error("no Ethernet address is known for {0}")]
    NoNeighbour(IpAddr),
    /// More bytes than the frame, or the buffer to build it in, can hold.
    #[error("{length} bytes do not fit: at most {room}")]
    TooLong {
        /// Bytes asked for.
        length: usize,
        /// Bytes there are.
        room: usize,
    },
    /// One end has an IPv4 address and the other an IPv6 address.
    #[error("{from} cannot send to {to}: one address is IPv4, the other IPv6")]
    Families {
        /// The stack's own address.
        from: IpAddr,
        /// The address that was to be reached.
        to: IpAddr,
    },
    /// The message came from where no answer can go: port 0, or bytes that are no UDP frame.
    #[error("the sender of this message cannot be answered")]
    Unanswerable,
    /// The stack has no queue to send on.
    #[error("the stack has no queue")]
    NoQueue,
    /// The queue did not take the frame.
    #[error("the queue did not take the frame: {0}")]
    Queue(#[source] napkin_nic::SendError),
}
