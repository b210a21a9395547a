//! Ends an application's wait for an event that is not a packet, such as a disk's completion.
//!
//! An application's wait is woken by packets and watches no descriptors. So a thread of its own blocks on the
//! descriptor, and ends the wait.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use napkin_os::sched::{self as sched, Class, Placement};

use crate::Waker;
use crate::thread::exact_timers;

/// The relay's thread; dropping the relay ends it.
#[derive(Debug)]
pub struct Relay {
    source: Arc<OwnedFd>,
    make_readable: fn(&OwnedFd),
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Starts a thread that reads `source`, a blocking event or timer descriptor, and wakes the application after
    /// each read. `make_readable` makes `source` readable at once. The operating system shows 15 bytes of the
    /// thread's name. A placement that cannot be had is ignored.
    ///
    /// # Errors
    /// If no thread can be had.
    pub fn start(
        name: String,
        place: Placement,
        source: Arc<OwnedFd>,
        make_readable: fn(&OwnedFd),
        waker: Waker,
    ) -> io::Result<Relay> {
        let ended = Arc::<AtomicBool>::default();
        let (reads, end) = (Arc::clone(&source), Arc::clone(&ended));
        let body = move || {
            exact_timers();
            let _ = sched::pin(None, &place.cpus);
            if place.class != Class::Fair {
                let _ = sched::classify(None, place.class);
            }
            let mut count = [0; 8];
            // Only a signal can interrupt the read, which is then repeated.
            while rustix::io::retry_on_intr(|| rustix::io::read(&reads, &mut count)).is_ok()
                && !end.load(Ordering::Acquire)
            {
                waker.wake();
            }
        };
        let thread = std::thread::Builder::new().name(name).spawn(body)?;
        Ok(Relay { source, make_readable, ended, thread: Some(thread) })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        (self.make_readable)(&self.source);
        if let Some(thread) = self.thread.take() {
            // The thread does not panic.
            let _ = thread.join();
        }
    }
}
