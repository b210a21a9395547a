//! The kinds of values that keys take, and their limits.

use core::fmt;

use crate::{MICROSECOND, Ns};

/// The largest count that the kernel accepts for `defer-hard-irqs` and the busy-poll times: `i32::MAX`.
pub const MAX_COUNT: u32 = i32::MAX as u32;

/// The longest timeout of a policy: 10 s. The kernel accepts more, but a longer one is useless for packet
/// delivery, and with this bound no sum of a time and a timeout overflows.
pub const MAX_TIMEOUT: Ns = 10_000_000 * MICROSECOND;

/// The kind of a key's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A plain number up to `max`.
    Count {
        /// The largest accepted number.
        max: u32,
    },
    /// A [`Time`](crate::Time) up to [`MAX_TIMEOUT`].
    Time,
}

impl ValueKind {
    /// Whether the value is `off` or `on`.
    pub fn is_switch(self) -> bool {
        matches!(self, ValueKind::Choice(["off", "on"]))
    }

    /// The largest value, in the form that the table uses.
    pub fn max(self) -> u64 {
        match self {
            ValueKind::Choice(words) => (words.len() as u64).saturating_sub(1),
            ValueKind::Count { max } => u64::from(max),
            ValueKind::Time => MAX_TIMEOUT,
        }
    }
}

impl fmt::Display for ValueKind {
    /// Formats for a help text: `off|on`, `0 to 65535`, `TIME`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueKind::Choice(words) => {
                for (place, word) in words.iter().enumerate() {
                    if place != 0 {
                        f.write_str("|")?;
                    }
                    f.write_str(word)?;
                }
                Ok(())
            }
            ValueKind::Count { max } => write!(f, "0 to {max}"),
            ValueKind::Time => f.write_str("TIME"),
        }
    }
}
