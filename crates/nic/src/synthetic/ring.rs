//! The receive ring: frames that have fallen due and are not yet polled.
//!
//! It holds only their times and sequence numbers; the bytes are written when a frame is polled. Frames leave the
//! ring only in polls, so that the next poll can still work out which arrivals found it full: the oldest that fit
//! stay and the newest are dropped, as with a NIC that has run out of descriptors.

use std::collections::VecDeque;

use napkin_policy::{NEVER, Ns};

use super::arrivals::Schedule;
use super::control::Closed;

/// A frame in the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pending {
    pub(super) at: Ns,
    pub(super) seq: u64,
}

/// Counts of the frames that fell due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct DueFrames {
    /// All frames, dropped ones included.
    pub(super) offered: u64,
    /// Those that found the ring full.
    pub(super) dropped: u64,
}

#[derive(Debug)]
pub(super) struct RxRing {
    pub(super) schedule: Schedule,
    /// Never longer than `size`, its initial capacity.
    pending: VecDeque<Pending>,
    size: usize,
}

impl RxRing {
    pub(super) fn new(schedule: Schedule, size: u32) -> RxRing {
        let size = size as usize;
        RxRing { schedule, pending: VecDeque::with_capacity(size), size }
    }

    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }

    /// Brings the ring up to `now`. Under overload, the frames that do not fit are skipped in bulk.
    pub(super) fn advance(&mut self, now: Ns, closed: Closed) -> DueFrames {
        let mut due_frames = DueFrames::default();
        loop {
            let at = self.schedule.next();
            if at > now || at == NEVER {
                return due_frames;
            }
            // Each branch passes at least the arrival at `at`, so the loop ends.
            if closed.contains(at) {
                self.schedule.skip(now.min(closed.until - 1));
            } else if self.pending.len() == self.size {
                let limit = if at < closed.from { now.min(closed.from - 1) } else { now };
                let skipped = self.schedule.skip(limit);
                due_frames.offered += skipped;
                due_frames.dropped += skipped;
            } else {
                self.pending.push_back(Pending { at, seq: self.schedule.index() });
                self.schedule.advance();
                due_frames.offered += 1;
            }
        }
    }

    /// Removes the oldest frame.
    pub(super) fn pop(&mut self) -> Option<Pending> {
        self.pending.pop_front()
    }

    /// The arrival time, past or future, of the oldest frame that is not yet polled.
    pub(super) fn first(&self, closed: Closed) -> Ns {
        match self.pending.front() {
            Some(pending) => pending.at,
            None => match self.schedule.next() {
                // The first frame after the closed time does not come before its end, so that is early enough to
                // check.
                at if closed.contains(at) => closed.until,
                at => at,
            },
        }
    }

    /// The arrival time of the `n`-th frame behind the first. Ignores closed times, so it may be too early for a
    /// closed source, never too late.
    pub(super) fn nth(&self, n: usize, limit: Ns) -> Ns {
        match self.pending.get(n) {
            Some(pending) => pending.at,
            None => self.schedule.nth(n - self.pending.len(), limit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::arrivals::Arrivals;
    use super::*;
    use napkin_traffic::SplitMix;

    const OPEN: Closed = Closed { from: NEVER, until: NEVER };

    /// A ring of `size`, with one frame a microsecond from time 0.
    fn ring(size: u32) -> RxRing {
        let arrivals = Arrivals::Fixed { per_second: 1e6 };
        let schedule =
            Schedule::new(arrivals, SplitMix::new(1), 0, NEVER, u64::MAX).expect("valid");
        RxRing::new(schedule, size)
    }

    #[test]
    fn the_newest_are_dropped() {
        let mut ring = ring(2);
        assert_eq!(ring.advance(4_000, OPEN), DueFrames { offered: 5, dropped: 3 });
        assert_eq!(ring.pop(), Some(Pending { at: 0, seq: 0 }));
        assert_eq!(ring.advance(5_000, OPEN), DueFrames { offered: 1, dropped: 0 });
        assert_eq!(ring.pop(), Some(Pending { at: 1_000, seq: 1 }));
        assert_eq!(ring.pop(), Some(Pending { at: 5_000, seq: 5 }));
        assert_eq!(ring.pop(), None);
    }

    #[test]
    fn a_century_of_overload_is_skipped_at_once() {
        let mut ring = ring(2);
        let century = 100 * 365 * 86_400 * 1_000_000_000;
        assert_eq!(ring.advance(century, OPEN).offered, century / 1_000 + 1);
        assert_eq!(ring.len(), 2);
    }

    #[test]
    fn what_the_schedule_has_for_a_closed_time_never_was() {
        let mut ring = ring(2);
        let closed = Closed { from: 5_000, until: 8_000 };
        assert_eq!(ring.advance(10_000, closed), DueFrames { offered: 8, dropped: 6 });
        assert_eq!(ring.schedule.next(), 11_000);
    }

    #[test]
    fn the_first_frame_after_a_closed_time_is_not_before_its_end() {
        let mut ring = ring(2);
        let closed = Closed { from: 500, until: NEVER };
        ring.advance(600, closed);
        ring.pop();
        assert_eq!(ring.first(closed), NEVER);
        assert_eq!(ring.first(Closed { until: 1_500, ..closed }), 1_500);
    }
}
