//! The ends of what the CPUs are at, as far as they are near: most of the events, and few at a time.

use napkin_core::{NEVER, Ns};

/// Places; one of them is always free.
const PLACES: usize = 64;

/// Bits of a CPU's number, below the order in which an end was asked for.
const CPU_BITS: u32 = 16;

/// After all others.
const NONE: (Ns, u64) = (NEVER, u64::MAX);

/// A short queue in order of time and, at one time, of asking.
#[derive(Debug)]
pub(crate) struct Near {
    /// A ring; after the last end stands one that never comes.
    ends: [(Ns, u64); PLACES],
    first: usize,
    last: usize,
}

impl Near {
    /// Nothing ends.
    pub(crate) fn new() -> Self {
        Near { ends: [NONE; PLACES], first: 0, last: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.last.wrapping_sub(self.first)
    }

    /// Puts an end in, unless there is no room: `false`. `order` rises from one to the next.
    #[inline]
    pub(crate) fn push(&mut self, time: Ns, order: u64, cpu: u16) -> bool {
        if self.len() == PLACES - 1 {
            return false;
        }
        let mut place = self.last;
        self.last = self.last.wrapping_add(1);
        self.ends[self.last % PLACES] = NONE;
        while place != self.first {
            let before = self.ends[place.wrapping_sub(1) % PLACES];
            if before.0 <= time {
                break;
            }
            self.ends[place % PLACES] = before;
            place = place.wrapping_sub(1);
        }
        self.ends[place % PLACES] = (time, order << CPU_BITS | u64::from(cpu));
        true
    }

    /// Time and order of the next end; never, if there is none.
    #[inline]
    pub(crate) fn next(&self) -> (Ns, u64) {
        let (time, which) = self.ends[self.first % PLACES];
        (time, which >> CPU_BITS)
    }

    /// Takes the next end out, which is there: the CPU.
    #[inline]
    pub(crate) fn pop(&mut self) -> u16 {
        let (_, which) = self.ends[self.first % PLACES];
        debug_assert_ne!(self.first, self.last, "nothing ends");
        self.first = self.first.wrapping_add(1);
        which as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use napkin_traffic::Rng;

    #[test]
    fn ends_leave_in_order_of_time_and_then_of_asking() {
        let mut rng = Rng::new(1);
        let mut near = Near::new();
        let mut sorted = Vec::new();
        for order in 0..20_000 {
            let time = rng.below(40);
            let cpu = rng.below(1 << CPU_BITS) as u16;
            if near.push(time, order, cpu) {
                sorted.push((time, order, cpu));
                sorted.sort_unstable();
            } else {
                assert_eq!(sorted.len(), PLACES - 1);
            }
            for _ in 0..rng.below(3).min(sorted.len() as u64) {
                let (time, order, cpu) = sorted.remove(0);
                assert_eq!((near.next(), near.pop()), ((time, order), cpu));
            }
            assert_eq!(near.len(), sorted.len());
        }
        sorted.iter().for_each(|it| assert_eq!(near.pop(), it.2));
        assert_eq!(near.next().0, NEVER);
    }
}
