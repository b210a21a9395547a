//! Processes and their descendants, kept under a policy until they are released.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use napkin_os::procfs::thread::comm;
use napkin_policy::text::escaped;
use rustix::fd::{AsFd, AsRawFd};
use rustix::time::{ClockId, clock_gettime};

use super::attached::{Attached, Shared};
use super::event::{Event, EventKind};
use super::pace::Pace;
use super::pin::Resolver;
use super::plan::Plan;
use super::restoration::Restoration;
use crate::process_change::Recorder;
use napkin_kernel::open_files::{self, OpenFiles};
use napkin_kernel::process::{Descendants, Process, ProcessError, descendants_of};

/// The maximum number of processes of an attachment.
const MAX_PROCESSES: usize = 1 << 16;

/// The interval between scans for threads to pin. A thread that waits now will most likely wait again.
const PIN_EVERY: Duration = Duration::from_millis(500);

/// The same interval in [`Attachment::pin_for`], which scans repeatedly.
const PIN_GAP: Duration = Duration::from_millis(20);

/// Processes under a policy. Dropping it puts everything back; [`leave`] does not.
///
/// [`leave`]: Attachment::leave
pub struct Attachment<R: Recorder> {
    plan: Plan,
    recorder: R,
    cpu_of: Option<Box<dyn Resolver>>,
    /// The process whose descendants are attached to, without itself: this process, for what it started.
    root: Option<i32>,
    /// Children of this process that do not belong to the program, such as signal witnesses.
    excluded: Vec<i32>,
    tree: BTreeMap<i32, Attached>,
    /// Descendants that could not be added, and why.
    unreachable: BTreeMap<i32, String>,
    /// How many processes ended, or disappeared, before everything could be set in them.
    ended_unset: usize,
    /// The original limit of open files, if it was raised.
    files: Option<OpenFiles>,
    /// The number of the first descriptor that was opened for a process.
    first_descriptor: Option<u64>,
    shared: Shared,
    started: Instant,
    /// When processes were last discovered.
    looked: Option<Instant>,
    pinned: Option<Instant>,
    pace: Pace,
}

impl<R: Recorder> std::fmt::Debug for Attachment<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attachment")
            .field("plan", &self.plan)
            .field("processes", &self.tree.keys())
            .finish_non_exhaustive()
    }
}

/// The result of a scan.
#[derive(Debug)]
pub struct Scan {
    /// Events in order.
    pub events: Vec<Event>,
    /// The time to wait before the next scan.
    pub wait: Duration,
    /// The CPU time that this scan took.
    pub cost: Duration,
}

impl<R: Recorder> Attachment<R> {
    /// Creates an attachment without processes.
    pub fn new(plan: Plan, recorder: R) -> Attachment<R> {
        let now = Instant::now();
        Attachment {
            plan,
            recorder,
            cpu_of: None,
            root: None,
            excluded: Vec::new(),
            tree: BTreeMap::new(),
            unreachable: BTreeMap::new(),
            ended_unset: 0,
            files: None,
            first_descriptor: None,
            shared: Shared::default(),
            started: now,
            looked: None,
            pinned: None,
            pace: Pace::new(now),
        }
    }

    /// Raises this process's limit of open files as far as permitted, as each process takes two descriptors.
    /// Programs that [`run`](super::run()) starts get the original limit.
    pub fn raise_open_files(&mut self) {
        self.files.get_or_insert_with(OpenFiles::raise);
    }

    /// The original limit of open files, if it was raised.
    pub(super) const fn open_files(&self) -> Option<&OpenFiles> {
        self.files.as_ref()
    }

    /// Enables pinning of threads. `cpu_of` resolves the CPU on which an instance is polled.
    pub fn pin_with(&mut self, cpu_of: Box<dyn Resolver>) {
        self.cpu_of = Some(cpu_of);
    }

    /// Adds a running process, and from now on all its descendants.
    ///
    /// # Errors
    /// If the process does not exist, or its descriptors may not be read.
    pub fn add(&mut self, pid: i32) -> Result<(), ProcessError> {
        let process = Process::open(pid)?;
        // A missing privilege is missing from the start: report it here, and not at each scan.
        process.descriptors(1)?;
        self.check_room(&process)?;
        self.tree.insert(pid, Attached::new(process, None));
        Ok(())
    }

    /// Adds all descendants that this process starts from now on. The process must be a subreaper, which
    /// inherits descendants whose parent ended.
    pub fn add_own_children(&mut self) {
        self.started = Instant::now();
        self.pace = Pace::new(self.started);
        self.root = i32::try_from(std::process::id()).ok();
    }

