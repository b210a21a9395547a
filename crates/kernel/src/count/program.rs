//! The counting programs.
//!
//! All add to one table, from (namespace, device, instance) to a row of 64-bit counts. Additions are
//! atomic: an instance has one owner at a time, but its trace point is behind the release, so the
//! next owner may be at its own already.
//!
//! Who polled:
//! - a **softirq**, if this CPU is between the beginning and the end of the network's receive softirq
//!   (two short programs at the trace points there keep a mark per CPU);
//! - the instance's **thread**, if it is the one that runs;
//! - an **application**, if the instance's state has `IN_BUSY_POLL`, or if it had it at the poll
//!   before and the same thread polls again: leaving a busy-poll session clears the bit and then
//!   polls once more, always.
//!
//! Without the marks a softirq is whatever is none of the others. Then a softirq's poll is taken for
//! an application's if, between its release and its trace point, a busy poller on another CPU has
//! claimed the instance, which a busy poller does then if ever. (`__preempt_count` would say it as
//! well, but most kernels' symbol tables, by which a program finds it, have no variables.)
//!
//! Polls with a budget of 0 (netpoll, which only cleans transmit rings) are not counted.

use super::layout::{Layout, Settings, Softirq, Timer};
use napkin_bpf::assemble::Register::{FP, R0, R1, R2, R3, R4, R6, R7, R8, R9};
use napkin_bpf::assemble::Width::{Double, Word};
use napkin_bpf::assemble::{AssembleError, Assembler, Helper, Label, When};

/// Places in a row, in bytes.
pub(super) mod row {
    /// Polls by who polled, each a block of four numbers.
    pub(in super::super) const SOFTIRQ: i16 = 0;
    pub(in super::super) const THREAD: i16 = 32;
    pub(in super::super) const APPLICATION: i16 = 64;
    pub(in super::super) const DEFERRALS: i16 = 96;
    pub(in super::super) const SUSPENSIONS: i16 = 104;
    pub(in super::super) const FLUSHES: i16 = 112;
    pub(in super::super) const WATCHDOGS: i16 = 120;
    pub(in super::super) const EXPIRIES: i16 = 128;
    /// 32 bits: the CPU of the last poll, and 1; 0 before the first.
    pub(in super::super) const CPU: i16 = 136;
    /// 32 bits: the thread in whose busy-poll session the instance is, or 0.
    pub(in super::super) const SESSION: i16 = 140;
    /// 64 bits: whether the timer was last armed by a suspension.
    pub(in super::super) const SUSPENDED: i16 = 144;
    /// 64 bits: whether the device keeps the instance's settings ([`KEPT`], [`NOT_KEPT`]), or 0.
    pub(in super::super) const KEEPS: i16 = 152;
    /// Bytes of a row.
    pub(in super::super) const LEN: i16 = 160;

    pub(in super::super) const KEPT: i32 = 1;
    pub(in super::super) const NOT_KEPT: i32 = 2;
}

/// Places in a block of polls, in bytes.
pub(super) mod polled {
    pub(in super::super) const POLLS: i16 = 0;
    pub(in super::super) const EMPTY: i16 = 8;
    pub(in super::super) const FULL: i16 = 16;
    pub(in super::super) const PACKETS: i16 = 24;
}

/// Places in a key, in bytes; 32 bits each.
pub(super) mod key {
    pub(in super::super) const NETNS: i16 = 0;
    pub(in super::super) const IFINDEX: i16 = 4;
    pub(in super::super) const NAPI_ID: i16 = 8;
    /// Bytes of a key.
    pub(in super::super) const LEN: i16 = 12;
}

/// Descriptors of the maps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Maps {
    /// From keys to rows.
    pub(super) rows: i32,
    /// One number: how often there was no room for a new row.
    pub(super) lost: i32,
    /// One number a CPU: whether it is in the receive softirq. `None` if nobody says.
    pub(super) in_softirq: Option<i32>,
    /// Not a map: the namespace whose instances count, if those of all do not.
    pub(super) namespace: Option<u32>,
}

/// Where the key is on the stack (with 4 unused bytes above it).
const KEY: i16 = -16;
/// Where the index of a map with one value is, always 0.
const INDEX: i16 = -4;
/// Where a new row is.
const NEW_ROW: i16 = KEY - row::LEN;

