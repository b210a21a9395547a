//! The control thread of a device, which talks to its peer, and the counters of its peers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// Counters of a device's peers, for any thread.
#[derive(Debug, Default)]
pub struct Peers {
    /// Connections whose rings came into use.
    pub served: AtomicU64,
    /// Protocol violations of peers: connections closed for one, and broken rings. A frontend counts an error that
    /// recurs with each attempt once, until a connection succeeds; and rings that a backend breaks in each
    /// connection once, until one has ended without.
    pub refused: AtomicU64,
    /// Rings in use now.
    pub rings: AtomicU64,
    trouble: Mutex<Option<String>>,
}

impl Peers {
    /// The last problem, in a sentence. Returned once.
    pub fn take_problem(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(super) fn refuse(&self, why: String) {
        self.refused.fetch_add(1, Relaxed);
        self.report(why);
    }

    /// Reports a condition that is not an error of the peer's.
    pub(super) fn report(&self, why: String) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }
}

/// The control thread, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Control {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Starts a thread, which must end soon after the descriptor passed to it becomes readable. A panic of the
    /// thread is reported to `peers`.
    pub(super) fn start(
        name: &str,
        peers: &Arc<Peers>,
        body: impl FnOnce(BorrowedFd<'_>) + Send + 'static,
    ) -> io::Result<Control> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (thread_stop, peers) = (Arc::clone(&stop), Arc::clone(peers));
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            // Sessions and rings are dropped during unwinding, as at any other end.
            if catch_unwind(AssertUnwindSafe(|| body(thread_stop.as_fd()))).is_err() {
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

/// Sleeps; `true` if `stop` became readable.
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
        let trouble = peers.take_problem().expect("a reason");
        assert!(trouble.contains("has panicked"), "{trouble}");
    }
}
