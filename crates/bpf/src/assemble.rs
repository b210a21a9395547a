//! An assembler for eBPF: one method per instruction, labels as jump targets, and the encoded bytes at the end.
//!
//! It has only the instructions that napkin's programs use. It leaves checks to the kernel's verifier, except that
//! every label must be placed and within reach of its jumps.

use thiserror::Error;

pub use crate::operand::{Condition, Helper, Register, Width};

/// A jump target in the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a label is for `place`"]
pub struct Label(usize);

/// The reason why a program cannot be assembled: a mistake in the code that builds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AssembleError {
    /// The target of a jump was never placed.
    #[error("the jump at instruction {at} has no target")]
    NoTarget {
        /// The jump's index among the instructions.
        at: usize,
    },
    /// More than 32767 instructions lie between a jump and its target.
    #[error("the jump at instruction {at} is too far from its target")]
    TooFar {
        /// The jump's index among the instructions.
        at: usize,
    },
}

/// One instruction of 64 bits; a 64-bit constant takes two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Instruction {
    code: u8,
    to: u8,
    from: u8,
    offset: i16,
    constant: i32,
}

/// A program being written.
#[derive(Debug, Default)]
pub struct Assembler {
    instructions: Vec<Instruction>,
    /// The index of the instruction at each label, once placed.
    labels: Vec<Option<usize>>,
    /// The index of each jump, and its target.
    jumps: Vec<(usize, Label)>,
}

const LOAD: u8 = 0x61;
const STORE_CONSTANT: u8 = 0x62;
const STORE: u8 = 0x63;
const ATOMIC: u8 = 0xc3;
const JUMP: u8 = 0x05;
const BY_REGISTER: u8 = 0x08;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const LOAD_64: u8 = 0x18;
const ADD_CONSTANT: u8 = 0x07;
const ADD: u8 = 0x0f;
const SHIFT_LEFT: u8 = 0x67;
const SHIFT_RIGHT: u8 = 0x77;
const AND_CONSTANT: u8 = 0x57;
const AND: u8 = 0x5f;
const MULTIPLY: u8 = 0x27;
const MULTIPLY_REGISTER: u8 = 0x2f;
/// Flag in the constant of an atomic addition: return the old value.
const FETCH: i32 = 0x01;
/// The constant of `BPF_CMPXCHG`.
const COMPARE_EXCHANGE: i32 = 0xf0 | FETCH;
const SUBTRACT: u8 = 0x1f;
const MOVE: u8 = 0xbf;
const MOVE_CONSTANT: u8 = 0xb7;
/// `move` of the lower 32 bits; the upper ones become 0.
const MOVE_WORD: u8 = 0xbc;

/// The meaning of a 64-bit constant, in the source register's field.
const MAP_DESCRIPTOR: u8 = 1;
const MAP_VALUE: u8 = 2;
const BTF_ID: u8 = 3;
/// The meaning of a call's constant, in the same field.
const KERNEL_FUNCTION: u8 = 2;

impl Assembler {
    /// Returns an empty program.
    pub fn new() -> Assembler {
        Assembler::default()
    }

    fn push(&mut self, code: u8, to: u8, from: u8, offset: i16, constant: i32) {
        self.instructions.push(Instruction { code, to, from, offset, constant });
    }

    /// `to = from`
    pub fn copy(&mut self, to: Register, from: Register) {
        self.push(MOVE, to as u8, from as u8, 0, 0);
    }

    /// `to = from`, its lower 32 bits, zero-extended.
    pub fn copy_word(&mut self, to: Register, from: Register) {
        self.push(MOVE_WORD, to as u8, from as u8, 0, 0);
    }

    /// `to = constant`
    pub fn set(&mut self, to: Register, constant: i32) {
        self.push(MOVE_CONSTANT, to as u8, 0, 0, constant);
    }

    /// `to += constant`
    pub fn add(&mut self, to: Register, constant: i32) {
        self.push(ADD_CONSTANT, to as u8, 0, 0, constant);
    }

