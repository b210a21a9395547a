//! When each connection wants to be looked at again.
//!
//! At most one deadline a connection. One that moves later is left where it is and looked at in vain
//! when it comes: a retransmission timer moves with every segment and hardly ever fires, so this makes
//! nothing of almost every change.

use std::collections::BTreeSet;

use napkin_policy::{NEVER, Ns};

/// Deadlines, each with the place of its connection.
#[derive(Debug, Default)]
pub(super) struct Deadlines(BTreeSet<(Ns, u32)>);

impl Deadlines {
    /// Makes sure that `place` is looked at by `deadline`. `armed` is the connection's own note of the
    /// deadline that it has here, [`NEVER`] for none.
    pub(super) fn by(&mut self, deadline: Ns, place: u32, armed: &mut Ns) {
        if deadline >= *armed {
            return;
        }
        self.cancel(place, armed);
        self.0.insert((deadline, place));
        *armed = deadline;
    }

    /// Forgets the deadline of `place`.
    pub(super) fn cancel(&mut self, place: u32, armed: &mut Ns) {
        if *armed != NEVER {
            self.0.remove(&(*armed, place));
            *armed = NEVER;
        }
    }

    /// The earliest; [`NEVER`] without any.
    pub(super) fn next(&self) -> Ns {
        self.0.first().map_or(NEVER, |(deadline, _)| *deadline)
    }

    /// Takes out the connection with the earliest deadline, if that has come.
    pub(super) fn due(&mut self, now: Ns) -> Option<u32> {
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
        deadlines.by(100, 7, &mut armed);
        deadlines.by(200, 7, &mut armed);
        assert_eq!((deadlines.next(), armed), (100, 100));
        deadlines.by(50, 7, &mut armed);
        assert_eq!((deadlines.next(), armed), (50, 50));
        assert_eq!(deadlines.due(49), None);
        assert_eq!((deadlines.due(50), deadlines.due(NEVER)), (Some(7), None));
    }

    #[test]
    fn connections_have_their_own() {
        let mut deadlines = Deadlines::default();
        let mut armed = [NEVER; 3];
        for (place, deadline) in [(0, 30), (1, 10), (2, 10)] {
            deadlines.by(deadline, place, &mut armed[place as usize]);
        }
        deadlines.cancel(1, &mut armed[1]);
        assert_eq!(
            (deadlines.due(30), deadlines.due(30), deadlines.due(30)),
            (Some(2), Some(0), None)
        );
    }
}
