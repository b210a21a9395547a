//! The items, shared by all workers, within a bound of memory.
//!
//! Reading takes no lock: the table is a concurrent hash map (papaya), and an item's value is replaced
//! whole. What gives way when memory is short is found by a clock hand over a queue of entries: one that
//! was read since the hand last passed gets another round, which comes near to least recently used and
//! writes nothing shared on a read but one flag, once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwapOption;
use crossbeam_queue::SegQueue;
use napkin_policy::{NEVER, Ns};
use papaya::HashMap;

/// What an item costs beside its key and its bytes, roughly: entry, value, table and queue.
pub const ITEM_OVERHEAD: usize = 200;

/// One state of an item.
#[derive(Debug, Clone)]
pub struct Value {
    /// The client's bytes, without their line end.
    pub data: Box<[u8]>,
    /// A number that is the client's own affair.
    pub flags: u32,
    /// Unique, and larger than that of any state before it, unless a client gave it.
    pub cas: u64,
    /// When it expires; [`NEVER`] if it does not.
    pub expires: Ns,
    /// When it was stored.
    pub stored: Ns,
    /// It was invalidated by a meta command, and waits to be stored anew.
    pub stale: bool,
    /// It is nobody's value yet: whoever found nothing was told to store one.
    pub stub: bool,
}

/// An item with its key's bookkeeping.
#[derive(Debug)]
pub struct Entry {
    key: Arc<[u8]>,
    /// `None` once it was deleted: an entry that is dead stays so.
    value: ArcSwapOption<Value>,
    /// Read since the hand last passed.
    referenced: AtomicBool,
    /// When it was read last.
    pub(super) read: AtomicU64,
    /// Whether it was ever read.
    pub(super) fetched: AtomicBool,
    /// Somebody was told to store it anew.
    pub(super) won: AtomicBool,
}

impl Entry {
    /// Somebody has read it: it is kept for another round of the hand.
    pub(super) fn was_read(&self, now: Ns) {
        self.refer();
        self.read.store(now, Ordering::Relaxed);
        self.fetched.store(true, Ordering::Relaxed);
    }

    fn refer(&self) {
        if !self.referenced.load(Ordering::Relaxed) {
            self.referenced.store(true, Ordering::Relaxed);
        }
    }
}

/// What is to become of an item.
#[derive(Debug)]
pub enum Change<R> {
    /// It has this value from now on, but for `cas`, which the store gives where it is 0. Nobody has read it
    /// yet.
    Store(Value, R),
    /// The same of a value that is the old one changed, as by another time to expire: who has read it has.
    Alter(Value, R),
    /// It is deleted.
    Delete(R),
    /// It stays as it is.
    Leave(R),
}

/// The items of all threads, within a bound of memory.
#[derive(Debug)]
pub struct Store {
    map: HashMap<Arc<[u8]>, Arc<Entry>>,
    queue: SegQueue<Arc<Entry>>,
    queued: AtomicUsize,
    bytes: AtomicUsize,
    limit: usize,
    cas: AtomicU64,
    /// Whatever was stored before it has gone.
    flushed: AtomicU64,
    /// The same, once it has come; [`NEVER`] without one.
    flush: AtomicU64,
    evictions: AtomicU64,
    total: AtomicU64,
}

impl Store {
    /// A store of at most `limit` bytes, overhead included.
    pub fn new(limit: usize) -> Store {
        Store {
            map: HashMap::new(),
            queue: SegQueue::new(),
            queued: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            limit,
            cas: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            flush: AtomicU64::new(NEVER),
            evictions: AtomicU64::new(0),
            total: AtomicU64::new(0),
        }
    }

    fn is_live(&self, value: &Value, now: Ns) -> bool {
        // Before the other: what it was before it was set again is in there.
        let flush = self.flush.load(Ordering::Acquire);
        let come = if flush <= now { flush } else { 0 };
        value.expires > now && value.stored >= come.max(self.flushed.load(Ordering::Relaxed))
    }

    /// Reads an item, which is kept for that when memory is short; `None` if there is none.
    pub fn get<R>(&self, key: &[u8], now: Ns, read: impl FnOnce(&Entry, &Value) -> R) -> Option<R> {
        self.peek(key, now, |entry, value| {
            entry.refer();
            read(entry, value)
        })
    }

