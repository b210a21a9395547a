//! Which CPUs work, and who has the clock that an emulator's CPUs share.

use napkin_core::{NEVER, Ns};
use napkin_traffic::Rng;

/// What is drawn where CPUs advance one clock in turn; nothing, unless somebody asks for it.
#[derive(Debug)]
pub(super) struct DrawnTurns {
    /// A slice is shorter or longer by up to this.
    pub(super) spread: Ns,
    /// Of a thousand times that a CPU touches a device, those in which it keeps the clock.
    pub(super) keeps: u16,
    pub(super) rng: Rng,
}

impl DrawnTurns {
    /// All slices are equal, and who touches a device always gives the clock away.
    fn none() -> Self {
        DrawnTurns { spread: 0, keeps: 0, rng: Rng::new(0) }
    }

    pub(super) fn slice(&mut self, slice: Ns) -> Ns {
        if self.spread == 0 {
            return slice;
        }
        let spread = self.spread.min(slice.saturating_sub(1));
        slice - spread + self.rng.below(2 * spread + 1)
    }

    pub(super) fn keeps(&mut self) -> bool {
        self.keeps > 0 && self.rng.below(1000) < u64::from(self.keeps)
    }
}

/// Which CPUs work, and who has the clock that an emulator's CPUs share.
#[derive(Debug)]
pub(crate) struct Clock {
    pub(super) busy: u16,
    /// The CPU that has the shared clock, and its slices so far.
    pub(super) turn: usize,
    pub(super) slices: u32,
    /// When the one that had it last gave it up at a device; `NEVER` before.
    pub(super) released: Ns,
    pub(super) drawn: DrawnTurns,
}

impl Clock {
    /// No CPU works.
    pub(crate) fn new() -> Self {
        Clock { busy: 0, turn: 0, slices: 0, released: NEVER, drawn: DrawnTurns::none() }
    }

    /// How many CPUs work.
    pub(crate) fn busy(&self) -> u16 {
        self.busy
    }
}
