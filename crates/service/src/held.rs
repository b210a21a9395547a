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

    /// Holds so many bytes from now on; whether there is room for more. Without, none are held.
    pub(crate) fn set(&mut self, bytes: usize) -> bool {
        let before = std::mem::replace(&mut self.bytes, bytes);
        if bytes <= before {
            if bytes < before {
                self.of.bytes.fetch_sub(before - bytes, Relaxed);
            }
            return true;
        }
        let more = bytes - before;
        let fits = self.of.bytes.fetch_add(more, Relaxed) + more <= self.of.limit;
        if !fits {
            self.of.refused.fetch_add(1, Relaxed);
            self.set(0);
        }
        fits
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.set(0);
    }
}
