//! The deadlines at which connections must be processed.
//!
//! Each connection has at most one. A deadline that moves later is not rescheduled; the connection is then
//! processed once too early, which is harmless. A retransmission timer moves with every segment and hardly ever
//! fires, so nearly all changes cost nothing.

use std::collections::BTreeSet;

use napkin_policy::{NEVER, Ns};

/// Deadlines, each with the index of its connection.
#[derive(Debug, Default)]
pub(super) struct Deadlines(BTreeSet<(Ns, u32)>);

impl Deadlines {
    /// Ensures that the connection at `place` is processed by `deadline`. `armed` is the connection's copy of its
    /// deadline in this set, [`NEVER`] for none.
    pub(super) fn set_at_most(&mut self, deadline: Ns, place: u32, armed: &mut Ns) {
        if deadline >= *armed {
            return;
        }
        self.cancel(place, armed);
        self.0.insert((deadline, place));
        *armed = deadline;
    }

    /// Removes the deadline of `place`.
    pub(super) fn cancel(&mut self, place: u32, armed: &mut Ns) {
        if *armed != NEVER {
            self.0.remove(&(*armed, place));
            *armed = NEVER;
        }
    }

    /// The earliest deadline; [`NEVER`] if there is none.
    pub(super) fn next(&self) -> Ns {
        self.0.first().map_or(NEVER, |(deadline, _)| *deadline)
    }

    /// Removes and returns the connection with the earliest deadline, if it has expired.
    pub(super) fn pop_expired(&mut self, now: Ns) -> Option<u32> {
        let (deadline, place) = *self.0.first()?;
        if deadline > now {
            return None;
        }
        self.0.pop_first();
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_moves_later_stays_and_one_that_moves_earlier_does_not() {
        let (mut deadlines, mut armed) = (Deadlines::default(), NEVER);
        deadlines.set_at_most(100, 7, &mut armed);
        deadlines.set_at_most(200, 7, &mut armed);
        assert_eq!((deadlines.next(), armed), (100, 100));
        deadlines.set_at_most(50, 7, &mut armed);
        assert_eq!((deadlines.next(), armed), (50, 50));
        assert_eq!(deadlines.pop_expired(49), None);
        assert_eq!((deadlines.pop_expired(50), deadlines.pop_expired(NEVER)), (Some(7), None));
    }

    #[test]
    fn connections_have_their_own() {
        let mut deadlines = Deadlines::default();
        let mut armed = [NEVER; 3];
        for (place, deadline) in [(0, 30), (1, 10), (2, 10)] {
            deadlines.set_at_most(deadline, place, &mut armed[place as usize]);
        }
        deadlines.cancel(1, &mut armed[1]);
        assert_eq!(
            (deadlines.pop_expired(30), deadlines.pop_expired(30), deadlines.pop_expired(30)),
            (Some(2), Some(0), None)
        );
    }
}
