//! At polls and wake-ups: since when a frame that is taken may have been in the ring.
//!
//! A frame was not in the ring before the last poll ended, for that left the ring empty or was followed
//! by the next at once. Nor was it before whoever polls now was woken, for the first frame does that; but
//! only where the interrupt was on: while the instance's timer is armed in its place nobody is woken, and
//! neither where it stayed owned after its last poll. An application that busy polls owns it so, and sends
//! its answers meanwhile, which asks for the receive softirq of its CPU on behalf of others.
//!
//! What a poll took is mostly delivered within it, but not always. After a busy poll, and one that used its
//! budget, some is delivered once the trace point was passed; with RPS all is, by another softirq. Then the
//! last poll that found anything stands for the one that took a frame, and when that may have begun to wait
//! is kept with the instance. What waits at the other CPU while further polls come is told too short by that.

use super::super::layout::{Layout, Wake};
use super::super::tables::{Maps, choice, cpu, instance, thread};
use super::rows::{INDEX, NOW, THREAD, find_cpu, find_instance, find_thread, finish};
use napkin_bpf::assemble::Register::{FP, R0, R1, R2, R3, R6, R7, R8, R9};
use napkin_bpf::assemble::Width::{Byte, Double, Word};
use napkin_bpf::assemble::{AssembleError, Assembler, Helper, Label, When};

/// An instance's place belongs to another that comes once it was not polled for so long.
const STALE_NS: i32 = 1_000_000_000;

/// At the trace point after a poll: `(struct napi_struct *napi, int work, int budget)`. A budget of 0
/// looks into no receive ring.
pub(in super::super) fn polled(layout: &Layout, maps: Maps) -> Result<Vec<u8>, AssembleError> {
    let mut program = Assembler::new();
    let (end, own, told) = (program.label(), program.label(), program.label());
    program.load(Double, R6, R1, 0);
    program.load(Double, R2, R1, 16);
    program.copy_word(R2, R2);
    program.jump_if(R2, When::Equal, 0, end);
    program.load(Double, R8, R1, 8);
    program.load(Word, R7, R6, layout.napi_id);
    program.jump_if(R7, When::Equal, 0, end);
    program.copy(R1, R7);
    find_instance(&mut program, maps, end);
    program.copy(R9, R0);
    program.call(Helper::KtimeGetNs);
    program.store(Double, FP, NOW, R0);
    program.load(Double, R1, R9, instance::ID);
    program.jump_if_registers(R1, When::Equal, R7, own);
    program.load(Double, R2, R9, instance::POLLED);
    program.copy(R3, R0);
    program.subtract(R3, R2);
    program.jump_if(R3, When::LessOrEqual, STALE_NS, end);
    program.store(Double, R9, instance::ID, R7);
    program.store_constant(Double, R9, instance::TAKEN, 0);
    program.jump(told);
    program.place(own);
    program.copy_word(R8, R8);
    let (empty, later, since) = (program.label(), program.label(), program.label());
    program.jump_if(R8, When::Equal, 0, empty);
    program.load(Double, R1, R6, layout.state);
    program.jump_if(R1, When::AnyBit, layout.owned, later);
    let delivered = program.label();
    skip_unless_handed(&mut program, maps, delivered);
    program.place(later);
    program.copy(R0, R9);
    earliest(&mut program, maps, since);
    program.place(since);
    program.store(Double, R9, instance::TAKEN, R7);
    program.jump(told);
    program.place(empty);
    // What was handed over may be under way still.
    skip_unless_handed(&mut program, maps, delivered);
    program.jump(told);
    program.place(delivered);
    program.store_constant(Double, R9, instance::TAKEN, 0);
    program.place(told);
    program.load(Double, R1, FP, NOW);
    program.store(Double, R9, instance::POLLED, R1);
    let (owned, armed) = (program.label(), program.label());
    program.load(Double, R1, R6, layout.state);
    program.jump_if(R1, When::AnyBit, layout.owned, owned);
    program.load(Double, R1, R6, layout.expires);
    program.jump(armed);
    program.place(owned);
    // Later than any time.
    program.set(R1, -1);
    program.shift_right(R1, 1);
    program.place(armed);
    program.store(Double, R9, instance::EXPIRES, R1);
    finish(program, end)
}

