//! loom's atomics in the place of the processor's (`src/sync.rs`).
//!
//! loom 0.7 remembers only the last access of an atomic, so a thread that loads before it swaps hides other
//! threads' loads from the search. So each access first writes, relaxed, to a companion atomic, which makes loom
//! try every order. The access itself follows with its own ordering, and loads may still return stale values.

use std::collections::VecDeque;

use loom::sync::{Condvar, Mutex, MutexGuard};

pub(crate) use loom::sync::atomic::{AtomicUsize, Ordering, fence};

macro_rules! word {
    ($name:ident, $atomic:ty, $int:ty) => {
        #[derive(Debug)]
        pub(crate) struct $name {
            value: $atomic,
            turn: AtomicUsize,
            pub(crate) bucket: Bucket,
        }

        impl $name {
            pub(crate) fn new(value: $int) -> Self {
                let bucket = Bucket::default();
                $name { value: <$atomic>::new(value), turn: AtomicUsize::new(0), bucket }
            }

            fn turn(&self) -> &$atomic {
                self.turn.fetch_add(1, Ordering::Relaxed);
                &self.value
            }

            pub(crate) fn load(&self, order: Ordering) -> $int {
                self.turn().load(order)
            }

            pub(crate) fn store(&self, value: $int, order: Ordering) {
                self.turn().store(value, order);
            }

            pub(crate) fn swap(&self, value: $int, order: Ordering) -> $int {
                self.turn().swap(value, order)
            }

            pub(crate) fn compare_exchange(
                &self,
                old: $int,
                new: $int,
                order: Ordering,
                failed: Ordering,
            ) -> Result<$int, $int> {
                self.turn().compare_exchange(old, new, order, failed)
            }
        }

        impl Default for $name {
            fn default() -> Self {
                $name::new(Default::default())
            }
        }
    };
}

word!(AtomicBool, loom::sync::atomic::AtomicBool, bool);
word!(AtomicU32, loom::sync::atomic::AtomicU32, u32);
word!(AtomicU64, loom::sync::atomic::AtomicU64, u64);

/// The threads that wait for a word, as in the kernel's table of futexes.
#[derive(Debug, Default)]
pub(crate) struct Bucket {
    pub(crate) lock: Mutex<()>,
    pub(crate) sleepers: Condvar,
}

/// A locked list in the place of crossbeam's queue, which loom cannot see into; with the same
/// guarantee: what happened before a push happened before its pop.
#[derive(Debug)]
pub(crate) struct ArrayQueue<T> {
    items: Mutex<VecDeque<T>>,
    capacity: usize,
}

impl<T> ArrayQueue<T> {
    pub(crate) fn new(capacity: usize) -> Self {
        ArrayQueue { items: Mutex::new(VecDeque::new()), capacity }
    }

    fn items(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.items.lock().expect("no model panics with the lock")
    }

    pub(crate) fn push(&self, item: T) -> Result<(), T> {
        let mut items = self.items();
        if items.len() == self.capacity {
            return Err(item);
        }
        items.push_back(item);
        Ok(())
    }

    pub(crate) fn pop(&self) -> Option<T> {
        self.items().pop_front()
    }

    pub(crate) fn len(&self) -> usize {
        self.items().len()
    }
}
