//! A lock around an optional value that is put in and taken out while others use it, such as the rings of a port:
//! threads that move frames only try it, and the control thread waits for it.
//!
//! Threads that move frames never wait: they try the lock and return if it is taken. Before it tries, such a thread
//! [requests](Gate::request) what it wants done; the holder checks for requests after it has released the lock, both
//! sequentially consistent, so that one of the two does it. The control thread waits, for one poll at most: it
//! announces itself first, and then no other thread tries.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release, SeqCst};
use std::sync::{PoisonError, TryLockError};

use crate::sync::{AtomicBool, Mutex, MutexGuard, fence};

/// An optional value under a lock for which only the control thread waits.
#[derive(Debug)]
pub(super) struct Gate<T> {
    place: Mutex<Option<T>>,
    /// Whether the control thread wants the lock.
    wanted: AtomicBool,
    /// Whether a thread has requested work that it could not do itself.
    requested: AtomicBool,
    /// Whether a value is present, for threads that only want to know that. Taking the lock to find out would keep
    /// other threads out, which would then take the value for one in use.
    occupied: AtomicBool,
}

impl<T> Default for Gate<T> {
    fn default() -> Gate<T> {
        Gate {
            place: Mutex::new(None),
            wanted: AtomicBool::new(false),
            requested: AtomicBool::new(false),
            occupied: AtomicBool::new(false),
        }
    }
}

impl<T> Gate<T> {
    /// For threads that move frames; `None` if the lock is taken.
    #[inline]
    pub(super) fn try_enter(&self) -> Option<MutexGuard<'_, Option<T>>> {
        if self.wanted.load(Acquire) {
            return None;
        }
        match self.place.try_lock() {
            Ok(place) => Some(place),
            Err(TryLockError::Poisoned(place)) => Some(place.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Whether a value was present when the control thread last left.
    #[inline]
    pub(super) fn occupied(&self) -> bool {
        self.occupied.load(Acquire)
    }

    /// Requests the work that [`serve_requests`](Gate::serve_requests) does; the caller calls that next.
    pub(super) fn request(&self) {
        self.requested.store(true, SeqCst);
    }

    /// Does the requested work, until no request is left or another thread has the lock, which then does it. For
    /// threads that have requested, and for those that have released the lock.
    #[inline]
    pub(super) fn serve_requests(&self, mut act: impl FnMut(&mut Option<T>)) {
        loop {
            fence(SeqCst);
            if !self.requested.load(SeqCst) {
                return;
            }
            let Some(mut place) = self.try_enter() else { return };
            // A swap, so that what the requesting thread wrote before its request is visible; a store would not
            // synchronise.
            self.requested.swap(false, AcqRel);
            act(&mut place);
        }
    }

    /// For the control thread: waits for the lock and calls `act`. Requests made meanwhile are handled by the
    /// thread that the caller wakes afterwards.
    pub(super) fn enter<R>(&self, act: impl FnOnce(&mut Option<T>) -> R) -> R {
        self.wanted.store(true, SeqCst);
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        let result = act(&mut place);
        self.occupied.store(place.is_some(), Release);
        drop(place);
        self.wanted.store(false, SeqCst);
        result
    }
}
