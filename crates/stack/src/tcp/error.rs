//! Errors of a TCP worker.

use std::net::{IpAddr, SocketAddr};

#[cfg(doc)]
use super::TcpLimits;
#[cfg(doc)]
use crate::Stack;

/// Why a port cannot be listened on, or a connection cannot be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// The worker already listens on this port.
    #[error("TCP port {0} is listened to already")]
    InUse(u16),
    /// Port 0 is reserved.
    #[error("port 0 is no TCP port")]
    NoPort,
    /// All ephemeral ports to this peer are in use.
    #[error("no ephemeral port to {0} is free")]
    NoPortLeft(SocketAddr),
    /// The neighbour table has no Ethernet address for the peer; see [`Stack::resolve`].
    #[error("no Ethernet address is known for {0}")]
    NoNeighbour(IpAddr),
    /// [`TcpLimits::connections`] is reached, or [`TcpLimits::half_open`] by connections opened from this side.
    #[error("the limit of {0} connections, open or begun, is reached")]
    TooMany(usize),
}
