//! A bound on the memory that peers can make all connections of a service hold together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Bytes held by the connections of all threads, beyond each connection's own allowance, with a limit.
#[derive(Debug)]
pub struct Bound {
    limit: usize,
    bytes: AtomicUsize,
    refused: AtomicU64,
}

impl Bound {
    /// A bound of `limit` bytes.
    pub fn new(limit: usize) -> Bound {
        Bound { limit, bytes: AtomicUsize::new(0), refused: AtomicU64::new(0) }
    }

    /// Bytes held now.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Connections that were refused because they would have exceeded the limit.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Resets the count of refusals to 0.
    pub fn reset_counts(&self) {
        self.refused.store(0, Relaxed);
    }
}

/// One connection's share of a [`Bound`]; dropping it returns the bytes.
#[derive(Debug)]
pub(crate) struct Share {
    bound: Arc<Bound>,
    bytes: usize,
}

impl Share {
    pub(crate) fn new(bound: Arc<Bound>) -> Share {
        Share { bound, bytes: 0 }
    }

    /// Sets the bytes held. Returns `false`, and changes nothing, if that would exceed the limit.
    pub(crate) fn set(&mut self, bytes: usize) -> bool {
        if let Some(more) = bytes.checked_sub(self.bytes).filter(|more| *more > 0) {
            let limit = self.bound.limit;
            // A refused amount must never be added, even briefly: others would be refused because of it.
            let room = |held: usize| held.checked_add(more).filter(|it| *it <= limit);
            if self.bound.bytes.fetch_update(Relaxed, Relaxed, room).is_err() {
                return false;
            }
        } else if bytes < self.bytes {
            self.bound.bytes.fetch_sub(self.bytes - bytes, Relaxed);
        }
        self.bytes = bytes;
        true
    }

    /// Releases all bytes and counts a refusal: the connection did not fit.
    pub(crate) fn refuse(&mut self) {
        self.bound.refused.fetch_add(1, Relaxed);
        self.set(0);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_share_takes_no_room() {
        let bound = Arc::new(Bound::new(100));
        let mut held = [(); 2].map(|()| Share::new(Arc::clone(&bound)));
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
