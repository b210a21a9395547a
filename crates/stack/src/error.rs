//! Errors of the socket interface.
//!
//! A bad frame from the wire is not an error but a counted [`FrameOutcome`](crate::FrameOutcome): a peer must not be able to make
//! the receive path fail.

use std::net::IpAddr;

/// Why a socket could not be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// Another socket has this port, or this raw filter; or the queue already has a TCP worker.
    #[error("{0} is taken by another socket")]
    InUse(Resource),
    /// Every ephemeral port (49152 to 65535) is taken.
    #[error("no ephemeral port is free")]
    NoPortLeft,
    /// The stack has its maximum number of sockets of this kind.
    #[error("the stack already has its limit of {limit} such sockets")]
    TooMany {
        /// The limit that was reached.
        limit: usize,
    },
    /// The receive buffer's size is not within 1 to [`crate::receiver::CAPACITY_LIMIT`] frames.
    #[error("a receive buffer of {0} frames: it must be at least 1 and at most {limit}", limit = crate::receiver::CAPACITY_LIMIT)]
    Capacity(usize),
}

/// What is already in use by another socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// A UDP port.
    Port(u16),
    /// A raw socket's filter.
    Filter(crate::RawFilter),
    /// The TCP worker of the queue with this NAPI id.
    Tcp(u32),
}

impl std::fmt::Display for Resource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Resource::Port(port) => write!(f, "UDP port {port}"),
            Resource::Tcp(napi_id) => write!(f, "the TCP of queue {napi_id}"),
            Resource::Filter(filter) => write!(f, "the raw filter \"{filter}\""),
        }
    }
}

/// Why a frame was not sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The neighbour table has no Ethernet address for this host, or the host is outside our networks.
    #[error("no Ethernet address is known for {0}")]
    NoNeighbour(IpAddr),
    /// More bytes than the frame, or the buffer to build it in, can hold.
    #[error("{length} bytes do not fit: at most {room}")]
    TooLong {
        /// Bytes to be sent.
        length: usize,
        /// Bytes that fit.
        room: usize,
    },
    /// One end has an IPv4 address and the other an IPv6 address.
    #[error("{from} cannot send to {to}: one address is IPv4, the other IPv6")]
    Families {
        /// The stack's own address.
        from: IpAddr,
        /// The address to send to.
        to: IpAddr,
    },
    /// The sender cannot be answered: source port 0, or not a UDP frame from a host.
    #[error("the sender of this message cannot be answered")]
    Unanswerable,
    /// The stack has no queue to send on.
    #[error("the stack has no queue")]
    NoQueue,
    /// The queue refused the frame.
    #[error("the queue did not take the frame: {0}")]
    Queue(#[source] napkin_nic::SendError),
}
