//! The ends of what the CPUs are at, as far as they are near: most of the events, and few at a time.

use napkin_core::{NEVER, Ns};

/// Places, as many as a `u8` tells apart; ends take all but two at most.
const PLACES: usize = 256;

/// Bits of a CPU's number, below the order in which an end was asked for.
const CPU_BITS: u32 = 16;

/// Before all others, and after them.
const FIRST: (Ns, u64) = (0, 0);
const NEVER_ENDS: (Ns, u64) = (NEVER, u64::MAX);

/// A short queue in order of time and, at one time, of asking.
#[derive(Debug)]
pub(crate) struct Near {
    /// A ring: in rising order from `first` to before `last`. One that never ends stands after them, and
    /// one that is before all others before them.
    ends: [(Ns, u64); PLACES],
    first: u8,
    last: u8,
}

impl Near {
    pub(crate) fn new() -> Self {
        let mut ends = [FIRST; PLACES];
        ends[1] = NEVER_ENDS;
        Near { ends, first: 1, last: 1 }
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.last.wrapping_sub(self.first))
    }

    /// Puts an end in, unless there is no room: `false`. `order` rises from one to the next.
    #[inline]
    pub(crate) fn push(&mut self, time: Ns, order: u64, cpu: u16) -> bool {
        let mut place = self.last;
        let last = place.wrapping_add(1);
        if last.wrapping_add(1) == self.first {
            return false;
        }
        self.last = last;
        self.ends[usize::from(last)] = NEVER_ENDS;
        // The later ones make room; the one before all others ends the search.
        loop {
            let before = self.ends[usize::from(place.wrapping_sub(1))];
            if before.0 <= time {
                break;
            }
            self.ends[usize::from(place)] = before;
            place = place.wrapping_sub(1);
        }
        self.ends[usize::from(place)] = (time, order << CPU_BITS | u64::from(cpu));
        true
    }

    /// Time and order of the next end; never, if there is none.
    #[inline]
    pub(crate) fn next(&self) -> (Ns, u64) {
        let (time, which) = self.ends[usize::from(self.first)];
        (time, which >> CPU_BITS)
    }

    /// Takes the next end out, which is there: the CPU.
    #[inline]
    pub(crate) fn pop(&mut self) -> u16 {
        debug_assert_ne!(self.first, self.last, "nothing ends");
        let (_, which) = std::mem::replace(&mut self.ends[usize::from(self.first)], FIRST);
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
                assert_eq!(sorted.len(), PLACES - 2);
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
