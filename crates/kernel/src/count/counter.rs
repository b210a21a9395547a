//! The counting programs at work: loaded, attached, and their table read.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use serde::Serialize;
use thiserror::Error;

use super::btf::{Btf, BtfError};
use super::layout::{Absent, Layout, Timer};
use super::program::{self, Maps, key, polled, row};
use napkin_bpf::assemble::AssembleError;
use napkin_bpf::{Hook, Map, MapKind, Program, Refused, RunStats};
use napkin_os::rights::Right;

/// What to count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Instances that the table has room for, those of other namespaces and those that are gone
    /// included ([`Counter::forget`]); from 1 to 65536. Memory is taken as they come, about 150
    /// bytes each.
    pub instances: u32,
    /// Whether to count the timers too. It costs a few nanoseconds at each timer that is armed on
    /// the machine, NAPI's or not.
    pub timers: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { instances: 4096, timers: true }
    }
}

/// What a count is kept by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Key {
    /// The inode of its network namespace, as of `/proc/thread-self/ns/net`; 0 for the CPUs'
    /// backlogs, which belong to none.
    pub netns: u32,
    /// Its device in that namespace; 0 for the CPUs' backlogs.
    pub ifindex: u32,
    /// Its id; 0 if it has none (a driver's transmit-only instance, a tunnel's, a backlog). All of
    /// a device's instances without an id count together.
    pub napi_id: u32,
}

/// Polls of one instance by one kind of context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Polled {
    /// All of them.
    pub polls: u64,
    /// Those that found nothing to receive (they may have cleaned a transmit ring).
    pub empty: u64,
    /// Those that used their whole budget.
    pub full: u64,
    /// Packets (the driver's unit of work; of an aggregating device, aggregates) that they took.
    pub packets: u64,
}

/// Counts of one instance since the counter was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Counts {
    /// By a softirq (ksoftirqd's included).
    pub softirq: Polled,
    /// By the instance's thread.
    pub thread: Polled,
    /// By an application that busy polls.
    pub application: Polled,
    /// Times that the timer was armed in the place of the interrupt (`defer-hard-irqs`). `None` if
    /// timers are not counted.
    pub deferrals: Option<u64>,
    /// Times that an application's wait suspended the interrupt (`irq-suspend-timeout`).
    pub suspensions: Option<u64>,
    /// Times that a suspension's timer fired: the application did not come back in time.
    pub expiries: Option<u64>,
    /// Times that the timer was armed with deferral off, only to flush what GRO holds.
    pub flushes: Option<u64>,
    /// Times that the timer fired, whatever had armed it.
    pub watchdogs: Option<u64>,
    /// The CPU of the last poll.
    pub cpu: Option<u32>,
    /// Whether the device keeps the instance's settings and gives them to the instance that takes
    /// its place, as after down and up: whether its driver gave it a place for them
    /// (`netif_napi_add_config`). Without, an instance that is made anew begins with the device's
    /// values. `None` before the first poll, and where settings are the device's (before Linux 6.13).
    pub keeps_settings: Option<bool>,
}

impl Polled {
    fn since(self, earlier: Polled) -> Polled {
        Polled {
            polls: self.polls.saturating_sub(earlier.polls),
            empty: self.empty.saturating_sub(earlier.empty),
            full: self.full.saturating_sub(earlier.full),
            packets: self.packets.saturating_sub(earlier.packets),
        }
    }
}

impl Counts {
    /// Polls, whoever polled.
    pub fn all(&self) -> Polled {
        let sum = |get: fn(&Polled) -> u64| {
            [self.softirq, self.thread, self.application]
                .iter()
                .fold(0_u64, |sum, it| sum.wrapping_add(get(it)))
        };
        Polled {
            polls: sum(|it| it.polls),
            empty: sum(|it| it.empty),
            full: sum(|it| it.full),
            packets: sum(|it| it.packets),
        }
    }

