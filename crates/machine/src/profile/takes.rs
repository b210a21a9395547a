//! The kinds of values: their limits and units.

use std::fmt;

use super::unit::{self, Unit};

/// Longest time in a profile, in nanoseconds: an hour. It keeps sums of times far from an overflow.
pub const MAX_TIME: f64 = 3_600e9;

/// The kind of value that a key takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ValueKind {
    /// A length of time from `min` nanoseconds to [`MAX_TIME`], with a unit; `cycles` are those of
    /// `processor.frequency`.
    Time {
        /// The shortest time, in nanoseconds.
        min: f64,
    },
    /// A whole number without a unit.
    Count {
        /// The smallest number accepted.
        min: u32,
        /// The largest number accepted.
        max: u32,
    },
    /// A number without a unit, whole or not.
    Ratio {
        /// The smallest number accepted.
        min: f64,
        /// The largest number accepted.
        max: f64,
    },
    /// A clock frequency, 1 Hz to 1000 GHz.
    Frequency,
    /// A bit rate, 1 bit/s to 1 000 000 Gbit/s.
    Rate,
    /// A number of bytes, up to 1024 GiB.
    Size,
    /// One of these words, represented by its index.
    Choice(&'static [&'static str]),
}

impl ValueKind {
    /// A time that may be 0: the step is free, or does not exist on this host.
    pub const TIME: ValueKind = ValueKind::Time { min: 0.0 };

    /// A switch: 0 is `off`, 1 is `on`.
    pub const OFF_ON: ValueKind = ValueKind::Choice(&["off", "on"]);

    /// Returns the units that fit, the base unit first; for plain numbers one with an empty name.
    pub fn units(self) -> &'static [Unit] {
        match self {
            ValueKind::Time { .. } => unit::TIME,
            ValueKind::Count { .. } | ValueKind::Ratio { .. } | ValueKind::Choice(_) => unit::PLAIN,
            ValueKind::Frequency => unit::FREQUENCY,
            ValueKind::Rate => unit::RATE,
            ValueKind::Size => unit::SIZE,
        }
    }

    /// Returns the smallest and the largest value, in the base unit.
    pub fn limits(self) -> (f64, f64) {
        match self {
            ValueKind::Time { min } => (min, MAX_TIME),
            ValueKind::Count { min, max } => (f64::from(min), f64::from(max)),
            ValueKind::Ratio { min, max } => (min, max),
            ValueKind::Frequency => (1.0, 1e12),
            ValueKind::Rate => (1.0, 1e15),
            ValueKind::Size => (0.0, 1_024.0 * unit::GIB),
            ValueKind::Choice(words) => (0.0, words.len().saturating_sub(1) as f64),
        }
    }

    /// Whether a value must be a whole number: counts, and indices of words.
    pub fn whole(self) -> bool {
        matches!(self, ValueKind::Count { .. } | ValueKind::Choice(_))
    }

    /// Formats a value in the base unit as in a profile: `350 ns`, `8`, `off`.
    pub fn show(self, value: f64) -> String {
        if let ValueKind::Choice(words) = self
            && let Some(word) = words.get(value as usize)
        {
            return (*word).to_string();
        }
        match self.units() {
            [base, ..] if !base.name.is_empty() => format!("{value} {}", base.name),
            _ => format!("{value}"),
        }
    }
}

impl fmt::Display for ValueKind {
    /// Writes the kind as in help and errors: `time`, `count 1..=1024`, `off or on`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueKind::Time { .. } => f.write_str("time"),
            ValueKind::Count { min, max } => write!(f, "count {min}..={max}"),
            ValueKind::Ratio { min, max } => write!(f, "ratio {min}..={max}"),
            ValueKind::Frequency => f.write_str("frequency"),
            ValueKind::Rate => f.write_str("rate"),
            ValueKind::Size => f.write_str("size"),
            ValueKind::Choice(words) => f.write_str(&words.join(" or ")),
        }
    }
}
