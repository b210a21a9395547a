//! The keeper: brings devices to the wished state at its start, and again whenever something changes.
//!
//! It sleeps in between, and handles a burst of notices as one. Each change is in the journal before it is
//! made, so that a killed keeper leaves nothing that the next one, or `napkin restore`, does not know. While
//! it holds a device, no other napkin process changes it.

mod device;
mod leftovers;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use napkin_kernel::open_files::OpenFiles;
use napkin_kernel::sysfs::Sysfs;
use napkin_linux::apply::{ApplyError, BackendError, HeldDevice, Linux, NOT_STOPPED};
use napkin_linux::journal::{JournalError, Lock, Store};
use napkin_os::signals::Signals;
use thiserror::Error;

use self::leftovers::{is_up, leftovers};
use crate::corrections::{Corrections, PAUSE};
use crate::device_match::{Drivers, Matched, matched};
use crate::directory::{Directory, DirectoryError, Found};
use crate::event::Event;
use crate::guards::Guards;
use crate::parse::BadFile;
use crate::programs::Programs;
use crate::refusals::Refusals;
use crate::sd_notify::SdNotify;
use crate::watch::{Follow, Watch, WatchError, Woken, readable, wait};
use crate::wish::Wish;

/// A burst of notices is over when none came for this time, or after [`BURST`].
const QUIET: Duration = Duration::from_millis(20);
/// The maximum length of a burst.
const BURST: Duration = Duration::from_millis(200);

/// How long to wait for the lock of a keeper that is ending.
const PATIENCE: Duration = Duration::from_secs(2);

/// The interval between tries to get a device that another napkin process holds: no event reports if that is killed.
const LOCKED: Duration = Duration::from_secs(5);

/// Options of a keeper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The directory of wishes.
    pub directory: Directory,
    /// The interval of looks without an event, for changes that nothing reports: a setting changed by
    /// `napi-set`, a thread moved by `taskset`. `None` disables them.
    pub look: Option<Duration>,
}

/// Why wishes cannot be held.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KeeperError {
    /// There is no place for the journal, or another keeper runs.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The kernel does not answer.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// Changes cannot be watched.
    #[error("{0}")]
    Watch(String),
}

impl From<WatchError> for KeeperError {
    fn from(error: WatchError) -> KeeperError {
        KeeperError::Watch(error.to_string())
    }
}

/// Holds the wishes of a directory in this network namespace.
#[derive(Debug)]
pub struct Keeper {
    options: Options,
    backend: Linux,
    store: Store,
    /// Open while files in it are followed; `None` until it can be read.
    sysfs: Option<Sysfs>,
    watch: Watch,
    found: Found,
    held: Vec<HeldDevice>,
    refusals: Refusals,
    /// The drivers as last read from sysfs.
    drivers: Drivers,
    /// The ifindexes of the wished devices at the last look; `None` if drivers were unknown: the report of
    /// what an earlier napkin left behind waits until they are known.
    meant: Option<BTreeSet<u32>>,
    /// Whether another napkin process held a device at the last look.
    locked: bool,
    /// The programs of wishes with a unit.
    programs: Vec<Programs>,
    guards: Guards,
    /// The reported problems that are not over.
    problems: BTreeSet<String>,
    /// Those of the last look, without those of programs, which are scanned more often.
    found_problems: BTreeSet<String>,
    corrections: Corrections,
    systemd: SdNotify,
    /// Released last.
    _lock: Lock,
}

impl Keeper {
    /// Takes the lock and starts to listen. Changes nothing yet.
    ///
    /// # Errors
    /// If another keeper runs in this network namespace, or the kernel cannot be listened to.
    pub fn start(options: Options) -> Result<Keeper, KeeperError> {
        let store = Store::open()?;
        let begun = Instant::now();
        let lock = loop {
            match store.lock_keeper() {
                Err(JournalError::Locked { .. }) if begun.elapsed() < PATIENCE => {
                    std::thread::sleep(QUIET);
                }
                lock => break lock?,
            }
        };
        // Each followed file and each held device takes a descriptor.
        OpenFiles::raise();
        let watch = Watch::open(options.directory.path())?;
        Ok(Keeper {
            options,
            backend: Linux::open()?,
            store,
            sysfs: None,
            watch,
            found: Found::default(),
            held: Vec::new(),
            refusals: Refusals::default(),
            drivers: Drivers::new(),
            meant: None,
            locked: false,
            programs: Vec::new(),
            guards: Guards::default(),
            problems: BTreeSet::new(),
            found_problems: BTreeSet::new(),
            corrections: Corrections::default(),
            systemd: SdNotify::from_environment(),
            _lock: lock,
        })
    }

