//! Lock around a value that is put in and taken out while others use it, as a port's rings are: threads
//! that move frames try it, and the control thread waits for it.
//!
//! Who moves frames never waits: it tries, and goes if another is there. What it wanted done it
//! [asks](Gate::ask) for before it tries; who is there looks for that after it has left, both sequentially
//! consistent, so that one of the two does it. The control thread waits, for a poll at most: it says so first,
//! and then nobody else tries.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release, SeqCst};
use std::sync::{PoisonError, TryLockError};

use crate::sync::{AtomicBool, Mutex, MutexGuard, fence};

/// A value, or none, under a lock that the control thread alone waits for.
#[derive(Debug)]
pub(super) struct Gate<T> {
    place: Mutex<Option<T>>,
    /// The control thread wants it.
    wanted: AtomicBool,
    /// A thread wants done what it could not do itself.
    asked: AtomicBool,
    /// Something is in it: for who only wants to know that. A look inside would keep others out, who then take it for
    /// one that is in use.
    there: AtomicBool,
}

impl<T> Default for Gate<T> {
    fn default() -> Gate<T> {
        Gate {
            place: Mutex::new(None),
            wanted: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            there: AtomicBool::new(false),
        }
    }
}

impl<T> Gate<T> {
    /// For who moves frames; `None` if somebody else is there.
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

    /// Whether something was in it when the control thread was there last.
    #[inline]
    pub(super) fn there(&self) -> bool {
        self.there.load(Acquire)
    }

    /// Wants done what is done by [`answer`](Gate::answer), which the caller calls next.
    pub(super) fn ask(&self) {
        self.asked.store(true, SeqCst);
    }

    /// Does what was asked for, as often as it was, unless another is there: it will. For who has asked,
    /// and for who has left.
    #[inline]
    pub(super) fn answer(&self, mut act: impl FnMut(&mut Option<T>)) {
        loop {
            fence(SeqCst);
            if !self.asked.load(SeqCst) {
                return;
            }
            let Some(mut place) = self.try_enter() else { return };
            // A swap, so that what was left before the asking is seen; a store would see none of it.
            self.asked.swap(false, AcqRel);
            act(&mut place);
        }
    }

    /// For the control thread: waits until nobody is there, and does something. Whoever was asked meanwhile is
    /// found by whom it wakes afterwards.
    pub(super) fn enter<R>(&self, act: impl FnOnce(&mut Option<T>) -> R) -> R {
        self.wanted.store(true, SeqCst);
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        let result = act(&mut place);
        self.there.store(place.is_some(), Release);
        drop(place);
        self.wanted.store(false, SeqCst);
        result
    }
}
