//! The records of one device's places, indexed by place: a device may have a thousand queues with four settings
//! each, and every change looks up its record.

use std::collections::{BTreeMap, BTreeSet};

use super::record::Record;
use crate::{place::Place, place::Spot};

/// The records of one device, in the order in which their places were first changed.
#[derive(Debug, Default)]
pub(super) struct Records {
    list: Vec<Record>,
    /// The current location of each record.
    now: Vec<Option<Spot>>,
    by_spot: Index<Spot>,
    /// The records without NAPI id, of an older version, found by their queues only.
    by_queues: Index<Place>,
    by_now: Index<Spot>,
}

impl Records {
    pub(super) fn list(&self) -> &[Record] {
        &self.list
    }

    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut Record> {
        self.list.get_mut(at)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Record> {
        self.list.iter_mut()
    }

    /// Sets the current location of each record, in their order; `None` if it does not exist.
    pub(super) fn locate(&mut self, mut now: Vec<Option<Spot>>) {
        now.resize(self.list.len(), None);
        self.now = now;
        self.by_now = Index::default();
        for (at, spot) in self.now.iter().enumerate() {
            spot.iter().for_each(|spot| self.by_now.add(spot, at));
        }
    }

    /// Returns each record with its current location.
    pub(super) fn located(&self) -> impl Iterator<Item = (&Record, Option<&Spot>)> {
        self.list.iter().zip(self.now.iter().map(Option::as_ref))
    }

    /// Returns the record whose current location is `spot`.
    pub(super) fn position(&self, spot: &Spot) -> Option<usize> {
        self.by_now.first(spot).or_else(|| self.same(spot))
    }

    /// Returns the record that was made for `spot`. A record without NAPI id matches by its queues only.
    pub(super) fn same(&self, spot: &Spot) -> Option<usize> {
        self.by_spot.first(spot).or_else(|| self.by_queues.first(&spot.place))
    }

    /// Adds a record, with its current location unknown.
    pub(super) fn add(&mut self, record: Record) {
        let at = self.list.len();
        self.index(&record.spot, at);
        self.list.push(record);
        self.now.push(None);
    }

    /// Changes the place of a record.
    pub(super) fn rename(&mut self, at: usize, spot: &Spot) {
        let Some(record) = self.list.get_mut(at) else { return };
        if record.spot == *spot {
            return;
        }
        let old = std::mem::replace(&mut record.spot, spot.clone());
        self.by_spot.remove(&old, at);
        self.by_queues.remove(&old.place, at);
        self.index(spot, at);
    }

    /// Sets the current location of one record.
    pub(super) fn is_at(&mut self, at: usize, spot: &Spot) {
        let Some(now) = self.now.get_mut(at) else { return };
        if now.as_ref() == Some(spot) {
            return;
        }
        if let Some(old) = now.replace(spot.clone()) {
            self.by_now.remove(&old, at);
        }
        self.by_now.add(spot, at);
    }

    /// Keeps the records for which `keep` returns true, in their order.
    pub(super) fn retain(&mut self, keep: impl Fn(usize) -> bool) {
        let now = std::mem::take(&mut self.now);
        let all = std::mem::take(&mut self.list).into_iter().zip(now).enumerate();
        *self = Records::default();
        let mut places = Vec::new();
        for (_, (record, now)) in all.filter(|(at, _)| keep(*at)) {
            self.add(record);
            places.push(now);
        }
        self.locate(places);
    }

    fn index(&mut self, spot: &Spot, at: usize) {
        self.by_spot.add(spot, at);
        if spot.napi_id.is_none() {
            self.by_queues.add(&spot.place, at);
        }
    }
}

/// The indexes of records by key; if several have the same key, the first counts.
#[derive(Debug)]
struct Index<K>(BTreeMap<K, BTreeSet<usize>>);

impl<K> Default for Index<K> {
    fn default() -> Index<K> {
        Index(BTreeMap::new())
    }
}

impl<K: Ord + Clone> Index<K> {
    fn first(&self, key: &K) -> Option<usize> {
        self.0.get(key).and_then(|all| all.first().copied())
    }

    fn add(&mut self, key: &K, at: usize) {
        self.0.entry(key.clone()).or_default().insert(at);
    }

    fn remove(&mut self, key: &K, at: usize) {
        if let Some(all) = self.0.get_mut(key) {
            all.remove(&at);
            if all.is_empty() {
                self.0.remove(key);
            }
        }
    }
}
