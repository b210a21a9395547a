//! The changes of one process, and of all processes that one napkin is at.
//!
//! What they are, and how one is put back, is [`attach`](crate::attach)'s.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::Store;
use super::error::JournalError;
use super::living;
use super::lock::Lock;
use super::log::{Header, Log, Subject};
use crate::{process_change::ProcessChange, process_change::Recorder, process_change::What};
use napkin_kernel::process::SocketOptions;

/// Lines beside those that are needed after which a file is looked through: a server opens and
/// closes sockets for as long as it runs.
const SLACK: usize = 1_024;

/// The changes of one process, with the file in which they are.
#[derive(Debug)]
pub struct ProcessJournal {
    log: Log<ProcessChange>,
    /// Lines after the last look through.
    needed: usize,
    /// The last line of each thing: a server may have ten thousands of sockets.
    last: BTreeMap<Key, usize>,
    /// What was in the file when it was opened: another napkin's, which has ended and not put it
    /// back.
    earlier: Vec<ProcessChange>,
}

/// The process and the thing in it that were changed.
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

    /// The process: its id, and when it started.
    pub fn process(&self) -> (i32, u64) {
        match self.log.header.subject {
            Subject::Process { pid, start_time } => (pid, start_time),
            Subject::Device { .. } => (0, 0),
        }
    }

    /// Whether it is of another PID namespace: its ids are other processes' here, or nobody's.
    pub fn is_elsewhere(&self) -> bool {
        self.log.header.is_of_other_processes()
    }

    /// Whether it is known that no process is in its PID namespace any more.
    pub(crate) fn namespace_ended(&self) -> bool {
        self.log.header.pid_namespace.is_some_and(living::pid_namespace_ended)
    }

    /// For each thing that was changed, the changes that put it back, to be tried in this order:
    /// from what it was last set to, and from what it may still be if the last was not made.
    pub fn records(&self) -> Vec<Vec<ProcessChange>> {
        let mut records: Vec<Vec<ProcessChange>> = Vec::new();
        let mut of: BTreeMap<Key, usize> = BTreeMap::new();
        for change in &self.log.entries {
            let known = of.get(&key(change)).and_then(|at| records.get_mut(*at));
            match known {
                Some(record) if is_another(record, change) => *record = vec![change.clone()],
                Some(record) => {
                    let back = since(&record[record.len() - 1], change);
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

    /// Writes down a change that is about to be made.
    ///
    /// # Errors
    /// If it could not be written; then it must not be made.
    pub fn before(&mut self, change: &ProcessChange) -> Result<(), JournalError> {
        let last = self.last.get(&key(change)).and_then(|at| self.log.entries.get(*at));
        if last == Some(change) || self.may_be_inherited(change) {
            return Ok(());
        }
        if self.log.entries.len() > 2 * self.needed + SLACK {
            self.compact()?;
        }
        let appended = self.log.append(change.clone());
        // There may be thousands of processes, and few lines are written for each.
        self.log.release();
        appended?;
        self.last.insert(key(change), self.log.entries.len() - 1);
        Ok(())
    }

    /// Whether a socket that is told to be as the program had set it may have that from a listener that an
    /// earlier napkin set, and has not put back: then it is not to be left.
    fn may_be_inherited(&self, change: &ProcessChange) -> bool {
        let What::Socket { new, .. } = change.what else { return false };
        // Nobody reads a socket's budget.
        let seen = |options: SocketOptions| SocketOptions { busy_poll_budget: None, ..options };
        let set = |earlier: &ProcessChange| match earlier.what {
            What::Socket { new: theirs, .. } => earlier.is_change() && seen(theirs) == seen(new),
            _ => false,
        };
        !change.is_change() && self.earlier.iter().any(set)
    }

    /// Removes the file: nothing in it is needed any more.
    ///
    /// # Errors
    /// If it could not be removed.
    pub fn finish(self) -> Result<(), JournalError> {
        self.log.remove()
    }

    /// Drops what was written since it was opened, all of which was put back. What was there before
    /// stays for `napkin restore`, if the process lives and has it still; without any, the file goes.
    ///
    /// # Errors
    /// If the file could not be written.
    pub fn close(mut self) -> Result<(), JournalError> {
        let earlier: Vec<_> = self.earlier.into_iter().filter(is_there).collect();
        let none = !earlier.iter().any(ProcessChange::is_change);
        if none { self.log.remove() } else { self.log.rewrite(earlier) }
    }

    /// Keeps what can still be put back.
    fn compact(&mut self) -> Result<(), JournalError> {
        let records = self.records().into_iter().filter(|record| is_there(&record[0]));
        // The oldest line of a record first, so that it is read as it was written.
        let lines: Vec<ProcessChange> =
            records.flat_map(|record| record.into_iter().take(2).rev()).collect();
        self.needed = lines.len();
        let last = last_of_each(&lines);
        self.log.rewrite(lines)?;
        self.last = last;
        Ok(())
    }
}

/// Whether a change is of another epoll context than those before it, at a descriptor that was closed
/// meanwhile: it had neither what that one had at first, nor what it was set to.
fn is_another(record: &[ProcessChange], change: &ProcessChange) -> bool {
    let What::Epoll { old: had, .. } = change.what else { return false };
    !record.iter().any(|earlier| match earlier.what {
        What::Epoll { old, new, .. } => had == old || had == new,
        _ => true,
    })
}

/// What puts back `later` to what it was before `first`.
fn since(first: &ProcessChange, later: &ProcessChange) -> ProcessChange {
    let mut back = later.clone();
    match (&mut back.what, &first.what) {
        (What::Epoll { old, .. }, What::Epoll { old: was, .. }) => *old = *was,
        (What::Socket { old, .. }, What::Socket { old: was, .. }) => *old = *was,
        (What::Affinity { old, .. }, What::Affinity { old: was, .. }) => old.clone_from(was),
        // They are of the same place, so of the same kind.
        _ => {}
    }
    back
}

/// Whether what was changed can still be there. A descriptor that was closed cannot be put back.
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

/// The journals of every process that one napkin is at, each locked for as long as it is.
#[derive(Debug)]
pub struct ProcessJournals {
    store: Store,
    open: BTreeMap<(i32, u64), (ProcessJournal, Lock)>,
    /// Why a journal could not be had, in the words of the first time: who asks again and again
    /// tells of it once.
    refused: BTreeMap<(i32, u64), String>,
}

impl ProcessJournals {
    /// A recorder without a journal; each process's is opened when something of it changes.
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
