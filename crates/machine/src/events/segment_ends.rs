//! A short sorted queue for the ends of segments in the near future: most events are such, and few are pending at
//! once.

use std::cell::Cell;

use napkin_core::{NEVER, Ns};

/// Capacity for ends other than the next one.
const CAPACITY: usize = 256;

/// Bits of the CPU's number, below the order in the second word of the key.
const CPU_BITS: u32 = 16;

/// The time, and the order with the CPU below it.
type End = (Ns, u64);

/// Sorts after all others.
const SENTINEL: End = (NEVER, u64::MAX);

/// A short queue in order of time, and of scheduling where times are equal.
#[derive(Debug)]
pub(crate) struct SegmentEnds {
    next: End,
    /// The ends after `next` in descending order, so that the soonest is last; entry 0 is `SENTINEL`.
    later: [End; CAPACITY],
    /// Number of ends including `next`, which is also the length of `later` with its sentinel.
    len: usize,
}

impl SegmentEnds {
    pub(crate) fn new() -> Self {
        SegmentEnds { next: SENTINEL, later: [SENTINEL; CAPACITY], len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Inserts an end. Returns `false` if the queue is full. `order` must rise from call to call.
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
        // Shift the sooner ends; the sentinel ends the search.
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

    /// Returns time and order of the next end; [`NEVER`] as the time if there is none.
    #[inline]
    pub(crate) fn next(&self) -> (Ns, u64) {
        (self.next.0, self.next.1 >> CPU_BITS)
    }

    /// Removes the next end, of which there must be one. Returns its CPU.
    #[inline]
    pub(crate) fn pop(&mut self) -> u16 {
        debug_assert_ne!(self.len, 0, "nothing ends");
        let cpu = self.next.1 as u16;
        self.len -= 1;
        self.next = self.later[self.len % CAPACITY];
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
        let mut ends = SegmentEnds::new();
        let mut sorted = Vec::new();
        for order in 0..20_000 {
            let time = rng.below(40);
            let cpu = rng.below(1 << CPU_BITS) as u16;
            if ends.push(time, order, cpu) {
                sorted.push((time, order, cpu));
                sorted.sort_unstable();
            } else {
                assert_eq!(sorted.len(), CAPACITY);
            }
            for _ in 0..rng.below(3).min(sorted.len() as u64) {
                let (time, order, cpu) = sorted.remove(0);
                assert_eq!((ends.next(), ends.pop()), ((time, order), cpu));
            }
            assert_eq!(ends.len(), sorted.len());
        }
        sorted.iter().for_each(|it| assert_eq!(ends.pop(), it.2));
        assert_eq!(ends.next().0, NEVER);
    }
}
