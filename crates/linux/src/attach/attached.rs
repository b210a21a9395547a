//! One process under a policy: its settings, what was changed, and how it is changed.

mod restore;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use rustix::fd::OwnedFd;
use rustix::io::Errno;

use super::event::{Event, EventKind};
use super::inherited_cpus::Pins;
use super::moved::{Known, old_of};
use super::plan::Plan;
use crate::process_change::{ProcessChange, Recorder, What};
use napkin_kernel::process::{
    Descriptor, Descriptors, Kind, Params, Process, ProcessError, SocketOptions, same_file,
};
use napkin_os::rights::Right;

/// The maximum number of descriptors of one process that are read.
pub(crate) const MAX_DESCRIPTORS: usize = 1 << 20;

/// The maximum number of changes in one process: each is recorded in the journal, and kept until the process ends.
pub(super) const MAX_CHANGES: usize = 1 << 16;

/// The operation named in an error about a socket.
const SET_SOCKET: &str = "to set a socket";

/// The maximum number of remembered reasons; when it is reached, all are forgotten and may be reported again.
const MAX_REPORTED: usize = 1_024;

/// A process under a policy.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) process: Process,
    pub(super) comm: String,
    /// Changes by place, at most one for each.
    pub(super) changes: BTreeMap<(u8, i32, u64), ProcessChange>,
    /// Epoll contexts already processed, by table and descriptor.
    epolls: BTreeSet<(i32, i32)>,
    /// Contexts to which the program itself gave other parameters.
    overridden: BTreeSet<(i32, i32)>,
    /// Contexts that already had the parameters when first seen: the program set them itself.
    preset_epolls: BTreeSet<(i32, i32)>,
    /// The original parameters of contexts whose descriptor turned out in this scan to belong to another context.
    displaced: Vec<Params>,
    /// Sockets already processed and still open.
    sockets: BTreeSet<u64>,
    /// Sockets that already had the options at the first scan: the program set them itself.
    preset_sockets: BTreeSet<u64>,
    looked: bool,
    /// When it was last scanned: whatever is new was opened after that. `None` before the first scan.
    seen: Option<Instant>,
    /// Reasons already reported.
    reported: BTreeSet<String>,
    /// Whether something could not be set in the last scan.
    unset: bool,
    /// Whether the last scan for threads to pin failed.
    pub(super) unpinned: bool,
    /// Consecutive scans in which no thread could be pinned.
    pub(super) nothing_to_pin: u8,
    /// Threads that were running at every scan for threads to pin; `None` before the first.
    pub(super) ran: Option<BTreeSet<i32>>,
}

/// State shared by the processes of one attachment.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Sockets that were set, by inode, with their original options.
    pub(super) sockets: BTreeMap<u64, SocketOptions>,
    /// The CPUs to which threads were pinned.
    pub(super) pins: Pins,
}

impl Attached {
    /// `seen`: a time at which the process did not exist yet; `None` if it existed before the attachment.
    pub(super) fn new(process: Process, seen: Option<Instant>) -> Attached {
        let comm = process.comm().unwrap_or_default();
        Attached {
            process,
            comm,
            changes: BTreeMap::new(),
            epolls: BTreeSet::new(),
            overridden: BTreeSet::new(),
            preset_epolls: BTreeSet::new(),
            displaced: Vec::new(),
            sockets: BTreeSet::new(),
            preset_sockets: BTreeSet::new(),
            looked: false,
            seen,
            reported: BTreeSet::new(),
            unset: false,
            unpinned: false,
            nothing_to_pin: 0,
            ran: None,
        }
    }

    /// Whether the last attempt to read or set something failed.
    pub(super) const fn failing(&self) -> bool {
        self.unset || self.unpinned
    }

    pub(super) fn event(&self, kind: EventKind) -> Event {
        Event { pid: self.process.pid(), comm: self.comm.clone(), kind }
    }

    /// Reports a failure, once for each reason, and counts the process as not fully set.
    pub(super) fn failed(&mut self, why: String, events: &mut Vec<Event>) {
        self.unset = true;
        self.failed_once(why, events);
    }

    pub(super) fn failed_once(&mut self, why: String, events: &mut Vec<Event>) {
        if self.first_report(why.clone()) {
            events.push(self.event(EventKind::Failed { why }));
        }
    }

    /// Reports a thread that is not pinned, once for each reason.
    pub(super) fn not_pinned(&mut self, tid: i32, why: String, events: &mut Vec<Event>) {
        if self.first_report(format!("{tid}: {why}")) {
            events.push(self.event(EventKind::NotPinned { tid, why }));
        }
    }