    /// Holds the wishes until a signal arrives, then puts everything back. SIGHUP reads the wishes again.
    /// Returns whether everything was put back.
    ///
    /// `signals` are those of [`Signals::block_termination_and_stop`], blocked before this was started. A stop
    /// signal is refused.
    ///
    /// # Errors
    /// If changes can no longer be watched; by then everything was put back as far as possible.
    pub fn run(
        mut self,
        signals: &Signals,
        on_event: &mut dyn FnMut(&Event),
    ) -> Result<bool, KeeperError> {
        let ended = self.hold(signals, on_event);
        self.systemd.notify(&[("STOPPING", "1")]);
        let mut complete = true;
        for programs in std::mem::take(&mut self.programs) {
            complete &= programs.restore(&mut |line| on_event(&Event::Program(line)));
        }
        self.guards = Guards::default();
        for held in std::mem::take(&mut self.held) {
            let ifname = held.ifname().to_owned();
            let restored = held.restore(&mut self.backend);
            complete &= self.report_restored(&ifname, restored, on_event);
        }
        ended.map(|()| complete)
    }

    fn hold(
        &mut self,
        signals: &Signals,
        on_event: &mut dyn FnMut(&Event),
    ) -> Result<(), KeeperError> {
        let signal = signals.readable().map_err(WatchError::from)?;
        for missing in self.watch.missing() {
            on_event(&Event::Problem(format!("no notice of changes: {missing}")));
        }
        self.reload(true, on_event);
        let (mut ready, mut reported_leftovers) = (false, false);
        loop {
            while self.look(on_event) {}
            if let (false, Some(meant)) = (reported_leftovers, &self.meant) {
                reported_leftovers = true;
                let backend = &mut self.backend;
                let mut is_left = |ifindex: u32, identity: Option<u64>| {
                    let up = is_up(backend, ifindex, identity);
                    up.is_some_and(|up| up || !meant.contains(&ifindex))
                };
                for leftover in leftovers(&self.store, &mut is_left) {
                    on_event(&Event::Problem(leftover));
                }
            }
            self.status(!ready);
            ready = true;
            let look_every =
                self.options.look.into_iter().chain(self.locked.then_some(LOCKED)).min();
            let due = look_every.map(|look_every| Instant::now() + look_every);
            let is_due = || due.is_some_and(|due| due <= Instant::now());
            let woken = loop {
                let next = self.programs.iter().filter_map(Programs::next).chain(due).min();
                let limit = next.map(|next| next.saturating_duration_since(Instant::now()));
                self.watch.wait(signal.as_fd(), limit)?;
                let mut woken = self.watch.take(signal.as_fd())?;
                if woken.signal {
                    match signals.wait(Duration::ZERO) {
                        Some(received) if received.signal == HANGUP => woken.wishes = true,
                        Some(received) if received.signal == Signals::STOP => {
                            on_event(&Event::Problem(NOT_STOPPED.into()));
                        }
                        Some(_) => return Ok(()),
                        None => {}
                    }
                }
                if woken.kernel || woken.wishes || is_due() {
                    break woken;
                }
                self.look_at_programs(false, on_event);
            };
            let settled = self.settle(signal.as_fd(), on_event)?;
            let wishes = woken.wishes | settled.wishes;
            if wishes {
                self.refusals.clear();
            } else if woken.notice | settled.notice {
                self.refusals.something_changed();
            }
            // No event reports a write to a wish's file through a link whose target is elsewhere.
            if wishes || is_due() {
                self.reload(wishes, on_event);
            }
        }
    }

    /// Waits for the end of a burst of notices, and returns what arrived.
    fn settle(
        &mut self,
        signal: BorrowedFd<'_>,
        on_event: &mut dyn FnMut(&Event),
    ) -> Result<Woken, KeeperError> {
        let begun = Instant::now();
        let mut all = Woken::default();
        loop {
            let before = Instant::now();
            self.watch.wait(signal, Some(QUIET))?;
            let woken = self.watch.take(signal)?;
            all.wishes |= woken.wishes;
            all.notice |= woken.notice;
            // A signal stays pending until it is waited for.
            let quiet = !(woken.kernel || woken.wishes) && before.elapsed() >= QUIET;
            if woken.signal || quiet || begun.elapsed() >= BURST {
                break;
            }
        }
        if self.corrections.fighting() {
            self.pause(signal, on_event)?;
        }
        Ok(all)
    }

