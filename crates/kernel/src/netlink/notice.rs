//! What the kernel tells of changes without being asked: links that come, go, are set up, down or
//! renamed (`RTNLGRP_LINK`), what `ethtool` changes (the family's `monitor` group: channels, rings,
//! features), and what the `netdev` family says of devices (`mgmt`).
//!
//! A notice says that something changed, and whoever hears it looks for himself: two that are lost for
//! want of room say no less than one that is read. One thing can be seen in no other way by who may not
//! look into all namespaces: whether a link that is not here any more was deleted, or is in another one.
//! Nothing is told of a setting that somebody changes by `napi-set`, nor of threads that are moved.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::NetlinkBuffer;
use netlink_sys::protocols::{NETLINK_GENERIC, NETLINK_ROUTE};
use netlink_sys::{Socket, SocketAddr};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;

use super::attribute::Malformed;
use super::error::NetlinkError;
use super::generic::Family;
use super::route::departure;

/// `RTNLGRP_LINK` of `linux/rtnetlink.h`.
const RTNLGRP_LINK: u32 = 1;

/// Families with the groups that tell of changes, and the first Linux with each.
const FAMILIES: [(&str, &str, &str); 2] =
    [("ethtool", "monitor", "Linux 5.6"), ("netdev", "mgmt", "Linux 6.3")];

/// The most notices that are read at once; the rest is read the next time.
const MOST: usize = 4_096;

/// Room for notices of links that nobody has read yet, in bytes: some hundreds of them, where the usual
/// room has dozens.
const ROOM: usize = 2 << 20;

/// The buffer for one notice of a link.
const DATAGRAM: usize = 64 << 10;

/// Bytes of a `struct nlmsghdr`.
const HEADER: usize = 16;

/// Sockets that become readable when the kernel tells of a change in the network namespace of the
/// thread that opened them.
pub struct Notices {
    links: Socket,
    others: Vec<Socket>,
    missing: Vec<String>,
    buffer: Vec<u8>,
    /// Whether there may be notices of links that were there at the last reading and were not read.
    behind: bool,
}

/// What was [taken](Notices::take).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Taken {
    /// Whether there was anything.
    pub came: bool,
    /// Links that have left this network namespace, in that order, each by its ifindex, with whether it was
    /// deleted: any other is in another namespace (told by Linux 4.15 and later; before, it looks deleted).
    pub left: Vec<(u32, bool)>,
    /// Whether some notices of links were not read, so that a link may have left that is not told of, before
    /// or between those that are.
    pub lost: bool,
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
        let links = listen(NETLINK_ROUTE, RTNLGRP_LINK)?;
        // Without the right it stays as it is; what is lost is told.
        let _ = set_socket_recv_buffer_size_force(&links, ROOM);
        let (mut others, mut missing) = (Vec::new(), Vec::new());
        for (name, group, since) in FAMILIES {
            let number = Family::open(name, since).ok().and_then(|family| family.group(group));
            match number.map(|number| listen(NETLINK_GENERIC, number)) {
                Some(Ok(socket)) => others.push(socket),
                Some(Err(error)) => missing.push(format!("{name}'s {group}: {error}")),
                None => missing.push(format!("{name}'s {group}: this kernel has none")),
            }
        }
        let buffer = Vec::with_capacity(DATAGRAM);
        Ok(Notices { links, others, missing, buffer, behind: false })
    }

    /// Which groups of notices are not to be had, and why.
    pub fn missing(&self) -> &[String] {
        &self.missing
    }

    /// Descriptors of which one is readable while a notice waits to be [taken](Notices::take).
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(&self.links).chain(&self.others).map(AsFd::as_fd)
    }

    /// Takes what has come.
    pub fn take(&mut self) -> Taken {
        let mut taken = self.take_links();
        for socket in &self.others {
            for _ in 0..MOST {
                // Nothing of a notice is read but that it came: its length is enough.
                let mut byte = [0_u8; 1];
                match rustix::net::recv(
                    socket.as_fd(),
                    &mut byte[..],
                    rustix::net::RecvFlags::DONTWAIT | rustix::net::RecvFlags::TRUNC,
                ) {
                    Ok(_) => taken.came = true,
                    Err(Errno::INTR) => {}
                    // Notices were lost: something happened all the same.
                    Err(Errno::NOBUFS) => taken.came = true,
                    Err(_) => break,
                }
            }
        }
        taken
    }

    /// The same of links alone. The kernel says that it has lost some before it gives those that were there
    /// before the loss, and no others until these are read.
    fn take_links(&mut self) -> Taken {
        let mut taken = Taken { lost: self.behind, ..Taken::default() };
        self.behind = true;
        for _ in 0..MOST {
            self.buffer.clear();
            let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
            match self.links.recv_from(&mut self.buffer, flags) {
                // Not the kernel's: any process with the right may send to this port.
                Ok((_, sender)) if sender.port_number() != 0 => {}
                Ok((length, _)) => {
                    taken.came = true;
                    match departures(&self.buffer) {
                        Ok(left) if length <= self.buffer.len() => taken.left.extend(left),
                        _ => taken.lost = true,
                    }
                }
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::INTR) => {}
                    Some(Errno::NOBUFS) => {
                        taken.came = true;
                        taken.lost = true;
                    }
                    _ => {
                        self.behind = false;
                        break;
                    }
                },
            }
        }
        taken.lost |= self.behind;
        taken
    }
}

/// The links that have left by one datagram, which holds any number of messages: as [`Taken::left`].
pub(super) fn departures(mut rest: &[u8]) -> Result<Vec<(u32, bool)>, Malformed> {
    let mut left = Vec::new();
    while !rest.is_empty() {
        let message = NetlinkBuffer::new_checked(rest)
            .map_err(|_| Malformed("a message's length is not within its datagram"))?;
        let length = message.length() as usize;
        let body = rest.get(HEADER..length).unwrap_or_default();
        left.extend(departure(message.message_type(), body)?);
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(left)
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
