//! Puts back what was changed in a process.

use std::collections::BTreeSet;

use super::options::RestoreOptions;
use crate::apply::restored::ProcessRestored;
use crate::attach::{MAX_DESCRIPTORS, Pins, known_threads, restore_inherited, restore_moved};
use crate::journal::{JournalError, ProcessJournal, Store, fault};
use crate::process_change::{ProcessChange, Restored, What};
use napkin_kernel::process::{Process, ProcessError};

/// The maximum number of descendants of a process that are inspected.
const MAX_PROCESSES: usize = 1 << 16;

/// Puts back the recorded changes of a process, one by one.
pub(super) fn restore_process(
    store: &Store,
    seen: &ProcessJournal,
    options: &RestoreOptions,
) -> ProcessRestored {
    let (pid, start_time) = seen.process();
    let mut restored = ProcessRestored { pid, ..ProcessRestored::default() };
    if let Err(error) = process(store, pid, start_time, options, &mut restored) {
        restored.left.push(error.to_string());
    }
    restored
}

/// Puts back what a napkin that has ended left in a process. Does nothing if there are no records, or another
/// napkin has locked the process.
pub fn restore_leftovers(store: &Store, pid: i32, start_time: u64) -> ProcessRestored {
    let mut restored = ProcessRestored { pid, ..ProcessRestored::default() };
    let known = store.process(pid, start_time);
    if known.is_ok_and(|journal| !journal.records().is_empty()) {
        let options = RestoreOptions::default();
        match process(store, pid, start_time, &options, &mut restored) {
            Ok(()) | Err(JournalError::Locked { .. }) => {}
            Err(error) => restored.left.push(error.to_string()),
        }
    }
    restored
}

fn process(
    store: &Store,
    pid: i32,
    start_time: u64,
    options: &RestoreOptions,
    restored: &mut ProcessRestored,
) -> Result<(), JournalError> {
    let lock = (!options.dry_run).then(|| store.lock_of_process(pid, start_time));
    let _lock = lock.transpose()?;
    // Read again under the lock.
    let journal = store.process(pid, start_time)?;
    if journal.is_elsewhere() {
        if journal.namespace_ended() {
            // All processes of the namespace have ended.
            restored.gone = journal.records().len();
            return if options.dry_run { Ok(()) } else { journal.finish() };
        }
        let advice = match options.forget {
            true => "",
            false => ": left alone; run napkin restore in that one, or give it up with --forget",
        };
        restored.left.push(format!("process {pid}: it is of another PID namespace{advice}"));
        restored.forgotten = options.forget;
        return if options.forget && !options.dry_run { journal.finish() } else { Ok(()) };
    }
    let records = journal.records();
    let moved = if options.dry_run { 0 } else { moved(pid, start_time, &records, restored) };
    for record in &records {
        let Some(last) = record.first().filter(|last| last.is_change()) else { continue };
        if options.dry_run {
            restored.changes.push(last.what.back());
            continue;
        }
        fault::point();
        let mut outcome = last.restore();
        for earlier in &record[1..] {
            if matches!(outcome, Ok(Restored::Changed { .. })) {
                outcome = earlier.restore();
            }
        }
        if options.force && matches!(outcome, Ok(Restored::Changed { .. })) {
            outcome = last.force();
        }
        fault::point();
        match outcome {
            Ok(Restored::Done) => restored.changes.push(last.what.back()),
            Ok(Restored::Gone) => restored.gone += 1,
            Ok(Restored::Changed { now }) => restored.left.push(format!(
                "process {pid}: {now} now, set by another program; napkin had set {}",
                last.what
            )),
            Err(error) => restored.left.push(error.to_string()),
        }
    }
    if !options.dry_run {
        // After the threads and the listeners, so that new threads and sockets inherit nothing.
        inherited_cpus(store, pid, start_time, &records, restored);
        inherited(pid, start_time, &records, restored);
    }
    restored.gone = restored.gone.saturating_sub(moved);
    restored.forgotten = options.forget;
    if !options.dry_run && (restored.left.is_empty() || options.forget) {
        journal.finish()?;
    }
    Ok(())
}

/// Puts back epoll contexts that have moved to another descriptor, and returns their number.
fn moved(
    pid: i32,
    start_time: u64,
    records: &[Vec<ProcessChange>],
    restored: &mut ProcessRestored,
) -> usize {
    let known: Vec<&ProcessChange> = records.iter().filter_map(|record| record.first()).collect();
    fault::point();
    let back = Process::reopen(pid, start_time)
        .and_then(|process| restore_moved(&process, &known, MAX_DESCRIPTORS));
    fault::point();
    match back {
        Ok(back) => {
            restored.changes.extend(back.iter().map(What::back));
            back.len()
        }
        Err(error) if error.is_gone() => 0,
        Err(error) => {
            restored.left.push(error.to_string());
            0
        }
    }
}

/// Puts back threads of the process and of its descendants that inherited their CPUs from a thread that was
/// moved. Threads that have records of their own are put back by these.
fn inherited_cpus(
    store: &Store,
    pid: i32,
    start_time: u64,
    records: &[Vec<ProcessChange>],
    restored: &mut ProcessRestored,
) {
    let mut pins = Pins::default();
    records
        .iter()
        .flatten()
        .for_each(|change| pins.add((change.pid, change.start_time), &change.what));
    if pins.is_empty() {
        return;
    }
    let all = || -> Result<Vec<What>, ProcessError> {
        let process = Process::reopen(pid, start_time)?;
        let mut back = pins.restore(&process, &known_threads(records.iter().flatten()))?;
        for child in process.descendants(MAX_PROCESSES)? {
            // A child that has ended, or that may not be inspected, is skipped.
            let Ok(child) = Process::open(child) else { continue };
            let journal = store.process(child.pid(), child.start_time());
            let records = journal.map(|journal| journal.records()).unwrap_or_default();
            let known = known_threads(records.iter().flatten());
            back.extend(pins.restore(&child, &known).unwrap_or_default());
        }
        Ok(back)
    };
    fault::point();
    let back = all();
    fault::point();
    match back {
        Ok(back) => restored.changes.extend(back.iter().map(What::back)),
        Err(error) if error.is_gone() => {}
        Err(error) => restored.left.push(error.to_string()),
    }
}

/// Puts back sockets that inherited their options from a listener. Recorded sockets are skipped: they were put
/// back, or the program set them itself.
fn inherited(
    pid: i32,
    start_time: u64,
    records: &[Vec<ProcessChange>],
    restored: &mut ProcessRestored,
) {
    let (mut set, mut known) = (Vec::new(), BTreeSet::new());
    for change in records.iter().flatten() {
        let What::Socket { inode, old, new, .. } = change.what else { continue };
        known.insert(inode);
        if change.is_change() && !set.contains(&(old, new)) {
            set.push((old, new));
        }
    }
    if set.is_empty() {
        return;
    }
    fault::point();
    let back = Process::reopen(pid, start_time)
        .and_then(|process| restore_inherited(&process, &set, &known, MAX_DESCRIPTORS));
    fault::point();
    match back {
        Ok((back, failed)) => {
            restored.changes.extend(back.iter().map(What::back));
            restored.left.extend(failed.map(|error| error.to_string()));
        }
        Err(error) if error.is_gone() => {}
        Err(error) => restored.left.push(error.to_string()),
    }
}
