//! Whether a port is somebody else's.

use std::io;
use std::net::SocketAddr;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

/// A transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Byte streams.
    Tcp,
    /// Datagrams.
    Udp,
}

/// Whether an address can be had for a program alone. With `SO_REUSEPORT`, which threads share a port by,
/// another program of the same user's would go on unnoticed beside them, and have a part of the clients:
/// so it is asked before.
///
/// # Errors
/// The address is not this host's (`EADDRNOTAVAIL`), somebody listens there (`EADDRINUSE`), or the port
/// needs a right (`EACCES`).
pub fn check_free(protocol: Protocol, address: SocketAddr) -> io::Result<()> {
    let kind = match protocol {
        Protocol::Tcp => SocketType::STREAM,
        Protocol::Udp => SocketType::DGRAM,
    };
    let socket = socket_with(family(address), kind, SocketFlags::CLOEXEC, None)?;
    if protocol == Protocol::Tcp {
        // Connections of an earlier program that still end are in nobody's way.
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    bind(&socket, &address)?;
    if protocol == Protocol::Tcp {
        listen(&socket, 1)?;
    }
    Ok(())
}

/// Of which family sockets for an address are.
pub(crate) fn family(address: SocketAddr) -> AddressFamily {
    match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    }
}