    /// Whether `what` has not been reported before.
    pub(super) fn first_report(&mut self, what: String) -> bool {
        // Bounded, as threads may come and go without end, each with a reason of its own.
        if self.reported.len() >= MAX_REPORTED {
            self.reported.clear();
        }
        self.reported.insert(what)
    }

    /// Scans the process and sets whatever differs from the plan. Failures are reported, and tried again by
    /// the next scan.
    ///
    /// # Errors
    /// If it has ended.
    pub(super) fn scan(
        &mut self,
        plan: &Plan,
        others: &BTreeMap<i32, Attached>,
        shared: &mut Shared,
        recorder: &mut dyn Recorder,
        events: &mut Vec<Event>,
    ) -> Result<(), ProcessError> {
        self.unset = false;
        match self.set(plan, others, shared, recorder, events) {
            Err(error) if !error.is_gone() => {
                // A failed scan does not mean that the process has ended.
                self.failed(error.to_string(), events);
                Ok(())
            }
            looked => looked,
        }
    }

    fn set(
        &mut self,
        plan: &Plan,
        others: &BTreeMap<i32, Attached>,
        shared: &mut Shared,
        recorder: &mut dyn Recorder,
        events: &mut Vec<Event>,
    ) -> Result<(), ProcessError> {
        let now = Instant::now();
        let comm = self.process.comm()?;
        if comm != self.comm {
            let before = std::mem::replace(&mut self.comm, comm);
            events.push(self.event(EventKind::Exec { before }));
        }
        let found = self.process.descriptors(MAX_DESCRIPTORS)?;
        if found.cut {
            let why = format!("it has more than {MAX_DESCRIPTORS} descriptors: not all are seen");
            self.failed(why, events);
        }
        if let Some(params) = plan.epoll {
            self.set_epolls(params, &found, others, recorder, events)?;
        }
        if let Some(options) = plan.socket {
            self.set_sockets(options, &found, shared, recorder, events)?;
        }
        self.looked = true;
        self.seen = Some(now);
        Ok(())
    }

    fn set_epolls(
        &mut self,
        params: Params,
        found: &Descriptors,
        others: &BTreeMap<i32, Attached>,
        recorder: &mut dyn Recorder,
        events: &mut Vec<Event>,
    ) -> Result<(), ProcessError> {
        let present: BTreeSet<_> = found.epolls().map(|epoll| (epoll.tid, epoll.fd)).collect();
        self.epolls.retain(|place| present.contains(place));
        self.overridden.retain(|place| present.contains(place));
        self.displaced.clear();
        let (mut first, mut again, mut already) = (Vec::new(), Vec::new(), Vec::new());
        for epoll in found.epolls() {
            let Descriptor { tid, fd, .. } = epoll;
            match self.set_epoll(&epoll, params, &present, others, recorder, events) {
                Ok(None) => {}
                Ok(Some(Set::First)) => first.push(fd),
                Ok(Some(Set::Again)) => again.push(fd),
                Ok(Some(Set::Already)) => already.push(fd),
                Err(error) if error.is_gone() => return Err(error),
                Err(error) => self.failed(error.to_string(), events),
            }
            self.epolls.insert((tid, fd));
        }
        let within = self.seen.map(|seen| seen.elapsed());
        for (fds, again) in [(first, false), (again, true)] {
            if !fds.is_empty() {
                events.push(self.event(EventKind::Epolls { fds, params, within, again }));
            }
        }
        if !already.is_empty() {
            events.push(self.event(EventKind::Already { fds: already }));
        }
        Ok(())
    }

