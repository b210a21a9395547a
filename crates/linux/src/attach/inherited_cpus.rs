//! Threads that inherited their CPUs from a pinned one: the kernel copies the affinity of a thread to every
//! thread and process that it starts.
//!
//! The journal does not list them, as a server starts them without end. They are recognised by three
//! properties: the affinity equals the pinned one, the thread was started after the pin, and it belongs to
//! the same process or to a descendant.

use std::collections::BTreeSet;

use crate::process_change::{ProcessChange, Restored, What};
use napkin_kernel::process::{Process, ProcessError};
use napkin_os::procfs::thread::ThreadStat;

/// The maximum number of ancestors of a process that are examined.
const MAX_LINEAGE: usize = 64;

/// The affinities that threads were pinned to.
#[derive(Debug, Default)]
pub(crate) struct Pins(Vec<Pin>);

#[derive(Debug)]
struct Pin {
    /// The process of the thread, by ID and start time, as the ID may be reused.
    process: (i32, u64),
    /// When the first thread was pinned, in ticks since boot.
    since: u64,
    old: Vec<usize>,
    new: Vec<usize>,
}

impl Pins {
    /// Whether no thread was pinned.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a change of a thread's affinity. `process` is its process, by ID and start time.
    pub(crate) fn add(&mut self, process: (i32, u64), what: &What) {
        let What::Affinity { old, new, since: Some(since), .. } = what else { return };
        let same = |pin: &&mut Pin| pin.process == process && pin.old == *old && pin.new == *new;
        match self.0.iter_mut().find(same) {
            Some(pin) => pin.since = pin.since.min(*since),
            None => self.0.push(Pin { process, since: *since, old: old.clone(), new: new.clone() }),
        }
    }

    /// Forgets the pins of a process that has ended: its children have another parent now, so no process
    /// descends from it any more.
    pub(crate) fn ended(&mut self, process: (i32, u64)) {
        self.0.retain(|pin| pin.process != process);
    }

    /// Returns the original affinity for a thread that was started at `started` and has the affinity `now`; `None` if
    /// it did not inherit that from a pinned thread. `lineage` is its process, followed by the ancestors of that.
    pub(crate) fn before(
        &self,
        lineage: &[(i32, u64)],
        started: u64,
        now: &[usize],
    ) -> Option<&[usize]> {
        let handed_on = |pin: &&Pin| pin.since <= started && pin.new == now;
        let from = self.0.iter().find(|pin| handed_on(pin) && lineage.contains(&pin.process))?;
        Some(&from.old)
    }

    /// Puts back the threads of a process that inherited the affinity of a pinned one, except those with a
    /// journal entry of their own: `known`, by thread ID and start time.
    ///
    /// # Errors
    /// If the process has ended, or its threads may not be moved.
    pub(crate) fn restore(
        &self,
        process: &Process,
        known: &BTreeSet<(i32, u64)>,
    ) -> Result<Vec<What>, ProcessError> {
        let mut back = Vec::new();
        if self.is_empty() {
            return Ok(back);
        }
        let lineage = lineage(process);
        for tid in process.threads()? {
            let Ok(new) = napkin_os::sched::affinity(Some(tid)) else { continue };
            let Some(thread_start_time) = process.thread_start_time(tid)? else { continue };
            let old = self.before(&lineage, thread_start_time, &new);
            let Some(old) = old.filter(|_| !known.contains(&(tid, thread_start_time))) else {
                continue;
            };
            let (old, since) = (old.to_vec(), None);
            let what = What::Affinity { tid, thread_start_time, old, new, since };
            let (pid, start_time) = (process.pid(), process.start_time());
            let change = ProcessChange { pid, start_time, what };
            if change.restore_in(process, false)? == Restored::Done {
                back.push(change.what);
            }
        }
        Ok(back)
    }
}

/// The ID and start time of a process, its parent, and so on.
pub(crate) fn lineage(process: &Process) -> Vec<(i32, u64)> {
    let stat = |pid: i32| ThreadStat::read(pid, pid);
    std::iter::successors(stat(process.pid()), |it| stat(it.ppid))
        .map(|it| (it.tid, it.start_ticks))
        .take(MAX_LINEAGE)
        .collect()
}

