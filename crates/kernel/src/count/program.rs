//! The counting programs.
//!
//! All add to one table (`table`), which has a row of 64-bit counts for each instance. Additions are atomic: an
//! instance has one owner at a time, but its trace point comes after the release, so the next owner may already
//! have reached its own.
//!
//! The program prolongs each poll. So the common path, a softirq's poll of an instance whose row is at its first
//! place, calls no helper but the one for the CPU's number, follows one pointer, and makes two atomic additions.
//!
//! The owner of a poll is:
//! - a **softirq**, if this CPU is between the beginning and the end of a receive softirq
//!   (two short programs at the trace points there keep a mark per CPU);
//! - the instance's **thread**, if that is the current thread;
//! - an **application**, if the instance's state has `IN_BUSY_POLL`, or if it had it at the previous
//!   poll and the same thread polls again: leaving a busy-poll session clears the bit and then
//!   polls once more.
//!
//! Without the marks, every poll that matches no other rule counts as a softirq's. From Linux 7.2 on (7599c13dbe7a,
//! also in 6.18.y), a session that prefers busy polling ends without that last poll if its timer is armed: then the
//! next softirq in the context of that thread is attributed to the application. A softirq's poll is also attributed
//! to an application if, between its release and its trace point, a busy poller on another CPU has claimed the
//! instance, which is when a busy poller succeeds. (`__preempt_count` would tell, too, but a program finds it by
//! the kernel's symbol table, which in most kernels has no variables.)
//!
//! Polls with a budget of 0 (netpoll, which only cleans transmit rings) are not counted.

use super::layout::{Layout, Settings, Softirq, Timer};
use super::table::{BACKLOGS, NETNS_SHIFT, Shape, polled, row};
use napkin_bpf::assemble::Register::{FP, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9};
use napkin_bpf::assemble::Width::{Double, Word};
use napkin_bpf::assemble::{AssembleError, Assembler, Condition, Helper, Label, Register};

/// The table and the map of the programs, and the namespace to be counted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Maps {
    pub(super) table: Shape,
    /// The map with one number per CPU: whether it is in the receive softirq. `None` without marks.
    pub(super) in_softirq: Option<i32>,
    /// The inode of the namespace whose instances are counted; `None` for all, and for the CPUs' backlogs.
    pub(super) namespace: Option<u32>,
}

/// The stack slot of the index into a map with one value, always 0.
const INDEX: i16 = -4;

/// Program at the trace point after a poll: `(struct napi_struct *napi, int work, int budget)`.
pub(super) fn poll(layout: &Layout, maps: Maps) -> Result<Vec<u8>, AssembleError> {
    let mut program = Assembler::new();
    let end = program.label();
    program.load(Double, R6, R1, 0);
    program.load(Double, R7, R1, 8);
    program.load(Double, R8, R1, 16);
    program.copy_word(R7, R7);
    program.copy_word(R8, R8);
    program.jump_if(R8, Condition::Equal, 0, end);
    find_row(&mut program, layout, maps, end);

    let (softirq, thread, application, counted) =
        (program.label(), program.label(), program.label(), program.label());
    // Common path: no thread, and neither the state nor a session suggests an application.
    let doubtful = program.label();
    program.load(Double, R4, R6, layout.napi.thread);
    program.load(Double, R5, R6, layout.napi.state);
    program.load(Word, R3, R9, row::SESSION);
    program.jump_if(R4, Condition::NotEqual, 0, doubtful);
    program.jump_if(R5, Condition::AnyBit, layout.napi.in_busy_poll, doubtful);
    program.jump_if(R3, Condition::Equal, 0, softirq);
    program.place(doubtful);
    if let Some(marks) = maps.in_softirq {
        let unknown = program.label();
        look_up_single(&mut program, marks);
        program.jump_if(R0, Condition::Equal, 0, unknown);
        program.load(Double, R1, R0, 0);
        program.jump_if(R1, Condition::NotEqual, 0, softirq);
        program.place(unknown);
    }
    program.call(Helper::GetCurrentTaskBtf);
    program.load(Double, R1, R6, layout.napi.thread);
    program.jump_if_registers(R0, Condition::Equal, R1, thread);
    program.load(Word, R2, R0, layout.pid);
    program.load(Double, R1, R6, layout.napi.state);
    program.jump_if(R1, Condition::AnyBit, layout.napi.in_busy_poll, application);
    program.jump_if(R2, Condition::Equal, 0, softirq);
    program.load(Word, R1, R9, row::SESSION);
    program.jump_if_registers(R1, Condition::NotEqual, R2, softirq);
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
    // From the row to the block of the owner.
    program.add_register(R3, R9);
    program.set(R1, 1);
    let (empty, full, placed) = (program.label(), program.label(), program.label());
    program.jump_if(R7, Condition::Equal, 0, empty);
    program.atomic_add(R3, polled::PACKETS, R7);
    program.jump_if_registers(R7, Condition::GreaterOrEqual, R8, full);
    program.atomic_add(R3, polled::PARTIAL, R1);
    program.jump(placed);
    program.place(full);
    program.atomic_add(R3, polled::FULL, R1);
    program.jump(placed);
    program.place(empty);
    program.atomic_add(R3, polled::EMPTY, R1);
    program.place(placed);
    program.call(Helper::GetSmpProcessorId);
    program.add(R0, 1);
    program.store(Word, R9, row::CPU, R0);
    finish(program, end)
}