/// At the trace point after a poll: `(struct napi_struct *napi, int work, int budget)`.
pub(super) fn poll(layout: &Layout, maps: Maps) -> Result<Vec<u8>, AssembleError> {
    let mut program = Assembler::new();
    let end = program.label();
    program.load(Double, R6, R1, 0);
    program.load(Double, R7, R1, 8);
    program.load(Double, R8, R1, 16);
    program.copy_word(R7, R7);
    program.copy_word(R8, R8);
    program.jump_if(R8, When::Equal, 0, end);
    find_row(&mut program, layout, maps, end);

    let (softirq, thread, application, counted) =
        (program.label(), program.label(), program.label(), program.label());
    if let Some(marks) = maps.in_softirq {
        let unknown = program.label();
        look_up_single(&mut program, marks);
        program.jump_if(R0, When::Equal, 0, unknown);
        program.load(Double, R1, R0, 0);
        program.jump_if(R1, When::NotEqual, 0, softirq);
        program.place(unknown);
    }
    program.call(Helper::GetCurrentTaskBtf);
    program.load(Double, R1, R6, layout.napi.thread);
    program.jump_if_registers(R0, When::Equal, R1, thread);
    program.load(Word, R2, R0, layout.pid);
    program.load(Double, R1, R6, layout.napi.state);
    program.jump_if(R1, When::AnyBit, layout.napi.in_busy_poll, application);
    program.jump_if(R2, When::Equal, 0, softirq);
    program.load(Word, R1, R9, row::SESSION);
    program.jump_if_registers(R1, When::NotEqual, R2, softirq);
    program.set(R2, 0);
    program.place(application);
    program.store(Word, R9, row::SESSION, R2);
    program.set(R3, row::APPLICATION.into());
    program.jump(counted);
    program.place(thread);
    program.set(R3, row::THREAD.into());
    program.jump(counted);
    program.place(softirq);
    program.set(R3, row::SOFTIRQ.into());
    program.place(counted);
    // From the row to its block.
    program.add_register(R3, R9);
    program.set(R1, 1);
    program.atomic_add(R3, polled::POLLS, R1);

    let (empty, placed) = (program.label(), program.label());
    program.jump_if(R7, When::Equal, 0, empty);
    program.atomic_add(R3, polled::PACKETS, R7);
    program.jump_if_registers(R8, When::Greater, R7, placed);
    program.atomic_add(R3, polled::FULL, R1);
    program.jump(placed);
    program.place(empty);
    program.atomic_add(R3, polled::EMPTY, R1);
    program.place(placed);
    program.call(Helper::GetSmpProcessorId);
    program.add(R0, 1);
    program.store(Word, R9, row::CPU, R0);
    if let Some(config) = layout.napi.config {
        let known = program.label();
        program.load(Double, R1, R6, config);
        program.store_constant(Double, R9, row::KEEPS, row::KEPT);
        program.jump_if(R1, When::NotEqual, 0, known);
        program.store_constant(Double, R9, row::KEEPS, row::NOT_KEPT);
        program.place(known);
    }
    finish(program, end)
}

/// Where a timer is armed: `(struct hrtimer *timer, ...)`, whosever it is.
pub(super) fn arm(layout: &Layout, timer: &Timer, maps: Maps) -> Result<Vec<u8>, AssembleError> {
    let mut program = Assembler::new();
    let end = program.label();
    program.load(Double, R6, R1, 0);
    skip_others(&mut program, timer, end);
    instance_of_timer(&mut program, timer);
    find_row(&mut program, layout, maps, end);
    match &timer.settings {
        Some(settings) => count_arming(&mut program, settings),
        None => increment(&mut program, row::DEFERRALS),
    }
    finish(program, end)
}

/// Before a timer's function runs: `(struct hrtimer *timer, ...)`, whosever it is.
pub(super) fn fire(layout: &Layout, timer: &Timer, maps: Maps) -> Result<Vec<u8>, AssembleError> {
    let mut program = Assembler::new();
    let end = program.label();
    program.load(Double, R6, R1, 0);
    skip_others(&mut program, timer, end);
    instance_of_timer(&mut program, timer);
    find_row(&mut program, layout, maps, end);
    increment(&mut program, row::WATCHDOGS);
    // One that a suspension armed ran out: the application did not come back in time.
    program.load(Double, R1, R9, row::SUSPENDED);
    program.jump_if(R1, When::Equal, 0, end);
    program.store_constant(Double, R9, row::SUSPENDED, 0);
    increment(&mut program, row::EXPIRIES);
    finish(program, end)
}

/// Before and after a softirq: `(unsigned int vector)`; sets or clears this CPU's mark.
pub(super) fn mark(softirq: &Softirq, marks: i32, value: bool) -> Result<Vec<u8>, AssembleError> {
    let mut program = Assembler::new();
    let end = program.label();
    program.load(Double, R1, R1, 0);
    program.copy_word(R1, R1);
    program.jump_if(R1, When::NotEqual, softirq.net_rx, end);
    look_up_single(&mut program, marks);
    program.jump_if(R0, When::Equal, 0, end);
    program.store_constant(Double, R0, 0, value.into());
    finish(program, end)
}