/// The threads with a journal entry, by thread ID and start time.
pub(crate) fn known<'a>(
    changes: impl IntoIterator<Item = &'a ProcessChange>,
) -> BTreeSet<(i32, u64)> {
    let of = |change: &ProcessChange| match change.what {
        What::Affinity { tid, thread_start_time, .. } => Some((tid, thread_start_time)),
        _ => None,
    };
    changes.into_iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use napkin_os::procfs::thread::ticks_now;
    use napkin_os::sched::{affinity, pin, usable_cpus};
    use std::sync::mpsc::channel;

    fn moved(tid: i32, since: Option<u64>, old: &[usize], new: &[usize]) -> What {
        let (old, new) = (old.to_vec(), new.to_vec());
        What::Affinity { tid, thread_start_time: 7, old, new, since }
    }

    #[test]
    fn a_thread_has_its_cpus_from_one_that_was_moved_before_it_was_started() {
        let mut pins = Pins::default();
        pins.add((1, 10), &moved(1, Some(100), &[0, 1], &[2]));
        pins.add((1, 10), &moved(2, Some(50), &[0, 1], &[2]));
        pins.add((9, 20), &moved(9, Some(200), &[4], &[3]));
        // An older napkin did not record the time.
        pins.add((1, 10), &moved(4, None, &[6], &[5]));
        let own = |started, now| pins.before(&[(1, 10)], started, now);
        assert_eq!(own(50, &[2]), Some(&[0, 1][..]));
        assert_eq!(own(49, &[2]), None, "it was there before");
        assert_eq!(own(250, &[2, 3]), None, "it has others");
        assert_eq!(own(250, &[5]), None);
        assert_eq!(own(250, &[3]), None, "another process's, which has begun nothing here");
        assert_eq!(
            pins.before(&[(12, 30), (9, 20), (7, 5)], 250, &[3]),
            Some(&[4][..]),
            "its child's"
        );
        assert_eq!(pins.before(&[(9, 21)], 250, &[3]), None, "another one of this id");
        pins.ended((9, 20));
        assert_eq!(pins.before(&[(12, 30), (9, 20)], 250, &[3]), None);
    }

    #[test]
    fn what_a_moved_thread_has_begun_is_put_back_and_what_is_written_down_is_not() {
        let usable = usable_cpus();
        // Other tests run threads on the first CPU.
        let [_, .., last] = usable[..] else { return };
        let moved_one = move || {
            let own_tid = || rustix::thread::gettid().as_raw_nonzero().get();
            let since = Some(ticks_now());
            pin(None, &[last]).expect("it is there");
            let ((tid_sender, tid_receiver), (end, ended)) = (channel(), channel::<()>());
            let child = std::thread::spawn(move || {
                tid_sender.send(own_tid()).expect("somebody listens");
                let _ = ended.recv();
            });
            let begun: i32 = tid_receiver.recv().expect("it tells");
            assert_eq!(affinity(Some(begun)).expect("it lives"), [last]);
            let own = Process::open(std::process::id().cast_signed()).expect("it lives");
            let started = own.thread_start_time(own_tid()).expect("it lives").expect("it lives");
            let mut pins = Pins::default();
            pins.add((own.pid(), own.start_time()), &moved(own_tid(), since, &usable, &[last]));
            let known = BTreeSet::from([(own_tid(), started)]);
            let back = pins.restore(&own, &known).expect("they may be moved");
            assert!(back.iter().any(|what| what.place().1 == begun), "{back:?}");
            assert_eq!(affinity(Some(begun)).expect("it lives"), usable);
            assert_eq!(affinity(None).expect("it lives"), [last], "its own line is for that");
            drop(end);
            child.join().expect("no panic");
        };
        // On a thread of its own, so that the affinity ends with it.
        std::thread::spawn(moved_one).join().expect("no panic");
    }
}
