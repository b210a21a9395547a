//! Counts recent corrections of devices, to detect a fight with another program.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// This many corrections within [`FIGHT`] are a fight: from then on devices are examined once per [`PAUSE`].
const CORRECTIONS: usize = 16;
const FIGHT: Duration = Duration::from_secs(10);
pub(crate) const PAUSE: Duration = Duration::from_secs(5);

/// Recent corrections.
#[derive(Debug, Default)]
pub(crate) struct Corrections {
    /// The time, and whether another program's change was corrected.
    at: VecDeque<(Instant, bool)>,
    fighting: bool,
    reported: bool,
}

impl Corrections {
    /// Counts a look in which something was corrected, or refused and reverted, or neither. Returns whether
    /// to report a fight, which is done once. Refusals alone are not another program's doing and are not
    /// reported, but looks pause for them as well, as reverting wakes the keeper.
    pub(crate) fn count(&mut self, corrected: bool, refused: bool) -> bool {
        let now = Instant::now();
        while self.at.front().is_some_and(|(at, _)| now.duration_since(*at) > FIGHT) {
            self.at.pop_front();
        }
        if corrected || refused {
            self.at.push_back((now, corrected));
            self.fighting |= self.at.len() >= CORRECTIONS;
        }
        let repeated = self.at.iter().filter(|(_, corrected)| *corrected).count() > 1;
        let report = self.fighting && corrected && repeated && !self.reported;
        self.fighting &= self.at.len() > 1;
        self.reported = self.fighting && (self.reported || report);
        report
    }

    /// Whether devices are corrected, or refuse, again and again.
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
        let reported: Vec<usize> =
            (1..=2 * CORRECTIONS).filter(|_| corrections.count(true, false)).collect();
        assert_eq!(reported, [CORRECTIONS]);
    }
}
