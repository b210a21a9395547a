//! What a queue's interrupt descriptor is readable for.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use napkin_os::clock;
use napkin_policy::{MILLISECOND, Ns};
use rustix::event::epoll;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socket_with};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

/// The socket, the kernel's news of interfaces, and a timer for frames that the kernel does not take.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) epoll: OwnedFd,
    pub(super) links: OwnedFd,
    pub(super) timer: OwnedFd,
    /// Times in a row that frames waited for another call.
    waited: u8,
    masked: bool,
    /// Polls that found frames since the queue was masked.
    found: u8,
    /// The socket is not watched.
    deaf: bool,
}

/// Polls that find frames, in one masked period, from which on the socket is not watched: where each
/// interrupt leads to one poll, that costs no call.
const DEAF: u8 = 2;

/// So many times the call is made at once: mostly the card is about to take them.
pub(super) const AT_ONCE: u8 = 8;

/// The time between two calls from then on: the card's link is paused or its queue full. Most cards hold more than they
/// send in this time.
const REST: Ns = MILLISECOND / 10;

impl Watch {
    pub(super) fn new(socket: BorrowedFd<'_>) -> std::io::Result<Watch> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Protocol 0 of netlink is rtnetlink.
        let links = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        rustix::net::bind(&links, &SocketAddrNetlink::new(0, libc::RTMGRP_LINK as u32))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
        let watch = Watch { epoll, links, timer, waited: 0, masked: false, found: 0, deaf: false };
        watch.listen(socket)?;
        watch.listen(watch.links.as_fd())?;
        watch.listen(watch.timer.as_fd())?;
        Ok(watch)
    }

    fn listen(&self, to: BorrowedFd<'_>) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, to, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
    }

    pub(super) fn mask(&mut self) {
        if !self.masked {
            (self.masked, self.found) = (true, 0);
        }
    }

    /// A poll found frames.
    pub(super) fn found(&mut self, socket: BorrowedFd<'_>) {
        if !self.masked || self.deaf {
            return;
        }
        self.found = self.found.saturating_add(1);
        self.deaf = self.found >= DEAF && epoll::delete(&self.epoll, socket).is_ok();
    }

    /// Whether the socket is watched again.
    pub(super) fn unmask(&mut self, socket: BorrowedFd<'_>) -> bool {
        self.masked = false;
        self.deaf = self.deaf && self.listen(socket).is_err();
        !self.deaf
    }

    /// Whether the kernel is to be called at once for frames that wait for it, if any do. If it has been, and some waited
    /// each time, the timer interrupts later.
    pub(super) fn calls_at_once(&mut self, wait: bool) -> bool {
        let before = self.waited;
        self.waited = if wait { before.saturating_add(1) } else { 0 };
        match (wait, before >= AT_ONCE) {
            (true, true) => !self.rest(REST),
            (false, true) => !self.rest(0),
            _ => wait,
        }
    }

    /// Sets the timer, which forgets that it has expired. Whether it could be.
    fn rest(&self, time: Ns) -> bool {
        let [it_interval, it_value] = [0, time].map(clock::timespec);
        let once = Itimerspec { it_interval, it_value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once).is_ok()
    }

    /// Whether something was said of any interface; it is not read, for what is asked is the socket.
    pub(super) fn news(&self) -> bool {
        let mut news = false;
        let mut bytes = [0; 64];
        // Bounded: one that is told more than this comes again.
        for _ in 0..64 {
            match rustix::net::recv(&self.links, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok(_) => news = true,
                // Some were lost: there was news all the same.
                Err(rustix::io::Errno::NOBUFS) => news = true,
                Err(_) => break,
            }
        }
        news
    }
}