/// Program where a timer is armed: `(struct hrtimer *timer, ...)`, for all timers of the machine.
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

/// Program before a timer's callback: `(struct hrtimer *timer, ...)`, for all timers of the machine.
pub(super) fn fire(layout: &Layout, timer: &Timer, maps: Maps) -> Result<Vec<u8>, AssembleError> {
    let mut program = Assembler::new();
    let end = program.label();
    program.load(Double, R6, R1, 0);
    skip_others(&mut program, timer, end);
    instance_of_timer(&mut program, timer);
    find_row(&mut program, layout, maps, end);
    increment(&mut program, row::WATCHDOGS);
    // A suspension's timer expired: the application did not wait again in time.
    program.load(Double, R1, R9, row::SUSPENDED);
    program.jump_if(R1, Condition::Equal, 0, end);
    program.store_constant(Double, R9, row::SUSPENDED, 0);
    increment(&mut program, row::EXPIRIES);
    finish(program, end)
}

/// Program before and after a softirq: `(unsigned int vector)`; sets or clears this CPU's mark.
pub(super) fn mark(softirq: &Softirq, marks: i32, value: bool) -> Result<Vec<u8>, AssembleError> {
    let mut program = Assembler::new();
    let end = program.label();
    program.load(Double, R1, R1, 0);
    program.copy_word(R1, R1);
    program.jump_if(R1, Condition::NotEqual, softirq.net_rx, end);
    look_up_single(&mut program, marks);
    program.jump_if(R0, Condition::Equal, 0, end);
    program.store_constant(Double, R0, 0, value.into());
    finish(program, end)
}

