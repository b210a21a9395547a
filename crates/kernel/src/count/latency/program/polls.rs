//! Programs at polls and wake-ups, which bound the time at which a frame entered the receive ring.
//!
//! A frame arrived after the end of the last poll, because that poll left the ring empty or was followed by the next
//! one at once. It also arrived no earlier than the wake-up of the context that polls now, because the first frame
//! causes the wake-up. That holds only if the interrupt was enabled. There is no wake-up while the instance's timer is
//! armed in place of the interrupt, nor if the instance stayed owned after its last poll, as by an application that
//! busy polls. Such an application also sends answers meanwhile, which raises its CPU's receive softirq for others.
//!
//! Most frames are delivered within the poll that took them, but not all. After a busy poll, and after one that
//! used its budget, some are delivered once the trace point has been passed; with RPS all are, by another softirq.
//! Then the last non-empty poll is taken for the one that took the frame, and the instance's row keeps the arrival
//! time. If further polls come while a frame waits at the other CPU, its time is underestimated.

use super::super::layout::{Layout, Wake};
use super::super::tables::{Maps, choice, cpu, instance, thread};
use super::rows::{INDEX, NOW, THREAD, find_cpu, find_instance, find_thread, finish};
use napkin_bpf::assemble::Register::{FP, R0, R1, R2, R3, R6, R7, R8, R9};
use napkin_bpf::assemble::Width::{Byte, Double, Word};
use napkin_bpf::assemble::{AssembleError, Assembler, Condition, Helper, Label};

/// An instance that was not polled for this long loses its place to another one.
const STALE_NS: i32 = 1_000_000_000;

/// Program at the trace point after a poll: `(struct napi_struct *napi, int work, int budget)`. A poll with a
/// budget of 0 does not look into the receive ring.
pub(in super::super) fn polled(layout: &Layout, maps: Maps) -> Result<Vec<u8>, AssembleError> {
    let mut program = Assembler::new();
    let (end, own, store_poll) = (program.label(), program.label(), program.label());
    program.load(Double, R6, R1, 0);
    program.load(Double, R2, R1, 16);
    program.copy_word(R2, R2);
    program.jump_if(R2, Condition::Equal, 0, end);
    program.load(Double, R8, R1, 8);
    program.load(Word, R7, R6, layout.napi_id);
    program.jump_if(R7, Condition::Equal, 0, end);
    program.copy(R1, R7);
    find_instance(&mut program, maps, end);
    program.copy(R9, R0);
    program.call(Helper::KtimeGetNs);
    program.store(Double, FP, NOW, R0);
    program.load(Double, R1, R9, instance::ID);
    program.jump_if_registers(R1, Condition::Equal, R7, own);
    program.load(Double, R2, R9, instance::POLLED);
    program.copy(R3, R0);
    program.subtract(R3, R2);
    program.jump_if(R3, Condition::LessOrEqual, STALE_NS, end);
    program.store(Double, R9, instance::ID, R7);
    program.store_constant(Double, R9, instance::ARRIVAL, 0);
    program.jump(store_poll);
    program.place(own);
    program.copy_word(R8, R8);
    let (empty, later, since) = (program.label(), program.label(), program.label());
    program.jump_if(R8, Condition::Equal, 0, empty);
    program.load(Double, R1, R6, layout.state);
    program.jump_if(R1, Condition::AnyBit, layout.owned, later);
    let delivered = program.label();
    skip_unless_steered(&mut program, maps, delivered);
    program.place(later);
    program.copy(R0, R9);
    arrival(&mut program, maps, since);
    program.place(since);
    program.store(Double, R9, instance::ARRIVAL, R7);
    program.jump(store_poll);
    program.place(empty);
    // Frames that were steered to other CPUs may still be under way.
    skip_unless_steered(&mut program, maps, delivered);
    program.jump(store_poll);
    program.place(delivered);
    program.store_constant(Double, R9, instance::ARRIVAL, 0);
    program.place(store_poll);
    program.load(Double, R1, FP, NOW);
    program.store(Double, R9, instance::POLLED, R1);
    let (owned, armed) = (program.label(), program.label());
    program.load(Double, R1, R6, layout.state);
    program.jump_if(R1, Condition::AnyBit, layout.owned, owned);
    program.load(Double, R1, R6, layout.expires);
    program.jump(armed);
    program.place(owned);
    // The maximum: the next poll needs no wake-up.
    program.set(R1, -1);
    program.shift_right(R1, 1);
    program.place(armed);
    program.store(Double, R9, instance::EXPIRES, R1);
    finish(program, end)
}

