//! The changes of one device.
//!
//! Lines are only added while something is being changed; each says what a place was and what it
//! becomes. What a place was before the first of them is what `restore` puts back.
//!
//! A place is an instance's, by its queues and its NAPI id. Which instance that is now is not known
//! here: whoever has looked at the device says so ([`DeviceJournal::locate`]).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::JournalError;
use super::log::{Header, Log, Subject};
use super::record::Record;
use super::records::Records;
use crate::place::{Spot, ThreadId, Value};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Entry {
    #[serde(flatten)]
    spot: Spot,
    old: Value,
    new: Value,
    /// Where the same was before, if that was elsewhere: its instance polls other queues now, or
    /// was made anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    was: Option<Spot>,
    /// Of which thread it is, if it is of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    thread: Option<ThreadId>,
}

/// How many different values of one's own are remembered of a place, beside the first and the last.
const EARLIER: usize = 8;

/// The changes of one device, with the file in which they are.
#[derive(Debug)]
pub struct DeviceJournal {
    log: Log<Entry>,
    records: Records,
    /// The last line of each place.
    last: BTreeMap<Spot, usize>,
    stale: bool,
}

impl DeviceJournal {
    pub(super) fn open(path: PathBuf, header: Header) -> Result<DeviceJournal, JournalError> {
        let Some(log) = Log::<Entry>::read(&path)? else {
            return Ok(DeviceJournal::empty(path, header, false));
        };
        if log.header.boot_id != header.boot_id {
            return Ok(DeviceJournal::empty(path, header, true));
        }
        let mut records = Records::default();
        for entry in &log.entries {
            note(&mut records, entry.clone());
        }
        records.locate(records.list().iter().map(|record| Some(record.spot.clone())).collect());
        let last = last_of_each(&log.entries);
        Ok(DeviceJournal { log, records, last, stale: false })
    }

    fn empty(path: PathBuf, header: Header, stale: bool) -> DeviceJournal {
        let (records, last) = (Records::default(), BTreeMap::new());
        DeviceJournal { log: Log::new(path, header), records, last, stale }
    }

    /// The device's number when its file was begun, in that namespace.
    pub fn ifindex(&self) -> u32 {
        match self.log.header.subject {
            Subject::Device { ifindex, .. } => ifindex,
            Subject::Process { .. } => 0,
        }
    }

    /// What the device was called when its file was begun.
    pub fn ifname(&self) -> &str {
        match &self.log.header.subject {
            Subject::Device { ifname, .. } => ifname,
            Subject::Process { .. } => "",
        }
    }