    /// What was counted since an earlier reading of the same counter.
    pub fn since(&self, earlier: &Counts) -> Counts {
        let optional = |now: Option<u64>, then: Option<u64>| {
            now.map(|now| now.saturating_sub(then.unwrap_or(0)))
        };
        Counts {
            softirq: self.softirq.since(earlier.softirq),
            thread: self.thread.since(earlier.thread),
            application: self.application.since(earlier.application),
            deferrals: optional(self.deferrals, earlier.deferrals),
            suspensions: optional(self.suspensions, earlier.suspensions),
            expiries: optional(self.expiries, earlier.expiries),
            flushes: optional(self.flushes, earlier.flushes),
            watchdogs: optional(self.watchdogs, earlier.watchdogs),
            cpu: self.cpu,
            keeps_settings: self.keeps_settings,
        }
    }
}

/// Polls and timers that are in no row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Lost {
    /// For lack of room for another instance ([`Options::instances`]).
    pub no_room: u64,
    /// Because a program was at work on that CPU already.
    pub nested: u64,
}

/// One of the programs, and how it fared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramStats {
    /// Its name, as other tools list it.
    pub name: &'static str,
    /// Its length in eBPF instructions; a run takes no jump backwards.
    pub instructions: usize,
    /// How often it ran, and for how long.
    pub runs: RunStats,
}

/// Why nothing can be counted.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CountError {
    /// A right is missing.
    #[error("counting polls needs {right}: run as root, or give it to the program (setcap)")]
    Right {
        /// The missing right.
        right: Right,
    },
    /// The right is held, and the kernel refuses all the same.
    #[error(
        "the kernel forbids {what} although this process has CAP_BPF and CAP_PERFMON: counting \
         does not work in a user namespace, nor with kernel lockdown"
    )]
    Forbidden {
        /// What was tried.
        what: &'static str,
    },
    /// The kernel does not describe its types.
    #[error(transparent)]
    Btf(#[from] BtfError),
    /// The kernel has no such thing, by that name.
    #[error("this kernel has no `{0}`, without which polls cannot be counted")]
    Absent(String),
    /// The kernel's verifier refused a program.
    #[error("the kernel refused the program `{program}` ({error}){}", said(.log))]
    Refused {
        /// The program, by its name here.
        program: &'static str,
        /// The system's error.
        error: io::Error,
        /// The end of what the verifier said.
        log: String,
    },
    /// A table cannot be made or read.
    #[error("cannot {what} ({error})")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's error.
        error: io::Error,
    },
    /// A program cannot be assembled: a bug here.
    #[error("the program `{program}` cannot be assembled: {error}")]
    Assemble {
        /// The program, by its name here.
        program: &'static str,
        /// What is wrong with it.
        error: AssembleError,
    },
}

fn said(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!(": {log}") }
}

const ROW: usize = row::LEN as usize;
const KEY: usize = key::LEN as usize;
type Rows = Map<KEY, ROW>;
type Single = Map<4, 8>;

/// A running count of all instances of the machine. It ends when it is dropped, or the process does.
#[derive(Debug)]
pub struct Counter {
    // Links come first: programs are detached before their maps go.
    programs: Vec<Attached>,
    rows: Rows,
    lost: Single,
    /// Kept alive for the programs.
    _marks: Option<Single>,
    room: u32,
    /// Whether arming, and whether firing, is counted.
    arms: bool,
    fires: bool,
    notes: Vec<String>,
}

#[derive(Debug)]
pub(super) struct Attached {
    name: &'static str,
    instructions: usize,
    /// Dropping it detaches the program; `None` while it is.
    link: Option<OwnedFd>,
    program: Program,
}

impl Attached {
    pub(super) fn new(
        name: &'static str,
        instructions: Result<Vec<u8>, AssembleError>,
        to: u32,
    ) -> Result<Attached, CountError> {
        Attached::at(name, instructions, Hook::TracePoint, to)
    }

    pub(super) fn at(
        name: &'static str,
        instructions: Result<Vec<u8>, AssembleError>,
        hook: Hook,
        to: u32,
    ) -> Result<Attached, CountError> {
        let instructions =
            instructions.map_err(|error| CountError::Assemble { program: name, error })?;
        let program =
            Program::load(name, &instructions, hook, to).map_err(|Refused { error, log }| {
                match denied(&error, "loading a tracing program") {
                    // If the verifier spoke, the program is to blame.
                    Some(denied) if log.is_empty() => denied,
                    _ => CountError::Refused { program: name, error, log },
                }
            })?;
        let instructions = instructions.len() / 8;
        let mut attached = Attached { name, instructions, link: None, program };
        attached.attach()?;
        Ok(attached)
    }

