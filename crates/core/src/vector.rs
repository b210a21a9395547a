//! The softirq vectors.

/// A softirq vector; numbers as in the kernel. Pending vectors are a bit mask: the bit of vector
/// `n` is `1 << n` (the 2018 patch took `2 | 3` for a mask of the vectors 2 and 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "the kernel's names say it")]
pub enum Vector {
    Hi = 0,
    Timer = 1,
    NetTx = 2,
    NetRx = 3,
    Block = 4,
    IrqPoll = 5,
    Tasklet = 6,
    Sched = 7,
    Hrtimer = 8,
    Rcu = 9,
}

impl Vector {
    /// Every vector, in the order in which one pass runs them.
    pub const ALL: [Vector; 10] = [
        Vector::Hi,
        Vector::Timer,
        Vector::NetTx,
        Vector::NetRx,
        Vector::Block,
        Vector::IrqPoll,
        Vector::Tasklet,
        Vector::Sched,
        Vector::Hrtimer,
        Vector::Rcu,
    ];

    /// The vector's bit in a mask.
    pub const fn bit(self) -> u32 {
        1 << self as u8
    }
}
