//! The queues that feed a stack and carry what it sends.
//!
//! Each [`Input`](crate::Input) has one entry here for as long as it lives: its NAPI id, its way
//! out, its counters. The list is read without a lock, by whoever sends and whoever drains a full
//! receive buffer, and changed under a mutex when a queue comes or goes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use napkin_nic::Transmitter;

use crate::Counters;
use crate::fate::Tally;

pub(crate) struct Entry {
    /// The lowest number that no other queue had when this one came.
    index: u32,
    pub(crate) napi_id: u32,
    pub(crate) transmitter: Arc<dyn Transmitter>,
    pub(crate) tally: Tally,
}

impl Entry {
    /// The queue's bit in a set of queues. Queues 64 apart share one, so that a set stays one
    /// atomic word: whoever is told because of its bit may then have been told in vain.
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
    /// What queues that are gone had counted; also the right to change the list.
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

    /// The sums over all queues, those that are gone included.
    pub(crate) fn counters(&self) -> Counters {
        let mut sum = *self.lock();
        for entry in self.list.load_full().iter() {
            sum.add(&entry.tally);
        }
        sum
    }

    /// Calls `each` with the queue to send on for somebody who is fed by `napi_id`: that queue, or
    /// the one that came first if there is no such queue (any more). `None` without queues.
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

    /// The lock guards no invariant that a panic could break half-way: the list is swapped whole.
    fn lock(&self) -> MutexGuard<'_, Counters> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use napkin_nic::SendError;
    use napkin_policy::Ns;

    use super::*;
    use crate::Fate;

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
        first.tally.fate(Fate::NoPort);
        assert_eq!((first.bit(), second.bit()), (1, 2));
        queues.unregister(&first);
        queues.unregister(&first);
        assert_eq!(queues.counters().of(Fate::NoPort), 1);
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
        let mut told = Vec::new();
        queues.each_of(entries[66].bit(), |napi_id| told.push(napi_id));
        assert_eq!(told, [2, 66]);
    }
}
