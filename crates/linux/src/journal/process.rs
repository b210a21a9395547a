//! The changes of one process, and of all processes that one napkin changes.
//!
//! The changes themselves, and how to put one back, are in [`process_change`](crate::process_change).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::Store;
use super::error::JournalError;
use super::lock::Lock;
use super::log::{Header, Log, Subject};
use super::namespaces;
use crate::{process_change::ProcessChange, process_change::Recorder, process_change::What};
use napkin_kernel::process::SocketOptions;

/// The number of superfluous lines after which a file is compacted: a server opens and closes sockets for as
/// long as it runs.
const SLACK: usize = 1_024;

/// The changes of one process, with their file.
#[derive(Debug)]
pub struct ProcessJournal {
    log: Log<ProcessChange>,
    /// The number of lines after the last compaction.
    needed: usize,
    /// The index of the last line of each setting: a server may have tens of thousands of sockets.
    last: BTreeMap<Key, usize>,
    /// The changes found in the file when it was opened: those of another napkin, which has ended without
    /// putting them back.
    earlier: Vec<ProcessChange>,
}

/// The changed process, and the setting in it.
type Key = (i32, u64, (u8, i32, u64));

fn key(change: &ProcessChange) -> Key {
    (change.pid, change.start_time, change.what.place())
}

fn last_of_each(entries: &[ProcessChange]) -> BTreeMap<Key, usize> {
    entries.iter().enumerate().map(|(at, change)| (key(change), at)).collect()
}

impl ProcessJournal {
    pub(super) fn open(path: PathBuf, header: Header) -> Result<ProcessJournal, JournalError> {
        let log =
            Log::<ProcessChange>::read(&path)?.filter(|log| log.header.boot_id == header.boot_id);
        let log = log.unwrap_or_else(|| Log::new(path, header));
        let last = last_of_each(&log.entries);
        let earlier = log.entries.clone();
        Ok(ProcessJournal { log, needed: 0, last, earlier })
    }

    pub(super) fn path(&self) -> &Path {
        &self.log.path
    }

    /// The process: its id, and its start time in clock ticks since boot.
    pub fn process(&self) -> (i32, u64) {
        match self.log.header.subject {
            Subject::Process { pid, start_time } => (pid, start_time),
            Subject::Device { .. } => (0, 0),
        }
    }

    /// Whether it is of another PID namespace: here its ids are those of other processes, or of none.
    pub fn is_elsewhere(&self) -> bool {
        self.log.header.is_of_other_pid_namespace()
    }

    /// Whether its PID namespace is known to have no process any more.
    pub(crate) fn namespace_ended(&self) -> bool {
        self.log.header.pid_namespace.is_some_and(namespaces::pid_namespace_ended)
    }

    /// Returns for each changed setting the changes that put it back, to be tried in this order: from the value
    /// that was set last, then from earlier values, in case the last change was not made.
    pub fn records(&self) -> Vec<Vec<ProcessChange>> {
        let mut records: Vec<Vec<ProcessChange>> = Vec::new();
        let mut of: BTreeMap<Key, usize> = BTreeMap::new();
        for change in &self.log.entries {
            let known = of.get(&key(change)).and_then(|at| records.get_mut(*at));
            match known {
                Some(record) if is_other_context(record, change) => *record = vec![change.clone()],
                Some(record) => {
                    let back = combined(&record[record.len() - 1], change);
                    record.retain(|other| *other != back);
                    record.insert(0, back);
                }
                None => {
                    of.insert(key(change), records.len());
                    records.push(vec![change.clone()]);
                }
            }
        }
        records
    }

    /// Records a change that is about to be made.
    ///
    /// # Errors
    /// If it cannot be written; the change must not be made then.
    pub fn before(&mut self, change: &ProcessChange) -> Result<(), JournalError> {
        let last = self.last.get(&key(change)).and_then(|at| self.log.entries.get(*at));
        if last == Some(change) || self.may_be_inherited(change) {
            return Ok(());
        }
        if self.log.entries.len() > 2 * self.needed + SLACK {
            self.compact()?;
        }
        let appended = self.log.append(change.clone());
        // There may be thousands of processes, with few lines each, so no descriptor is kept open.
        self.log.release();
        appended?;
        self.last.insert(key(change), self.log.entries.len() - 1);
        Ok(())
    }

    /// Whether a socket whose options were reported as the program's own may have inherited them from a
    /// listener that an earlier napkin set and did not put back. Then they must be put back.
    fn may_be_inherited(&self, change: &ProcessChange) -> bool {
        let What::Socket { new, .. } = change.what else { return false };
        // The kernel does not report a socket's budget.
        let seen = |options: SocketOptions| SocketOptions { busy_poll_budget: None, ..options };
        let set = |earlier: &ProcessChange| match earlier.what {
            What::Socket { new: earlier_options, .. } => {
                earlier.is_change() && seen(earlier_options) == seen(new)
            }
            _ => false,
        };
        !change.is_change() && self.earlier.iter().any(set)
    }