    /// Excludes children that this process started for its own use.
    pub(super) fn exclude(&mut self, pids: Vec<i32>) {
        self.excluded = pids;
    }

    /// The number of processes that were alive at the last scan.
    pub fn processes(&self) -> usize {
        self.tree.len()
    }

    /// The number of processes in which not everything could be read or set: unreachable ones, those whose
    /// last scan failed, and those that ended in that state.
    pub fn unset(&self) -> usize {
        let failing = self.tree.values().filter(|attached| attached.failing()).count();
        failing + self.unreachable.len() + self.ended_unset
    }

    /// Process IDs of all attached processes, in ascending order.
    pub fn pids(&self) -> Vec<i32> {
        self.tree.keys().copied().collect()
    }

    pub(super) fn attached(&self) -> impl Iterator<Item = &Process> {
        self.tree.values().map(|attached| &attached.process)
    }

    /// Whether a process is attached, and was alive at the last scan.
    pub fn contains(&self, pid: i32) -> bool {
        self.tree.contains_key(&pid)
    }

    /// Scans all processes once, and sets whatever differs from the plan.
    pub fn scan(&mut self) -> Scan {
        let before = cpu_time();
        let mut events = Vec::new();
        self.remove_ended(&mut events);
        self.discover(&mut events);
        if let Some(options) = self.plan.socket
            && self.shared.sockets.is_empty()
        {
            for attached in self.tree.values_mut() {
                attached.note_preset(options, &mut self.recorder);
            }
        }
        let pids = self.pids();
        for pid in &pids {
            // Removed from the map, so that it can be compared with the others.
            let Some(mut attached) = self.tree.remove(pid) else { continue };
            let looked = attached.scan(
                &self.plan,
                &self.tree,
                &mut self.shared,
                &mut self.recorder,
                &mut events,
            );
            match looked {
                Ok(()) => {
                    self.tree.insert(*pid, attached);
                }
                Err(_) => self.ended(&attached, &mut events),
            }
        }
        self.pin(&mut events);
        let cost = cpu_time().saturating_sub(before);
        let changed = events.iter().any(|event| {
            matches!(
                event.kind,
                EventKind::Epolls { .. } | EventKind::Already { .. } | EventKind::Exec { .. }
            )
        });
        let wait = self.pace.next(Instant::now(), cost, changed);
        Scan { events, wait, cost }
    }

    /// Scans for threads to pin repeatedly until `done` returns true, for at most `time`. At each scan some
    /// threads are running, and the kernel does not report what a running thread waits for.
    pub fn pin_for(&mut self, time: Duration, done: impl Fn(&Attachment<R>) -> bool) -> Vec<Event> {
        let begun = Instant::now();
        let mut events = Vec::new();
        while !done(&*self) && begun.elapsed() < time {
            std::thread::sleep(PIN_GAP);
            self.pinned = None;
            // Scans this close together must not count towards the report that no thread can be pinned.
            self.tree.values_mut().for_each(|attached| attached.nothing_to_pin = 0);
            self.pin(&mut events);
        }
        events
    }

    /// Thread IDs of threads that were running at every scan for threads to pin, and may use more than one CPU.
    pub fn always_ran(&self) -> Vec<i32> {
        let ran = self.tree.values().filter_map(|attached| attached.ran.as_ref());
        // A thread that is already restricted to one CPU needs no pin; a thread that has ended is skipped too.
        let elsewhere =
            |tid: &i32| napkin_os::sched::affinity(Some(*tid)).is_ok_and(|cpus| cpus.len() > 1);
        ran.flatten().copied().filter(elsewhere).collect()
    }

    /// Puts everything back and releases the processes. What could not be put back stays in the journal.
    pub fn restore(&mut self) -> (Restoration, Vec<Event>) {
        let mut total = Restoration::default();
        let mut events = Vec::new();
        if !self.shared.pins.is_empty() {
            // Processes started since the last scan may have inherited their CPUs.
            self.discover(&mut events);
        }
        for (pid, mut attached) in std::mem::take(&mut self.tree) {
            let restoration = attached.restore(&self.plan, &self.shared, &mut events);
            total.add(restoration);
            if restoration.failed == 0 {
                let finished = self.recorder.finished(pid, attached.process.start_time());
                if let Err(error) = finished {
                    attached.failed(unwritten(&error), &mut events);
                }
            }
        }
        (total, events)
    }

    /// Releases the processes as they are. Their changes stay in the journal.
    pub fn leave(mut self) {
        self.tree.clear();
    }

