//! A closed loop as that of `ping -f`: the next request follows the reply to the last.
//!
//! The peer keeps `outstanding` requests under way. Any transmission counts as a reply, since the source does not
//! read frames. When nothing has been sent for [`FLOOD_FALLBACK`], a request is sent nevertheless and replaces the
//! oldest one, which is considered lost. The loop therefore survives a dropped frame, and never has more than
//! `outstanding` requests under way.

use std::collections::VecDeque;

use napkin_policy::{MILLISECOND, NEVER, Ns};

/// How long the flood waits for a reply before it sends the next request, ns: `ping -f` sends at least a hundred
/// requests a second.
pub const FLOOD_FALLBACK: Ns = 10 * MILLISECOND;

/// The state of a flood.
#[derive(Debug, Clone)]
pub(super) struct Flood {
    turnaround: Ns,
    outstanding: usize,
    /// Requests under way, at most `outstanding`.
    flight: usize,
    /// Arrival times of the scheduled requests, in order; together with those under way at most `outstanding`.
    scheduled: VecDeque<Ns>,
    /// Arrival time of the last request, ns.
    last: Ns,
}

impl Flood {
    pub(super) fn new(start: Ns, turnaround: Ns, outstanding: u16) -> Flood {
        let outstanding = usize::from(outstanding);
        let mut scheduled = VecDeque::with_capacity(outstanding);
        scheduled.resize(outstanding, start);
        Flood { turnaround, outstanding, flight: 0, scheduled, last: start }
    }

    /// The arrival time of the next request.
    pub(super) fn next(&self) -> Ns {
        let fallback = self.last.saturating_add(FLOOD_FALLBACK);
        self.scheduled.front().map_or(fallback, |&at| at.min(fallback))
    }

    /// The arrival time of the `n`-th request behind the next, or [`NEVER`] if it is not known yet.
    pub(super) fn nth(&self, n: usize) -> Ns {
        if n == 0 { self.next() } else { self.scheduled.get(n).copied().unwrap_or(NEVER) }
    }

    /// Moves past the next request.
    pub(super) fn advance(&mut self) {
        let at = self.next();
        if self.scheduled.front() == Some(&at) {
            self.scheduled.pop_front();
        }
        self.flight = (self.flight + 1).min(self.outstanding - self.scheduled.len());
        self.last = at;
    }

    /// Skips all requests up to and including `last`, but at most `limit`; returns how many.
    pub(super) fn skip(&mut self, last: Ns, limit: u64) -> u64 {
        let mut passed = 0;
        while self.next() <= last && passed < limit {
            if self.scheduled.is_empty() {
                // Only fallbacks remain.
                let rest = ((last - self.last) / FLOOD_FALLBACK).min(limit - passed);
                self.last += rest * FLOOD_FALLBACK;
                let more = usize::try_from(rest).unwrap_or(usize::MAX);
                self.flight = self.flight.saturating_add(more).min(self.outstanding);
                return passed + rest;
            }
            self.advance();
            passed += 1;
        }
        passed
    }

    /// Handles a reply that was sent at `at`.
    pub(super) fn reply(&mut self, at: Ns) {
        self.flight = self.flight.saturating_sub(1);
        if self.flight + self.scheduled.len() < self.outstanding {
            // Replies of several threads may be out of order; the schedule must not be.
            let due = at.saturating_add(self.turnaround);
            let due = self.scheduled.back().map_or(due, |&before| due.max(before));
            self.scheduled.push_back(due.max(self.last));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_request_follows_the_reply() {
        let mut flood = Flood::new(1000, 50, 1);
        assert_eq!(flood.next(), 1000);
        flood.advance();
        flood.reply(1200);
        assert_eq!(flood.next(), 1250);
    }

    #[test]
    fn a_lost_request_is_replaced_after_ten_milliseconds() {
        let mut flood = Flood::new(0, 50, 1);
        flood.advance();
        assert_eq!(flood.next(), FLOOD_FALLBACK);
        flood.advance();
        assert_eq!(flood.next(), 2 * FLOOD_FALLBACK);
        flood.reply(2 * FLOOD_FALLBACK - 100);
        assert_eq!(flood.next(), 2 * FLOOD_FALLBACK - 50);
    }

    #[test]
    fn replies_to_nothing_do_not_make_the_flood_grow() {
        let mut flood = Flood::new(0, 1, 3);
        for at in 0..100 {
            flood.reply(at);
        }
        assert_eq!(flood.scheduled.len(), 3);
        for _ in 0..10 {
            flood.advance();
        }
        for at in 100..200 {
            flood.reply(FLOOD_FALLBACK * 10 + at);
        }
        assert_eq!(flood.scheduled.len(), 3);
    }
}
