//! Checks whether a port is in use.

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

/// Checks that no other socket is bound to an address. With `SO_REUSEPORT`, by which threads share a port,
/// another program of the same user would stay bound unnoticed, and receive a part of the traffic; hence the
/// check.
///
/// # Errors
/// If the address is not this host's (`EADDRNOTAVAIL`) or in use (`EADDRINUSE`), or the port needs a right
/// (`EACCES`).
pub fn check_free(protocol: Protocol, address: SocketAddr) -> io::Result<()> {
    let kind = match protocol {
        Protocol::Tcp => SocketType::STREAM,
        Protocol::Udp => SocketType::DGRAM,
    };
    let socket = socket_with(family(address), kind, SocketFlags::CLOEXEC, None)?;
    if protocol == Protocol::Tcp {
        // Connections of an earlier program in TIME_WAIT do not matter.
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    bind(&socket, &address)?;
    if protocol == Protocol::Tcp {
        listen(&socket, 1)?;
    }
    Ok(())
}

/// Returns the address family of sockets for an address.
pub(crate) fn family(address: SocketAddr) -> AddressFamily {
    match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    }
}
