//! The changes of one device.
//!
//! Lines are only appended while changes are made; each has the value of a place before and after. `restore`
//! puts back the value before the first line.
//!
//! A place is identified by its instance's queues and NAPI id. Its current location is not determined here: a
//! caller with a snapshot of the device sets it ([`DeviceJournal::locate`]).

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
    /// The previous spot of the place, if it differs: its instance polls other queues now, or was created anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    was: Option<Spot>,
    /// The thread, for a place of a thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    thread: Option<ThreadId>,
}

/// The maximum number of values kept of those that napkin set on a place, besides the original and the last
/// one.
const MAX_EARLIER: usize = 8;

/// The changes of one device, with their file.
#[derive(Debug)]
pub struct DeviceJournal {
    log: Log<Entry>,
    records: Records,
    /// The index of the last line of each place.
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

    /// The device's interface index when the file was created, in the namespace of that time.
    pub fn ifindex(&self) -> u32 {
        match self.log.header.subject {
            Subject::Device { ifindex, .. } => ifindex,
            Subject::Process { .. } => 0,
        }
    }

    /// The device's name when the file was created.
    pub fn ifname(&self) -> &str {
        match &self.log.header.subject {
            Subject::Device { ifname, .. } => ifname,
            Subject::Process { .. } => "",
        }
    }

    /// The device's identity, if it was known.
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

    /// Whether the file is of another boot, and will be replaced at the first write.
    pub fn stale(&self) -> bool {
        self.stale
    }

    /// The records of all changed places, in the order of their first change.
    pub fn records(&self) -> &[Record] {
        self.records.list()
    }

    /// Sets the current location of each record, in their order; `None` if it does not exist.
    pub fn locate(&mut self, now: Vec<Option<Spot>>) {
        self.records.locate(now);
    }

    /// Returns each record with its current location.
    pub fn located(&self) -> impl Iterator<Item = (&Record, Option<&Spot>)> {
        self.records.located()
    }

    /// Returns the record of one place.
    pub fn record(&self, spot: &Spot) -> Option<&Record> {
        self.records().get(self.records.position(spot)?)
    }

    /// Records a change that is about to be made, and returns when the record is on the disk.
    ///
    /// # Errors
    /// If it cannot be written; the change must not be made then.
    pub fn before(&mut self, spot: &Spot, old: &Value, new: &Value) -> Result<(), JournalError> {
        self.before_of(spot, None, old, new)
    }

    /// The same for a place of a thread.
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
        // The line exists already if napkin died right after it, or if another program undid the change.
        let known = self.last.get(spot).and_then(|at| self.log.entries.get(*at));
        if known == Some(&entry) {
            return Ok(());
        }
        if self.log.entries.len() > 2 * (MAX_EARLIER + 1) * self.records().len() + 16 {
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

    /// Records that the value set last is wanted, if it was set by napkin: a hold that set it for a limited
    /// time must not undo it at its end.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn confirm(&mut self, spot: &Spot) -> Result<(), JournalError> {
        match self.record(spot) {
            Some(record) if !record.is_confirmed() => {
                let set = record.set.clone();
                self.before(spot, &set, &set)
            }
            _ => Ok(()),
        }
    }

    /// Drops the last change of places that were put back to the value before it.
    ///
    /// A place that has its original value again is dropped, and the file is removed with the last one. For any
    /// other place the record returns to the value that napkin had set before that change: if the value that
    /// was put back is another program's, it still counts as such.
    ///
    /// # Errors
    /// If the file cannot be written; it then has superfluous records.
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

    /// Keeps the records whose element in `keep` is true, in their order; the file is removed with the last
    /// one.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn keep(&mut self, keep: &[bool]) -> Result<(), JournalError> {
        if !keep.is_empty() && keep.iter().all(|kept| *kept) {
            return Ok(());
        }
        self.records.retain(|at| keep.get(at) == Some(&true));
        self.compact()
    }

    /// Drops all records, and the file.
    ///
    /// # Errors
    /// If the file cannot be removed.
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
            // The current value is normally one of the last two; an interrupted restore may have left any.
            let surplus = record.earlier.len().saturating_sub(MAX_EARLIER);
            record.earlier.drain(..surplus);
        }
        let rewritten = self.log.rewrite(self.records().iter().flat_map(entries).collect());
        self.last = last_of_each(&self.log.entries);
        rewritten
    }
}

/// Returns the lines that reproduce a record.
fn entries(record: &Record) -> impl Iterator<Item = Entry> {
    // A record that is only remembered has that line already.
    let first = (record.written_down && !record.is_remembered()).then_some(&record.before);
    // A value that a policy found in place and wants is marked by a line from that value to itself.
    let reconfirmed = |it: &&Value| **it != record.set && record.confirmed.as_ref() == Some(*it);
    let earlier =
        record.earlier.iter().flat_map(|it| [Some(it), Some(it).filter(reconfirmed)]).flatten();
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
                // Set again, perhaps by a guard.
                record.confirmed = None;
            }
            let last = std::mem::replace(&mut record.set, new);
            record.earlier.retain(|value| *value != last);
            // The original value is recorded anyway.
            if last != record.before {
                record.earlier.push(last);
            }
        }
    }
}
