//! Why a worker refuses.

use std::net::{IpAddr, SocketAddr};

#[cfg(doc)]
use super::TcpLimits;
#[cfg(doc)]
use crate::Stack;

/// Why a port is not listened to, or a connection not begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// This worker listens there already.
    #[error("TCP port {0} is listened to already")]
    InUse(u16),
    /// No segment can be for it.
    #[error("port 0 is no TCP port")]
    NoPort,
    /// All ephemeral ports to this peer are taken.
    #[error("no ephemeral port to {0} is free")]
    NoPortLeft(SocketAddr),
    /// Nobody has told its Ethernet address; see [`Stack::resolve`].
    #[error("no Ethernet address is known for {0}")]
    NoNeighbour(IpAddr),
    /// A limit is reached: [`TcpLimits::connections`], or [`TcpLimits::half_open`] by those begun here.
    #[error("the limit of {0} connections, open or begun, is reached")]
    TooMany(usize),
}
