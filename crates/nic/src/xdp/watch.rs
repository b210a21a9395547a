//! The interrupt descriptor of an AF_XDP queue: an epoll instance over all that can wake its owner.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socket_with};

/// Watches the socket, the kernel's link notifications, and the timer for frames that the kernel does not take.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) epoll: OwnedFd,
    pub(super) links: OwnedFd,
    masked: bool,
    /// Number of polls that found frames since the queue was masked.
    found: u8,
    /// Whether the socket is currently not watched.
    unwatched: bool,
}

/// Number of polls with frames, in one masked period, after which the socket is no longer watched. Where each
/// interrupt leads to one poll, this costs no system call.
const UNWATCH_AFTER: u8 = 2;

impl Watch {
    /// Watches `socket`, and `timer` for its frames that are not taken.
    pub(super) fn new(socket: BorrowedFd<'_>, timer: BorrowedFd<'_>) -> std::io::Result<Watch> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Protocol 0 of netlink is rtnetlink.
        let links = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        rustix::net::bind(&links, &SocketAddrNetlink::new(0, libc::RTMGRP_LINK as u32))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let watch = Watch { epoll, links, masked: false, found: 0, unwatched: false };
        watch.add(socket)?;
        watch.add(watch.links.as_fd())?;
        watch.add(timer)?;
        Ok(watch)
    }

    fn add(&self, to: BorrowedFd<'_>) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, to, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
    }

    pub(super) fn mask(&mut self) {
        if !self.masked {
            (self.masked, self.found) = (true, 0);
        }
    }

    /// Records a poll that found frames.
    pub(super) fn found(&mut self, socket: BorrowedFd<'_>) {
        if !self.masked || self.unwatched {
            return;
        }
        self.found = self.found.saturating_add(1);
        self.unwatched = self.found >= UNWATCH_AFTER && epoll::delete(&self.epoll, socket).is_ok();
    }

    /// Returns whether the socket is watched again.
    pub(super) fn unmask(&mut self, socket: BorrowedFd<'_>) -> bool {
        self.masked = false;
        self.unwatched = self.unwatched && self.add(socket).is_err();
        !self.unwatched
    }

    /// Whether there were link notifications, for any interface. They are not parsed: the socket is queried instead.
    pub(super) fn links_changed(&self) -> bool {
        let mut links_changed = false;
        let mut bytes = [0; 64];
        // Bounded; more notifications are read the next time.
        for _ in 0..64 {
            match rustix::net::recv(&self.links, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok(_) => links_changed = true,
                // Notifications were lost, so there were some.
                Err(rustix::io::Errno::NOBUFS) => links_changed = true,
                Err(_) => break,
            }
        }
        links_changed
    }
}