    /// `to += from`; one of the two may be a pointer.
    pub fn add_register(&mut self, to: Register, from: Register) {
        self.push(ADD, to as u8, from as u8, 0, 0);
    }

    /// `to -= from`
    pub fn subtract(&mut self, to: Register, from: Register) {
        self.push(SUBTRACT, to as u8, from as u8, 0, 0);
    }

    /// `to = *(base + offset)`
    pub fn load(&mut self, width: Width, to: Register, base: Register, offset: i16) {
        self.push(LOAD | width.bits(), to as u8, base as u8, offset, 0);
    }

    /// `*(base + offset) = from`
    pub fn store(&mut self, width: Width, base: Register, offset: i16, from: Register) {
        self.push(STORE | width.bits(), base as u8, from as u8, offset, 0);
    }

    /// `*(base + offset) = constant`
    pub fn store_constant(&mut self, width: Width, base: Register, offset: i16, constant: i32) {
        self.push(STORE_CONSTANT | width.bits(), base as u8, 0, offset, constant);
    }

    /// `*(base + offset) += from`, atomically on 64 bits.
    pub fn atomic_add(&mut self, base: Register, offset: i16, from: Register) {
        self.push(ATOMIC | Width::Double.bits(), base as u8, from as u8, offset, 0);
    }

    /// `*(base + offset) += with`, atomically on 64 bits; `with` becomes the old value.
    pub fn atomic_fetch_add(&mut self, base: Register, offset: i16, with: Register) {
        self.push(ATOMIC | Width::Double.bits(), base as u8, with as u8, offset, FETCH);
    }

    /// If `*(base + offset) == R0`, sets it to `with`; `R0` becomes the old value. Atomic on 64 bits (Linux 5.12).
    pub fn atomic_compare_exchange(&mut self, base: Register, offset: i16, with: Register) {
        let code = ATOMIC | Width::Double.bits();
        self.push(code, base as u8, with as u8, offset, COMPARE_EXCHANGE);
    }

    /// `to <<= bits`
    pub fn shift_left(&mut self, to: Register, bits: i32) {
        self.push(SHIFT_LEFT, to as u8, 0, 0, bits);
    }

    /// `to >>= bits`, zero-filling.
    pub fn shift_right(&mut self, to: Register, bits: i32) {
        self.push(SHIFT_RIGHT, to as u8, 0, 0, bits);
    }

    /// `to &= constant`, which is sign-extended.
    pub fn and(&mut self, to: Register, constant: i32) {
        self.push(AND_CONSTANT, to as u8, 0, 0, constant);
    }

    /// `to &= from`
    pub fn and_register(&mut self, to: Register, from: Register) {
        self.push(AND, to as u8, from as u8, 0, 0);
    }

    /// `to *= constant`, the lower 64 bits.
    pub fn multiply(&mut self, to: Register, constant: i32) {
        self.push(MULTIPLY, to as u8, 0, 0, constant);
    }

    /// `to *= from`
    pub fn multiply_register(&mut self, to: Register, from: Register) {
        self.push(MULTIPLY_REGISTER, to as u8, from as u8, 0, 0);
    }

    /// Returns a label that is still to be placed.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Places a label before the next instruction.
    pub fn place(&mut self, label: Label) {
        let next_instruction = self.instructions.len();
        if let Some(place) = self.labels.get_mut(label.0) {
            *place = Some(next_instruction);
        }
    }

    /// Jumps unconditionally: `BPF_JA`.
    pub fn jump(&mut self, target: Label) {
        self.jumps.push((self.instructions.len(), target));
        self.push(JUMP, 0, 0, 0, 0);
    }

    /// Jumps if the condition holds between a register and a constant.
    pub fn jump_if(&mut self, first: Register, when: Condition, constant: i32, target: Label) {
        self.jumps.push((self.instructions.len(), target));
        self.push(JUMP | when.bits(), first as u8, 0, 0, constant);
    }