    /// Leaves devices alone for [`PAUSE`], or until a signal arrives; programs are still scanned.
    fn pause(
        &mut self,
        signal: BorrowedFd<'_>,
        on_event: &mut dyn FnMut(&Event),
    ) -> Result<(), KeeperError> {
        let end = Instant::now() + PAUSE;
        while !readable(signal) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let next = self.programs.iter().filter_map(Programs::next).min();
            let next = next.map(|next| next.saturating_duration_since(Instant::now()));
            wait([signal].into_iter(), Some(next.unwrap_or(left).min(left)))?;
            self.look_at_programs(false, on_event);
        }
        Ok(())
    }

    /// Reads the wishes again; `requested`: an event reported a change of them, or it is the first time.
    fn reload(&mut self, requested: bool, on_event: &mut dyn FnMut(&Event)) {
        match self.options.directory.read() {
            Ok(found) if found == self.found && !(requested && self.held.is_empty()) => {}
            Ok(found) => {
                self.found = found;
                let directory = self.options.directory.path().to_owned();
                let (wishes, bad) = (self.found.wishes.len(), self.found.bad.len());
                on_event(&Event::Read { directory, wishes, bad });
            }
            // The wishes read before stay in force.
            Err(error) if requested => self.report_unreadable(&error, on_event),
            Err(_) => {}
        }
    }

    fn report_unreadable(&mut self, error: &DirectoryError, on_event: &mut dyn FnMut(&Event)) {
        on_event(&Event::Problem(format!("the wishes cannot be read again: {error}")));
    }

    /// Examines every wished device, and brings it to the wished state. Returns whether to look again at
    /// once, as a file may have changed before it was watched.
    fn look(&mut self, on_event: &mut dyn FnMut(&Event)) -> bool {
        self.release_departed(on_event);
        let mut problems: BTreeSet<String> =
            self.found.bad.iter().map(BadFile::to_string).collect();
        let mut files = BTreeMap::new();
        let mut corrected: Option<String> = None;
        let (mut stopped, mut listed) = (false, true);
        let mut meant_devices = BTreeSet::new();
        let mut meant_wishes = BTreeSet::new();
        self.locked = false;
        match matched(self.found.wishes.iter().map(|wish| &wish.device), &mut self.drivers) {
            Ok(Matched { devices, no_drivers }) => {
                for (link, meant) in devices {
                    meant_devices.insert(link.ifindex);
                    meant_wishes.extend(meant.iter().copied());
                    let wishes: Vec<Wish> =
                        meant.iter().filter_map(|at| self.found.wishes.get(*at)).cloned().collect();
                    match self.device(link.ifindex, &wishes, &mut files, &mut problems, on_event) {
                        Ok(false) => {}
                        Ok(true) => corrected = Some(link.name),
                        // It has gone since it was listed: a notice of that follows.
                        Err(error) if is_absent(&error) => {}
                        Err(error) => {
                            // For example, the journal has no room. What was set before is reverted, which
                            // wakes the keeper again.
                            stopped |= matches!(error, ApplyError::Stopped { .. });
                            let mut why = error.to_string();
                            if let ApplyError::Journal(JournalError::Locked { holder, .. }) = &error
                            {
                                // Its lock file is removed when the lock is released, but not if the holder
                                // is killed.
                                self.locked = true;
                                files.insert(self.store.directory().to_owned(), Follow::Removed);
                                // Without the time since it is held, which would make it another problem at
                                // each look.
                                why = format!(
                                    "held by {}; it is set once that one ends",
                                    holder.name()
                                );
                            }
                            problems.insert(format!("{}: {why}", link.name));
                        }
                    }
                }
                for (at, wish) in self.found.wishes.iter().enumerate() {
                    if no_drivers.is_some() && wish.device.driver.is_some() {
                        continue;
                    }
                    if !meant_wishes.contains(&at) {
                        let (name, place) = (&wish.name, wish.place());
                        problems.insert(format!(
                            "{name} ({place}): no device here is {}; it is held when one comes",
                            wish.device
                        ));
                    }
                }
                let known = no_drivers.is_none();
                // The other wishes stay in force, also on devices whose driver was known before.
                let why =
                    |error: BackendError| format!("wishes by driver: no other is found: {error}");
                problems.extend(no_drivers.map(why));
                self.release_unwished(&meant_devices, &mut problems, on_event);
                self.meant = known.then_some(meant_devices);
            }
            Err(error) => {
                listed = false;
                problems.insert(format!("the devices cannot be listed: {error}"));
            }
        }
        self.meant_programs(&mut files, &mut problems, on_event);
        // If the devices could not be listed, the watches stay.
        let mut new = listed && self.watch.follow(&files);
        if self.watch.take_rewatched() {
            self.reload(true, on_event);
            new = true;
        }
        problems.extend(self.watch.unfollowed().cloned());
        self.found_problems = problems;
        // After their groups are followed, so that no new process is missed.
        self.look_at_programs(true, on_event);
        let fight = self.corrections.count(corrected.is_some(), stopped);
        if let Some(ifname) = corrected.filter(|_| fight) {
            on_event(&Event::Fight { ifname });
        }
        new
    }

    /// Creates the programs of each wish with a unit, and restores all others.
    fn meant_programs(
        &mut self,
        files: &mut BTreeMap<PathBuf, Follow>,
        problems: &mut BTreeSet<String>,
        on_event: &mut dyn FnMut(&Event),
    ) {
        let mut kept = Vec::new();
        let mut before = std::mem::take(&mut self.programs);
        for wish in &self.found.wishes {
            let Some(unit) = &wish.unit else { continue };
            if let Some(other) = kept.iter().find(|it: &&Programs| it.unit().is_same(unit)) {
                // Either one would put back at its end what the other holds.
                let why = unit.of_another(other.name());
                problems.insert(format!("{} ({}): {why}", wish.name, wish.place()));
                continue;
            }
            let programs = match before.iter().position(|it| it.are_for(wish)) {
                Some(at) => Ok(before.swap_remove(at)),
                None => match unit.directory() {
                    Some(group) => Programs::new(wish, unit, group, &self.store)
                        .map_err(|error| error.to_string()),
                    None => Err("there are no control groups (v2) here".into()),
                },
            };
            match programs {
                Ok(programs) => {
                    files.insert(programs.group().join("cgroup.events"), Follow::Writes);
                    // The group is removed with the unit's end, and created again at its start.
                    let above = programs.group().ancestors().skip(1).find(|it| it.is_dir());
                    files.extend(above.map(|it| (it.to_owned(), Follow::Made)));
                    kept.push(programs);
                }
                Err(why) => {
                    problems.insert(format!("{} ({}): {why}", wish.name, wish.place()));
                }
            }
        }
        for programs in before {
            programs.restore(&mut |line| on_event(&Event::Program(line)));
        }
        self.programs = kept;
    }

    /// Scans programs: `all`, including those that failed before, or those that are due.
    fn look_at_programs(&mut self, all: bool, on_event: &mut dyn FnMut(&Event)) {
        let now = Instant::now();
        for programs in &mut self.programs {
            if all || programs.next().is_some_and(|next| next <= now) {
                programs.look(all, &mut |line| on_event(&Event::Program(line)));
            }
        }
        let run = self.programs.iter().any(Programs::run);
        let devices = self.held.iter().map(HeldDevice::ifindex).filter(|_| run);
        for line in self.guards.watch(devices.collect(), &self.store) {
            on_event(&Event::Program(line));
        }
        self.report_problems(on_event);
    }

    /// Reports new and resolved problems: those of the last look, and those of programs.
    fn report_problems(&mut self, on_event: &mut dyn FnMut(&Event)) {
        let failing = self.programs.iter().flat_map(Programs::failing);
        let problems: BTreeSet<String> =
            self.found_problems.iter().cloned().chain(failing).collect();
        for new in problems.difference(&self.problems) {
            on_event(&Event::Problem(new.clone()));
        }
        for over in self.problems.difference(&problems) {
            on_event(&Event::Over(over.clone()));
        }
        self.problems = problems;
    }

    /// Reports the state to systemd.
    fn status(&self, first: bool) {
        let names: Vec<&str> = self.held.iter().map(HeldDevice::ifname).collect();
        let held = if names.is_empty() { "no device".into() } else { names.join(", ") };
        let count = self.found.wishes.len();
        let plural = if count == 1 { "wish" } else { "wishes" };
        let mut status = format!("{count} {plural}, holding {held}");
        if !self.problems.is_empty() {
            let problems: Vec<&str> = self.problems.iter().map(String::as_str).collect();
            status.push_str(&format!("; not held: {}", problems.join("; ")));
        }
        let mut lines = vec![("STATUS", status.as_str())];
        if first {
            lines.insert(0, ("READY", "1"));
        }
        self.systemd.notify(&lines);
    }
}

/// `SIGHUP`: read the wishes again.
const HANGUP: i32 = 1;

fn is_absent(error: &ApplyError) -> bool {
    matches!(error, ApplyError::Backend(error) if error.is_absent())
}