    fn set_epoll(
        &mut self,
        epoll: &Descriptor,
        params: Params,
        present: &BTreeSet<(i32, i32)>,
        others: &BTreeMap<i32, Attached>,
        recorder: &mut dyn Recorder,
        events: &mut Vec<Event>,
    ) -> Result<Option<Set>, ProcessError> {
        let Descriptor { tid, fd, .. } = *epoll;
        let Some(taken) = self.process.take(epoll)? else { return Ok(None) };
        let refused = |errno| refused(&self.process, "to set an epoll context", errno);
        let Some(now) = Params::get(&taken).map_err(refused)? else { return Ok(None) };
        let known = self.epolls.contains(&(tid, fd));
        if now == params {
            self.overridden.remove(&(tid, fd));
            if known {
                return Ok(None);
            }
            // The context may be shared with a process where it was set: then it is put back here if that
            // process ends first. Or it was set at another descriptor.
            let inherited = inherited(&taken, others);
            let old = inherited.or_else(|| self.moved(&taken, fd, params, present));
            match old {
                Some(old) => self.record(What::Epoll { tid, fd, old, new: params }, recorder)?,
                None => {
                    self.preset_epolls.insert((tid, fd));
                    // Tells a restore that the program set it itself. If the journal cannot be written, a
                    // restore has nothing to put back here.
                    let what = What::Epoll { tid, fd, old: params, new: params };
                    let _ = recorder.before(&self.change(what));
                }
            }
            return Ok(Some(Set::Already));
        }
        let place = What::Epoll { tid, fd, old: now, new: params }.place();
        let recorded = self.changes.get(&place).map(|change| &change.what);
        if let Some(What::Epoll { old, .. }) = recorded {
            self.displaced.push(*old);
        }
        let old = match recorded {
            Some(What::Epoll { old, .. }) if *old == now => *old,
            // Default parameters mean a new context: the old one was closed, and another was opened.
            _ if now == Params::default() => now,
            Some(_) if known => {
                if self.overridden.insert((tid, fd)) {
                    events.push(self.event(EventKind::OwnParams { fd, now }));
                }
                return Ok(None);
            }
            _ => now,
        };
        let again = recorded.is_some();
        self.record(What::Epoll { tid, fd, old, new: params }, recorder)?;
        let set = params
            .set(&taken)
            .map_err(|errno| refused_setting(&self.process, "to set an epoll context", errno))?;
        Ok(set.then_some(if again { Set::Again } else { Set::First }))
    }

    /// Returns the original parameters of a context that already has the plan's, if it was set at another
    /// descriptor of this process.
    fn moved(
        &mut self,
        taken: &OwnedFd,
        fd: i32,
        params: Params,
        present: &BTreeSet<(i32, i32)>,
    ) -> Option<Params> {
        // Nothing was set in this process before its first scan.
        if !self.looked {
            return None;
        }
        let set = self.changes.values().filter_map(|change| match change.what {
            What::Epoll { tid, fd, old, new } => Some((tid, fd, old, new)),
            _ => None,
        });
        let preset = self.preset_epolls.iter().map(|(tid, fd)| (*tid, *fd, params, params));
        let displaced = self.displaced.iter();
        let mut known: Vec<Known> =
            displaced.map(|old| Known { fd: -1, old: *old, new: params, lost: true }).collect();
        for (tid, other, old, new) in set.chain(preset) {
            let lost = !present.contains(&(tid, other));
            if !lost && same_file(taken, tid, other) {
                return (old != new).then_some(old);
            }
            known.push(Known { fd: other, old, new, lost });
        }
        old_of(fd, params, &known)
    }

    /// Notes which sockets have the options before anything is set in any process of this attachment: the
    /// program set those itself. (Later, accepted sockets may inherit them from a listener that was set.)
    /// Errors are left to the scan, which reports them.
    pub(super) fn note_preset(&mut self, options: SocketOptions, recorder: &mut dyn Recorder) {
        if self.looked {
            return;
        }
        let Ok(found) = self.process.descriptors(MAX_DESCRIPTORS) else { return };
        for socket in found.sockets() {
            let Descriptor { tid, fd, kind: Kind::Socket(inode) } = socket else { continue };
            if let Ok(Some((_, now))) = self.options(&socket, inode)
                && now == as_read(options)
                && self.preset_sockets.insert(inode)
            {
                // Tells a restore that the program set them itself, as with epoll contexts.
                let what = What::Socket { tid, fd, inode, old: options, new: options };
                let _ = recorder.before(&self.change(what));
            }
        }
    }

    /// Returns an internet socket with its options; `None` for other sockets, or if it has been closed.
    fn options(
        &self,
        socket: &Descriptor,
        inode: u64,
    ) -> Result<Option<(OwnedFd, SocketOptions)>, ProcessError> {
        let Some(taken) = self.process.take(socket)? else { return Ok(None) };
        let refused = |errno| refused(&self.process, SET_SOCKET, errno);
        let other = rustix::fs::fstat(&taken).map_err(refused)?.st_ino != inode;
        if other || !napkin_kernel::process::socket::is_internet(&taken) {
            return Ok(None);
        }
        let now = SocketOptions::get(&taken).map_err(refused)?;
        Ok(Some((taken, now)))
    }

