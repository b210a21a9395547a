//! The counting programs at work: loaded, attached, and their table read.

use std::collections::BTreeMap;

use super::attached::{Attached, ProgramStats};
use super::btf::Btf;
use super::counts::{Counts, Key, Lost, Polled};
use super::error::{CountError, may_count, no_table};
use super::layout::{Absent, Layout, Timer};
use super::program::{self, Maps};
use super::table::{Row, Table, half, polled, row, word};
use napkin_bpf::{Map, MapKind};

/// What to count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Instances that the table has room for, those that are gone included ([`Counter::forget`]): from 1 to 65536, up
    /// to the next power of two. Memory is taken at once, 192 bytes each. More than three whose ids have the same
    /// lower bits may find no room before it is full.
    pub instances: u32,
    /// Whether to count the timers too. It costs a few nanoseconds at each timer that is armed on
    /// the machine, NAPI's or not.
    pub timers: bool,
    /// Whether a softirq's poll is told from an application's in every case. It takes two short programs at
    /// each softirq of the machine, which cost about as much as the one that counts polls; without
    /// them an application that claims an instance just as a softirq has released it may get one poll too many, and
    /// from Linux 7.2 on, under suspension, one of a softirq's after each session (7599c13dbe7a).
    pub exact: bool,
    /// The inode of the network namespace whose instances are counted; those of all, and the CPUs' backlogs, if it
    /// is `None`.
    pub namespace: Option<u32>,
}

impl Default for Options {
    fn default() -> Options {
        Options { instances: 4096, timers: true, exact: true, namespace: None }
    }
}

type Single = Map<4, 8>;

/// A running count of all instances of the machine. It ends when it is dropped, or the process does.
#[derive(Debug)]
pub struct Counter {
    // Links come first: programs are detached before their maps go.
    programs: Vec<Attached>,
    table: Table,
    /// Kept alive for the programs.
    _marks: Option<Single>,
    /// Whether arming, and whether firing, is counted.
    arms: bool,
    fires: bool,
    notes: Vec<String>,
}

impl Counter {
    /// Loads the programs and attaches them. It takes some tens of milliseconds, most of them for
    /// the kernel's description of its types.
    ///
    /// # Errors
    /// If polls cannot be counted. What else cannot be is in [`Counter::notes`].
    pub fn start(options: &Options) -> Result<Counter, CountError> {
        may_count()?;
        let layout =
            Layout::read(&Btf::kernel()?).map_err(|Absent(what)| CountError::Absent(what))?;
        let table = Table::create(options.instances).map_err(no_table)?;
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

    /// What is not counted, or not exactly, and why; empty if all is.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The counts now, of all that are counted. Rows are read one after the other while counting goes on; no system
    /// call is made.
    pub fn read(&self) -> BTreeMap<Key, Counts> {
        self.table.read().into_iter().map(|(key, row)| (key, self.counts(&row))).collect()
    }

    /// The counts of one instance now; `None` if it was neither polled nor a timer of its armed yet.
    pub fn of(&self, key: &Key) -> Option<Counts> {
        self.table.row(key).map(|row| self.counts(&row))
    }

    /// The counts of an instance that is not in the table, as it was not polled yet: 0 of what is
    /// counted.
    pub fn none_yet(&self) -> Counts {
        self.counts(&Row::default())
    }

    /// Takes an instance that is gone out of the table, so that there is room for another. If it is
    /// not gone its counts begin anew. Whether there was one.
    pub fn forget(&self, key: &Key) -> bool {
        self.table.free(key)
    }

    /// What is in no row. If it is not 0 the counts are too low.
    ///
    /// # Errors
    /// If the kernel does not answer as it should.
    pub fn lost(&self) -> Result<Lost, CountError> {
        let no_room = self.table.lost();
        let mut nested = 0_u64;
        for attached in &self.programs {
            nested = nested.saturating_add(attached.stats()?.runs.missed);
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
            cpu: half(of, row::CPU).checked_sub(1),
            keeps_settings: match number(row::KEEPS) {
                0 => None,
                keeps => Some(keeps == u64::from(row::KEPT.cast_unsigned())),
            },
        }
    }
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

/// What the kernel's verifier says of programs that it does not see otherwise. For tests of it, which
/// need rights and so are shown as ignored without them.
#[doc(hidden)]
pub mod verifier {
    use super::*;

    fn layout_and_table() -> Result<(Layout, Table), CountError> {
        let layout =
            Layout::read(&Btf::kernel()?).map_err(|Absent(what)| CountError::Absent(what))?;
        Ok((layout, Table::create(16).map_err(no_table)?))
    }

    /// The programs without marks, which a kernel without the softirqs' trace points gets, and those
    /// for settings that are not in the instance, nor kept for it, as before Linux 6.13.
    ///
    /// # Errors
    /// If one is refused.
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

    /// A program that ends without an answer.
    ///
    /// # Errors
    /// Always: it is wrong.
    pub fn refuses_a_wrong_program() -> Result<(), CountError> {
        let (layout, _) = layout_and_table()?;
        let mut program = napkin_bpf::assemble::Assembler::new();
        program.exit();
        Attached::new("napkin_bad", program.finish(), layout.napi_poll).map(drop)
    }
}