/// Where a softirq is asked for, and before one runs: `(unsigned int vector)`. The first of several
/// calls for one counts.
pub(in super::super) fn softirq(
    wake: &Wake,
    maps: Maps,
    runs: bool,
) -> Result<Vec<u8>, AssembleError> {
    let mut program = Assembler::new();
    let end = program.label();
    program.load(Double, R1, R1, 0);
    program.copy_word(R1, R1);
    program.jump_if(R1, When::NotEqual, wake.net_rx, end);
    find_cpu(&mut program, maps);
    program.copy(R9, R0);
    program.load(Double, R1, R9, cpu::RAISED);
    if runs {
        program.store(Double, R9, cpu::RUNNING, R1);
        program.store_constant(Double, R9, cpu::RAISED, 0);
    } else {
        program.jump_if(R1, When::NotEqual, 0, end);
        program.call(Helper::KtimeGetNs);
        program.store(Double, R9, cpu::RAISED, R0);
    }
    finish(program, end)
}

/// Before a thread is woken: `(struct task_struct *task)`. Instances' threads are known by their name.
pub(in super::super) fn waking(wake: &Wake, maps: Maps) -> Result<Vec<u8>, AssembleError> {
    let mut program = Assembler::new();
    let end = program.label();
    program.load(Double, R6, R1, 0);
    program.load(Word, R1, R6, wake.comm);
    program.jump_if(R1, When::NotEqual, i32::from_ne_bytes(*b"napi"), end);
    program.load(Word, R7, R6, wake.pid);
    program.copy(R1, R7);
    find_thread(&mut program, maps, end);
    program.copy(R9, R0);
    program.call(Helper::KtimeGetNs);
    program.store(Double, R9, thread::ID, R7);
    program.store(Double, R9, thread::WOKEN, R0);
    finish(program, end)
}

/// Goes to `other` unless the frames of the instance whose place is on the stack are handed to other CPUs.
/// R0 is kept.
fn skip_unless_handed(program: &mut Assembler, maps: Maps, other: Label) {
    program.set_map_value(R2, maps.choice);
    program.load(Word, R1, FP, INDEX);
    program.and(R1, choice::HANDED_LEN as i32 - 1);
    program.add_register(R2, R1);
    program.load(Byte, R1, R2, choice::HANDED);
    program.jump_if(R1, When::Equal, 0, other);
}

/// When a frame that is taken now, at the time on the stack, from the ring of the instance in R0 entered it goes to
/// R7. Then, or before, it goes to `end`. Where nobody was woken for it, that was at any time since the last poll:
/// one of these is drawn, each as likely as any other. Else it is the earliest.
pub(super) fn earliest(program: &mut Assembler, maps: Maps, end: Label) {
    let nobody_woken = program.label();
    program.load(Double, R7, R0, instance::POLLED);
    program.load(Double, R2, R0, instance::EXPIRES);
    program.jump_if_registers(R2, When::Greater, R7, nobody_woken);
    later_of_wake(program, maps, end);
    program.jump(end);
    program.place(nobody_woken);
    program.call(Helper::GetPrandomU32);
    program.copy_word(R0, R0);
    program.load(Double, R1, FP, NOW);
    program.subtract(R1, R7);
    // Nor of a gap that no 32 bits hold, nor of two clocks that differ.
    program.copy(R2, R1);
    program.shift_right(R2, 32);
    program.jump_if(R2, When::NotEqual, 0, end);
    program.multiply_register(R1, R0);
    program.shift_right(R1, 32);
    program.add_register(R7, R1);
}

/// In R7 the later of that and of when whoever runs here was woken: an instance's thread, or else the
/// softirq. Then, or if there is none, it goes to `end`.
fn later_of_wake(program: &mut Assembler, maps: Maps, end: Label) {
    let (no_thread, woken) = (program.label(), program.label());
    program.call(Helper::GetCurrentPidTgid);
    program.copy_word(R0, R0);
    program.copy(R1, R0);
    // R0 is lost by the look-up.
    program.store(Double, FP, THREAD, R0);
    find_thread(program, maps, no_thread);
    program.load(Double, R1, R0, thread::ID);
    program.load(Double, R2, FP, THREAD);
    program.jump_if_registers(R1, When::NotEqual, R2, no_thread);
    program.load(Double, R1, R0, thread::WOKEN);
    program.jump(woken);
    program.place(no_thread);
    find_cpu(program, maps);
    program.load(Double, R1, R0, cpu::RUNNING);
    program.place(woken);
    program.jump_if_registers(R7, When::GreaterOrEqual, R1, end);
    program.copy(R7, R1);
}
