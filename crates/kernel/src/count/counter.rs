//! The running counter: loads and attaches the counting programs, and reads their table.

use std::collections::BTreeMap;

use super::attached::{Attached, ProgramStats};
use super::btf::Btf;
use super::counts::{Counts, Key, Lost, Polled};
use super::error::{CountError, may_count, table_error};
use super::layout::{Absent, Layout, Timer};
use super::program::{self, Maps};
use super::table::{Row, Table, half_word, polled, row, word};
use napkin_bpf::{Map, MapKind};

/// Settings of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Number of instances that the table holds, including those that no longer exist ([`Counter::forget`]): from 1
    /// to 65536, rounded up to the next power of two. The memory is allocated at once, 192 bytes each. If more than
    /// three ids have the same lower bits, some may find no room before the table is full.
    pub instances: u32,
    /// Whether to count timers too. This costs a few nanoseconds for each timer that is armed on the machine,
    /// NAPI's or not.
    pub timers: bool,
    /// Whether polls by a softirq and by an application are always told apart. This takes two short programs at
    /// each softirq of the machine, which cost about as much as the one that counts polls. Without them, an
    /// application that claims an instance as a softirq releases it may be credited with one poll too many; from
    /// Linux 7.2 on (7599c13dbe7a), under suspension, also with one softirq poll after each session.
    pub exact: bool,
    /// The inode of the network namespace whose instances are counted; `None` counts those of all namespaces and
    /// the CPUs' backlogs.
    pub namespace: Option<u32>,
}

impl Default for Options {
    fn default() -> Options {
        Options { instances: 4096, timers: true, exact: true, namespace: None }
    }
}

type Single = Map<4, 8>;

/// A running count of all instances of the machine. It ends when this is dropped, or the process ends.
#[derive(Debug)]
pub struct Counter {
    // Declared first: programs must be detached before their maps are closed.
    programs: Vec<Attached>,
    table: Table,
    /// Keeps the map alive for the programs.
    _marks: Option<Single>,
    /// Whether arming of timers is counted, and whether their expiry is.
    arms: bool,
    fires: bool,
    notes: Vec<String>,
}

