//! A process, its children and theirs, kept under a policy until they are let go.

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

/// More processes at a time than this are not looked at.
const MAX_PROCESSES: usize = 1 << 16;

/// How often it is looked for threads to pin: a thread that waits now will most likely wait again.
const PIN_EVERY: Duration = Duration::from_millis(500);

/// The same while it is looked for threads in a row.
const PIN_GAP: Duration = Duration::from_millis(20);

/// Processes under a policy. Dropped, it puts everything back, unless it was told to [`leave`].
///
/// [`leave`]: Attachment::leave
pub struct Attachment<R: Recorder> {
    plan: Plan,
    recorder: R,
    cpu_of: Option<Box<dyn Resolver>>,
    /// Whose descendants are looked for, without itself: this process, for what it started.
    above: Option<i32>,
    /// Children of this process that are none of what it started for the plan.
    not_these: Vec<i32>,
    tree: BTreeMap<i32, Attached>,
    /// Descendants that could not be added, and why.
    missed: BTreeMap<i32, String>,
    /// How many have ended, or are no longer there, of which not all could be set.
    ended_unset: usize,
    /// The limit of open files as it was, if it was raised.
    files: Option<OpenFiles>,
    /// The number of the first descriptor that was taken for a process.
    first_descriptor: Option<u64>,
    shared: Shared,
    started: Instant,
    /// When the processes were last looked for.
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

/// What a look found.
#[derive(Debug)]
pub struct Look {
    /// What happened, in order.
    pub events: Vec<Event>,
    /// When to look again.
    pub wait: Duration,
    /// The CPU time that this look took.
    pub cost: Duration,
}

impl<R: Recorder> Attachment<R> {
    /// Of no process yet.
    pub fn new(plan: Plan, recorder: R) -> Attachment<R> {
        let now = Instant::now();
        Attachment {
            plan,
            recorder,
            cpu_of: None,
            above: None,
            not_these: Vec::new(),
            tree: BTreeMap::new(),
            missed: BTreeMap::new(),
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

    /// Raises this process's limit of open files as far as it may, for each process takes two. What
    /// [`run`](super::run()) starts gets the limit as it was.
    pub fn raise_open_files(&mut self) {
        self.files.get_or_insert_with(OpenFiles::raise);
    }

    /// The limit of open files as it was, if it was raised.
    pub(super) const fn open_files(&self) -> Option<&OpenFiles> {
        self.files.as_ref()
    }

    /// Pins threads, with somebody who knows where an instance is polled.
    pub fn pin_with(&mut self, cpu_of: Box<dyn Resolver>) {
        self.cpu_of = Some(cpu_of);
    }

    /// Adds a running process, with all its descendants from now on.
    ///
    /// # Errors
    /// If there is none, or its descriptors may not be seen.
    pub fn add(&mut self, pid: i32) -> Result<(), ProcessError> {
        let process = Process::open(pid)?;
        // A right that is missing is missing from the start: it is told here and not at each look.
        process.descriptors(1)?;
        self.check_room(&process)?;
        self.tree.insert(pid, Attached::new(process, None));
        Ok(())
    }

    /// Adds what this process starts from now on, with all its descendants: for a subreaper, which
    /// gets those whose parent ended.
    pub fn add_own_children(&mut self) {
        self.started = Instant::now();
        self.pace = Pace::new(self.started);
        self.above = i32::try_from(std::process::id()).ok();
    }

    /// Leaves out children of this process that it needs itself.
    pub(super) fn leave_out(&mut self, pids: Vec<i32>) {
        self.not_these = pids;
    }

    /// How many of its processes lived at the last look.
    pub fn processes(&self) -> usize {
        self.tree.len()
    }

    /// In how many processes not everything could be looked at or set: those that could not be
    /// reached, those where the last look at them met an error, and those that ended so.
    pub fn unset(&self) -> usize {
        let failing = self.tree.values().filter(|attached| attached.failing()).count();
        failing + self.missed.len() + self.ended_unset
    }

    /// Process IDs of everything attached to, in the order found.
    pub fn pids(&self) -> Vec<i32> {
        self.tree.keys().copied().collect()
    }

    pub(super) fn attached(&self) -> impl Iterator<Item = &Process> {
        self.tree.values().map(|attached| &attached.process)
    }

    /// Whether a process is one of them, and lived at the last look.
    pub fn holds(&self, pid: i32) -> bool {
        self.tree.contains_key(&pid)
    }

    /// Looks at all of them once, and sets what is not as planned.
    pub fn look(&mut self) -> Look {
        let before = cpu_time();
        let mut events = Vec::new();
        self.bury(&mut events);
        self.discover(&mut events);
        if let Some(options) = self.plan.socket
            && self.shared.sockets.is_empty()
        {
            for attached in self.tree.values_mut() {
                attached.note_own(options, &mut self.recorder);
            }
        }
        let pids = self.pids();
        for pid in &pids {
            // Taken out, so that it can be compared with the others.
            let Some(mut attached) = self.tree.remove(pid) else { continue };
            let looked = attached.look(
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
        Look { events, wait, cost }
    }

    /// Looks for threads to pin again and again until it is `done`, for `time` at most: at each look some
    /// run, of which nobody can tell what they wait for.
    pub fn pin_for(&mut self, time: Duration, done: impl Fn(&Attachment<R>) -> bool) -> Vec<Event> {
        let begun = Instant::now();
        let mut events = Vec::new();
        while !done(&*self) && begun.elapsed() < time {
            std::thread::sleep(PIN_GAP);
            self.pinned = None;
            // That there is none to pin is not told by looks so close together.
            self.tree.values_mut().for_each(|attached| attached.nothing_to_pin = 0);
            self.pin(&mut events);
        }
        events
    }

    /// Threads that ran each time that it was looked for some to pin, and have more than one CPU: thread ids.
    pub fn always_ran(&self) -> Vec<i32> {
        let ran = self.tree.values().filter_map(|attached| attached.ran.as_ref());
        // One that has a CPU of its own already needs none, and one that has ended neither.
        let elsewhere =
            |tid: &i32| napkin_os::sched::affinity(Some(*tid)).is_ok_and(|cpus| cpus.len() > 1);
        ran.flatten().copied().filter(elsewhere).collect()
    }

    /// Puts everything back and lets the processes go. What could not be put back stays written
    /// down.
    pub fn restore(&mut self) -> (Restoration, Vec<Event>) {
        let mut total = Restoration::default();
        let mut events = Vec::new();
        if !self.shared.pins.is_empty() {
            // What was begun since the last look may have inherited its CPUs.
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

    /// Lets the processes go as they are. What was changed stays written down.
    pub fn leave(mut self) {
        self.tree.clear();
    }

    /// Removes those that have ended.
    fn bury(&mut self, events: &mut Vec<Event>) {
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

    /// Leaves descriptors free for a process's journal and for those of all others, and some to set
    /// and put back with.
    fn check_room(&mut self, process: &Process) -> Result<(), ProcessError> {
        let number = u64::try_from(process.pidfd().as_fd().as_raw_fd()).unwrap_or(0);
        let first = *self.first_descriptor.get_or_insert(number);
        let taken = first + 2 * (self.tree.len() as u64 + 1);
        open_files::has_room(number.max(taken))
            .map_err(|_| ProcessError::NoDescriptor { pid: process.pid(), what: "to open it" })
    }

    /// Adds the descendants that are new, and tells of those that cannot be added.
    fn discover(&mut self, events: &mut Vec<Event>) {
        let now = Instant::now();
        let mut roots = self.pids();
        roots.extend(self.above);
        let Descendants { pids, unseen } = descendants_of(&roots, MAX_PROCESSES + 1);
        let mut missed = BTreeMap::new();
        for (pid, errno) in unseen {
            missed.insert(pid, format!("its children cannot be listed: {errno}"));
        }
        for pid in pids {
            if self.tree.contains_key(&pid) || self.not_these.contains(&pid) {
                continue;
            }
            let process = Process::open(pid).and_then(|process| {
                // A zombie that nobody has waited for has nothing to be set any more.
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
                    missed.insert(pid, why);
                }
                Ok(process) => {
                    // What is started by this process was not there before it was started.
                    let unseen = self.looked.or(self.above.map(|_| self.started));
                    self.tree.insert(pid, Attached::new(process, unseen));
                }
                Err(error) if error.is_gone() => {}
                Err(error) => {
                    missed.insert(pid, error.to_string());
                }
            }
        }
        for (pid, why) in &missed {
            if self.missed.get(pid) != Some(why) {
                let kind = EventKind::Failed { why: why.clone() };
                events.push(Event { pid: *pid, comm: comm_of(*pid), kind });
            }
        }
        let ended = self.missed.keys().filter(|pid| !missed.contains_key(pid));
        self.ended_unset += ended.filter(|pid| !self.tree.contains_key(pid)).count();
        self.missed = missed;
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

/// The name of a process that cannot be opened.
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
