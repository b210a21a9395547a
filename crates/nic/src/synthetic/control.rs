//! A control of a synthetic source: stops and resumes it from any thread while the queue runs.
//!
//! A benchmark stops the source at the end of its window and reads how many frames were offered. Arrivals that fall
//! into a closed time do not take place: they count neither as offered nor as dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use napkin_policy::{NEVER, Ns};

use super::wire::Wire;

/// A closed time of the source: `from` (inclusive) to `until` (exclusive), ns.
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

/// The state that a source shares with its controls.
#[derive(Debug)]
pub(super) struct Gate {
    from: AtomicU64,
    until: AtomicU64,
    pub(super) offered: AtomicU64,
}

impl Gate {
    /// A source that is never closed.
    pub(super) fn new() -> Gate {
        Gate {
            from: AtomicU64::new(NEVER),
            until: AtomicU64::new(NEVER),
            offered: AtomicU64::new(0),
        }
    }

    /// The current closed time. The two ends are read one after the other: while a control changes both, a source
    /// may take itself for open although it is being closed; it reads the right value at its next poll.
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
    /// Stops the source: no frames arrive at or after `at`. Cancels an earlier [`resume_at`](Self::resume_at).
    pub fn stop_at(&self, at: Ns) {
        // With this order of stores the source is never closed at a time at which it should be open.
        self.gate.from.store(at, SeqCst);
        self.gate.until.store(NEVER, SeqCst);
    }

    /// Stops the source at once: frames that fell due since the last poll do not arrive either.
    pub fn stop(&self) {
        self.stop_at(0);
    }

    /// Resumes the source: frames arrive again at and after `at`; those scheduled for the closed time are left out.
    /// Has no effect without an earlier stop.
    ///
    /// Not for the packet path: it may raise one spurious interrupt, by which the queue notices the change.
    pub fn resume_at(&self, at: Ns) {
        self.gate.until.store(at, SeqCst);
        self.wire.kick(at);
    }

    /// The number of frames that have fallen due as of the queue's last poll or unmask, including dropped ones.
    /// Each of them is in `rx_packets`, in one of the drop counters, or pending.
    pub fn offered(&self) -> u64 {
        self.gate.offered.load(Relaxed)
    }
}
