//! Lists of scheduled instances, linked through the instances themselves.
//!
//! [`PollList`] takes tokens from any thread without a lock: an interrupt thread that preempted the lock's holder
//! on its own CPU would wait for ever. The reader takes the whole list in one step, so there is no ABA problem.
//! [`Chain`] is the reader's private first-in-first-out list. Neither allocates.

use crate::instance::Instance;
use crate::sync::{Ordering, Word32};

const END: u32 = u32::MAX;

/// A shared list: any context pushes, the reader takes everything.
#[derive(Debug)]
pub(crate) struct PollList(Word32);

impl PollList {
    pub(crate) fn new() -> Self {
        PollList(Word32::new(END))
    }

    /// Adds a token. The caller held the instance's claim until now.
    #[inline]
    pub(crate) fn push<Q>(&self, instance: &Instance<Q>) {
        let new = u32::from(instance.id.0);
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            instance.next.store(head, Ordering::Relaxed);
            match self.0.compare_exchange(head, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) == END
    }

    /// Takes everything, in at most as many steps as there are instances: the oldest token, and the others in the
    /// order in which they were pushed. The common case is a single one, which needs no relinking.
    #[inline]
    pub(crate) fn take<'a, Q>(
        &self,
        instances: &'a [Instance<Q>],
    ) -> Option<(&'a Instance<Q>, Chain)> {
        let newest = self.0.swap(END, Ordering::Acquire);
        let mut others = Chain { head: END, tail: newest };
        let mut place = newest;
        if place == END {
            return None;
        }
        loop {
            let instance = &instances[place as usize];
            let older = instance.next.load(Ordering::Relaxed);
            if older == END {
                return Some((instance, others));
            }
            instance.next.store(others.head, Ordering::Relaxed);
            others.head = place;
            place = older;
        }
    }
}

/// A private list of tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chain {
    head: u32,
    /// Meaningless while the list is empty.
    tail: u32,
}

impl Chain {
    pub(crate) const fn new() -> Self {
        Chain { head: END, tail: END }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head == END
    }

    #[inline]
    pub(crate) fn push<Q>(&mut self, instances: &[Instance<Q>], instance: &Instance<Q>) {
        let id = u32::from(instance.id.0);
        instance.next.store(END, Ordering::Relaxed);
        if self.head == END {
            self.head = id;
        } else {
            instances[self.tail as usize].next.store(id, Ordering::Relaxed);
        }
        self.tail = id;
    }

    #[inline]
    pub(crate) fn pop<'a, Q>(&mut self, instances: &'a [Instance<Q>]) -> Option<&'a Instance<Q>> {
        if self.head == END {
            return None;
        }
        let instance = &instances[self.head as usize];
        self.head = instance.next.load(Ordering::Relaxed);
        Some(instance)
    }

    #[inline]
    pub(crate) fn append<Q>(&mut self, instances: &[Instance<Q>], other: Chain) {
        if other.head == END {
            return;
        }
        if self.head == END {
            *self = other;
        } else {
            instances[self.tail as usize].next.store(other.head, Ordering::Relaxed);
            self.tail = other.tail;
        }
    }
}
