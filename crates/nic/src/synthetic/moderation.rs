//! Interrupt moderation: how long a NIC sits on a frame before it tells anybody.
//!
//! The names are `ethtool -C`'s. The rule is a pure function of the arrival times, so that the
//! queue can set its one timer in advance, as if each arrival had been watched.

use napkin_policy::{MICROSECOND, Ns};

/// When received frames raise an interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moderation {
    /// Microseconds from the first waiting frame to the interrupt (`rx-usecs`). With 0 every frame
    /// interrupts at once, whatever `frames` says: a lone frame would otherwise wait for ever.
    pub usecs: u32,
    /// Waiting frames that raise the interrupt before `usecs` are over (`rx-frames`); 0 is off. At
    /// most the size of the ring.
    pub frames: u32,
}

impl Moderation {
    /// When the interrupt is due if the first waiting frame arrives at `first` and the one `n`
    /// places behind it at `nth(n, limit)`, where times after `limit` do not matter.
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