    /// Attaches it, if it is not.
    pub(super) fn attach(&mut self) -> Result<(), CountError> {
        if self.link.is_none() {
            let link = self.program.attach().map_err(|error| {
                denied(&error, "attaching a tracing program").unwrap_or(CountError::Refused {
                    program: self.name,
                    error,
                    log: "it could not be attached".into(),
                })
            })?;
            self.link = Some(link);
        }
        Ok(())
    }

    /// Detaches it, and keeps it loaded.
    pub(super) fn detach(&mut self) {
        self.link = None;
    }

    pub(super) fn stats(&self) -> Result<ProgramStats, CountError> {
        let runs = self.program.stats().map_err(not_read)?;
        Ok(ProgramStats { name: self.name, instructions: self.instructions, runs })
    }
}

impl Counter {
    /// Loads the programs and attaches them. It takes some tens of milliseconds, most of them for
    /// the kernel's description of its types.
    ///
    /// # Errors
    /// If polls cannot be counted. What else cannot be is in [`Counter::notes`].
    pub fn start(options: &Options) -> Result<Counter, CountError> {
        for right in [Right::Bpf, Right::Perfmon] {
            if !right.held() {
                return Err(CountError::Right { right });
            }
        }
        let layout =
            Layout::read(&Btf::kernel()?).map_err(|Absent(what)| CountError::Absent(what))?;
        let room = options.instances.clamp(1, 65_536);
        let rows = Rows::create(MapKind::Hash, room, "napkin_rows").map_err(no_table)?;
        let lost = Single::create(MapKind::Array, 1, "napkin_lost").map_err(no_table)?;
        let mut maps = Maps { rows: rows.descriptor(), lost: lost.descriptor(), in_softirq: None };

        let mut programs = Vec::new();
        let mut notes = Vec::new();
        let marks = match mark_softirqs(&layout) {
            Ok((marks, both)) => {
                maps.in_softirq = Some(marks.descriptor());
                programs.extend(both);
                Some(marks)
            }
            Err(why) => {
                notes.push(format!(
                    "softirqs' and applications' polls are told apart by the instance's state, \
                     which is not exact while both want it: {why}"
                ));
                None
            }
        };
        let poll = program::poll(&layout, maps);
        programs.push(Attached::new("napkin_poll", poll, layout.napi_poll)?);
        let mut counter =
            Counter { programs, rows, lost, _marks: marks, room, arms: false, fires: false, notes };
        if options.timers {
            match &layout.timer {
                Ok(timer) => counter.count_timers(&layout, timer, maps),
                Err(Absent(what)) => counter.notes.push(format!(
                    "deferrals and watchdogs are not counted: this kernel has no `{what}`"
                )),
            }
        }
        Ok(counter)
    }

    fn count_timers(&mut self, layout: &Layout, timer: &Timer, maps: Maps) {
        if timer.settings.is_none() {
            self.notes.push(
                "every armed timer counts as a deferral: settings are per instance from Linux \
                 6.13 on"
                    .into(),
            );
        }
        let arm = program::arm(layout, timer, maps);
        match Attached::new("napkin_arm", arm, timer.hrtimer_start) {
            Ok(attached) => {
                self.programs.push(attached);
                self.arms = true;
            }
            Err(why) => self.notes.push(format!("deferrals are not counted: {why}")),
        }
        let fire = program::fire(layout, timer, maps);
        match Attached::new("napkin_fire", fire, timer.hrtimer_expire_entry) {
            Ok(attached) => {
                self.programs.push(attached);
                self.fires = true;
            }
            Err(why) => self.notes.push(format!("watchdogs are not counted: {why}")),
        }
    }

    /// What is not counted, or not exactly, and why; empty if all is.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The counts now, of all namespaces. Rows are read one after the other while counting goes on.
    ///
    /// # Errors
    /// If the kernel does not answer as it should.
    pub fn read(&self) -> Result<BTreeMap<Key, Counts>, CountError> {
        let mut all = BTreeMap::new();
        let mut last = None;
        // A row that is taken out meanwhile makes the kernel begin anew; twice round is enough.
        for _ in 0..self.room.saturating_mul(2) {
            let Some(at) = self.rows.key_after(last.as_ref()).map_err(not_read)? else { break };
            if let Some(bytes) = self.rows.get(&at).map_err(not_read)? {
                all.insert(Key::of(&at), self.counts(&bytes));
            }
            last = Some(at);
        }
        Ok(all)
    }