    /// The same of an item that is not kept for that.
    pub fn peek<R>(
        &self,
        key: &[u8],
        now: Ns,
        read: impl FnOnce(&Entry, &Value) -> R,
    ) -> Option<R> {
        let map = self.map.pin();
        let entry = map.get(key)?;
        let value = entry.value.load();
        let value = value.as_ref().filter(|value| self.is_live(value, now))?;
        Some(read(entry, value))
    }

    /// Changes an item as `decide` says, which is given the item, if there is one, and may be called
    /// again if somebody else changed it meanwhile.
    pub fn change<R>(
        &self,
        key: &[u8],
        now: Ns,
        decide: impl FnMut(Option<(&Entry, &Value)>) -> Change<R>,
    ) -> R {
        self.change_and_tell(key, now, decide, |result, _| result)
    }

    /// The same; `tell` is given what came of it: the item as this change has left it, if there is one.
    /// Another look at the store might find what somebody else has stored since.
    pub fn change_and_tell<R, T>(
        &self,
        key: &[u8],
        now: Ns,
        mut decide: impl FnMut(Option<(&Entry, &Value)>) -> Change<R>,
        tell: impl FnOnce(R, Option<(&Entry, &Arc<Value>)>) -> T,
    ) -> T {
        let map = self.map.pin();
        loop {
            let Some(entry) = map.get(key) else {
                let (value, result) = match decide(None) {
                    Change::Store(value, result) | Change::Alter(value, result) => (value, result),
                    Change::Delete(result) | Change::Leave(result) => return tell(result, None),
                };
                let (key, value) = (Arc::<[u8]>::from(key), Arc::new(self.numbered(value)));
                let size = size(&key, &value);
                let entry = Arc::new(Entry {
                    key: Arc::clone(&key),
                    value: ArcSwapOption::new(Some(Arc::clone(&value))),
                    referenced: AtomicBool::new(false),
                    read: AtomicU64::new(now),
                    fetched: AtomicBool::new(false),
                    won: AtomicBool::new(false),
                });
                // Counted before anybody can delete it: the sum is never below what is there.
                self.bytes.fetch_add(size, Ordering::Relaxed);
                if map.try_insert(key, Arc::clone(&entry)).is_err() {
                    self.bytes.fetch_sub(size, Ordering::Relaxed);
                    continue;
                }
                self.total.fetch_add(1, Ordering::Relaxed);
                self.enqueue(Arc::clone(&entry));
                self.make_room(now);
                return tell(result, Some((&*entry, &value)));
            };
            let current = entry.value.load_full();
            let Some(value) = &current else {
                // Dead: whoever deleted it is about to take it out of the table.
                map.remove_if(key, |_, other| Arc::ptr_eq(other, entry)).ok();
                continue;
            };
            let live = self.is_live(value, now).then_some((&**entry, &**value));
            let was_live = live.is_some();
            let (next, stores, result) = match decide(live) {
                Change::Store(next, result) => (Some(next), true, result),
                Change::Alter(next, result) => (Some(next), false, result),
                Change::Delete(result) => (None, false, result),
                Change::Leave(result) if was_live => {
                    return tell(result, Some((&**entry, value)));
                }
                Change::Leave(result) => (None, false, result),
            };
            let next = next.map(|next| Arc::new(self.numbered(next)));
            let added = next.as_ref().map_or(0, |next| size(key, next));
            self.bytes.fetch_add(added, Ordering::Relaxed);
            let before = entry.value.compare_and_swap(&current, next.clone());
            if !before.as_ref().is_some_and(|before| Arc::ptr_eq(before, value)) {
                self.bytes.fetch_sub(added, Ordering::Relaxed);
                continue;
            }
            self.bytes.fetch_sub(size(key, value), Ordering::Relaxed);
            let Some(next) = &next else {
                map.remove_if(key, |_, other| Arc::ptr_eq(other, entry)).ok();
                return tell(result, None);
            };
            if stores {
                entry.read.store(now, Ordering::Relaxed);
                entry.fetched.store(false, Ordering::Relaxed);
                self.total.fetch_add(1, Ordering::Relaxed);
            }
            // Another time to expire is no other value: who was told to make that anew still is.
            if stores || next.cas != value.cas {
                entry.won.store(false, Ordering::Relaxed);
            }
            self.make_room(now);
            return tell(result, Some((&**entry, next)));
        }
    }

