//! The thread that speaks with the peer, and what can be known of how that goes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// How it goes with the peers of a device, for any thread.
#[derive(Debug, Default)]
pub struct Peers {
    /// Connections whose rings could be used.
    pub served: AtomicU64,
    /// What peers did that cannot be: connections that ended for it, and rings that are not looked at any
    /// more.
    pub refused: AtomicU64,
    /// Rings that are in use now.
    pub rings: AtomicU64,
    trouble: Mutex<Option<String>>,
}

impl Peers {
    /// What was wrong last, in a sentence; each is told once.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(super) fn refuse(&self, why: String) {
        self.refused.fetch_add(1, Relaxed);
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }
}

/// Ends its thread when it is dropped.
#[derive(Debug)]
pub(super) struct Control {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Starts a thread, which ends soon after the descriptor that it is given has become readable.
    pub(super) fn start(
        name: &str,
        body: impl FnOnce(BorrowedFd<'_>) + Send + 'static,
    ) -> io::Result<Control> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let theirs = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || body(theirs.as_fd()))?;
        Ok(Control { stop, thread: Some(thread) })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Sleeps; `true` if it is to stop.
pub(super) fn pause(stop: BorrowedFd<'_>, milliseconds: i64) -> bool {
    let mut watched = [PollFd::from_borrowed_fd(stop, PollFlags::IN)];
    let (tv_sec, tv_nsec) = (milliseconds / 1_000, milliseconds % 1_000 * 1_000_000);
    poll(&mut watched, Some(&Timespec { tv_sec, tv_nsec })) == Ok(1)
}
