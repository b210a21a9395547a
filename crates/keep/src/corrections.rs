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
    at: VecDeque<Instant>,
    fighting: bool,
}

impl Corrections {
    /// A look has ended, in which something was corrected or nothing was. Says whether a fight begins.
    pub(crate) fn count(&mut self, corrected: bool) -> bool {
        let now = Instant::now();
        while self.at.front().is_some_and(|at| now.duration_since(*at) > FIGHT) {
            self.at.pop_front();
        }
        let fought = self.fighting;
        if corrected {
            self.at.push_back(now);
            self.fighting |= self.at.len() >= CORRECTIONS;
        }
        let begins = self.fighting && !fought;
        self.fighting &= self.at.len() > 1;
        begins
    }

    /// Whether somebody else changes a device again and again.
    pub(crate) const fn fighting(&self) -> bool {
        self.fighting
    }
}