    /// Removes processes that have ended.
    fn remove_ended(&mut self, events: &mut Vec<Event>) {
        let ended: Vec<i32> = self
            .tree
            .iter()
            .filter(|(_, attached)| !attached.process.alive())
            .map(|(pid, _)| *pid)
            .collect();
        for pid in ended {
            if let Some(attached) = self.tree.remove(&pid) {
                self.ended(&attached, events);
            }
        }
    }

    fn ended(&mut self, attached: &Attached, events: &mut Vec<Event>) {
        self.ended_unset += usize::from(attached.failing());
        events.push(attached.event(EventKind::Ended));
        let (pid, start_time) = (attached.process.pid(), attached.process.start_time());
        self.shared.pins.ended((pid, start_time));
        if let Err(error) = self.recorder.finished(pid, start_time) {
            events.push(attached.event(EventKind::Failed { why: unwritten(&error) }));
        }
    }

    /// Checks that enough descriptors remain for this process's journal, for those of all others, and for
    /// setting and putting back.
    fn check_room(&mut self, process: &Process) -> Result<(), ProcessError> {
        let number = u64::try_from(process.pidfd().as_fd().as_raw_fd()).unwrap_or(0);
        let first = *self.first_descriptor.get_or_insert(number);
        let taken = first + 2 * (self.tree.len() as u64 + 1);
        open_files::has_room(number.max(taken))
            .map_err(|_| ProcessError::NoDescriptor { pid: process.pid(), what: "to open it" })
    }

    /// Adds new descendants, and reports those that cannot be added.
    fn discover(&mut self, events: &mut Vec<Event>) {
        let now = Instant::now();
        let mut roots = self.pids();
        roots.extend(self.root);
        let Descendants { pids, unseen } = descendants_of(&roots, MAX_PROCESSES + 1);
        let mut unreachable = BTreeMap::new();
        for (pid, errno) in unseen {
            unreachable.insert(pid, format!("its children cannot be listed: {errno}"));
        }
        for pid in pids {
            if self.tree.contains_key(&pid) || self.excluded.contains(&pid) {
                continue;
            }
            let process = Process::open(pid).and_then(|process| {
                // A zombie that has not been reaped has nothing left to set.
                let alive = process.alive();
                if alive {
                    self.check_room(&process).map(|()| process)
                } else {
                    Err(ProcessError::Gone { pid })
                }
            });
            match process {
                Ok(_) if self.tree.len() >= MAX_PROCESSES => {
                    let why =
                        format!("it is not set: there are more than {MAX_PROCESSES} processes");
                    unreachable.insert(pid, why);
                }
                Ok(process) => {
                    // Descendants of this process did not exist before the program was started.
                    let unseen = self.looked.or(self.root.map(|_| self.started));
                    self.tree.insert(pid, Attached::new(process, unseen));
                }
                Err(error) if error.is_gone() => {}
                Err(error) => {
                    unreachable.insert(pid, error.to_string());
                }
            }
        }
        for (pid, why) in &unreachable {
            if self.unreachable.get(pid) != Some(why) {
                let kind = EventKind::Failed { why: why.clone() };
                events.push(Event { pid: *pid, comm: comm_of(*pid), kind });
            }
        }
        let ended = self.unreachable.keys().filter(|pid| !unreachable.contains_key(pid));
        self.ended_unset += ended.filter(|pid| !self.tree.contains_key(pid)).count();
        self.unreachable = unreachable;
        self.looked = Some(now);
    }

    fn pin(&mut self, events: &mut Vec<Event>) {
        let Some(cpu_of) = &mut self.cpu_of else { return };
        if self.pinned.is_some_and(|pinned| pinned.elapsed() < PIN_EVERY) {
            return;
        }
        cpu_of.next_round();
        for attached in self.tree.values_mut() {
            attached.pin(cpu_of.as_mut(), &mut self.shared.pins, &mut self.recorder, events);
        }
        self.pinned = Some(Instant::now());
    }
}

impl<R: Recorder> Drop for Attachment<R> {
    fn drop(&mut self) {
        self.restore();
    }
}

fn unwritten(error: &std::io::Error) -> String {
    format!("the journal cannot be written: {error}")
}

/// The name of a process, for one that cannot be opened.
fn comm_of(pid: i32) -> String {
    match comm(pid).as_deref().map(str::trim_end) {
        None | Some("") => "process".into(),
        Some(comm) => escaped(comm),
    }
}

/// The CPU time of the calling thread.
pub(crate) fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(now).unwrap_or_default()
}