    /// What tells the device from others, if that was known.
    pub fn identity(&self) -> Option<u64> {
        match self.log.header.subject {
            Subject::Device { identity, .. } => identity,
            Subject::Process { .. } => None,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.log.path
    }

    pub(super) fn header(&self) -> &Header {
        &self.log.header
    }

    /// Whether another boot's file is in its place, which the first line will drop.
    pub fn stale(&self) -> bool {
        self.stale
    }

    /// Every place that was changed, in the order in which they first were.
    pub fn records(&self) -> &[Record] {
        self.records.list()
    }

    /// Says where each of the records is now, in their order; `None`: it is not there.
    pub fn locate(&mut self, now: Vec<Option<Spot>>) {
        self.records.locate(now);
    }

    /// Every place that was changed, with where it is now.
    pub fn located(&self) -> impl Iterator<Item = (&Record, Option<&Spot>)> {
        self.records.located()
    }

    /// What is known of one place.
    pub fn record(&self, spot: &Spot) -> Option<&Record> {
        self.records().get(self.records.position(spot)?)
    }

    /// Writes down a change that is about to be made, and returns when that is on the disk.
    ///
    /// # Errors
    /// If it could not be written; then it must not be made.
    pub fn before(&mut self, spot: &Spot, old: &Value, new: &Value) -> Result<(), JournalError> {
        self.before_of(spot, None, old, new)
    }

    /// The same of a place that is a thread's.
    ///
    /// # Errors
    /// As [`DeviceJournal::before`].
    pub fn before_of(
        &mut self,
        spot: &Spot,
        thread: Option<ThreadId>,
        old: &Value,
        new: &Value,
    ) -> Result<(), JournalError> {
        let was = self.record(spot).map(|record| &record.spot).filter(|was| *was != spot).cloned();
        let entry = Entry { spot: spot.clone(), old: old.clone(), new: new.clone(), was, thread };
        // Said already, if the last time we got no further than this, or it was undone by others.
        let known = self.last.get(spot).and_then(|at| self.log.entries.get(*at));
        if known == Some(&entry) {
            return Ok(());
        }
        if self.log.entries.len() > 2 * (EARLIER + 1) * self.records().len() + 16 {
            self.compact()?;
        }
        self.log.append(entry.clone())?;
        self.last.insert(spot.clone(), self.log.entries.len() - 1);
        note(&mut self.records, entry);
        if let Some(at) = self.records.same(spot) {
            self.records.is_at(at, spot);
        }
        Ok(())
    }

    /// Writes down that a place is wanted as it was last set, if it was: whoever set it so for a while only does not
    /// take that back then.
    ///
    /// # Errors
    /// If it could not be written.
    pub fn confirm(&mut self, spot: &Spot) -> Result<(), JournalError> {
        match self.record(spot) {
            Some(record) if !record.is_confirmed() => {
                let set = record.set.clone();
                self.before(spot, &set, &set)
            }
            _ => Ok(()),
        }
    }

    /// Forgets the last change of places that were put back to what they were before it.
    ///
    /// A place that is as it was before napkin first changed it is dropped, and the file goes with
    /// the last. Any other has what napkin had set before that change, or what somebody else had,
    /// which is not napkin's for having been given back.
    ///
    /// # Errors
    /// If the file could not be written; then it knows more than is needed.
    pub fn retract(&mut self, undone: &[(Spot, &Value)]) -> Result<(), JournalError> {
        let mut forgotten = BTreeSet::new();
        for (spot, old) in undone {
            let Some(at) = self.records.same(spot) else { continue };
            let Some(record) = self.records.get_mut(at) else { continue };
            match record.earlier.pop() {
                Some(earlier) if record.before != **old => record.set = earlier,
                _ => {
                    forgotten.insert(at);
                }
            }
        }
        self.records.retain(|at| !forgotten.contains(&at));
        if undone.is_empty() && !self.records().is_empty() {
            return Ok(());
        }
        self.compact()
    }

    /// Keeps those of the records, in their order, for which this says so; the file goes with the
    /// last.
    ///
    /// # Errors
    /// If the file could not be written.
    pub fn keep(&mut self, keep: &[bool]) -> Result<(), JournalError> {
        if !keep.is_empty() && keep.iter().all(|kept| *kept) {
            return Ok(());
        }
        self.records.retain(|at| keep.get(at) == Some(&true));
        self.compact()
    }

    /// Drops all of them, and the file.
    ///
    /// # Errors
    /// If the file could not be removed.
    pub fn drop_all(&mut self) -> Result<(), JournalError> {
        self.keep(&[])
    }

    fn compact(&mut self) -> Result<(), JournalError> {
        self.last.clear();
        if self.records().is_empty() {
            let empty = Log::new(self.log.path.clone(), self.log.header.clone());
            return std::mem::replace(&mut self.log, empty).remove();
        }
        for record in self.records.iter_mut() {
            // A change is between the last two; but who died while putting back may have left any.
            let surplus = record.earlier.len().saturating_sub(EARLIER);
            record.earlier.drain(..surplus);
        }
        let rewritten = self.log.rewrite(self.records().iter().flat_map(entries).collect());
        self.last = last_of_each(&self.log.entries);
        rewritten
    }
}

/// The lines that say what a record says.
fn entries(record: &Record) -> impl Iterator<Item = Entry> {
    // One that is remembered and no more has that line already.
    let first = (record.written_down && !record.is_remembered()).then_some(&record.before);
    // What a policy has found as it wants it has a line that changes nothing.
    let again = |it: &&Value| **it != record.set && record.confirmed.as_ref() == Some(*it);
    let earlier = record.earlier.iter().flat_map(|it| [Some(it), Some(it).filter(again)]).flatten();
    let confirmed = record.is_confirmed() && record.earlier.last() != Some(&record.set);
    let values = first.into_iter().chain([&record.before]).chain(earlier).chain([&record.set]);
    let values: Vec<&Value> = values.chain(confirmed.then_some(&record.set)).collect();
    let entry = |pair: &[&Value]| Entry {
        spot: record.spot.clone(),
        old: pair[0].clone(),
        new: pair[1].clone(),
        was: None,
        thread: record.thread,
    };
    values.windows(2).map(entry).collect::<Vec<_>>().into_iter()
}

fn last_of_each(entries: &[Entry]) -> BTreeMap<Spot, usize> {
    entries.iter().enumerate().map(|(at, entry)| (entry.spot.clone(), at)).collect()
}

fn note(records: &mut Records, entry: Entry) {
    let Entry { spot, old, new, was, thread } = entry;
    let at = was.and_then(|was| records.same(&was)).or_else(|| records.same(&spot));
    if let Some(at) = at {
        records.rename(at, &spot);
    }
    match at.and_then(|at| records.get_mut(at)) {
        None => {
            let (written_down, earlier) = (old == new, Vec::new());
            records.add(Record {
                spot,
                before: old,
                set: new,
                earlier,
                thread,
                written_down,
                confirmed: None,
            });
        }
        Some(record) => {
            record.thread = thread.or(record.thread);
            record.written_down |= old == new;
            if old == new && record.set == new {
                record.confirmed = Some(new.clone());
            } else if record.confirmed.as_ref() == Some(&new) {
                // Set anew, perhaps by a guard.
                record.confirmed = None;
            }
            let last = std::mem::replace(&mut record.set, new);
            record.earlier.retain(|value| *value != last);
            // What it was before is known anyway.
            if last != record.before {
                record.earlier.push(last);
            }
        }
    }
}
