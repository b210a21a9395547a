//! The item store, shared by all threads, within a memory bound.
//!
//! Reads take no lock: the table is a concurrent hash map (papaya), and an item's value is replaced as a whole.
//! Eviction uses the CLOCK algorithm on a queue of entries: an entry that was read since the hand last passed gets
//! another round. This approximates LRU, and a read writes nothing shared but one flag, once per round.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwapOption;
use crossbeam_queue::SegQueue;
use napkin_policy::{NEVER, Ns};
use papaya::HashMap;

/// Approximate overhead of an item in bytes, besides its key and data: entry, value, table and queue.
pub const ITEM_OVERHEAD: usize = 200;

/// An immutable version of an item.
#[derive(Debug, Clone)]
pub struct Value {
    /// The client's data, without its line end.
    pub data: Box<[u8]>,
    /// An opaque number of the client.
    pub flags: u32,
    /// The CAS number: unique, and larger than that of any earlier version, unless a client set it.
    pub cas: u64,
    /// Expiry time; [`NEVER`] if it does not expire.
    pub expires: Ns,
    /// Time of storing.
    pub stored: Ns,
    /// Whether a meta command invalidated it, so that it waits for a new value.
    pub stale: bool,
    /// Whether it is an empty placeholder: the client that missed was told to store a value.
    pub stub: bool,
}

/// An item: its key, its current value and its eviction state.
#[derive(Debug)]
pub struct Entry {
    key: Arc<[u8]>,
    /// `None` once deleted; a dead entry is never revived.
    value: ArcSwapOption<Value>,
    /// Whether it was read since the clock hand last passed.
    referenced: AtomicBool,
    /// Time of the last read.
    pub(super) read: AtomicU64,
    /// Whether it was read since it was stored.
    pub(super) fetched: AtomicBool,
    /// Whether a client was told to store it anew.
    pub(super) won: AtomicBool,
}

impl Entry {
    /// Records a read: the item survives the next pass of the clock hand.
    pub(super) fn record_read(&self, now: Ns) {
        self.mark_referenced();
        self.read.store(now, Ordering::Relaxed);
        self.fetched.store(true, Ordering::Relaxed);
    }

    fn mark_referenced(&self) {
        if !self.referenced.load(Ordering::Relaxed) {
            self.referenced.store(true, Ordering::Relaxed);
        }
    }
}

/// What to do with an item.
#[derive(Debug)]
pub enum Change<R> {
    /// Stores this value; a `cas` of 0 is replaced by the next unique number. The item counts as unread.
    Store(Value, R),
    /// Stores a modified version of the old value, for example with a new expiry time; the item keeps its read
    /// state.
    Alter(Value, R),
    /// Deletes it.
    Delete(R),
    /// Leaves it as it is.
    Leave(R),
}

/// The items of all threads, within a memory bound.
#[derive(Debug)]
pub struct Store {
    map: HashMap<Arc<[u8]>, Arc<Entry>>,
    queue: SegQueue<Arc<Entry>>,
    queued: AtomicUsize,
    bytes: AtomicUsize,
    limit: usize,
    cas: AtomicU64,
    /// Items stored before this time have been flushed.
    flushed: AtomicU64,
    /// Items stored before this time are flushed once it has passed; [`NEVER`] if no flush is pending.
    flush: AtomicU64,
    evictions: AtomicU64,
    total: AtomicU64,
}

