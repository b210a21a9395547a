//! Code that all programs share: finding rows of the tables, and ending the program.

use super::super::tables::{CPUS, INSTANCES, Maps, THREADS, cpu};
use napkin_bpf::assemble::Register::{FP, R0, R1, R2};
use napkin_bpf::assemble::Width::Word;
use napkin_bpf::assemble::{AssembleError, Assembler, Condition, Helper, Label};

/// The stack slot of an index into a table.
pub(super) const INDEX: i16 = -4;
/// The stack slot of a thread's id.
pub(super) const THREAD: i16 = -16;
/// The stack slot of the current time.
pub(super) const NOW: i16 = -24;

/// Sets R0 to the row at the place of the instance with the id in R1, which is not 0; jumps to `none` without one.
pub(super) fn find_instance(program: &mut Assembler, maps: Maps, none: Label) {
    program.and(R1, INSTANCES.cast_signed() - 1);
    program.add(R1, 1);
    program.store(Word, FP, INDEX, R1);
    look_up(program, maps.instances);
    program.jump_if(R0, Condition::Equal, 0, none);
}

/// Sets R0 to this CPU's row.
pub(super) fn find_cpu(program: &mut Assembler, maps: Maps) {
    program.call(Helper::GetSmpProcessorId);
    program.and(R0, CPUS.cast_signed() - 1);
    program.multiply(R0, cpu::LEN as i32);
    program.set_map_value(R1, maps.cpus);
    program.add_register(R0, R1);
}

/// Sets R0 to the row at the place of the thread with the id in R1; jumps to `none` without one.
pub(super) fn find_thread(program: &mut Assembler, maps: Maps, none: Label) {
    program.and(R1, THREADS.cast_signed() - 1);
    program.store(Word, FP, INDEX, R1);
    look_up(program, maps.threads);
    program.jump_if(R0, Condition::Equal, 0, none);
}

/// Sets R0 to the value at the index on the stack.
pub(super) fn look_up(program: &mut Assembler, map: i32) {
    program.set_map(R1, map);
    program.copy(R2, FP);
    program.add(R2, INDEX.into());
    program.call(Helper::MapLookupElem);
}

pub(super) fn finish(mut program: Assembler, end: Label) -> Result<Vec<u8>, AssembleError> {
    program.place(end);
    program.set(R0, 0);
    program.exit();
    program.finish()
}
