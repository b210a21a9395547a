//! How much all connections of a service hold together: a bound on what peers can make it keep.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// What the connections of all threads may hold together, beyond what each may keep in any case.
#[derive(Debug)]
pub struct Bound {
    limit: usize,
    bytes: AtomicUsize,
    refused: AtomicU64,
}

impl Bound {
    /// So many bytes at most.
    pub fn new(limit: usize) -> Bound {
        Bound { limit, bytes: AtomicUsize::new(0), refused: AtomicU64::new(0) }
    }

    /// Bytes that are held.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Connections that were to hold more than there was room for.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Counts refusals from 0 again.
    pub fn reset_counts(&self) {
        self.refused.store(0, Relaxed);
    }
}

/// A connection's part of it, which ends with it.
#[derive(Debug)]
pub(crate) struct Held {
    of: Arc<Bound>,
    bytes: usize,
}

impl Held {
    pub(crate) fn new(of: Arc<Bound>) -> Held {
        Held { of, bytes: 0 }
    }

    /// Holds so many bytes from now on; whether there is room for more. Without, it holds what it did.
    pub(crate) fn set(&mut self, bytes: usize) -> bool {
        if let Some(more) = bytes.checked_sub(self.bytes).filter(|more| *more > 0) {
            let limit = self.of.limit;
            // What there is no room for counts at no time: others would be refused for it.
            let room = |held: usize| held.checked_add(more).filter(|it| *it <= limit);
            if self.of.bytes.fetch_update(Relaxed, Relaxed, room).is_err() {
                return false;
            }
        } else if bytes < self.bytes {
            self.of.bytes.fetch_sub(self.bytes - bytes, Relaxed);
        }
        self.bytes = bytes;
        true
    }

    /// Holds nothing any more, for there was no room for what it was to hold.
    pub(crate) fn refuse(&mut self) {
        self.of.refused.fetch_add(1, Relaxed);
        self.set(0);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_refused_takes_nobody_s_room() {
        let bound = Arc::new(Bound::new(100));
        let mut held = [(); 2].map(|()| Held::new(Arc::clone(&bound)));
        assert!(held[0].set(60));
        assert!(!held[1].set(41) && !held[1].set(usize::MAX));
        assert_eq!((bound.bytes(), bound.refused()), (60, 0), "it may ask for less");
        assert!(held[1].set(40) && !held[0].set(61) && held[0].set(50));
        held[1].refuse();
        assert_eq!((bound.bytes(), bound.refused()), (50, 1));
        drop(held);
        assert_eq!(bound.bytes(), 0);
    }
}
