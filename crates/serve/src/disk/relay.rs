//! From a disk's completions to the thread that waits for packets.
//!
//! An application's wait sleeps where packets wake it, and knows no descriptors. So a thread sleeps in
//! the one that the ring signals, and wakes the application.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use napkin_engine::Waker;

use crate::application::spawn;
use crate::error::ServeError;

/// The thread; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Relay {
    event: Arc<OwnedFd>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Wakes an application whenever `event`, an event descriptor, is signalled.
    pub(crate) fn start(
        name: String,
        cpus: Vec<usize>,
        event: Arc<OwnedFd>,
        waker: Waker,
    ) -> Result<Relay, ServeError> {
        let ended = Arc::<AtomicBool>::default();
        let (source, end) = (Arc::clone(&event), Arc::clone(&ended));
        let thread = spawn(name, cpus, move || {
            let mut count = [0; 8];
            // A signal interrupts it; nothing else fails.
            while rustix::io::retry_on_intr(|| rustix::io::read(&source, &mut count)).is_ok()
                && !end.load(Ordering::Acquire)
            {
                waker.wake();
            }
        })?;
        Ok(Relay { event, ended, thread: Some(thread) })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        // The counter cannot be full: its reader is there.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
