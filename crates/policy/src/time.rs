//! Time values, with the only parser and printer of the times that users write.
//!
//! The core never reads a clock: every entry point takes the time as an argument, so that the engine's
//! monotonic clock, the machine's virtual time and a test's counter are equivalent to it.

use alloc::string::String;
use core::fmt;
use core::str::FromStr;

use crate::text::quoted;

/// Nanoseconds: a point on the world's monotonic clock, or a length of time.
pub type Ns = u64;

/// No deadline: later than any time a world can reach (584 years).
pub const NEVER: Ns = Ns::MAX;

/// Nanoseconds in one microsecond, the unit in which the kernel takes most timeouts.
pub const MICROSECOND: Ns = 1_000;

/// Nanoseconds in one millisecond.
pub const MILLISECOND: Ns = 1_000_000;

/// Nanoseconds in one second.
const SECOND: Ns = 1_000 * MILLISECOND;

/// A length of time as users write it: `20us`, `1500ns`, `0`. It prints in the largest unit, up to seconds, of
/// which it is a whole multiple.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Ns);

/// The units of time, in ascending order; the last two are parsed but not printed.
const UNITS: [(Ns, &str); 6] = [
    (1, "ns"),
    (MICROSECOND, "us"),
    (MILLISECOND, "ms"),
    (SECOND, "s"),
    (60 * SECOND, "m"),
    (3_600 * SECOND, "h"),
];

/// The reason why a text is not a length of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TimeError {
    /// A number without a unit.
    NoUnit(String),
    /// Not a whole number with a unit.
    NotATime,
    /// More nanoseconds than 64 bits hold.
    TooLong,
}

impl fmt::Display for TimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TimeError::NoUnit(n) => write!(f, "{n} has no unit: {n}us? {n}ms? {n}s?"),
            TimeError::NotATime => {
                f.write_str("a time is a whole number with ns, us, ms, s, m or h, as in 20us")
            }
            TimeError::TooLong => f.write_str("that is more than 584 years"),
        }
    }
}

impl core::error::Error for TimeError {}

impl FromStr for Time {
    type Err = TimeError;

    /// Parses a whole number and its unit, `ns` to `h`, without a blank. Only 0 needs no unit: the unit of any
    /// other number cannot be guessed.
    ///
    /// # Errors
    /// If the text is not a length of time.
    fn from_str(text: &str) -> Result<Time, TimeError> {
        // `u64::from_str` would take a plus sign.
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (digits, unit) = text.split_at(end);
        let scale = match UNITS.iter().find(|(_, name)| *name == unit) {
            _ if digits.is_empty() => return Err(TimeError::NotATime),
            Some((scale, _)) => *scale,
            None if !unit.is_empty() => return Err(TimeError::NotATime),
            None if digits.bytes().all(|digit| digit == b'0') => 1,
            None => return Err(TimeError::NoUnit(quoted(digits))),
        };
        // Only digits are left, so a parse error means that the number is too large.
        let time = digits.parse::<Ns>().ok().and_then(|number| number.checked_mul(scale));
        time.map(Time).ok_or(TimeError::TooLong)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0");
        }
        let printed = UNITS.iter().rev().filter(|(unit, _)| *unit <= SECOND);
        for (unit, suffix) in printed {
            if self.0.is_multiple_of(*unit) {
                return write!(f, "{}{suffix}", self.0 / unit);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::string::ToString;

    fn message(text: &str) -> String {
        text.parse::<Time>().expect_err(text).to_string()
    }

    #[test]
    fn a_time_is_a_whole_number_with_a_unit() {
        for (text, ns) in [
            ("1500ns", 1_500),
            ("20us", 20_000),
            ("7ms", 7_000_000),
            ("2s", 2 * SECOND),
            ("10m", 600 * SECOND),
            ("2h", 7_200 * SECOND),
            ("0", 0),
            ("00", 0),
            ("0s", 0),
        ] {
            assert_eq!(text.parse(), Ok(Time(ns)), "{text}");
        }
        for wrong in ["", "us", "-1", "+1s", "1.5ms", "20 us", "1d", "1US", "\u{663}s", "0x"] {
            assert_eq!(wrong.parse::<Time>(), Err(TimeError::NotATime), "{wrong}");
        }
        assert_eq!(message("99999999999999999999ns"), "that is more than 584 years");
        assert_eq!(message("99999999999s"), "that is more than 584 years");
    }

    #[test]
    fn a_number_alone_is_asked_for_its_unit() {
        assert_eq!(message("50"), "50 has no unit: 50us? 50ms? 50s?");
        assert_eq!(message(&"9".repeat(60)).len(), "has no unit us? ms? s?".len() + 4 * 43 + 2);
    }

    #[test]
    fn a_time_prints_in_the_largest_unit_that_leaves_no_rest() {
        let printed = [0, 1, 1_500, 20_000, 5_000_000, 2 * SECOND, 7_200 * SECOND];
        let printed = printed.map(|ns| Time(ns).to_string());
        assert_eq!(printed, ["0", "1ns", "1500ns", "20us", "5ms", "2s", "7200s"]);
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(ns in any::<Ns>(), zeros in 0..10_u32) {
            let time = Time(ns / 10_u64.pow(zeros) * 10_u64.pow(zeros));
            prop_assert_eq!(time.to_string().parse(), Ok(time));
        }

        #[test]
        fn no_text_panics(text in "[0-9]{0,25}.{0,4}") {
            let _ = text.parse::<Time>();
        }
    }
}