    fn set_sockets(
        &mut self,
        options: SocketOptions,
        found: &Descriptors,
        shared: &mut Shared,
        recorder: &mut dyn Recorder,
        events: &mut Vec<Event>,
    ) -> Result<(), ProcessError> {
        let mut present = BTreeSet::new();
        let mut failed = Vec::new();
        let mut count = 0;
        for socket in found.sockets() {
            let Kind::Socket(inode) = socket.kind else { continue };
            if !present.insert(inode) || self.sockets.contains(&inode) {
                continue;
            }
            match self.set_socket(&socket, inode, options, shared, recorder) {
                Ok(set) => count += usize::from(set),
                Err(error) if error.is_gone() => return Err(error),
                Err(error) => {
                    self.failed(error.to_string(), events);
                    failed.push(inode);
                }
            }
        }
        self.preset_sockets.retain(|inode| present.contains(inode));
        if !found.cut {
            // A closed socket needs no restore, and a proxy opens new ones without end.
            self.changes.retain(|_, change| match change.what {
                What::Socket { inode, .. } => present.contains(&inode),
                _ => true,
            });
        }
        // The next scan tries the failed ones again.
        present.retain(|inode| !failed.contains(inode));
        self.sockets = present;
        if count > 0 {
            events.push(self.event(EventKind::Sockets { count, options }));
        }
        Ok(())
    }

    fn set_socket(
        &mut self,
        socket: &Descriptor,
        inode: u64,
        options: SocketOptions,
        shared: &mut Shared,
        recorder: &mut dyn Recorder,
    ) -> Result<bool, ProcessError> {
        let Descriptor { tid, fd, .. } = *socket;
        let Some((taken, now)) = self.options(socket, inode)? else { return Ok(false) };
        let new = options;
        if now == as_read(options) {
            // The options were set through another process that shares the socket, inherited from a listener,
            // or set by the program.
            if let Some(old) = shared.sockets.get(&inode) {
                let old = *old;
                self.record(What::Socket { tid, fd, inode, old, new }, recorder)?;
            }
            return Ok(false);
        }
        let old = SocketOptions { busy_poll_budget: options.busy_poll_budget.map(|_| 0), ..now };
        self.record(What::Socket { tid, fd, inode, old, new }, recorder)?;
        let refused = |errno| refused_setting(&self.process, SET_SOCKET, errno);
        options.set(&taken).map_err(refused)?;
        if shared.sockets.len() < MAX_CHANGES {
            shared.sockets.insert(inode, old);
        }
        Ok(true)
    }

    /// Records a change in the journal before it is made. A change that is already recorded is not repeated.
    pub(super) fn record(
        &mut self,
        what: What,
        recorder: &mut dyn Recorder,
    ) -> Result<(), ProcessError> {
        let pid = self.process.pid();
        let place = what.place();
        let change = self.change(what);
        match self.changes.get(&place) {
            Some(known) if *known == change => return Ok(()),
            None if self.changes.len() >= MAX_CHANGES => {
                let reason = format!("more than {MAX_CHANGES} changes of one process");
                return Err(ProcessError::Unwritten { pid, reason });
            }
            _ => {}
        }
        recorder
            .before(&change)
            .map_err(|error| ProcessError::Unwritten { pid, reason: error.to_string() })?;
        self.changes.insert(place, change);
        Ok(())
    }

    fn change(&self, what: What) -> ProcessChange {
        ProcessChange { pid: self.process.pid(), start_time: self.process.start_time(), what }
    }
}

/// The options as they read back from a socket: the kernel does not return the budget.
const fn as_read(options: SocketOptions) -> SocketOptions {
    SocketOptions { busy_poll_budget: None, ..options }
}

/// The original parameters of an epoll context, if another process shares it and it was set there.
fn inherited(taken: &OwnedFd, others: &BTreeMap<i32, Attached>) -> Option<Params> {
    others.values().flat_map(|other| other.changes.values()).find_map(|change| {
        let What::Epoll { tid, fd, old, .. } = change.what else { return None };
        same_file(taken, tid, fd).then_some(old)
    })
}

/// How an epoll context was handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Set {
    First,
    Again,
    Already,
}

fn refused(process: &Process, what: &'static str, errno: Errno) -> ProcessError {
    match errno {
        Errno::OPNOTSUPP => {
            ProcessError::Unsupported { what: "epoll's busy-poll parameters", since: "6.9" }
        }
        errno => process.refused(what, errno),
    }
}

/// Maps the error of a refused setting: it needs another privilege (`CAP_NET_ADMIN`) than reading does.
fn refused_setting(process: &Process, what: &'static str, errno: Errno) -> ProcessError {
    match errno {
        Errno::PERM => {
            let comm = process.comm().unwrap_or_default();
            ProcessError::Denied { pid: process.pid(), comm, what, right: Right::NetAdmin }
        }
        errno => refused(process, what, errno),
    }
}
