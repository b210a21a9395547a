//! The atomics and the pool's queue, from `core` and crossbeam or, under `--cfg loom`, from loom, so that loom
//! checks the code that ships.
//!
//! Three things differ from `core`. Under loom, a word on which contexts race ([`Word32`], [`Word64`]) announces
//! each access twice; see there. Counts ([`Count`]) are never loom's: they decide nothing, and every access to a
//! loom atomic multiplies the schedules to explore. The pool's queue is crossbeam's, which loom cannot see into;
//! under loom a locked list stands in for it, with the same guarantee: what happened before a push happened before
//! its pop.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// A counter or a setting that no race depends on.
pub(crate) use core::sync::atomic::AtomicU64 as Count;

/// A word on which several contexts race.
#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU32 as Word32, AtomicU64 as Word64};
#[cfg(loom)]
pub(crate) use word::{Word32, Word64};

#[cfg(loom)]
mod word {
    use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    /// loom 0.7 remembers only the last access of an atomic, so a thread that loads before it swaps hides other
    /// threads' loads from the search: of "A loads; B loads and swaps" loom never tries the other order. So each
    /// access first writes, relaxed, to a companion atomic, which makes loom try every order. The access itself
    /// follows with its own ordering, and loads may still return stale values.
    macro_rules! word {
        ($name:ident, $atomic:ident, $int:ty) => {
            #[derive(Debug)]
            pub(crate) struct $name {
                value: $atomic,
                turn: AtomicU32,
            }

            #[allow(dead_code, reason = "each word uses what it needs")]
            impl $name {
                pub(crate) fn new(value: $int) -> Self {
                    $name { value: $atomic::new(value), turn: AtomicU32::new(0) }
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

                pub(crate) fn fetch_and(&self, value: $int, order: Ordering) -> $int {
                    self.turn().fetch_and(value, order)
                }

                pub(crate) fn fetch_or(&self, value: $int, order: Ordering) -> $int {
                    self.turn().fetch_or(value, order)
                }

                pub(crate) fn fetch_max(&self, value: $int, order: Ordering) -> $int {
                    self.turn().fetch_max(value, order)
                }
            }
        };
    }

    word!(Word32, AtomicU32, u32);
    word!(Word64, AtomicU64, u64);
}

#[cfg(not(loom))]
pub(crate) use crossbeam_queue::ArrayQueue;
#[cfg(loom)]
pub(crate) use locked::ArrayQueue;

#[cfg(loom)]
mod locked {
    use alloc::collections::VecDeque;

    use loom::sync::{Mutex, MutexGuard};

    /// The part of crossbeam's `ArrayQueue` that the core uses.
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
            self.items.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
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

        pub(crate) fn is_empty(&self) -> bool {
            self.items().is_empty()
        }
    }
}
