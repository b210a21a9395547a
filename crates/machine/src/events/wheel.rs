//! A priority queue for times that are mostly near: a wheel of slots for the present turn, unsorted lists for the
//! turns after it, and a heap for later times.
//!
//! The times taken out never decrease, since virtual time does not run backwards, so the wheel turns in one
//! direction. Insertion and removal touch one slot of a few entries, where a binary heap of the thousands of timers
//! that clients have would touch a dozen levels. Entries of equal time leave in order of insertion.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use napkin_core::Ns;

/// Nanoseconds per slot, as a power of two.
const SLOT_BITS: u32 = 8;
const SLOTS: usize = 4096;
const WORDS: usize = SLOTS / 64;
/// Number of turns with a list of their own: about a quarter of a second.
const LATER_TURNS: usize = 256;

type Entry<T> = (Ns, u64, T);

/// An entry of the heap. The comparison is reversed, since the heap yields its greatest element.
#[derive(Debug)]
struct Far<T>(Entry<T>);

impl<T> Far<T> {
    /// Returns the sort key: time, and below it the order.
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

/// The end of a list of nodes.
const NONE: u32 = u32::MAX;

/// A node of a slot's, a turn's or the free list.
#[derive(Debug)]
struct Node<T> {
    entry: Entry<T>,
    next: u32,
}

/// Events by time.
#[derive(Debug)]
pub(crate) struct Wheel<T> {
    /// The nodes of all lists: slots, turns, and the free list. Entries in the heap are not here.
    nodes: Vec<Node<T>>,
    free: u32,
    /// Head of each slot's list, sorted in ascending order.
    slots: Box<[u32; SLOTS]>,
    /// Bitmap of the slots in use, and of its words that are not 0.
    in_use: [u64; WORDS],
    words_in_use: u64,
    /// Number of the current slot (not reduced modulo `SLOTS`). The slots hold all entries from here to the end of
    /// this turn, which is the next multiple of `SLOTS`.
    current_slot: u64,
    /// Index of the first slot in use; `None` only if the whole queue is empty.
    first: Option<usize>,
    /// Unsorted lists of entries for the next turns, at the turn's number modulo `LATER_TURNS`.
    later_turns: [u32; LATER_TURNS],
    far: BinaryHeap<Far<T>>,
    len: usize,
}

/// Returns the number of the turn that a time belongs to.
fn turn(time: Ns) -> u64 {
    (time >> SLOT_BITS) / SLOTS as u64
}

impl<T: Copy> Wheel<T> {
    pub(crate) fn new() -> Self {
        Wheel {
            nodes: Vec::new(),
            free: NONE,
            slots: Box::new([NONE; SLOTS]),
            in_use: [0; WORDS],
            words_in_use: 0,
            current_slot: 0,
            first: None,
            later_turns: [NONE; LATER_TURNS],
            far: BinaryHeap::new(),
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Inserts an entry; `order` must rise from call to call. A time before the last one taken out counts as that
    /// one's slot.
    #[inline]
    pub(crate) fn push(&mut self, time: Ns, order: u64, what: T) {
        self.len += 1;
        let number = (time >> SLOT_BITS).max(self.current_slot);
        if number / SLOTS as u64 == self.current_slot / SLOTS as u64 {
            let node = self.allocate((time, order, what));
            self.link_slot(number, node);
        } else {
            self.push_later((time, order, what));
        }
    }

    /// Allocates a node for an entry, in no list yet. Returns its index.
    #[inline]
    fn allocate(&mut self, entry: Entry<T>) -> u32 {
        let place = self.free;
        match self.nodes.get_mut(place as usize) {
            Some(node) => {
                self.free = node.next;
                node.entry = entry;
                place
            }
            None => {
                self.nodes.push(Node { entry, next: NONE });
                self.nodes.len() as u32 - 1
            }
        }
    }

    /// Inserts an entry of a later turn.
    fn push_later(&mut self, entry: Entry<T>) {
        let turn = turn(entry.0);
        if turn - self.current_slot / (SLOTS as u64) < LATER_TURNS as u64 {
            let node = self.allocate(entry);
            self.link_turn(turn, node);
        } else {
            self.far.push(Far(entry));
        }
        if self.first.is_none() {
            self.refill();
        }
    }

    /// Links a node into the list of its turn.
    fn link_turn(&mut self, turn: u64, node: u32) {
        let list = &mut self.later_turns[turn as usize % LATER_TURNS];
        self.nodes[node as usize].next = std::mem::replace(list, node);
    }

    /// Links a node into its slot, in order.
    #[inline]
    fn link_slot(&mut self, number: u64, node: u32) {
        let place = number as usize % SLOTS;
        let (time, order, _) = self.nodes[node as usize].entry;
        let (mut before, mut after) = (NONE, self.slots[place]);
        while let Some(other) = self.nodes.get(after as usize)
            && (other.entry.0 < time || other.entry.0 == time && other.entry.1 < order)
        {
            (before, after) = (after, other.next);
        }
        self.nodes[node as usize].next = after;
        if let Some(before) = self.nodes.get_mut(before as usize) {
            before.next = node;
            return;
        }
        self.slots[place] = node;
        self.in_use[place / 64] |= 1 << (place % 64);
        self.words_in_use |= 1 << (place / 64);
        let current_slot = self.current_slot as usize;
        let ahead = |place: usize| place.wrapping_sub(current_slot) % SLOTS;
        if self.first.is_none_or(|first| ahead(place) < ahead(first)) {
            self.first = Some(place);
        }
    }

    /// Returns the entry that is taken out next.
    #[inline]
    pub(crate) fn next(&self) -> Option<&Entry<T>> {
        let node = self.slots[self.first? % SLOTS];
        self.nodes.get(node as usize).map(|it| &it.entry)
    }

    /// Takes the next entry out.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Entry<T>> {
        let place = self.first? % SLOTS;
        let head = self.slots[place];
        let node = self.nodes.get_mut(head as usize)?;
        let entry = node.entry;
        let next = std::mem::replace(&mut node.next, self.free);
        self.free = head;
        self.slots[place] = next;
        self.len -= 1;
        self.current_slot = self.current_slot.max(entry.0 >> SLOT_BITS);
        if next == NONE {
            self.in_use[place / 64] &= !(1 << (place % 64));
            if self.in_use[place / 64] == 0 {
                self.words_in_use &= !(1 << (place / 64));
            }
            self.first = self.next_used_slot(place);
            if self.first.is_none() && self.len > 0 {
                self.refill();
            }
        }
        Some(entry)
    }

    /// Refills the empty slots: advances to the earliest turn that has an entry.
    #[cold]
    fn refill(&mut self) {
        let now = self.current_slot / SLOTS as u64;
        let nearest = (now + 1..now + LATER_TURNS as u64)
            .find(|&turn| self.later_turns[turn as usize % LATER_TURNS] != NONE);
        let Some(next) = nearest.or(self.far.peek().map(|Far(it)| turn(it.0))) else { return };
        self.current_slot = next * SLOTS as u64;
        while let Some(Far(entry)) = self.far.peek()
            && turn(entry.0) - next < LATER_TURNS as u64
        {
            let entry = *entry;
            self.far.pop();
            let node = self.allocate(entry);
            self.link_turn(turn(entry.0), node);
        }
        let mut node = std::mem::replace(&mut self.later_turns[next as usize % LATER_TURNS], NONE);
        while let Some(it) = self.nodes.get(node as usize) {
            let (time, after) = (it.entry.0, it.next);
            self.link_slot(time >> SLOT_BITS, node);
            node = after;
        }
    }

    /// Returns the index of the first slot in use, searching from `place` and wrapping round.
    fn next_used_slot(&self, place: usize) -> Option<usize> {
        if self.words_in_use == 0 {
            return None;
        }
        let (word, bit) = (place / 64, place % 64);
        let in_word = self.in_use[word] & (u64::MAX << bit);
        if in_word != 0 {
            return Some(word * 64 + in_word.trailing_zeros() as usize);
        }
        // The words after it, then those from the beginning, and last the lower bits of its own word.
        let later = self.words_in_use & (u64::MAX << word) & !(1 << word);
        let words = if later != 0 { later } else { self.words_in_use };
        let word = words.trailing_zeros() as usize;
        Some(word * 64 + self.in_use[word].trailing_zeros() as usize)
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
                    let spans = [1, 300, 5_000, 900_000, 1_100_000, 40_000_000, 900_000_000];
                    let span = spans[rng.below(7) as usize];
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
