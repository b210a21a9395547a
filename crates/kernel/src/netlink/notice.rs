//! Notifications from the kernel: links that appear, leave, are set up, down or renamed (`RTNLGRP_LINK`), changes
//! by `ethtool` (the family's `monitor` group: channels, rings, features), and changes to devices of the `netdev`
//! family (`mgmt`).
//!
//! A notice means that something has changed; the listener has to read the new state itself. So a loss of notices
//! because of a full buffer is no worse than a single notice. There is one exception, for a process that may not look
//! into all namespaces: only a notice says whether a link that has left was deleted or moved to another namespace. The
//! kernel sends no notice when a setting changes by `napi-set`, nor when a thread's affinity changes.

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

/// Families with the group for changes, and the first Linux version with it.
const FAMILIES: [(&str, &str, &str); 2] =
    [("ethtool", "monitor", "Linux 5.6"), ("netdev", "mgmt", "Linux 6.3")];

/// Limit of notices that are read at once; the rest stays for the next call.
const MAX_NOTICES: usize = 4_096;

/// Size of the receive buffer for link notices, in bytes: enough for some hundreds, where the default size holds
/// dozens.
const RECEIVE_BUFFER: usize = 2 << 20;

/// The buffer for one notice of a link.
const DATAGRAM: usize = 64 << 10;

/// Size of a `struct nlmsghdr`.
const HEADER: usize = 16;

/// Sockets that become readable when the kernel reports a change in the network namespace of the thread that opened
/// them.
pub struct Notices {
    links: Socket,
    others: Vec<Socket>,
    missing: Vec<String>,
    buffer: Vec<u8>,
    /// Whether link notices that were queued at the last reading may still be unread.
    may_have_unread: bool,
}

/// The notices that [`Notices::take`] has read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NoticeBatch {
    /// Whether there was any notice.
    pub came: bool,
    /// Links that have left this network namespace, in order: the ifindex, and whether the link was
    /// deleted. If not, it moved to another namespace (reported since Linux 4.15; earlier, it looks deleted).
    pub left: Vec<(u32, bool)>,
    /// Whether some link notices were not read. Then further links may have left, before or between those in
    /// `left`.
    pub lost: bool,
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notices").field("missing", &self.missing).finish_non_exhaustive()
    }
}

impl Notices {
    /// Joins the groups.
    ///
    /// # Errors
    /// If netlink or the group of link notices is not available. Other groups that a kernel lacks are listed in
    /// [`missing`](Notices::missing).
    pub fn open() -> Result<Notices, NetlinkError> {
        let links = listen(NETLINK_ROUTE, RTNLGRP_LINK)?;
        // Without CAP_NET_ADMIN the size stays as it is; losses are reported.
        let _ = set_socket_recv_buffer_size_force(&links, RECEIVE_BUFFER);
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
        Ok(Notices { links, others, missing, buffer, may_have_unread: false })
    }

    /// The groups that are not available, and why.
    pub fn missing(&self) -> &[String] {
        &self.missing
    }

    /// Descriptors, of which one is readable while a notice can be [taken](Notices::take).
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(&self.links).chain(&self.others).map(AsFd::as_fd)
    }

    /// Reads all queued notices.
    pub fn take(&mut self) -> NoticeBatch {
        let mut taken = self.take_links();
        for socket in &self.others {
            for _ in 0..MAX_NOTICES {
                // The contents are not needed, only the fact that a notice came: truncate it.
                let mut byte = [0_u8; 1];
                match rustix::net::recv(
                    socket.as_fd(),
                    &mut byte[..],
                    rustix::net::RecvFlags::DONTWAIT | rustix::net::RecvFlags::TRUNC,
                ) {
                    Ok(_) => taken.came = true,
                    Err(Errno::INTR) => {}
                    // Notices were lost: something has changed.
                    Err(Errno::NOBUFS) => taken.came = true,
                    Err(_) => break,
                }
            }
        }
        taken
    }

    /// Reads the queued link notices. After a loss, the kernel first returns `ENOBUFS`, then the notices from
    /// before the loss, and queues no others until these have been read.
    fn take_links(&mut self) -> NoticeBatch {
        let mut taken = NoticeBatch { lost: self.may_have_unread, ..NoticeBatch::default() };
        self.may_have_unread = true;
        for _ in 0..MAX_NOTICES {
            self.buffer.clear();
            let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
            match self.links.recv_from(&mut self.buffer, flags) {
                // Sent by another process: with the right capability it may send to this port.
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
                        self.may_have_unread = false;
                        break;
                    }
                },
            }
        }
        taken.lost |= self.may_have_unread;
        taken
    }
}

/// Parses the links that have left from one datagram, which holds any number of messages: as [`NoticeBatch::left`].
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