/// Program where a softirq is raised, and (`runs`) before one runs: `(unsigned int vector)`. If it is raised
/// several times, the first one counts.
pub(in super::super) fn softirq(
    wake: &Wake,
    maps: Maps,
    runs: bool,
) -> Result<Vec<u8>, AssembleError> {
    let mut program = Assembler::new();
    let end = program.label();
    program.load(Double, R1, R1, 0);
    program.copy_word(R1, R1);
    program.jump_if(R1, Condition::NotEqual, wake.net_rx, end);
    find_cpu(&mut program, maps);
    program.copy(R9, R0);
    program.load(Double, R1, R9, cpu::RAISED);
    if runs {
        program.store(Double, R9, cpu::RUNNING, R1);
        program.store_constant(Double, R9, cpu::RAISED, 0);
    } else {
        program.jump_if(R1, Condition::NotEqual, 0, end);
        program.call(Helper::KtimeGetNs);
        program.store(Double, R9, cpu::RAISED, R0);
    }
    finish(program, end)
}

/// Program before a thread is woken: `(struct task_struct *task)`. Instances' threads are recognised by their name.
pub(in super::super) fn waking(wake: &Wake, maps: Maps) -> Result<Vec<u8>, AssembleError> {
    let mut program = Assembler::new();
    let end = program.label();
    program.load(Double, R6, R1, 0);
    program.load(Word, R1, R6, wake.comm);
    program.jump_if(R1, Condition::NotEqual, i32::from_ne_bytes(*b"napi"), end);
    program.load(Word, R7, R6, wake.pid);
    program.copy(R1, R7);
    find_thread(&mut program, maps, end);
    program.copy(R9, R0);
    program.call(Helper::KtimeGetNs);
    program.store(Double, R9, thread::ID, R7);
    program.store(Double, R9, thread::WOKEN, R0);
    finish(program, end)
}

/// Jumps to `other` unless the frames of the instance whose place is on the stack are steered to other CPUs.
/// Preserves R0.
fn skip_unless_steered(program: &mut Assembler, maps: Maps, other: Label) {
    program.set_map_value(R2, maps.choice);
    program.load(Word, R1, FP, INDEX);
    program.and(R1, choice::STEERED_LEN as i32 - 1);
    program.add_register(R2, R1);
    program.load(Byte, R1, R2, choice::STEERED);
    program.jump_if(R1, Condition::Equal, 0, other);
}

/// Sets R7 to the time at which a frame entered the ring of the instance in R0, if it is taken at the time on the
/// stack. Jumps to `end`, or falls through. If the frame caused no wake-up, it arrived at some time since the last
/// poll: this draws one uniformly. Otherwise it is the earliest possible time.
pub(super) fn arrival(program: &mut Assembler, maps: Maps, end: Label) {
    let no_wake_up = program.label();
    program.load(Double, R7, R0, instance::POLLED);
    program.load(Double, R2, R0, instance::EXPIRES);
    program.jump_if_registers(R2, Condition::Greater, R7, no_wake_up);
    raise_to_wake_up(program, maps, end);
    program.jump(end);
    program.place(no_wake_up);
    program.call(Helper::GetPrandomU32);
    program.copy_word(R0, R0);
    program.load(Double, R1, FP, NOW);
    program.subtract(R1, R7);
    // No draw if the interval exceeds 32 bits, or is negative because two CPUs' clocks differ.
    program.copy(R2, R1);
    program.shift_right(R2, 32);
    program.jump_if(R2, Condition::NotEqual, 0, end);
    program.multiply_register(R1, R0);
    program.shift_right(R1, 32);
    program.add_register(R7, R1);
}

/// Raises R7 to the time at which the current context was woken, if that is later: an instance's thread, or else
/// the softirq. Jumps to `end` if not, or falls through.
fn raise_to_wake_up(program: &mut Assembler, maps: Maps, end: Label) {
    let (no_thread, woken) = (program.label(), program.label());
    program.call(Helper::GetCurrentPidTgid);
    program.copy_word(R0, R0);
    program.copy(R1, R0);
    // The look-up clobbers R0.
    program.store(Double, FP, THREAD, R0);
    find_thread(program, maps, no_thread);
    program.load(Double, R1, R0, thread::ID);
    program.load(Double, R2, FP, THREAD);
    program.jump_if_registers(R1, Condition::NotEqual, R2, no_thread);
    program.load(Double, R1, R0, thread::WOKEN);
    program.jump(woken);
    program.place(no_thread);
    find_cpu(program, maps);
    program.load(Double, R1, R0, cpu::RUNNING);
    program.place(woken);
    program.jump_if_registers(R7, Condition::GreaterOrEqual, R1, end);
    program.copy(R7, R1);
}