    /// Forgets all items, now.
    pub fn clear(&self) {
        let map = self.map.pin();
        for entry in map.values() {
            if let Some(last) = entry.value.swap(None) {
                self.bytes.fetch_sub(size(&entry.key, &last), Ordering::Relaxed);
            }
            map.remove_if(&*entry.key, |_, other| Arc::ptr_eq(other, entry)).ok();
        }
    }

    /// Forgets, from `at` on, whatever was stored before it. That takes the place of what was to be forgotten
    /// at a time that has not come; [`NEVER`] does nothing else.
    pub fn flush_at(&self, at: Ns, now: Ns) {
        let last = self.flush.load(Ordering::Relaxed);
        if last <= now {
            self.flushed.fetch_max(last, Ordering::Relaxed);
        }
        self.flush.store(at, Ordering::Release);
    }

    /// Items, those included that have expired and were not asked for since.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Bytes, overhead included.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The bound of [`bytes`](Store::bytes).
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Counts evictions and stored values from 0 again.
    pub fn reset_counts(&self) {
        self.evictions.store(0, Ordering::Relaxed);
        self.total.store(0, Ordering::Relaxed);
    }

    /// Items that gave way to others before they expired.
    pub fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    /// Values stored; what was altered is no other one.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    fn numbered(&self, value: Value) -> Value {
        match value.cas {
            0 => Value { cas: self.cas.fetch_add(1, Ordering::Relaxed) + 1, ..value },
            _ => value,
        }
    }

    fn enqueue(&self, entry: Arc<Entry>) {
        self.queue.push(entry);
        let queued = self.queued.fetch_add(1, Ordering::Relaxed) + 1;
        // The dead lie in the queue until the hand comes by. Where they are many, it is moved.
        if queued > 2 * self.map.len() + 1_024 {
            for _ in 0..2 {
                if let Some(entry) = self.dequeue()
                    && entry.value.load().is_some()
                {
                    self.queue.push(entry);
                    self.queued.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    fn dequeue(&self) -> Option<Arc<Entry>> {
        let entry = self.queue.pop()?;
        self.queued.fetch_sub(1, Ordering::Relaxed);
        Some(entry)
    }

    /// Moves the hand until what is there fits; twice round at most.
    fn make_room(&self, now: Ns) {
        let mut left = 2 * self.queued.load(Ordering::Relaxed);
        while self.bytes.load(Ordering::Relaxed) > self.limit && left > 0 {
            left -= 1;
            let Some(entry) = self.dequeue() else { return };
            let Some(value) = entry.value.load_full() else { continue };
            let live = self.is_live(&value, now);
            if live && entry.referenced.swap(false, Ordering::Relaxed) {
                self.queue.push(entry);
                self.queued.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let Some(last) = entry.value.swap(None) else { continue };
            self.bytes.fetch_sub(size(&entry.key, &last), Ordering::Relaxed);
            self.evictions.fetch_add(u64::from(live), Ordering::Relaxed);
            self.map.pin().remove_if(&*entry.key, |_, other| Arc::ptr_eq(other, &entry)).ok();
        }
    }
}

fn size(key: &[u8], value: &Value) -> usize {
    key.len() + value.data.len() + ITEM_OVERHEAD
}

impl Value {
    /// A value that does not expire, without flags.
    pub fn new(data: &[u8], now: Ns) -> Value {
        let (expires, stale, stub) = (NEVER, false, false);
        Value { data: data.into(), flags: 0, cas: 0, expires, stored: now, stale, stub }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(store: &Store, key: &[u8], bytes: usize, now: Ns) {
        store.change(key, now, |_| Change::Store(Value::new(&vec![b'x'; bytes], now), ()));
    }

    fn has(store: &Store, key: &[u8], now: Ns) -> bool {
        store.get(key, now, |_, _| ()).is_some()
    }

    #[test]
    fn what_was_not_read_gives_way_to_what_was() {
        let store = Store::new(10 * (ITEM_OVERHEAD + 101));
        for key in 0..10u8 {
            put(&store, &[key], 100, 1);
        }
        assert!(has(&store, &[0], 2));
        put(&store, &[10], 100, 3);
        let there: Vec<u8> = (0..=10).filter(|key| has(&store, &[*key], 4)).collect();
        assert_eq!(there, [0, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        assert_eq!((store.evictions(), store.len()), (1, 10));
        assert!(store.bytes() <= store.limit());
    }

    #[test]
    fn what_is_deleted_is_forgotten_everywhere() {
        let store = Store::new(1 << 20);
        for round in 0..10_000u32 {
            put(&store, &round.to_be_bytes(), 10, 1);
            store.change(&round.to_be_bytes(), 2, |_| Change::Delete(()));
        }
        assert_eq!((store.len(), store.bytes(), store.evictions()), (0, 0, 0));
        assert!(store.queued.load(Ordering::Relaxed) <= 1_100, "dead entries pile up");
    }

    #[test]
    fn it_expires_and_is_flushed_when_the_time_has_come() {
        let store = Store::new(1 << 20);
        let value = Value { expires: 10, ..Value::new(b"v", 1) };
        store.change(b"k", 1, |_| Change::Store(value.clone(), ()));
        assert!(has(&store, b"k", 9) && !has(&store, b"k", 10));
        put(&store, b"k", 1, 11);
        store.flush_at(20, 11);
        assert!(has(&store, b"k", 19) && !has(&store, b"k", 20));
        store.flush_at(40, 21);
        assert!(!has(&store, b"k", 21), "what has gone does not come back");
        put(&store, b"k", 1, 22);
        store.flush_at(NEVER, 23);
        assert!(has(&store, b"k", 41), "nothing is to be flushed any more");
        store.flush_at(41, 41);
        assert!(!has(&store, b"k", 41));
        put(&store, b"k", 1, 41);
        assert!(has(&store, b"k", 41), "stored after it");
    }

    #[test]
    fn what_is_read_without_being_kept_gives_way() {
        let store = Store::new(2 * (ITEM_OVERHEAD + 101));
        (0..2u8).for_each(|key| put(&store, &[key], 100, 1));
        assert!(store.peek(&[0], 2, |_, _| ()).is_some());
        put(&store, &[2], 100, 3);
        assert!(!has(&store, &[0], 4) && has(&store, &[1], 4));
    }

    #[test]
    fn an_item_that_is_altered_has_been_read_and_one_that_is_stored_has_not() {
        let store = Store::new(1 << 20);
        put(&store, b"k", 1, 1);
        store.get(b"k", 2, |entry, _| entry.was_read(2));
        let seen = |now| {
            let seen = |entry: &Entry, _: &Value| {
                (entry.read.load(Ordering::Relaxed), entry.fetched.load(Ordering::Relaxed))
            };
            store.peek(b"k", now, seen)
        };
        let later = |item: Option<(&Entry, &Value)>| {
            let (_, value) = item.expect("nobody deletes it");
            Change::Alter(Value { expires: 9, ..value.clone() }, ())
        };
        store.change(b"k", 3, later);
        assert_eq!((seen(3), store.total()), (Some((2, true)), 1));
        put(&store, b"k", 1, 4);
        assert_eq!((seen(4), store.total()), (Some((4, false)), 2));
    }

    #[test]
    fn threads_that_store_and_delete_evict_nothing_while_there_is_room() {
        let store = Store::new(1 << 20);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..5_000 {
                        put(&store, b"k", round % 100, 1);
                        store.change(b"k", 1, |_| Change::Delete(()));
                    }
                });
            }
        });
        assert_eq!((store.len(), store.bytes(), store.evictions()), (0, 0, 0));
    }

    #[test]
    fn threads_that_change_one_item_lose_no_change() {
        let store = Store::new(1 << 20);
        put(&store, b"k", 0, 1);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1_000 {
                        store.change(b"k", 1, |item| {
                            let (_, value) = item.expect("nobody deletes it");
                            let data = [&value.data[..], b"x"].concat();
                            Change::Store(Value::new(&data, 1), ())
                        });
                    }
                });
            }
        });
        assert_eq!(store.get(b"k", 1, |_, value| value.data.len()), Some(4_000));
        assert_eq!(store.bytes(), ITEM_OVERHEAD + 1 + 4_000);
    }
}
