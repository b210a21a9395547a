//! A priority queue for times that mostly lie near: a wheel of slots, and a heap for what is far.
//!
//! What is taken out is never earlier than what was taken out before (virtual time does not run
//! backwards), so the wheel turns in one direction. Putting in and taking out touch one slot of a
//! few entries, where a binary heap of the thousands of timers that clients have would touch a
//! dozen levels. Entries of one time leave in the order in which they came.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use napkin_core::Ns;

/// Nanoseconds a slot, as a power of two.
const SLOT_BITS: u32 = 8;
const SLOTS: usize = 4096;
const WORDS: usize = SLOTS / 64;

type Entry<T> = (Ns, u64, T);

/// An entry that is far; the soonest is the greatest, as the heap wants it.
#[derive(Debug)]
struct Far<T>(Entry<T>);

impl<T> Far<T> {
    /// Time, and below it the order.
    fn key(&self) -> u128 {
        u128::from(self.0.0) << 64 | u128::from(self.0.1)
    }
}

impl<T> PartialEq for Far<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<T> Eq for Far<T> {}

impl<T> PartialOrd for Far<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Far<T> {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

/// Events by time: the near ones in slots, the others in a heap.
#[derive(Debug)]
pub(crate) struct Wheel<T> {
    /// Each in falling order, so that the next is the last.
    slots: Vec<Vec<Entry<T>>>,
    /// Which slots hold anything; and which words of these bits are not 0.
    full: [u64; WORDS],
    full_words: u64,
    /// The number of the slot (not its place) from which on the wheel holds everything, to
    /// `SLOTS` later.
    turned: u64,
    /// The place of the first slot that holds anything.
    first: Option<usize>,
    far: BinaryHeap<Far<T>>,
    len: usize,
}

impl<T: Copy> Wheel<T> {
    pub(crate) fn new() -> Self {
        Wheel {
            slots: (0..SLOTS).map(|_| Vec::new()).collect(),
            full: [0; WORDS],
            full_words: 0,
            turned: 0,
            first: None,
            far: BinaryHeap::new(),
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Puts an entry in; `order` rises from one to the next. A time before the last one taken out
    /// is as good as that one.
    #[inline]
    pub(crate) fn push(&mut self, time: Ns, order: u64, what: T) {
        self.len += 1;
        let number = (time >> SLOT_BITS).max(self.turned);
        if number - self.turned >= SLOTS as u64 {
            self.far.push(Far((time, order, what)));
            return;
        }
        self.put(number, (time, order, what));
    }

    #[inline]
    fn put(&mut self, number: u64, entry: Entry<T>) {
        let place = number as usize % SLOTS;
        let slot = &mut self.slots[place];
        // Mostly later than all that is there: then it belongs at the front.
        let at =
            slot.iter().rposition(|it| (it.0, it.1) > (entry.0, entry.1)).map_or(0, |it| it + 1);
        slot.insert(at, entry);
        self.full[place / 64] |= 1 << (place % 64);
        self.full_words |= 1 << (place / 64);
        let turned = self.turned as usize;
        let ahead = |place: usize| place.wrapping_sub(turned) % SLOTS;
        if self.first.is_none_or(|first| ahead(place) < ahead(first)) {
            self.first = Some(place);
        }
    }

    /// The next entry.
    #[inline]
    pub(crate) fn next(&self) -> Option<&Entry<T>> {
        match self.first {
            Some(first) => self.slots[first].last(),
            None => self.far.peek().map(|Far(it)| it),
        }
    }

    /// Takes the next entry out: its time, its order, and what it is.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Entry<T>> {
        let Some(place) = self.first else { return self.pop_far() };
        let entry = self.slots[place].pop()?;
        self.len -= 1;
        self.turn_to(entry.0 >> SLOT_BITS);
        if self.slots[place].is_empty() {
            self.full[place / 64] &= !(1 << (place % 64));
            if self.full[place / 64] == 0 {
                self.full_words &= !(1 << (place / 64));
            }
            self.first = self.find(place);
        }
        Some(entry)
    }

    /// The wheel is empty: what was far is next.
    fn pop_far(&mut self) -> Option<Entry<T>> {
        let Far(entry) = self.far.pop()?;
        self.len -= 1;
        self.turn_to(entry.0 >> SLOT_BITS);
        Some(entry)
    }

    /// The wheel turns: what was far and no longer is comes onto it.
    #[inline]
    fn turn_to(&mut self, number: u64) {
        if number <= self.turned {
            return;
        }
        self.turned = number;
        while let Some(Far(entry)) = self.far.peek() {
            let number = entry.0 >> SLOT_BITS;
            if number - self.turned >= SLOTS as u64 {
                return;
            }
            let entry = *entry;
            self.far.pop();
            self.put(number, entry);
        }
    }

    /// The place of the first slot from `place` on, going round, that holds anything.
    fn find(&self, place: usize) -> Option<usize> {
        if self.full_words == 0 {
            return None;
        }
        let (word, bit) = (place / 64, place % 64);
        let here = self.full[word] & (u64::MAX << bit);
        if here != 0 {
            return Some(word * 64 + here.trailing_zeros() as usize);
        }
        // The words after it, then from the beginning, at last its own lower bits.
        let later = self.full_words & (u64::MAX << word) & !(1 << word);
        let words = if later != 0 { later } else { self.full_words };
        let word = words.trailing_zeros() as usize;
        Some(word * 64 + self.full[word].trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;

    use super::*;
    use napkin_traffic::Rng;

    #[test]
    fn it_gives_what_a_heap_gives() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let mut wheel = Wheel::new();
            let mut heap = BinaryHeap::new();
            let (mut now, mut order) = (0, 0u64);
            for _ in 0..3_000 {
                if rng.below(5) < 3 {
                    let spans = [1, 300, 5_000, 900_000, 1_100_000, 40_000_000];
                    let span = spans[rng.below(6) as usize];
                    let time = now + rng.below(span);
                    order += 1;
                    wheel.push(time, order, order as u32);
                    heap.push(Reverse((time, order, order as u32)));
                } else {
                    assert_eq!(wheel.next(), heap.peek().map(|Reverse(it)| it));
                    let entry = wheel.pop();
                    assert_eq!(entry, heap.pop().map(|Reverse(it)| it), "seed {seed}");
                    now = entry.map_or(now, |it| it.0);
                }
                assert_eq!(wheel.len(), heap.len());
            }
            while let Some(Reverse(entry)) = heap.pop() {
                assert_eq!(wheel.pop(), Some(entry), "seed {seed}, at the end");
            }
            assert_eq!((wheel.pop(), wheel.next()), (None, None));
        }
    }
}