impl Store {
    /// A store of at most `limit` bytes, [overhead](ITEM_OVERHEAD) included.
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
        // Load `flush` first: if this sees a new value, `flushed` already contains the previous one.
        let flush = self.flush.load(Ordering::Acquire);
        let come = if flush <= now { flush } else { 0 };
        value.expires > now && value.stored >= come.max(self.flushed.load(Ordering::Relaxed))
    }

    /// Reads an item and marks it as used for eviction; `None` if it does not exist.
    pub fn get<R>(&self, key: &[u8], now: Ns, read: impl FnOnce(&Entry, &Value) -> R) -> Option<R> {
        self.peek(key, now, |entry, value| {
            entry.mark_referenced();
            read(entry, value)
        })
    }

    /// As [`get`](Store::get), without marking the item as used.
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

    /// Changes an item as `decide` says. `decide` gets the live item, if any, and may be called again if another
    /// thread changed the item meanwhile.
    pub fn change<R>(
        &self,
        key: &[u8],
        now: Ns,
        decide: impl FnMut(Option<(&Entry, &Value)>) -> Change<R>,
    ) -> R {
        self.change_and_read(key, now, decide, |result, _| result)
    }

    /// As [`change`](Store::change); `read` also gets the item as this change left it, if any. A second lookup
    /// might find what another thread has stored since.
    pub fn change_and_read<R, T>(
        &self,
        key: &[u8],
        now: Ns,
        mut decide: impl FnMut(Option<(&Entry, &Value)>) -> Change<R>,
        read: impl FnOnce(R, Option<(&Entry, &Arc<Value>)>) -> T,
    ) -> T {
        let map = self.map.pin();
        loop {
            let Some(entry) = map.get(key) else {
                let (value, result) = match decide(None) {
                    Change::Store(value, result) | Change::Alter(value, result) => (value, result),
                    Change::Delete(result) | Change::Leave(result) => return read(result, None),
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
                // Added before another thread can delete it, so that the sum is never below the actual size.
                self.bytes.fetch_add(size, Ordering::Relaxed);
                if map.try_insert(key, Arc::clone(&entry)).is_err() {
                    self.bytes.fetch_sub(size, Ordering::Relaxed);
                    continue;
                }
                self.total.fetch_add(1, Ordering::Relaxed);
                self.enqueue(Arc::clone(&entry));
                self.make_room(now);
                return read(result, Some((&*entry, &value)));
            };
            let current = entry.value.load_full();
            let Some(value) = &current else {
                // Dead: the thread that deleted it is about to remove it from the table.
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
                    return read(result, Some((&**entry, value)));
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
                return read(result, None);
            };
            if stores {
                entry.read.store(now, Ordering::Relaxed);
                entry.fetched.store(false, Ordering::Relaxed);
                self.total.fetch_add(1, Ordering::Relaxed);
            }
            // A new expiry time is not a new value: the client that was told to store one still is.
            if stores || next.cas != value.cas {
                entry.won.store(false, Ordering::Relaxed);
            }
            self.make_room(now);
            return read(result, Some((&**entry, next)));
        }
    }

    /// Deletes all items.
    pub fn clear(&self) {
        let map = self.map.pin();
        for entry in map.values() {
            if let Some(last) = entry.value.swap(None) {
                self.bytes.fetch_sub(size(&entry.key, &last), Ordering::Relaxed);
            }
            map.remove_if(&*entry.key, |_, other| Arc::ptr_eq(other, entry)).ok();
        }
    }

    /// Flushes, at time `at`, all items stored before it. This replaces a flush that is still pending; [`NEVER`]
    /// only cancels it.
    pub fn flush_at(&self, at: Ns, now: Ns) {
        let last = self.flush.load(Ordering::Relaxed);
        if last <= now {
            self.flushed.fetch_max(last, Ordering::Relaxed);
        }
        self.flush.store(at, Ordering::Release);
    }

    /// Number of items, including expired ones that were not accessed since.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Bytes held, overhead included.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Limit of [`bytes`](Store::bytes).
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Resets the counts of evictions and stored values to 0.
    pub fn reset_counts(&self) {
        self.evictions.store(0, Ordering::Relaxed);
        self.total.store(0, Ordering::Relaxed);
    }

    /// Items that were evicted before they expired.
    pub fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    /// Values stored; alterations are not counted.
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
        // Dead entries stay queued until the hand reaches them; if they are many, advance the hand.
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

    /// Evicts until the items fit; the hand goes round twice at most.
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
    /// A value that never expires, with flags 0.
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
        let kept: Vec<u8> = (0..=10).filter(|key| has(&store, &[*key], 4)).collect();
        assert_eq!(kept, [0, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
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
        store.get(b"k", 2, |entry, _| entry.record_read(2));
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
