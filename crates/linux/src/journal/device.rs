//! The changes of one device.
//!
//! Lines are only added while something is being changed; each says what a place was and what it
//! becomes. What a place was before the first of them is what `restore` puts back.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::error::JournalError;
use super::log::{Header, Log, Subject};
use crate::apply::{Place, Value};

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Entry {
    place: Place,
    old: Value,
    new: Value,
}

/// All that is known of one place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Record {
    /// Where.
    pub place: Place,
    /// What it was before napkin changed it first.
    pub before: Value,
    /// What napkin last set.
    pub set: Value,
    /// What napkin had set before that, if it changed it more than once.
    pub earlier: Vec<Value>,
}

/// Whose a value is that a place has now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It is as it was before napkin changed it.
    Before,
    /// Napkin set it.
    Ours,
    /// Somebody else set it.
    Foreign,
    /// The place is not there (any more).
    Gone,
}

impl Record {
    /// Whose the value is.
    pub fn judge(&self, now: Option<&Value>) -> Standing {
        match now {
            None => Standing::Gone,
            Some(now) if *now == self.before => Standing::Before,
            // An earlier one is there if we died between the line and the change.
            Some(now) if *now == self.set || self.earlier.contains(now) => Standing::Ours,
            Some(_) => Standing::Foreign,
        }
    }
}

/// The changes of one device, with the file in which they are.
#[derive(Debug)]
pub struct DeviceJournal {
    log: Log<Entry>,
    records: Vec<Record>,
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
        let mut records = Vec::new();
        for entry in &log.entries {
            note(&mut records, entry.clone());
        }
        Ok(DeviceJournal { log, records, stale: false })
    }

    fn empty(path: PathBuf, header: Header, stale: bool) -> DeviceJournal {
        DeviceJournal { log: Log::new(path, header), records: Vec::new(), stale }
    }

    /// The device's number.
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

    /// Whether another boot's file is in its place, which the first line will drop.
    pub fn stale(&self) -> bool {
        self.stale
    }

    /// Every place that was changed, in the order in which they first were.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// What is known of one place.
    pub fn record(&self, place: &Place) -> Option<&Record> {
        self.records.iter().find(|record| record.place == *place)
    }

    /// Writes down a change that is about to be made, and returns when that is on the disk.
    ///
    /// # Errors
    /// If it could not be written; then it must not be made.
    pub fn before(&mut self, place: &Place, old: &Value, new: &Value) -> Result<(), JournalError> {
        let entry = Entry { place: place.clone(), old: old.clone(), new: new.clone() };
        // Said already, if the last time we got no further than this, or it was undone by others.
        let known = self.log.entries.iter().rev().find(|other| other.place == *place);
        if known == Some(&entry) {
            return Ok(());
        }
        if self.log.entries.len() > 4 * self.records.len() + 16 {
            self.compact()?;
        }
        self.log.append(entry.clone())?;
        note(&mut self.records, entry);
        Ok(())
    }

    /// Drops places; the file goes with the last.
    ///
    /// # Errors
    /// If the file could not be written.
    pub fn keep(&mut self, keep: impl Fn(&Record) -> bool) -> Result<(), JournalError> {
        let kept = self.records.iter().filter(|record| keep(record)).cloned().collect::<Vec<_>>();
        if kept.len() == self.records.len() && !kept.is_empty() {
            return Ok(());
        }
        self.records = kept;
        self.compact()
    }

    fn compact(&mut self) -> Result<(), JournalError> {
        if self.records.is_empty() {
            let empty = Log::new(self.log.path.clone(), self.log.header.clone());
            return std::mem::replace(&mut self.log, empty).remove();
        }
        for record in &mut self.records {
            // The last two are all that a change can be between.
            let surplus = record.earlier.len().saturating_sub(1);
            record.earlier.drain(..surplus);
        }
        self.log.rewrite(self.records.iter().flat_map(entries).collect())
    }
}

/// The lines that say what a record says.
fn entries(record: &Record) -> impl Iterator<Item = Entry> {
    let values: Vec<&Value> =
        std::iter::once(&record.before).chain(&record.earlier).chain([&record.set]).collect();
    let entry = |pair: &[&Value]| Entry {
        place: record.place.clone(),
        old: pair[0].clone(),
        new: pair[1].clone(),
    };
    values.windows(2).map(entry).collect::<Vec<_>>().into_iter()
}

fn note(records: &mut Vec<Record>, entry: Entry) {
    let Entry { place, old, new } = entry;
    match records.iter_mut().find(|record| record.place == place) {
        None => {
            let earlier = Vec::new();
            records.push(Record { place, before: old, set: new, earlier });
        }
        Some(record) => {
            let last = std::mem::replace(&mut record.set, new);
            record.earlier.retain(|value| *value != last);
            record.earlier.push(last);
        }
    }
}