/// Which arming it is. With deferral off the timer only flushes what GRO holds; one that is set to
/// more than `gro-flush-timeout` from now suspends. (If `irq-suspend-timeout` is not the greater of
/// the two, a suspension cannot be told from a deferral, and counts as one.)
fn count_arming(program: &mut Assembler, settings: &Settings) {
    let (flush, deferral, counted) = (program.label(), program.label(), program.label());
    program.store_constant(Double, R9, row::SUSPENDED, 0);
    program.load(Word, R1, R6, settings.defer_hard_irqs);
    program.jump_if(R1, When::Equal, 0, flush);
    program.load(Double, R1, R6, settings.irq_suspend_timeout);
    program.jump_if(R1, When::Equal, 0, deferral);
    program.call(Helper::KtimeGetNs);
    program.load(Double, R1, R6, settings.expires);
    program.subtract(R1, R0);
    program.load(Double, R2, R6, settings.gro_flush_timeout);
    program.jump_if_registers(R1, When::LessOrEqual, R2, deferral);
    increment(program, row::SUSPENSIONS);
    program.store_constant(Double, R9, row::SUSPENDED, 1);
    program.jump(counted);
    program.place(flush);
    increment(program, row::FLUSHES);
    program.jump(counted);
    program.place(deferral);
    increment(program, row::DEFERRALS);
    program.place(counted);
}

/// Goes to `end` unless the timer in R6 is an instance's.
fn skip_others(program: &mut Assembler, timer: &Timer, end: Label) {
    program.load(Double, R1, R6, timer.function);
    program.set_address(R2, timer.napi_watchdog);
    program.jump_if_registers(R1, When::NotEqual, R2, end);
}

/// From the timer in R6 to the instance that holds it, in R6.
fn instance_of_timer(program: &mut Assembler, timer: &Timer) {
    program.copy(R1, R6);
    program.add(R1, -i32::from(timer.within));
    program.set(R2, timer.napi_struct.cast_signed());
    program.call_kernel(timer.rdonly_cast);
    program.copy(R6, R0);
}

/// The row of the instance in R6 goes to R9; a new one if there is none. Without room it adds to the
/// lost ones and goes to `end`.
fn find_row(program: &mut Assembler, layout: &Layout, maps: Maps, end: Label) {
    let (keyed, found, full) = (program.label(), program.label(), program.label());
    program.store_constant(Word, FP, KEY + key::NETNS, 0);
    program.store_constant(Word, FP, KEY + key::IFINDEX, 0);
    program.load(Word, R1, R6, layout.napi.napi_id);
    program.store(Word, FP, KEY + key::NAPI_ID, R1);
    program.load(Double, R1, R6, layout.napi.dev);
    // The backlogs of the CPUs have no device.
    program.jump_if(R1, When::Equal, 0, keyed);
    program.load(Word, R2, R1, layout.ifindex);
    program.store(Word, FP, KEY + key::IFINDEX, R2);
    program.load(Double, R1, R1, layout.net);
    program.load(Word, R2, R1, layout.inum);
    if let Some(namespace) = maps.namespace {
        program.set(R1, namespace.cast_signed());
        program.copy_word(R1, R1);
        program.jump_if_registers(R1, When::NotEqual, R2, end);
    }
    program.store(Word, FP, KEY + key::NETNS, R2);
    program.place(keyed);

    look_up_row(program, maps);
    program.jump_if(R0, When::NotEqual, 0, found);
    for place in (NEW_ROW..KEY).step_by(8) {
        program.store_constant(Double, FP, place, 0);
    }
    program.set_map(R1, maps.rows);
    program.copy(R2, FP);
    program.add(R2, KEY.into());
    program.copy(R3, FP);
    program.add(R3, NEW_ROW.into());
    // BPF_NOEXIST: another CPU's new row is not to be overwritten.
    program.set(R4, 1);
    program.call(Helper::MapUpdateElem);
    look_up_row(program, maps);
    program.jump_if(R0, When::NotEqual, 0, found);

    look_up_single(program, maps.lost);
    program.jump_if(R0, When::Equal, 0, full);
    program.set(R1, 1);
    program.atomic_add(R0, 0, R1);
    program.place(full);
    program.jump(end);
    program.place(found);
    program.copy(R9, R0);
}

fn look_up_row(program: &mut Assembler, maps: Maps) {
    program.set_map(R1, maps.rows);
    program.copy(R2, FP);
    program.add(R2, KEY.into());
    program.call(Helper::MapLookupElem);
}

/// The only value of a map of one value.
fn look_up_single(program: &mut Assembler, map: i32) {
    program.store_constant(Word, FP, INDEX, 0);
    program.set_map(R1, map);
    program.copy(R2, FP);
    program.add(R2, INDEX.into());
    program.call(Helper::MapLookupElem);
}

/// Adds 1 to a place of the row in R9.
fn increment(program: &mut Assembler, place: i16) {
    program.set(R1, 1);
    program.atomic_add(R9, place, R1);
}

fn finish(mut program: Assembler, end: Label) -> Result<Vec<u8>, AssembleError> {
    program.place(end);
    program.set(R0, 0);
    program.exit();
    program.finish()
}
