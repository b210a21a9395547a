//! Interrupt moderation: how long a NIC delays the interrupt for a received frame.
//!
//! The names are those of `ethtool -C`. The rule is a pure function of the arrival times, so that the queue can set
//! its one timer in advance.

use napkin_policy::{MICROSECOND, Ns};

/// When received frames raise an interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moderation {
    /// Microseconds from the first waiting frame to the interrupt (`rx-usecs`). With 0 every frame interrupts at
    /// once, regardless of `frames`: a lone frame would otherwise wait for ever.
    pub usecs: u32,
    /// The number of waiting frames that raises the interrupt before `usecs` have passed (`rx-frames`); 0 is off.
    /// At most the size of the ring.
    pub frames: u32,
}

impl Moderation {
    /// The time at which the interrupt is due if the first waiting frame arrives at `first` and the `n`-th one
    /// behind it at `nth(n, limit)`. `nth` need not be exact for times after `limit`.
    pub(super) fn due(self, first: Ns, nth: impl FnOnce(usize, Ns) -> Ns) -> Ns {
        if self.usecs == 0 {
            return first;
        }
        let latest = first.saturating_add(Ns::from(self.usecs) * MICROSECOND);
        match self.frames {
            0 => latest,
            1 => first,
            frames => latest.min(nth(frames as usize - 1, latest)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_microsecond(n: usize, _limit: Ns) -> Ns {
        1_000 * (n as Ns + 1)
    }

    #[test]
    fn without_moderation_the_first_frame_interrupts() {
        let off = Moderation { usecs: 0, frames: 32 };
        assert_eq!(off.due(1_000, every_microsecond), 1_000);
    }

    #[test]
    fn time_and_frames_whichever_is_first() {
        let moderation = |usecs, frames| Moderation { usecs, frames };
        assert_eq!(moderation(8, 0).due(1_000, every_microsecond), 9_000);
        assert_eq!(moderation(8, 1).due(1_000, every_microsecond), 1_000);
        assert_eq!(moderation(8, 4).due(1_000, every_microsecond), 4_000);
        assert_eq!(moderation(8, 128).due(1_000, every_microsecond), 9_000);
    }
}