    /// Jumps if the condition holds between two registers.
    pub fn jump_if_registers(
        &mut self,
        first: Register,
        when: Condition,
        second: Register,
        target: Label,
    ) {
        self.jumps.push((self.instructions.len(), target));
        self.push(JUMP | when.bits() | BY_REGISTER, first as u8, second as u8, 0, 0);
    }

    /// `R0 = helper(R1 ...)`
    pub fn call(&mut self, helper: Helper) {
        self.push(CALL, 0, 0, 0, helper as i32);
    }

    /// `R0 = function(R1 ...)`, a kernel function by its id in the kernel's own BTF.
    pub fn call_kernel(&mut self, btf_id: u32) {
        self.push(CALL, 0, KERNEL_FUNCTION, 0, btf_id.cast_signed());
    }

    /// `to = ` the map with that descriptor.
    pub fn set_map(&mut self, to: Register, descriptor: i32) {
        self.push(LOAD_64, to as u8, MAP_DESCRIPTOR, 0, descriptor);
        self.push(0, 0, 0, 0, 0);
    }

    /// `to = ` the address of the only value of the array map with that descriptor.
    pub fn set_map_value(&mut self, to: Register, descriptor: i32) {
        self.push(LOAD_64, to as u8, MAP_VALUE, 0, descriptor);
        self.push(0, 0, 0, 0, 0);
    }

    /// `to = ` the address of the variable with that id in the kernel's own BTF.
    pub fn set_address(&mut self, to: Register, btf_id: u32) {
        self.push(LOAD_64, to as u8, BTF_ID, 0, btf_id.cast_signed());
        self.push(0, 0, 0, 0, 0);
    }

    /// Returns from the program with the value in `R0`.
    pub fn exit(&mut self) {
        self.push(EXIT, 0, 0, 0, 0);
    }

    /// Returns the program's bytes, in native byte order, as `bpf(2)` takes them.
    ///
    /// # Errors
    /// If a label was not placed, or is out of a jump's reach.
    pub fn finish(mut self) -> Result<Vec<u8>, AssembleError> {
        for &(at, label) in &self.jumps {
            let target = self.labels.get(label.0).copied().flatten();
            let target = target.ok_or(AssembleError::NoTarget { at })?;
            let distance = target.cast_signed() - at.cast_signed() - 1;
            let distance = i16::try_from(distance).map_err(|_| AssembleError::TooFar { at })?;
            if let Some(jump) = self.instructions.get_mut(at) {
                jump.offset = distance;
            }
        }
        Ok(self.instructions.iter().flat_map(|one| one.bytes()).collect())
    }
}

impl Instruction {
    fn bytes(self) -> [u8; 8] {
        let [o0, o1] = self.offset.to_ne_bytes();
        let [c0, c1, c2, c3] = self.constant.to_ne_bytes();
        // The registers are two bit fields of one byte, whose order follows the byte order.
        let registers = if cfg!(target_endian = "little") {
            self.from << 4 | self.to
        } else {
            self.to << 4 | self.from
        };
        [self.code, registers, o0, o1, c0, c1, c2, c3]
    }
}

#[cfg(test)]
mod tests {
    use super::Register::*;
    use super::*;

