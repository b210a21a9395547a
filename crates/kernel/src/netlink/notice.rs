//! What the kernel tells of changes without being asked: links that come, go, are set up, down or
//! renamed (`RTNLGRP_LINK`), what `ethtool` changes (the family's `monitor` group: channels, rings,
//! features), and what the `netdev` family says of devices (`mgmt`).
//!
//! A notice says that something changed, and whoever hears it looks for himself: two that are lost for
//! want of room say no less than one that is read. Nothing is told of a setting that somebody changes
//! by `napi-set`, nor of threads that are moved.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_sys::protocols::{NETLINK_GENERIC, NETLINK_ROUTE};
use netlink_sys::{Socket, SocketAddr};
use rustix::io::Errno;

use super::error::NetlinkError;
use super::generic::Family;

/// `RTNLGRP_LINK` of `linux/rtnetlink.h`.
const RTNLGRP_LINK: u32 = 1;

/// Families with the groups that tell of changes, and the first Linux with each.
const FAMILIES: [(&str, &str, &str); 2] =
    [("ethtool", "monitor", "Linux 5.6"), ("netdev", "mgmt", "Linux 6.3")];

/// The most notices that are read at once; the rest is read the next time.
const MOST: usize = 4_096;

/// Sockets that become readable when the kernel tells of a change in the network namespace of the
/// thread that opened them.
pub struct Notices {
    sockets: Vec<Socket>,
    missing: Vec<String>,
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notices").field("missing", &self.missing).finish_non_exhaustive()
    }
}

impl Notices {
    /// Begins to listen.
    ///
    /// # Errors
    /// If there is no netlink, or no notice of links. What an older kernel does not tell of is
    /// [`missing`](Notices::missing).
    pub fn open() -> Result<Notices, NetlinkError> {
        let mut sockets = vec![listen(NETLINK_ROUTE, RTNLGRP_LINK)?];
        let mut missing = Vec::new();
        for (name, group, since) in FAMILIES {
            let number = Family::open(name, since).ok().and_then(|family| family.group(group));
            match number.map(|number| listen(NETLINK_GENERIC, number)) {
                Some(Ok(socket)) => sockets.push(socket),
                Some(Err(error)) => missing.push(format!("{name}'s {group}: {error}")),
                None => missing.push(format!("{name}'s {group}: this kernel has none")),
            }
        }
        Ok(Notices { sockets, missing })
    }

    /// Which groups of notices are not to be had, and why.
    pub fn missing(&self) -> &[String] {
        &self.missing
    }

    /// Descriptors of which one is readable while a notice waits to be [taken](Notices::take).
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().map(AsFd::as_fd)
    }

    /// Takes what has come, and says whether there was anything.
    pub fn take(&self) -> bool {
        let mut came = false;
        for socket in &self.sockets {
            for _ in 0..MOST {
                // Nothing of a notice is read but that it came: its length is enough.
                let mut byte = [0_u8; 1];
                match rustix::net::recv(
                    socket.as_fd(),
                    &mut byte[..],
                    rustix::net::RecvFlags::DONTWAIT | rustix::net::RecvFlags::TRUNC,
                ) {
                    Ok(_) => came = true,
                    Err(Errno::INTR) => {}
                    // Notices were lost: something happened all the same.
                    Err(Errno::NOBUFS) => came = true,
                    Err(_) => break,
                }
            }
        }
        came
    }
}

fn listen(protocol: isize, group: u32) -> Result<Socket, NetlinkError> {
    let failed = |step| {
        move |error: std::io::Error| NetlinkError::Open {
            step,
            errno: Errno::from_io_error(&error).unwrap_or(Errno::IO),
        }
    };
    let mut socket = Socket::new(protocol).map_err(failed("socket"))?;
    socket.bind(&SocketAddr::new(0, 0)).map_err(failed("bind"))?;
    socket.add_membership(group).map_err(failed("joining a group"))?;
    Ok(socket)
}
