//! The thread that speaks with the peer, and what can be known of how that goes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
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
    /// more. What a frontend finds wrong each time that it tries is counted once, until it was served; and rings that a
    /// backend breaks each time that it serves, until one has served without.
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
        self.tell(why);
    }

    /// Says what is no fault of anybody's.
    pub(super) fn tell(&self, why: String) {
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
    /// Starts a thread, which ends soon after the descriptor that it is given has become readable. If it
    /// panics, `peers` says so.
    pub(super) fn start(
        name: &str,
        peers: &Arc<Peers>,
        body: impl FnOnce(BorrowedFd<'_>) + Send + 'static,
    ) -> io::Result<Control> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (theirs, peers) = (Arc::clone(&stop), Arc::clone(peers));
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            // Sessions and rings are put away while it unwinds, as at any other end.
            if catch_unwind(AssertUnwindSafe(|| body(theirs.as_fd()))).is_err() {
                peers.refuse(
                    "the thread that speaks with the peer has panicked: no other peer is served until this \
                     program is started again"
                        .into(),
                );
            }
        })?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_has_panicked_is_told_of() {
        let peers = Arc::<Peers>::default();
        drop(Control::start("panics", &peers, |_| panic!("as it is to")).expect("a thread"));
        let trouble = peers.trouble().expect("a reason");
        assert!(trouble.contains("has panicked"), "{trouble}");
    }
}
