//! A bounded multi-producer, single-consumer ring in memory, in which no thread waits for another.
//!
//! A real-time consumer may have preempted a producer on its own CPU in the middle of an insertion. A producer
//! therefore reserves a slot by its number and marks it once the item is in it; the consumer stops at the first
//! unmarked slot; and the producer that marks a slot is responsible for waking the consumer.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use crate::Frame;
use crate::sync::{AtomicBool, AtomicUsize, Mutex};

/// One slot. Its lock is never contended: the mark decides between producer and consumer.
#[derive(Debug)]
struct Slot<T> {
    marked: AtomicBool,
    item: Mutex<Option<T>>,
}

/// A ring of frames, or of other items. The number of slots is `size` rounded up to a power of two.
#[derive(Debug)]
pub(crate) struct MpscRing<T = Frame> {
    slots: Box<[Slot<T>]>,
    /// Free-running numbers of the next slot to fill and the next to empty. They wrap with the integer, which a
    /// power-of-two number of slots divides.
    tail: AtomicUsize,
    head: AtomicUsize,
    /// The most items it holds.
    size: usize,
}

impl<T> MpscRing<T> {
    /// Makes an empty ring for `size` items.
    pub(crate) fn new(size: usize) -> MpscRing<T> {
        let slot = |_| Slot { marked: AtomicBool::new(false), item: Mutex::new(None) };
        MpscRing {
            slots: (0..size.next_power_of_two()).map(slot).collect(),
            tail: AtomicUsize::new(0),
            head: AtomicUsize::new(0),
            size,
        }
    }

    fn slot(&self, number: usize) -> &Slot<T> {
        &self.slots[number & (self.slots.len() - 1)]
    }

    /// Returns the number of the next slot to fill, or `None` if the ring is full.
    pub(crate) fn room(&self) -> Option<usize> {
        loop {
            let tail = self.tail.load(Acquire);
            if tail.wrapping_sub(self.head.load(Acquire)) < self.size {
                return Some(tail);
            }
            // If other producers moved the tail meanwhile, the comparison with the head is meaningless: try again.
            if self.tail.load(Acquire) == tail {
                return None;
            }
        }
    }

    /// Inserts an item, from any thread; `false` if the ring is full. The store of the mark is sequentially
    /// consistent.
    pub(crate) fn push(&self, frame: T) -> bool {
        let tail = loop {
            let Some(tail) = self.room() else { return false };
            let next = tail.wrapping_add(1);
            if self.tail.compare_exchange_weak(tail, next, AcqRel, Relaxed).is_ok() {
                break tail;
            }
        };
        let slot = self.slot(tail);
        *slot.item.lock().unwrap_or_else(PoisonError::into_inner) = Some(frame);
        slot.marked.store(true, SeqCst);
        true
    }

    /// Removes the oldest item. For the single consumer.
    pub(crate) fn pop(&self) -> Option<T> {
        self.pop_if(|_| true)
    }

    /// As [`pop`](MpscRing::pop), if the oldest item is `wanted`; otherwise it stays.
    pub(crate) fn pop_if(&self, wanted: impl FnOnce(&T) -> bool) -> Option<T> {
        let head = self.head.load(Relaxed);
        let slot = self.slot(head);
        if !slot.marked.load(Acquire) {
            return None;
        }
        let frame = {
            let mut item = slot.item.lock().unwrap_or_else(PoisonError::into_inner);
            if !item.as_ref().is_none_or(wanted) {
                return None;
            }
            item.take()
        };
        slot.marked.store(false, Release);
        self.head.store(head.wrapping_add(1), Release);
        frame
    }

    /// Whether [`pop`](MpscRing::pop) would return an item.
    pub(crate) fn ready(&self) -> bool {
        self.slot(self.head.load(Relaxed)).marked.load(SeqCst)
    }

    /// The number of items, including those being inserted.
    pub(crate) fn len(&self) -> usize {
        self.tail.load(Acquire).wrapping_sub(self.head.load(Acquire))
    }

    /// The most items it holds.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Reserves a slot without filling it, as a producer does that is preempted there.
    #[cfg(test)]
    pub(crate) fn reserve_slot(&self) -> usize {
        self.tail.fetch_add(1, AcqRel)
    }

    /// Completes the insertion that [`reserve_slot`](MpscRing::reserve_slot) began.
    #[cfg(test)]
    pub(crate) fn fill_slot(&self, number: usize, frame: T) {
        let slot = self.slot(number);
        *slot.item.lock().unwrap_or_else(PoisonError::into_inner) = Some(frame);
        slot.marked.store(true, SeqCst);
    }
}
