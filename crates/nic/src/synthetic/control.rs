//! The tap on a synthetic source: opened and closed from outside, while the queue runs.
//!
//! A benchmark closes the source at the end of its window and reads how many frames were offered.
//! Arrivals that fall into a closed time do not take place; they are not dropped, they never were.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use napkin_policy::{NEVER, Ns};

use super::wire::Wire;

/// When the source is closed: from one time (included) until another (excluded).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Closed {
    pub(super) from: Ns,
    pub(super) until: Ns,
}

impl Closed {
    pub(super) fn contains(self, at: Ns) -> bool {
        (self.from..self.until).contains(&at)
    }
}

/// The state that a source and its controls share.
#[derive(Debug)]
pub(super) struct Gate {
    from: AtomicU64,
    until: AtomicU64,
    pub(super) offered: AtomicU64,
}

impl Gate {
    /// Open for ever.
    pub(super) fn new() -> Gate {
        Gate {
            from: AtomicU64::new(NEVER),
            until: AtomicU64::new(NEVER),
            offered: AtomicU64::new(0),
        }
    }

    /// The two times are read one after the other: in the moment in which a control changes both, a
    /// source may find itself open that was to be closed, and sees the truth at its next poll.
    pub(super) fn closed(&self) -> Closed {
        Closed { from: self.from.load(SeqCst), until: self.until.load(SeqCst) }
    }
}

/// A handle on a synthetic source, for any thread.
#[derive(Debug, Clone)]
pub struct SourceControl {
    pub(super) gate: Arc<Gate>,
    pub(super) wire: Arc<Wire>,
}

impl SourceControl {
    /// No frames arrive at or after `at`. Takes back an earlier [`resume_at`](Self::resume_at).
    pub fn stop_at(&self, at: Ns) {
        // In this order the source is never closed where it ought to be open.
        self.gate.from.store(at, SeqCst);
        self.gate.until.store(NEVER, SeqCst);
    }

    /// No more frames arrive, not even those that fell due since the queue was last polled.
    pub fn stop(&self) {
        self.stop_at(0);
    }

    /// Frames arrive again at and after `at`; those that the schedule had for the closed time are
    /// left out. Without an earlier stop this changes nothing.
    ///
    /// Call it from outside the packet path: it may raise one spurious interrupt, by which the queue
    /// notices.
    pub fn resume_at(&self, at: Ns) {
        self.gate.until.store(at, SeqCst);
        self.wire.kick(at);
    }

    /// How many frames have fallen due, dropped ones included, as of the queue's last poll or
    /// unmask. All of them are in `rx_packets`, in one of the drop counters, or pending.
    pub fn offered(&self) -> u64 {
        self.gate.offered.load(Relaxed)
    }
}
