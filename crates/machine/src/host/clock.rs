//! The set of busy CPUs, and the clock that an emulator's CPUs share.

use napkin_core::{NEVER, Ns};
use napkin_traffic::Rng;

/// Random variation of the turns of a shared clock; without effect unless it is requested.
#[derive(Debug)]
pub(super) struct TurnVariation {
    /// Most nanoseconds by which a slice is shorter or longer.
    pub(super) spread: Ns,
    /// How often, in thousandths, a CPU keeps the clock when it touches a device.
    pub(super) keeps: u16,
    pub(super) rng: Rng,
}

impl TurnVariation {
    /// Creates turns without variation: slices are equal, and a CPU that touches a device always gives the clock
    /// away.
    fn none() -> Self {
        TurnVariation { spread: 0, keeps: 0, rng: Rng::new(0) }
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

/// The number of busy CPUs, and the state of the shared clock.
#[derive(Debug)]
pub(crate) struct Clock {
    pub(super) busy: u16,
    /// The CPU that has the shared clock, and the number of slices so far.
    pub(super) turn: usize,
    pub(super) slices: u32,
    /// When a CPU last gave the clock away by touching a device; `NEVER` before.
    pub(super) released: Ns,
    pub(super) variation: TurnVariation,
}

impl Clock {
    /// Creates a clock with no CPU busy.
    pub(crate) fn new() -> Self {
        Clock { busy: 0, turn: 0, slices: 0, released: NEVER, variation: TurnVariation::none() }
    }

    /// Returns the number of busy CPUs.
    pub(crate) fn busy(&self) -> u16 {
        self.busy
    }
}
