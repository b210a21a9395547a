//! What an instruction names: registers, widths, conditions of jumps, and the kernel's helpers.

/// A register: `R0` is what a call answers, `R1`-`R5` are its arguments (and lost by it), `R6`-`R9`
/// survive calls, `FP` is the frame, at the top of 512 bytes.
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

/// When a jump is taken. Comparisons are of 64 bits, signed but for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Both are the same.
    Equal,
    /// Jumps if the operands differ: `BPF_JNE`.
    NotEqual,
    /// They have a bit in common.
    AnyBit,
    /// The first is greater, both taken without a sign: `BPF_JGT`.
    Above,
    /// The first is greater.
    Greater,
    /// The first is greater or the same.
    GreaterOrEqual,
    /// The first is less or the same.
    LessOrEqual,
}

impl When {
    pub(crate) const fn bits(self) -> u8 {
        match self {
            When::Equal => 0x10,
            When::Above => 0x20,
            When::AnyBit => 0x40,
            When::NotEqual => 0x50,
            When::Greater => 0x60,
            When::GreaterOrEqual => 0x70,
            When::LessOrEqual => 0xd0,
        }
    }
}

/// A kernel's helper function, by its number in `linux/bpf.h`.
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