    /// The counts of one instance now; `None` if it was neither polled nor a timer of its armed yet.
    ///
    /// # Errors
    /// If the kernel does not answer as it should.
    pub fn of(&self, key: &Key) -> Result<Option<Counts>, CountError> {
        let row = self.rows.get(&key.bytes()).map_err(not_read)?;
        Ok(row.map(|bytes| self.counts(&bytes)))
    }

    /// The counts of an instance that is not in the table, as it was not polled yet: 0 of what is
    /// counted.
    pub fn none_yet(&self) -> Counts {
        self.counts(&[0; ROW])
    }

    /// Takes an instance that is gone out of the table, so that there is room for another. If it is
    /// not gone its counts begin anew. Whether there was one.
    ///
    /// # Errors
    /// If the kernel does not answer as it should.
    pub fn forget(&self, key: &Key) -> Result<bool, CountError> {
        self.rows.remove(&key.bytes()).map_err(not_read)
    }

    /// What is in no row. If it is not 0 the counts are too low.
    ///
    /// # Errors
    /// If the kernel does not answer as it should.
    pub fn lost(&self) -> Result<Lost, CountError> {
        let no_room = self.lost.get(&[0; 4]).map_err(not_read)?.map_or(0, u64::from_ne_bytes);
        let mut nested = 0_u64;
        for attached in &self.programs {
            nested = nested.saturating_add(attached.program.stats().map_err(not_read)?.missed);
        }
        Ok(Lost { no_room, nested })
    }

    /// The programs, and how often and how long they ran while somebody had the kernel count that.
    ///
    /// # Errors
    /// If the kernel does not answer as it should.
    pub fn programs(&self) -> Result<Vec<ProgramStats>, CountError> {
        self.programs.iter().map(Attached::stats).collect()
    }

    fn counts(&self, bytes: &[u8; ROW]) -> Counts {
        let number = |place: i16| part(bytes, place).map_or(0, u64::from_ne_bytes);
        let block = |at: i16| Polled {
            polls: number(at + polled::POLLS),
            empty: number(at + polled::EMPTY),
            full: number(at + polled::FULL),
            packets: number(at + polled::PACKETS),
        };
        let arms = |place| self.arms.then(|| number(place));
        Counts {
            softirq: block(row::SOFTIRQ),
            thread: block(row::THREAD),
            application: block(row::APPLICATION),
            deferrals: arms(row::DEFERRALS),
            suspensions: arms(row::SUSPENSIONS),
            expiries: (self.arms && self.fires).then(|| number(row::EXPIRIES)),
            flushes: arms(row::FLUSHES),
            watchdogs: self.fires.then(|| number(row::WATCHDOGS)),
            cpu: part(bytes, row::CPU).map_or(0, u32::from_ne_bytes).checked_sub(1),
            keeps_settings: match number(row::KEEPS) {
                0 => None,
                keeps => Some(keeps == u64::from(row::KEPT.cast_unsigned())),
            },
        }
    }
}

impl Key {
    fn of(bytes: &[u8; KEY]) -> Key {
        let word = |place| part(bytes, place).map_or(0, u32::from_ne_bytes);
        Key { netns: word(key::NETNS), ifindex: word(key::IFINDEX), napi_id: word(key::NAPI_ID) }
    }