impl Counter {
    /// Loads the programs and attaches them. This takes some tens of milliseconds, most of them for reading the
    /// kernel's BTF.
    ///
    /// # Errors
    /// If polls cannot be counted. Other things that cannot be counted are listed in [`Counter::notes`].
    pub fn start(options: &Options) -> Result<Counter, CountError> {
        may_count()?;
        let layout =
            Layout::read(&Btf::kernel()?).map_err(|Absent(what)| CountError::Absent(what))?;
        let table = Table::create(options.instances).map_err(table_error)?;
        let mut maps =
            Maps { table: table.shape(), in_softirq: None, namespace: options.namespace };

        let mut programs = Vec::new();
        let mut notes = Vec::new();
        let marks = match options.exact.then(|| mark_softirqs(&layout)) {
            None => None,
            Some(Ok((marks, both))) => {
                maps.in_softirq = Some(marks.descriptor());
                programs.extend(both);
                Some(marks)
            }
            Some(Err(why)) => {
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
            Counter { programs, table, _marks: marks, arms: false, fires: false, notes };
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

    /// What is not counted, or not exactly, and why; empty if everything is.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Reads the counts of all instances. Rows are read one after the other while counting continues; this makes no
    /// system call.
    pub fn read(&self) -> BTreeMap<Key, Counts> {
        self.table.read().into_iter().map(|(key, row)| (key, self.counts(&row))).collect()
    }

    /// Reads the counts of one instance; `None` if it has not been polled and its timer not armed yet.
    pub fn of(&self, key: &Key) -> Option<Counts> {
        self.table.row(key).map(|row| self.counts(&row))
    }

    /// Returns the counts of an instance that is not in the table yet because it has not been polled: 0 for
    /// everything that is counted.
    pub fn none_yet(&self) -> Counts {
        self.counts(&Row::default())
    }

    /// Removes an instance that no longer exists from the table, to make room for another. If it does exist, its
    /// counts start again from 0. Returns whether it had a row.
    pub fn forget(&self, key: &Key) -> bool {
        self.table.free(key)
    }

    /// Returns the number of events that are in no row. If it is not 0, the counts are too low.
    ///
    /// # Errors
    /// If the kernel's answer is unexpected.
    pub fn lost(&self) -> Result<Lost, CountError> {
        let no_room = self.table.lost();
        let mut nested = 0_u64;
        for attached in &self.programs {
            nested = nested.saturating_add(attached.stats()?.runs.missed);
        }
        Ok(Lost { no_room, nested })
    }

    /// Returns the programs and their runs, which the kernel counts while its BPF statistics are enabled.
    ///
    /// # Errors
    /// If the kernel's answer is unexpected.
    pub fn programs(&self) -> Result<Vec<ProgramStats>, CountError> {
        self.programs.iter().map(Attached::stats).collect()
    }

    fn counts(&self, of: &Row) -> Counts {
        let number = |place: i16| word(of, place);
        let block = |at: i16| {
            let [empty, full] = [polled::EMPTY, polled::FULL].map(|place| number(at + place));
            let others = number(at + polled::PARTIAL);
            let polls = empty.wrapping_add(others).wrapping_add(full);
            Polled { polls, empty, full, packets: number(at + polled::PACKETS) }
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
            cpu: half_word(of, row::CPU).checked_sub(1),
            keeps_settings: match number(row::KEEPS) {
                0 => None,
                keeps => Some(keeps == u64::from(row::KEPT.cast_unsigned())),
            },
        }
    }
}

/// Attaches the programs at the beginning and end of softirqs; returns them with the map of their marks.
fn mark_softirqs(layout: &Layout) -> Result<(Single, [Attached; 2]), CountError> {
    let softirq =
        layout.softirq.as_ref().map_err(|Absent(what)| CountError::Absent(what.clone()))?;
    let marks = Single::create(MapKind::PercpuArray, 1, "napkin_marks").map_err(table_error)?;
    let mark = |value| program::mark(softirq, marks.descriptor(), value);
    // Attach the one that clears first; otherwise a CPU that is in a softirq now could keep its mark.
    let leave = Attached::new("napkin_leave", mark(false), softirq.exit)?;
    let enter = Attached::new("napkin_enter", mark(true), softirq.entry)?;
    Ok((marks, [leave, enter]))
}

/// Checks of the kernel's verifier with programs that this kernel does not get otherwise. For tests, which need
/// capabilities and are reported as ignored without them.
#[doc(hidden)]
pub mod verifier {
    use super::*;

    fn layout_and_table() -> Result<(Layout, Table), CountError> {
        let layout =
            Layout::read(&Btf::kernel()?).map_err(|Absent(what)| CountError::Absent(what))?;
        Ok((layout, Table::create(16).map_err(table_error)?))
    }

    /// Loads the programs without marks, as for a kernel without the softirq trace points, and those for settings
    /// that are neither in the instance nor kept for it, as before Linux 6.13.
    ///
    /// # Errors
    /// If the verifier refuses one.
    pub fn takes_older_programs() -> Result<(), CountError> {
        let (mut layout, table) = layout_and_table()?;
        layout.napi.config = None;
        let maps = Maps { table: table.shape(), in_softirq: None, namespace: None };
        Attached::new("napkin_poll", program::poll(&layout, maps), layout.napi_poll)?;
        let timer = layout.timer.as_ref().map_err(|Absent(it)| CountError::Absent(it.clone()))?;
        let older = Timer { settings: None, ..*timer };
        let arm = program::arm(&layout, &older, maps);
        Attached::new("napkin_arm", arm, older.hrtimer_start).map(drop)
    }

    /// Loads a program that ends without a return value.
    ///
    /// # Errors
    /// Always: the verifier refuses it.
    pub fn refuses_a_wrong_program() -> Result<(), CountError> {
        let (layout, _) = layout_and_table()?;
        let mut program = napkin_bpf::assemble::Assembler::new();
        program.exit();
        Attached::new("napkin_bad", program.finish(), layout.napi_poll).map(drop)
    }
}
