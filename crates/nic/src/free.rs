//! The numbers of free buffers: a stack that any thread takes from and puts back to, several at a time, and where nobody
//! waits for another.
//!
//! A linked list in two arrays, as Treiber's: the head holds the number on top, and each number the one
//! below it. Taking or putting back any number of them is one exchange of the head, which fails only where
//! somebody else's has succeeded; a real-time thread that has preempted another one in the middle of either therefore
//! never spins for it. The head also counts its exchanges, so that one who has read it, been preempted for long and
//! finds the same number on top again notices what happened meanwhile (four thousand million exchanges
//! would have to fall in between).
//!
//! What was put back last is taken first: its bytes are still in the cache.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::sync::AtomicU64;

/// No number: the end of the list.
const NONE: u32 = u32::MAX;

/// Two halves of a word, the low one first.
fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

fn word(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// A stack of numbers.
#[derive(Debug)]
pub(crate) struct FreeList {
    /// The number on top, and how many exchanges there were.
    head: AtomicU64,
    /// For each number that is in the stack, the one below it, and how many there are with it on top.
    below: Box<[AtomicU64]>,
}

impl FreeList {
    /// All numbers below `count`, 0 on top. `count` is at most [`u32::MAX`].
    pub(crate) fn new(count: usize) -> FreeList {
        let last = count as u32;
        let next = |number: u32| if number + 1 < last { number + 1 } else { NONE };
        let below = (0..last).map(|it| AtomicU64::new(word(next(it), last - it))).collect();
        FreeList { head: AtomicU64::new(word(if last > 0 { 0 } else { NONE }, 0)), below }
    }

    /// How many there are. Others take and put back at the same time, so this is a reading.
    pub(crate) fn len(&self) -> usize {
        match halves(self.head.load(Acquire)) {
            (NONE, _) => 0,
            (top, _) => halves(self.below[top as usize].load(Relaxed)).1 as usize,
        }
    }

    /// Takes one number; `None` if all are taken.
    #[inline]
    pub(crate) fn take(&self) -> Option<u32> {
        let mut one = [0];
        (self.take_many(&mut one) == 1).then_some(one[0])
    }

    /// Takes as many as there are and `into` has room for.
    #[inline]
    pub(crate) fn take_many(&self, into: &mut [u32]) -> usize {
        let mut head = self.head.load(Acquire);
        loop {
            let (mut top, changes) = halves(head);
            let mut taken = 0;
            // What others change below the top meanwhile may be read here, of whatever time; but then the head
            // has changed, too, and the exchange fails.
            while taken < into.len() && top != NONE {
                into[taken] = top;
                taken += 1;
                top = halves(self.below[top as usize].load(Relaxed)).0;
            }
            if taken == 0 {
                return 0;
            }
            let then = word(top, changes.wrapping_add(1));
            match self.head.compare_exchange_weak(head, then, AcqRel, Acquire) {
                Ok(_) => return taken,
                Err(now) => head = now,
            }
        }
    }

    /// Puts one back that was taken.
    #[inline]
    pub(crate) fn put_back(&self, number: u32) {
        self.put_back_many(&[number]);
    }

    /// Puts back several that were taken; the first of them is taken first again. Nothing here is touched any
    /// more once they can be seen.
    #[inline]
    pub(crate) fn put_back_many(&self, numbers: &[u32]) {
        let Some(&first) = numbers.first() else { return };
        let mut head = self.head.load(Acquire);
        loop {
            let (top, changes) = halves(head);
            let (mut top, mut count) = match top {
                NONE => (NONE, 0),
                top => (top, halves(self.below[top as usize].load(Relaxed)).1),
            };
            for &number in numbers.iter().rev() {
                count = count.wrapping_add(1);
                self.below[number as usize].store(word(top, count), Relaxed);
                top = number;
            }
            let then = word(first, changes.wrapping_add(1));
            match self.head.compare_exchange_weak(head, then, AcqRel, Acquire) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn none_are_there_and_none_is_taken() {
        let list = FreeList::new(0);
        assert_eq!((list.len(), list.take()), (0, None));
    }

    proptest! {
        /// Against a vector whose end is the top.
        #[test]
        fn what_was_put_back_last_is_taken_first(steps in prop::collection::vec(0..9usize, 1..60)) {
            let list = FreeList::new(12);
            let (mut model, mut out) = ((0..12).rev().collect::<Vec<u32>>(), Vec::new());
            for step in steps {
                if step < 5 {
                    let mut into = [0; 4];
                    let taken = list.take_many(&mut into[..step]);
                    prop_assert_eq!(taken, step.min(model.len()));
                    for number in &into[..taken] {
                        prop_assert_eq!(Some(*number), model.pop());
                    }
                    out.extend_from_slice(&into[..taken]);
                } else {
                    let back = out.split_off(out.len().saturating_sub(step - 4));
                    list.put_back_many(&back);
                    model.extend(back.iter().rev());
                }
                prop_assert_eq!(list.len(), model.len());
            }
        }
    }
}
