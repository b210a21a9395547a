//! The free list of a pool: a lock-free stack of buffer numbers, on which any thread takes and returns several at a
//! time.
//!
//! A Treiber stack in two arrays: the head holds the number on top, and each number the one below it. Taking or
//! returning any number of buffers is one compare-and-exchange of the head, which fails only where another thread's
//! has succeeded; a real-time thread that has preempted another one in the middle of either therefore never spins
//! for it. The head also counts its exchanges against the ABA problem: a thread that was preempted between its read
//! and its exchange, and finds the same number on top again, fails all the same, unless exactly 2^32 exchanges were
//! made in between.
//!
//! The buffer that was returned last is taken first: its bytes are still in the cache.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::sync::AtomicU64;

/// The end of the list.
const NONE: u32 = u32::MAX;

/// Splits a word into its halves, the low one first.
fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

fn word(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// A stack of buffer numbers.
#[derive(Debug)]
pub(crate) struct FreeList {
    /// Low half: the number on top. High half: the count of exchanges.
    head: AtomicU64,
    /// For each number in the stack: the one below it (low half), and the depth of the stack from it down (high
    /// half).
    below: Box<[AtomicU64]>,
}

impl FreeList {
    /// Makes a stack of all numbers below `count`, 0 on top. `count` is at most [`u32::MAX`].
    pub(crate) fn new(count: usize) -> FreeList {
        let last = count as u32;
        let next = |number: u32| if number + 1 < last { number + 1 } else { NONE };
        let below = (0..last).map(|it| AtomicU64::new(word(next(it), last - it))).collect();
        FreeList { head: AtomicU64::new(word(if last > 0 { 0 } else { NONE }, 0)), below }
    }

    /// How many numbers there are. Other threads take and return some at the same time, so the value may be stale.
    pub(crate) fn len(&self) -> usize {
        match halves(self.head.load(Acquire)) {
            (NONE, _) => 0,
            (top, _) => halves(self.below[top as usize].load(Relaxed)).1 as usize,
        }
    }

    /// Takes one number; `None` if the stack is empty.
    #[inline]
    pub(crate) fn take(&self) -> Option<u32> {
        let mut one = [0];
        (self.take_many(&mut one) == 1).then_some(one[0])
    }

    /// Takes as many as there are, at most as many as `into` has room for, and returns how many.
    #[inline]
    pub(crate) fn take_many(&self, into: &mut [u32]) -> usize {
        let mut head = self.head.load(Acquire);
        loop {
            let (mut top, changes) = halves(head);
            let mut taken = 0;
            // Other threads may change the links below the top meanwhile, so stale ones may be read here; but then
            // the head has changed, too, and the exchange fails.
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

    /// Returns one number that was taken.
    #[inline]
    pub(crate) fn put_back(&self, number: u32) {
        self.put_back_many(&[number]);
    }

    /// Returns several numbers that were taken; the first of them becomes the top. Does not touch the list's memory
    /// after the exchange that makes them visible.
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
        /// Compares the stack with a vector whose end is the top.
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