    fn bytes(&self) -> [u8; KEY] {
        let mut bytes = [0; KEY];
        let words = [self.netns, self.ifindex, self.napi_id];
        for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}

fn part<const N: usize>(bytes: &[u8], place: i16) -> Option<[u8; N]> {
    let start = usize::try_from(place).ok()?;
    bytes.get(start..start.checked_add(N)?)?.try_into().ok()
}

/// The programs around softirqs, and where they leave their marks.
fn mark_softirqs(layout: &Layout) -> Result<(Single, [Attached; 2]), CountError> {
    let softirq =
        layout.softirq.as_ref().map_err(|Absent(what)| CountError::Absent(what.clone()))?;
    let marks = Single::create(MapKind::PercpuArray, 1, "napkin_marks").map_err(no_table)?;
    let mark = |value| program::mark(softirq, marks.descriptor(), value);
    // The end first, so that no mark stays on a CPU that is in a softirq just now.
    let leave = Attached::new("napkin_leave", mark(false), softirq.exit)?;
    let enter = Attached::new("napkin_enter", mark(true), softirq.entry)?;
    Ok((marks, [leave, enter]))
}

pub(super) fn no_table(error: io::Error) -> CountError {
    denied(&error, "making a table")
        .unwrap_or(CountError::System { what: "make a table in the kernel", error })
}

pub(super) fn not_read(error: io::Error) -> CountError {
    CountError::System { what: "read the counts from the kernel", error }
}

fn denied(error: &io::Error, what: &'static str) -> Option<CountError> {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES))
        .then_some(CountError::Forbidden { what })
}

/// What the kernel's verifier says of programs that it does not see otherwise. For tests of it, which
/// need rights and so are shown as ignored without them.
#[doc(hidden)]
pub mod verifier {
    use super::*;

    fn layout_and_tables() -> Result<(Layout, Rows, Single), CountError> {
        let layout =
            Layout::read(&Btf::kernel()?).map_err(|Absent(what)| CountError::Absent(what))?;
        let rows = Rows::create(MapKind::Hash, 16, "napkin_rows").map_err(no_table)?;
        let lost = Single::create(MapKind::Array, 1, "napkin_lost").map_err(no_table)?;
        Ok((layout, rows, lost))
    }

    /// The programs without marks, which a kernel without the softirqs' trace points gets, and those
    /// for settings that are not in the instance, nor kept for it, as before Linux 6.13.
    ///
    /// # Errors
    /// If one is refused.
    pub fn takes_older_programs() -> Result<(), CountError> {
        let (mut layout, rows, lost) = layout_and_tables()?;
        layout.napi.config = None;
        let maps = Maps { rows: rows.descriptor(), lost: lost.descriptor(), in_softirq: None };
        Attached::new("napkin_poll", program::poll(&layout, maps), layout.napi_poll)?;
        let timer = layout.timer.as_ref().map_err(|Absent(it)| CountError::Absent(it.clone()))?;
        let older = Timer { settings: None, ..*timer };
        let arm = program::arm(&layout, &older, maps);
        Attached::new("napkin_arm", arm, older.hrtimer_start).map(drop)
    }

    /// A program that ends without an answer.
    ///
    /// # Errors
    /// Always: it is wrong.
    pub fn refuses_a_wrong_program() -> Result<(), CountError> {
        let (layout, ..) = layout_and_tables()?;
        let mut program = napkin_bpf::assemble::Assembler::new();
        program.exit();
        Attached::new("napkin_bad", program.finish(), layout.napi_poll).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_bytes_that_the_programs_write() {
        let key = Key { netns: 4_026_531_840, ifindex: 2, napi_id: 8193 };
        assert_eq!(Key::of(&key.bytes()), key);
        assert_eq!(key.bytes()[4..8], 2_u32.to_ne_bytes());
    }

    #[test]
    fn a_difference_keeps_what_is_not_known_and_never_goes_below_nothing() {
        let softirq = |polls, packets| Polled { polls, packets, ..Polled::default() };
        let then = Counts { softirq: softirq(10, 5), deferrals: Some(3), ..Counts::default() };
        let now = Counts { softirq: softirq(14, 4), deferrals: Some(9), ..Counts::default() };
        let since = now.since(&then);
        assert_eq!(since.softirq, softirq(4, 0));
        assert_eq!((since.deferrals, since.watchdogs), (Some(6), None));
        assert_eq!(since.all().polls, 4);
    }

    #[test]
    fn an_error_names_the_right_or_what_the_kernel_lacks() {
        let text = CountError::Right { right: Right::Perfmon }.to_string();
        assert!(text.contains("CAP_PERFMON"), "{text}");
        let text = CountError::Absent("napi_struct.thread".into()).to_string();
        assert!(text.contains("`napi_struct.thread`"), "{text}");
        let error = io::Error::from_raw_os_error(libc::EPERM);
        let text = no_table(error).to_string();
        assert!(text.contains("user namespace"), "{text}");
    }
}
