//! Operands of instructions: registers, widths, jump conditions, and the kernel's helper functions.

/// A register: `R0` holds the return value of a call, `R1`-`R5` its arguments (clobbered by it), `R6`-`R9` are
/// preserved across calls, and `FP` points to the top of the stack frame of 512 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "the processor's own names")]
pub enum Register {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    FP,
}

/// The width of a load or a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// 1 byte: `BPF_B`.
    Byte,
    /// 2 bytes: `BPF_H`.
    Half,
    /// 4 bytes: `BPF_W`.
    Word,
    /// 8 bytes: `BPF_DW`.
    Double,
}

impl Width {
    pub(crate) const fn bits(self) -> u8 {
        match self {
            Width::Byte => 0x10,
            Width::Half => 0x08,
            Width::Word => 0x00,
            Width::Double => 0x18,
        }
    }
}

/// The condition of a jump. Comparisons are of 64 bits, signed except for [`Condition::Above`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// The operands are equal: `BPF_JEQ`.
    Equal,
    /// The operands differ: `BPF_JNE`.
    NotEqual,
    /// The operands have a bit in common: `BPF_JSET`.
    AnyBit,
    /// The first is greater, unsigned: `BPF_JGT`.
    Above,
    /// The first is greater: `BPF_JSGT`.
    Greater,
    /// The first is greater or equal: `BPF_JSGE`.
    GreaterOrEqual,
    /// The first is less or equal: `BPF_JSLE`.
    LessOrEqual,
}

impl Condition {
    pub(crate) const fn bits(self) -> u8 {
        match self {
            Condition::Equal => 0x10,
            Condition::Above => 0x20,
            Condition::AnyBit => 0x40,
            Condition::NotEqual => 0x50,
            Condition::Greater => 0x60,
            Condition::GreaterOrEqual => 0x70,
            Condition::LessOrEqual => 0xd0,
        }
    }
}

/// A helper function of the kernel, by its number in `linux/bpf.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
#[expect(missing_docs, reason = "the kernel's own names")]
pub enum Helper {
    MapLookupElem = 1,
    KtimeGetNs = 5,
    GetPrandomU32 = 7,
    GetSmpProcessorId = 8,
    GetCurrentPidTgid = 14,
    RedirectMap = 51,
    SkcToTcpSock = 137,
    GetCurrentTaskBtf = 158,
}
