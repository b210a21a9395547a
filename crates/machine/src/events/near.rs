//! The ends of what the CPUs are at, as far as they are near: most of the events, and few at a time.

use std::cell::Cell;

use napkin_core::{NEVER, Ns};

/// Places, of which ends take all but two at most.
const PLACES: usize = 256;

/// Bits of a CPU's number, below the order in which an end was asked for.
const CPU_BITS: u32 = 16;

/// Before all others, and after them.
const FIRST: (Ns, u64) = (0, 0);
const NEVER_ENDS: (Ns, u64) = (NEVER, u64::MAX);

/// A short queue in order of time and, at one time, of asking.
#[derive(Debug)]
pub(crate) struct Near {
    /// In rising order from `first` to before `last`; one that never ends stands after them, and one
    /// that is before all others before them. They move along, and back to the beginning once in a
    /// while.
    ends: [(Ns, u64); PLACES],
    first: usize,
    last: usize,
}

impl Near {
    pub(crate) fn new() -> Self {
        let mut ends = [FIRST; PLACES];
        ends[1] = NEVER_ENDS;
        Near { ends, first: 1, last: 1 }
    }

    pub(crate) fn len(&self) -> usize {
        self.last - self.first
    }

    /// Puts an end in, unless there is no room: `false`. `order` rises from one to the next.
    #[inline]
    pub(crate) fn push(&mut self, time: Ns, order: u64, cpu: u16) -> bool {
        if self.last == PLACES - 1 && !self.move_back() {
            return false;
        }
        self.last += 1;
        self.ends[self.last % PLACES] = NEVER_ENDS;
        // The later ones make room; the one before all others ends the search.
        let ends = Cell::from_mut(&mut self.ends[self.first - 1..self.last]);
        for pair in ends.as_slice_of_cells().windows(2).rev() {
            let [before, place] = pair else { continue };
            if before.get().0 <= time {
                place.set((time, order << CPU_BITS | u64::from(cpu)));
                break;
            }
            place.set(before.get());
        }
        true
    }

    /// Moves all to the beginning; `false` if they are there.
    #[cold]
    #[inline(never)]
    fn move_back(&mut self) -> bool {
        if self.first == 1 {
            return false;
        }
        self.ends.copy_within(self.first..=self.last, 1);
        self.last -= self.first - 1;
        self.first = 1;
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
        debug_assert_ne!(self.first, self.last, "nothing ends");
        let (_, which) = std::mem::replace(&mut self.ends[self.first % PLACES], FIRST);
        self.first += 1;
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
