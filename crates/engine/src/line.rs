//! A queue's interrupt line: a descriptor that the CPU's interrupt thread watches, one shot at a
//! time.
//!
//! A one-shot that has fired is masked thereby. Arming it again makes epoll check the descriptor, so that readiness
//! that came while it was masked is not lost.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll;
use rustix::io;

/// The tokens of a CPU's own two descriptors; queues have their index.
pub(crate) const TIMER: u64 = u64::MAX;
pub(crate) const KICK: u64 = u64::MAX - 1;

/// One queue's line on one CPU.
#[derive(Debug)]
pub(crate) struct Line {
    /// The epoll descriptor of the CPU's interrupt thread.
    cpu: Arc<OwnedFd>,
    token: u64,
}

impl Line {
    /// Puts the line on a CPU, masked.
    pub(crate) fn attach(cpu: Arc<OwnedFd>, fd: BorrowedFd<'_>, token: u64) -> io::Result<Line> {
        let data = epoll::EventData::new_u64(token);
        epoll::add(&cpu, fd, data, epoll::EventFlags::ONESHOT)?;
        Ok(Line { cpu, token })
    }

    pub(crate) fn mask(&self, fd: BorrowedFd<'_>) {
        self.modify(fd, epoll::EventFlags::ONESHOT);
    }

    /// Allows one interrupt.
    pub(crate) fn unmask(&self, fd: BorrowedFd<'_>) {
        self.modify(fd, epoll::EventFlags::ONESHOT | epoll::EventFlags::IN);
    }

    fn modify(&self, fd: BorrowedFd<'_>, flags: epoll::EventFlags) {
        let data = epoll::EventData::new_u64(self.token);
        let result = epoll::modify(&self.cpu, fd, data, flags);
        debug_assert!(result.is_ok(), "epoll_ctl: {result:?}");
    }
}
