//! How often a device was corrected of late, to see a fight with somebody else.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// So many corrections within [`FIGHT`] are a fight: then one look each [`PAUSE`].
const CORRECTIONS: usize = 16;
const FIGHT: Duration = Duration::from_secs(10);
pub(crate) const PAUSE: Duration = Duration::from_secs(5);

/// The corrections of the last while.
#[derive(Debug, Default)]
pub(crate) struct Corrections {
    /// When, and whether somebody else's doing was corrected then.
    at: VecDeque<(Instant, bool)>,
    fighting: bool,
    told: bool,
}

impl Corrections {
    /// A look has ended, in which something was corrected, or was refused and taken back, or nothing of that. Says
    /// whether a fight is to be told of, which it is once: refusals alone are nobody else's doing, though looks are
    /// paused for them as well, as what is taken back wakes whoever looks.
    pub(crate) fn count(&mut self, corrected: bool, refused: bool) -> bool {
        let now = Instant::now();
        while self.at.front().is_some_and(|(at, _)| now.duration_since(*at) > FIGHT) {
            self.at.pop_front();
        }
        if corrected || refused {
            self.at.push_back((now, corrected));
            self.fighting |= self.at.len() >= CORRECTIONS;
        }
        let again = self.at.iter().filter(|(_, corrected)| *corrected).count() > 1;
        let tells = self.fighting && corrected && again && !self.told;
        self.fighting &= self.at.len() > 1;
        self.told = self.fighting && (self.told || tells);
        tells
    }

    /// Whether somebody else changes a device again and again.
    pub(crate) const fn fighting(&self) -> bool {
        self.fighting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fight_is_told_once_and_only_where_somebody_else_is_in_it() {
        let mut corrections = Corrections::default();
        assert!((0..CORRECTIONS).all(|_| !corrections.count(false, true)));
        assert!(corrections.fighting());
        assert!(!corrections.count(true, false), "once is not again and again");
        assert!(corrections.count(true, false));
        assert!(!corrections.count(true, false), "it was told");

        let mut corrections = Corrections::default();
        let told: Vec<usize> =
            (1..=2 * CORRECTIONS).filter(|_| corrections.count(true, false)).collect();
        assert_eq!(told, [CORRECTIONS]);
    }
}