    /// Hex of each instruction, as in a listing: `code registers offset constant`.
    fn listing(program: Assembler) -> Vec<String> {
        let bytes = program.finish().expect("it assembles");
        bytes
            .chunks(8)
            .map(|one| one.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
            .collect()
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn each_instruction_is_encoded_as_llvm_s_assembler_encodes_it() {
        let mut program = Assembler::new();
        program.copy(R6, R1); // r6 = r1
        program.copy_word(R7, R2); // w7 = w2
        program.set(R0, -1); // r0 = -1
        program.add(R2, -16); // r2 += -16
        program.subtract(R1, R0); // r1 -= r0
        program.load(Width::Double, R6, R1, 8); // r6 = *(u64 *)(r1 + 8)
        program.load(Width::Word, R3, R6, 0x128); // r3 = *(u32 *)(r6 + 296)
        program.store(Width::Word, FP, -12, R3); // *(u32 *)(r10 - 12) = w3
        program.store_constant(Width::Double, FP, -24, 0); // *(u64 *)(r10 - 24) = 0
        program.atomic_add(R9, 16, R1); // lock *(u64 *)(r9 + 16) += r1
        program.atomic_fetch_add(R9, 16, R1); // r1 = atomic_fetch_add((u64 *)(r9 + 16), r1)
        program.atomic_compare_exchange(R9, 16, R1); // r0 = cmpxchg_64(r9 + 16, r0, r1)
        program.shift_left(R1, 4); // r1 <<= 4
        program.shift_right(R1, 6); // r1 >>= 6
        program.and(R1, 255); // r1 &= 255
        program.and_register(R5, R4); // r5 &= r4
        program.multiply(R1, 3); // r1 *= 3
        program.load(Width::Half, R1, R6, 14); // r1 = *(u16 *)(r6 + 14)
        program.load(Width::Byte, R1, R6, 23); // r1 = *(u8 *)(r6 + 23)
        program.call(Helper::GetCurrentTaskBtf); // call 158
        program.exit(); // exit
        assert_eq!(
            listing(program),
            [
                "bf16000000000000",
                "bc27000000000000",
                "b7000000ffffffff",
                "07020000f0ffffff",
                "1f01000000000000",
                "7916080000000000",
                "6163280100000000",
                "633af4ff00000000",
                "7a0ae8ff00000000",
                "db19100000000000",
                "db19100001000000",
                "db191000f1000000",
                "6701000004000000",
                "7701000006000000",
                "57010000ff000000",
                "5f45000000000000",
                "2701000003000000",
                "69610e0000000000",
                "7161170000000000",
                "850000009e000000",
                "9500000000000000",
            ]
        );
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn constants_of_64_bits_take_two_instructions_and_say_what_they_stand_for() {
        let mut program = Assembler::new();
        program.set_map(R1, 5);
        program.set_map_value(R1, 5);
        program.set_address(R2, 0x1_2345);
        program.call_kernel(77);
        assert_eq!(
            listing(program),
            [
                "1811000005000000",
                "0000000000000000",
                "1821000005000000",
                "0000000000000000",
                "1832000045230100",
                "0000000000000000",
                "852000004d000000",
            ]
        );
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn jumps_count_from_the_instruction_after_them_forwards_and_backwards() {
        let mut program = Assembler::new();
        let (start, end) = (program.label(), program.label());
        program.place(start);
        program.jump_if(R1, Condition::Equal, 0, end); // if r1 == 0 goto +4
        program.jump_if_registers(R1, Condition::NotEqual, R2, end); // if r1 != r2 goto +3
        program.jump_if(R1, Condition::AnyBit, 32, end); // if r1 & 32 goto +2
        program.jump_if_registers(R1, Condition::Greater, R2, end); // if r1 s> r2 goto +1
        program.jump(start); // goto -5
        program.place(end);
        program.jump_if(R8, Condition::LessOrEqual, 0, start); // if r8 s<= 0 goto -6
        program.jump_if_registers(R7, Condition::GreaterOrEqual, R8, start); // if r7 s>= r8 goto -7
        program.jump_if(R2, Condition::Above, 527, start); // if r2 > 527 goto -8
        assert_eq!(
            listing(program),
            [
                "1501040000000000",
                "5d21030000000000",
                "4501020020000000",
                "6d21010000000000",
                "0500fbff00000000",
                "d508faff00000000",
                "7d87f9ff00000000",
                "2502f8ff0f020000",
            ]
        );
    }

    #[test]
    fn a_label_that_was_never_placed_or_is_too_far_is_an_error_and_not_a_wrong_jump() {
        let mut program = Assembler::new();
        let nowhere = program.label();
        program.exit();
        program.jump(nowhere);
        assert_eq!(program.finish(), Err(AssembleError::NoTarget { at: 1 }));

        let mut program = Assembler::new();
        let far = program.label();
        program.jump(far);
        for _ in 0..32_768 {
            program.exit();
        }
        program.place(far);
        assert_eq!(program.finish(), Err(AssembleError::TooFar { at: 0 }));
    }
}
