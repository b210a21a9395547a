//! A ring in memory that many fill and one empties, with frames or anything else, and nobody waits for another.
//!
//! A real-time thread that empties it may have preempted one that fills it on its own CPU, in the middle. So
//! who fills takes a place by its number and marks it when the frame is there, and who empties ends at the
//! first place without a mark; whoever marks one then sees to it that somebody looks.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use crate::Frame;
use crate::sync::{AtomicBool, AtomicUsize, Mutex};

/// A place for one. The lock is never waited for: the mark says whose turn it is.
#[derive(Debug)]
struct Place<T> {
    marked: AtomicBool,
    held: Mutex<Option<T>>,
}

/// A ring, of frames if nothing else is said; a power of two of places.
#[derive(Debug)]
pub(crate) struct Places<T = Frame> {
    places: Box<[Place<T>]>,
    /// Numbers of the next place to be filled and to be emptied, without an end: they wrap with the integer,
    /// of which the number of places is a power-of-two part.
    tail: AtomicUsize,
    head: AtomicUsize,
    /// How many it holds at most.
    size: usize,
}

impl<T> Places<T> {
    /// For `size` frames.
    pub(crate) fn new(size: usize) -> Places<T> {
        let place = |_| Place { marked: AtomicBool::new(false), held: Mutex::new(None) };
        Places {
            places: (0..size.next_power_of_two()).map(place).collect(),
            tail: AtomicUsize::new(0),
            head: AtomicUsize::new(0),
            size,
        }
    }

    fn place(&self, number: usize) -> &Place<T> {
        &self.places[number & (self.places.len() - 1)]
    }

    /// The number of the next place to be filled, unless it is full.
    pub(crate) fn room(&self) -> Option<usize> {
        loop {
            let tail = self.tail.load(Acquire);
            if tail.wrapping_sub(self.head.load(Acquire)) < self.size {
                return Some(tail);
            }
            // With a tail that others have moved meanwhile the head says nothing.
            if self.tail.load(Acquire) == tail {
                return None;
            }
        }
    }

    /// Puts a frame in, for any thread; `false` if there is no room. The mark is sequentially consistent.
    pub(crate) fn push(&self, frame: T) -> bool {
        let tail = loop {
            let Some(tail) = self.room() else { return false };
            let next = tail.wrapping_add(1);
            if self.tail.compare_exchange_weak(tail, next, AcqRel, Relaxed).is_ok() {
                break tail;
            }
        };
        let place = self.place(tail);
        *place.held.lock().unwrap_or_else(PoisonError::into_inner) = Some(frame);
        place.marked.store(true, SeqCst);
        true
    }

    /// Takes the oldest frame out, for the one who empties it.
    pub(crate) fn pop(&self) -> Option<T> {
        self.pop_if(|_| true)
    }

    /// As [`pop`](Places::pop), of a frame that is wanted; one that is not stays the oldest.
    pub(crate) fn pop_if(&self, wanted: impl FnOnce(&T) -> bool) -> Option<T> {
        let head = self.head.load(Relaxed);
        let place = self.place(head);
        if !place.marked.load(Acquire) {
            return None;
        }
        let frame = {
            let mut held = place.held.lock().unwrap_or_else(PoisonError::into_inner);
            if !held.as_ref().is_none_or(wanted) {
                return None;
            }
            held.take()
        };
        place.marked.store(false, Release);
        self.head.store(head.wrapping_add(1), Release);
        frame
    }

    /// Whether [`pop`](Places::pop) would find a frame.
    pub(crate) fn ready(&self) -> bool {
        self.place(self.head.load(Relaxed)).marked.load(SeqCst)
    }

    /// Frames in it, those that are being put in included.
    pub(crate) fn len(&self) -> usize {
        self.tail.load(Acquire).wrapping_sub(self.head.load(Acquire))
    }

    /// How many it holds at most.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Takes a place as one does who is preempted before anything is in it.
    #[cfg(test)]
    pub(crate) fn hold_place(&self) -> usize {
        self.tail.fetch_add(1, AcqRel)
    }

    /// Goes on where [`hold_place`](Places::hold_place) was preempted.
    #[cfg(test)]
    pub(crate) fn fill_place(&self, number: usize, frame: T) {
        let place = self.place(number);
        *place.held.lock().unwrap_or_else(PoisonError::into_inner) = Some(frame);
        place.marked.store(true, SeqCst);
    }
}