/// Counts an arming by its reason. With deferral off, the timer only flushes what GRO holds. An expiry more than
/// `gro-flush-timeout` from now is a suspension. (If `irq-suspend-timeout` is not the greater of the two, a
/// suspension cannot be told from a deferral, and counts as one.)
fn count_arming(program: &mut Assembler, settings: &Settings) {
    let (flush, deferral, counted) = (program.label(), program.label(), program.label());
    program.store_constant(Double, R9, row::SUSPENDED, 0);
    program.load(Word, R1, R6, settings.defer_hard_irqs);
    program.jump_if(R1, Condition::Equal, 0, flush);
    program.load(Double, R1, R6, settings.irq_suspend_timeout);
    program.jump_if(R1, Condition::Equal, 0, deferral);
    program.call(Helper::KtimeGetNs);
    program.load(Double, R1, R6, settings.expires);
    program.subtract(R1, R0);
    program.load(Double, R2, R6, settings.gro_flush_timeout);
    program.jump_if_registers(R1, Condition::LessOrEqual, R2, deferral);
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

/// Jumps to `end` unless the timer in R6 belongs to an instance.
fn skip_others(program: &mut Assembler, timer: &Timer, end: Label) {
    program.load(Double, R1, R6, timer.function);
    program.set_address(R2, timer.napi_watchdog);
    program.jump_if_registers(R1, Condition::NotEqual, R2, end);
}

/// Turns R6 from a timer into the instance that contains it.
fn instance_of_timer(program: &mut Assembler, timer: &Timer) {
    program.copy(R1, R6);
    program.add(R1, -i32::from(timer.within));
    program.set(R2, timer.napi_struct.cast_signed());
    program.call_kernel(timer.rdonly_cast);
    program.copy(R6, R0);
}

/// Sets R9 to the row of the instance in R6, or to a free row that it takes for it. If there is no room, it
/// increments the lost count and jumps to `end`. For an instance of another namespace it jumps to `end`.
fn find_row(program: &mut Assembler, layout: &Layout, maps: Maps, end: Label) {
    let table = maps.table;
    let (found, unknown, named, nameless) =
        (program.label(), program.label(), program.label(), program.label());
    program.load(Word, R5, R6, layout.napi.napi_id);
    first_row(program, table, R5);
    program.jump_if(R5, Condition::Equal, 0, unknown);
    program.load(Double, R1, R9, row::NAME);
    program.jump_if_registers(R1, Condition::Equal, R5, found);

    program.place(unknown);
    program.load(Double, R1, R6, layout.napi.dev);
    program.set(R3, 0);
    program.set(R4, 0);
    let device = program.label();
    program.jump_if(R1, Condition::NotEqual, 0, device);
    // The backlogs of the CPUs have no device.
    match maps.namespace {
        Some(_) => program.jump(end),
        None => {
            program.set(R5, BACKLOGS as i32);
            program.jump(nameless);
        }
    }
    program.place(device);
    program.load(Word, R4, R1, layout.ifindex);
    program.load(Double, R1, R1, layout.net);
    program.load(Word, R3, R1, layout.inum);
    if let Some(namespace) = maps.namespace {
        program.set(R1, namespace.cast_signed());
        program.copy_word(R1, R1);
        program.jump_if_registers(R1, Condition::NotEqual, R3, end);
    }
    program.jump_if(R5, Condition::NotEqual, 0, named);
    program.copy(R5, R3);
    program.shift_left(R5, NETNS_SHIFT);
    program.add_register(R5, R4);
    program.place(nameless);
    first_row(program, table, R5);
    program.place(named);
    take_row(program, layout, table, found, end);
    program.place(found);
}

/// Sets R9 to the row with the name in R5, among those from the row in R9 on; or else to a free one, to which it
/// assigns that name, the namespace in R3 and the device in R4. Then to `found`; without a free row to `end`.
fn take_row(program: &mut Assembler, layout: &Layout, table: Shape, found: Label, end: Label) {
    let taken = program.label();
    for _ in 0..table.rows_per_name {
        program.load(Double, R1, R9, row::NAME);
        program.jump_if_registers(R1, Condition::Equal, R5, found);
        program.add(R9, row::LEN.into());
    }
    program.add(R9, -i32::from(row::LEN) * table.rows_per_name.cast_signed());
    for _ in 0..table.rows_per_name {
        program.set(R0, 0);
        program.atomic_compare_exchange(R9, row::NAME, R5);
        program.jump_if(R0, Condition::Equal, 0, taken);
        // Another CPU has taken it for the same instance in between.
        program.jump_if_registers(R0, Condition::Equal, R5, found);
        program.add(R9, row::LEN.into());
    }
    program.set_map_value(R1, table.descriptor);
    program.add(R1, table.lost());
    program.set(R2, 1);
    program.atomic_add(R1, 0, R2);
    program.jump(end);

    program.place(taken);
    program.store(Word, R9, row::NETNS, R3);
    program.store(Word, R9, row::IFINDEX, R4);
    if let Some(config) = layout.napi.config {
        // The driver sets the pointer to the settings before the instance has an id, or never.
        program.load(Double, R1, R6, config);
        program.store_constant(Double, R9, row::KEEPS, row::KEPT);
        program.jump_if(R1, Condition::NotEqual, 0, found);
        program.store_constant(Double, R9, row::KEEPS, row::NOT_KEPT);
    }
}

/// Sets R9 to the first row that may hold the name in a register. Clobbers R1.
fn first_row(program: &mut Assembler, table: Shape, name: Register) {
    program.set_map_value(R9, table.descriptor);
    program.copy(R1, name);
    program.and(R1, table.places.cast_signed() - 1);
    program.multiply(R1, row::LEN.into());
    program.add_register(R9, R1);
}

/// Sets R0 to the only value of a map with one value.
fn look_up_single(program: &mut Assembler, map: i32) {
    program.store_constant(Word, FP, INDEX, 0);
    program.set_map(R1, map);
    program.copy(R2, FP);
    program.add(R2, INDEX.into());
    program.call(Helper::MapLookupElem);
}

/// Adds 1 at an offset of the row in R9.
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
