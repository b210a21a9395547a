//! From a descriptor to a thread of the application: what is no packet, such as a disk's completion.
//!
//! An application's wait sleeps where packets wake it, and watches no descriptors. So a thread sleeps in
//! one, and ends the wait.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use napkin_os::sched::{self as sched, Class, Placement};

use crate::Waker;
use crate::thread::exact_timers;

/// The thread; dropping it ends it.
#[derive(Debug)]
pub struct Relay {
    source: Arc<OwnedFd>,
    rouse: fn(&OwnedFd),
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Wakes an application whenever `source`, a blocking event or timer descriptor, is readable; each
    /// time it is read. `rouse` makes it readable at once. The thread has a name, of which the operating
    /// system shows 15 bytes, and a place, which it does without where it cannot be had.
    ///
    /// # Errors
    /// If no thread can be had.
    pub fn start(
        name: String,
        place: Placement,
        source: Arc<OwnedFd>,
        rouse: fn(&OwnedFd),
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
            // A signal interrupts it; nothing else fails.
            while rustix::io::retry_on_intr(|| rustix::io::read(&reads, &mut count)).is_ok()
                && !end.load(Ordering::Acquire)
            {
                waker.wake();
            }
        };
        let thread = std::thread::Builder::new().name(name).spawn(body)?;
        Ok(Relay { source, rouse, ended, thread: Some(thread) })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        (self.rouse)(&self.source);
        if let Some(thread) = self.thread.take() {
            // It does not panic.
            let _ = thread.join();
        }
    }
}