    /// Removes the file, because its records are not needed any more.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn finish(self) -> Result<(), JournalError> {
        self.log.remove()
    }

    /// Drops the records since the file was opened, all of which were put back. Earlier records stay for
    /// `napkin restore`, if their settings still exist; if there are none, removes the file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn close(mut self) -> Result<(), JournalError> {
        let earlier: Vec<_> = self.earlier.into_iter().filter(is_there).collect();
        let none = !earlier.iter().any(ProcessChange::is_change);
        if none { self.log.remove() } else { self.log.rewrite(earlier) }
    }

    /// Keeps only the changes that can still be put back.
    fn compact(&mut self) -> Result<(), JournalError> {
        let records = self.records().into_iter().filter(|record| is_there(&record[0]));
        // The oldest line of each record first, so that reading yields the same record.
        let lines: Vec<ProcessChange> =
            records.flat_map(|record| record.into_iter().take(2).rev()).collect();
        self.needed = lines.len();
        let last = last_of_each(&lines);
        self.log.rewrite(lines)?;
        self.last = last;
        Ok(())
    }
}

/// Whether a change is of another epoll context than the earlier ones, with the same descriptor, which was
/// closed meanwhile: its previous value is neither the earlier context's original value nor one that was set.
fn is_other_context(record: &[ProcessChange], change: &ProcessChange) -> bool {
    let What::Epoll { old: had, .. } = change.what else { return false };
    !record.iter().any(|earlier| match earlier.what {
        What::Epoll { old, new, .. } => had == old || had == new,
        _ => true,
    })
}

/// Returns the change that puts `later` back to the value before `first`.
fn combined(first: &ProcessChange, later: &ProcessChange) -> ProcessChange {
    let mut back = later.clone();
    match (&mut back.what, &first.what) {
        (What::Epoll { old, .. }, What::Epoll { old: was, .. }) => *old = *was,
        (What::Socket { old, .. }, What::Socket { old: was, .. }) => *old = *was,
        (What::Affinity { old, .. }, What::Affinity { old: was, .. }) => old.clone_from(was),
        // Both are of the same place, so of the same kind.
        _ => {}
    }
    back
}

/// Whether the changed setting can still exist. A closed descriptor cannot be put back.
fn is_there(change: &ProcessChange) -> bool {
    let pid = change.pid;
    let (tid, fd, inode) = match change.what {
        What::Epoll { tid, fd, .. } => (tid, fd, None),
        What::Socket { tid, fd, inode, .. } => (tid, fd, Some(inode)),
        What::Affinity { tid, .. } => {
            return fs::exists(format!("/proc/{pid}/task/{tid}")).unwrap_or(true);
        }
    };
    match fs::read_link(format!("/proc/{pid}/task/{tid}/fd/{fd}")) {
        Ok(target) => {
            let wanted = inode.map(|inode| format!("socket:[{inode}]"));
            let wanted = wanted.unwrap_or_else(|| "anon_inode:[eventpoll]".into());
            target.as_os_str() == wanted.as_str()
        }
        Err(error) => error.kind() != ErrorKind::NotFound,
    }
}

/// The journals of all processes that one napkin changes, each locked while it is open.
#[derive(Debug)]
pub struct ProcessJournals {
    store: Store,
    open: BTreeMap<(i32, u64), (ProcessJournal, Lock)>,
    /// Why a journal could not be opened or written, in the words of the first failure: constant text lets a
    /// caller that retries report it only once.
    refused: BTreeMap<(i32, u64), String>,
}

impl ProcessJournals {
    /// Creates a recorder; a process's journal is opened at its first change.
    pub fn new(store: Store) -> ProcessJournals {
        ProcessJournals { store, open: BTreeMap::new(), refused: BTreeMap::new() }
    }

    fn of(&mut self, process: (i32, u64)) -> Result<&mut ProcessJournal, JournalError> {
        let entry = match self.open.entry(process) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let (pid, start_time) = process;
                let lock = self.store.lock_process(pid, start_time)?;
                lock.leaves_room()?;
                entry.insert((self.store.process(pid, start_time)?, lock))
            }
        };
        Ok(&mut entry.0)
    }
}

impl Recorder for ProcessJournals {
    fn before(&mut self, change: &ProcessChange) -> io::Result<()> {
        let process = (change.pid, change.start_time);
        match self.of(process).and_then(|journal| journal.before(change)) {
            Ok(()) => {
                self.refused.remove(&process);
                Ok(())
            }
            Err(error) => {
                let why = self.refused.entry(process).or_insert_with(|| error.to_string());
                Err(io::Error::other(why.clone()))
            }
        }
    }

    fn finished(&mut self, pid: i32, start_time: u64) -> io::Result<()> {
        self.refused.remove(&(pid, start_time));
        match self.open.remove(&(pid, start_time)) {
            Some((journal, lock)) => {
                let closed = journal.close().map_err(io::Error::other);
                drop(lock);
                closed
            }
            None => Ok(()),
        }
    }
}
