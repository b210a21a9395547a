//! The ends of what the CPUs are at, as far as they are near: most of the events, and few at a time.

use std::cell::Cell;

use napkin_core::{NEVER, Ns};

/// Ends that there is room for behind the next one.
const PLACES: usize = 256;

/// Bits of a CPU's number, below the order in which an end was asked for.
const CPU_BITS: u32 = 16;

/// A time, and below it the order and the CPU.
type End = (Ns, u64);

/// After all others.
const NEVER_ENDS: End = (NEVER, u64::MAX);

/// A short queue in order of time and, at one time, of asking.
#[derive(Debug)]
pub(crate) struct Near {
    next: End,
    /// Those behind it: the soonest last, and first of all the one that never comes.
    later: [End; PLACES],
    /// How many of them there are, and how many ends in all but that one.
    len: usize,
}

impl Near {
    pub(crate) fn new() -> Self {
        Near { next: NEVER_ENDS, later: [NEVER_ENDS; PLACES], len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Puts an end in, unless there is no room: `false`. `order` rises from one to the next.
    #[inline]
    pub(crate) fn push(&mut self, time: Ns, order: u64, cpu: u16) -> bool {
        let Some(later) = self.later.get_mut(..=self.len) else { return false };
        let end = (time, order << CPU_BITS | u64::from(cpu));
        if time < self.next.0 {
            later[self.len] = std::mem::replace(&mut self.next, end);
            self.len += 1;
            return true;
        }
        self.len += 1;
        // Those that are sooner make room; the one that never comes ends the search.
        for pair in Cell::from_mut(later).as_slice_of_cells().windows(2).rev() {
            let [later, place] = pair else { continue };
            if later.get().0 > time {
                place.set(end);
                break;
            }
            place.set(later.get());
        }
        true
    }

    /// Time and order of the next end; never, if there is none.
    #[inline]
    pub(crate) fn next(&self) -> (Ns, u64) {
        (self.next.0, self.next.1 >> CPU_BITS)
    }

    /// Takes the next end out, which is there: the CPU.
    #[inline]
    pub(crate) fn pop(&mut self) -> u16 {
        debug_assert_ne!(self.len, 0, "nothing ends");
        let cpu = self.next.1 as u16;
        self.len -= 1;
        self.next = self.later[self.len % PLACES];
        cpu
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
                assert_eq!(sorted.len(), PLACES);
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
