//! One thread's wait: epoll, with timeouts in nanoseconds, and an end from outside.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

use crate::Waker;

/// Events of one wait.
const EVENTS: usize = 256;

/// What epoll says of the waker, in the place of what is watched.
const WAKER: u64 = u64::MAX;

/// An epoll context with a waker in it.
#[derive(Debug)]
pub(crate) struct Waits {
    epoll: OwnedFd,
    pub(crate) waker: Waker,
}

impl Waits {
    pub(crate) fn new() -> io::Result<Waits> {
        let waits = Waits { epoll: epoll::create(CreateFlags::CLOEXEC)?, waker: Waker::new()? };
        waits.watch(&waits.waker, WAKER, EventFlags::IN)?;
        Ok(waits)
    }

    /// Watches a descriptor, until it is closed; events of it are told as `name`, which is less than
    /// [`u64::MAX`].
    pub(crate) fn watch(&self, what: impl AsFd, name: u64, flags: EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, what, EventData::new_u64(name), flags)?)
    }

    /// Watches a descriptor no more.
    pub(crate) fn unwatch(&self, what: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, what)?)
    }

    /// Waits until something has happened, somebody has woken it, or `timeout` is over; calls `told`
    /// with the name of each to which something has happened.
    ///
    /// # Errors
    /// The kernel is older than 5.11 (`ENOSYS`).
    pub(crate) fn wait(
        &self,
        timeout: Option<Duration>,
        mut told: impl FnMut(u64),
    ) -> io::Result<()> {
        // What the kernel has no number for is for ever.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut room = [MaybeUninit::uninit(); EVENTS];
        match epoll::wait(&self.epoll, &mut room, timeout.as_ref()) {
            Ok((events, _)) => {
                for event in events.iter().map(|event| event.data.u64()) {
                    if event == WAKER {
                        self.waker.clear();
                    } else {
                        told(event);
                    }
                }
                Ok(())
            }
            Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
