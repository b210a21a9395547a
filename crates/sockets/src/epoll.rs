//! One thread's wait: epoll with timeouts in nanoseconds, and a waker.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

use crate::Waker;

/// The maximum number of events per wait.
const MAX_EVENTS: usize = 256;

/// The epoll data of the waker.
const WAKER: u64 = u64::MAX;

/// An epoll context with a waker in it.
#[derive(Debug)]
pub(crate) struct Epoll {
    fd: OwnedFd,
    pub(crate) waker: Waker,
}

impl Epoll {
    pub(crate) fn new() -> io::Result<Epoll> {
        let epoll = Epoll { fd: epoll::create(CreateFlags::CLOEXEC)?, waker: Waker::new()? };
        epoll.watch(&epoll.waker, WAKER, EventFlags::IN)?;
        Ok(epoll)
    }

    /// Watches a descriptor until it is closed. Its events are reported as `name`, which must be less than
    /// [`u64::MAX`].
    pub(crate) fn watch(&self, what: impl AsFd, name: u64, flags: EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.fd, what, EventData::new_u64(name), flags)?)
    }

    /// Stops watching a descriptor.
    pub(crate) fn unwatch(&self, what: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.fd, what)?)
    }

    /// Waits until an event occurs, the waker is called, or `timeout` has passed; calls `on_event` with the name
    /// of each descriptor that has an event.
    ///
    /// # Errors
    /// If the kernel is older than 5.11 (`ENOSYS`).
    pub(crate) fn wait(
        &self,
        timeout: Option<Duration>,
        mut on_event: impl FnMut(u64),
    ) -> io::Result<()> {
        // A timeout beyond the kernel's range counts as none.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut buffer = [MaybeUninit::uninit(); MAX_EVENTS];
        match epoll::wait(&self.fd, &mut buffer, timeout.as_ref()) {
            Ok((events, _)) => {
                for event in events.iter().map(|event| event.data.u64()) {
                    if event == WAKER {
                        self.waker.clear();
                    } else {
                        on_event(event);
                    }
                }
                Ok(())
            }
            Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
