//! The queues that feed a stack and send its frames.
//!
//! Each [`Input`](crate::Input) has one entry here for its lifetime: its NAPI id, its transmitter and its counters.
//! Senders and applications that drain a full receive buffer read the list without a lock; registering or
//! unregistering a queue changes it under a mutex.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use napkin_nic::Transmitter;

use crate::Counters;
use crate::frame_outcome::Tally;

pub(crate) struct Entry {
    /// The lowest index that was free when the queue was registered.
    index: u32,
    pub(crate) napi_id: u32,
    pub(crate) transmitter: Arc<dyn Transmitter>,
    pub(crate) tally: Tally,
}

impl Entry {
    /// The queue's bit in a set of queues. Queues whose indices are 64 apart share a bit, so that a set fits one
    /// atomic word; a queue may therefore be notified for another's bit.
    pub(crate) fn bit(&self) -> u64 {
        1 << (self.index % u64::BITS)
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue")
            .field("index", &self.index)
            .field("napi_id", &self.napi_id)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Queues {
    list: ArcSwap<Vec<Arc<Entry>>>,
    /// Sums of the counters of unregistered queues; the mutex also serialises changes of the list.
    retired: Mutex<Counters>,
}

impl Queues {
    pub(crate) fn register(&self, napi_id: u32, transmitter: Arc<dyn Transmitter>) -> Arc<Entry> {
        let _change = self.lock();
        let list = self.list.load_full();
        let taken = |index: &u32| list.iter().any(|entry| entry.index == *index);
        let index = (0..).find(|index| !taken(index)).unwrap_or(0);
        let entry = Arc::new(Entry { index, napi_id, transmitter, tally: Tally::default() });
        let mut longer = Vec::clone(&list);
        longer.push(Arc::clone(&entry));
        self.list.store(Arc::new(longer));
        entry
    }

    pub(crate) fn unregister(&self, entry: &Arc<Entry>) {
        let mut retired = self.lock();
        let mut list = Vec::clone(&self.list.load_full());
        let before = list.len();
        list.retain(|other| !Arc::ptr_eq(other, entry));
        if list.len() < before {
            retired.add(&entry.tally);
            self.list.store(Arc::new(list));
        }
    }

    /// The sums over all queues, unregistered ones included.
    pub(crate) fn counters(&self) -> Counters {
        let mut sum = *self.lock();
        for entry in self.list.load_full().iter() {
            sum.add(&entry.tally);
        }
        sum
    }

    /// Calls `each` with the queue on which to send for a socket fed by `napi_id`: that queue, or the first one if
    /// it is gone. `None` if there are no queues.
    pub(crate) fn with<T>(&self, napi_id: u32, each: impl FnOnce(&Entry) -> T) -> Option<T> {
        let list = self.list.load();
        list.iter().find(|entry| entry.napi_id == napi_id).or(list.first()).map(|e| each(e))
    }

    /// Calls `each` with every queue.
    pub(crate) fn each(&self, each: impl FnMut(&Entry)) {
        self.list.load().iter().map(|entry| &**entry).for_each(each);
    }

    /// Calls `each` with the NAPI id of every queue in a set of bits.
    pub(crate) fn each_of(&self, bits: u64, mut each: impl FnMut(u32)) {
        if bits != 0 {
            for entry in self.list.load().iter().filter(|entry| entry.bit() & bits != 0) {
                each(entry.napi_id);
            }
        }
    }

    /// A panic while the lock is held leaves no half-made change: the list is replaced as a whole.
    fn lock(&self) -> MutexGuard<'_, Counters> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use napkin_nic::SendError;
    use napkin_policy::Ns;

    use super::*;
    use crate::FrameOutcome;

    struct Nowhere;

    impl Transmitter for Nowhere {
        fn send(&self, _: &[u8], _: Ns) -> Result<(), SendError> {
            Ok(())
        }
    }

    #[test]
    fn a_queue_that_is_gone_leaves_its_counts_and_its_number() {
        let queues = Queues::default();
        let first = queues.register(100, Arc::new(Nowhere));
        let second = queues.register(101, Arc::new(Nowhere));
        first.tally.frame();
        first.tally.fate(FrameOutcome::NoPort);
        assert_eq!((first.bit(), second.bit()), (1, 2));
        queues.unregister(&first);
        queues.unregister(&first);
        assert_eq!(queues.counters().of(FrameOutcome::NoPort), 1);
        assert_eq!(queues.register(102, Arc::new(Nowhere)).bit(), 1);
    }

    #[test]
    fn one_sends_on_the_queue_that_feeds_or_else_on_the_first() {
        let queues = Queues::default();
        assert_eq!(queues.with(100, |entry| entry.napi_id), None);
        let _first = queues.register(100, Arc::new(Nowhere));
        let _second = queues.register(101, Arc::new(Nowhere));
        assert_eq!(queues.with(101, |entry| entry.napi_id), Some(101));
        assert_eq!(queues.with(0, |entry| entry.napi_id), Some(100));
    }

    #[test]
    fn more_queues_than_bits_are_all_reached() {
        let queues = Queues::default();
        let entries: Vec<_> = (0..70).map(|id| queues.register(id, Arc::new(Nowhere))).collect();
        let mut napi_ids = Vec::new();
        queues.each_of(entries[66].bit(), |napi_id| napi_ids.push(napi_id));
        assert_eq!(napi_ids, [2, 66]);
    }
}
