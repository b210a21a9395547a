//! Quantities as people write them: a number and its unit.
//!
//! Reads `350 ns`, `2.1us`, `1200 cycles`, `100 Gbit/s`, `8 MiB`, `64`, and prints them in a form that reads back as
//! exactly the same `f64`. Limits are checked elsewhere (`check.rs`), so that the error for a number out of bounds
//! can show it as it was written.

use std::fmt;

use napkin_policy::nearest;
use napkin_policy::text::quoted;

use super::error::Problem;
use super::takes::ValueKind;
use super::unit::{PLAIN, Scale, Unit};

/// A number with its unit. The unit is kept, because the value of a cycle changes with the processor's frequency, and
/// because a fitted value is written back in the unit it had.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Amount {
    /// The number as written.
    pub(super) number: f64,
    pub(super) unit: Unit,
}

impl Amount {
    /// Creates an amount in the base unit of its kind.
    pub(super) fn base(takes: ValueKind, value: f64) -> Amount {
        let unit = takes.units().first().copied().unwrap_or(PLAIN[0]);
        Amount { number: value, unit }
    }

    /// Reads the value of a key.
    ///
    /// # Errors
    ///
    /// If there is no number, no unit where one is needed, a unit of another kind, or a word that is
    /// not among the choices.
    pub(super) fn read(takes: ValueKind, text: &str) -> Result<Amount, Problem> {
        let text = text.trim();
        if let ValueKind::Choice(words) = takes {
            return match words.iter().position(|word| *word == text) {
                Some(place) => Ok(Amount::base(takes, place as f64)),
                None => Err(Problem::NotAChoice {
                    given: quoted(text),
                    words,
                    nearest: nearest(text, words.iter().copied()),
                }),
            };
        }
        let (number, unit) = split(text);
        let Ok(number) = number.parse::<f64>() else {
            return Err(Problem::NotANumber { given: quoted(text), takes });
        };
        match takes.units().iter().find(|known| known.name == unit) {
            Some(unit) => Ok(Amount { number, unit: *unit }),
            None if unit.is_empty() => Err(Problem::NoUnit { given: quoted(text), takes }),
            None => Err(Problem::WrongUnit { unit: quoted(unit), takes }),
        }
    }

    /// Returns the value in the base unit; `None` for cycles of an unknown frequency.
    pub(super) fn value(&self, frequency: Option<f64>) -> Option<f64> {
        match self.unit.scale {
            Scale::Fixed(scale) => Some(self.number * scale),
            Scale::Cycle => frequency.map(|hertz| self.number * 1e9 / hertz),
        }
    }

    /// Writes a value given in the base unit in the unit `like`, if that reads back exactly, and in the base unit
    /// otherwise.
    pub(super) fn like(takes: ValueKind, value: f64, like: Unit, frequency: Option<f64>) -> Amount {
        let number = match (like.scale, frequency) {
            (Scale::Fixed(scale), _) => value / scale,
            (Scale::Cycle, Some(hertz)) => value * hertz / 1e9,
            (Scale::Cycle, None) => return Amount::base(takes, value),
        };
        let amount = Amount { number, unit: like };
        if amount.value(frequency) == Some(value) { amount } else { Amount::base(takes, value) }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Amount { number, unit } = self;
        if unit.name.is_empty() {
            write!(f, "{number}")
        } else {
            write!(f, "{number} {}", unit.name)
        }
    }
}

/// Splits the number from its unit: at the first blank, or else where the letters begin.
fn split(text: &str) -> (&str, &str) {
    if text.parse::<f64>().is_ok() {
        return (text, ""); // `1e3` and `inf` hold letters and no unit.
    }
    let blank = text.find(char::is_whitespace);
    let letter = || text.char_indices().find(|(at, c)| c.is_alphabetic() && !exponent(text, *at));
    let at = blank.or_else(|| letter().map(|(at, _)| at)).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(at).unwrap_or((text, ""));
    (number, unit.trim())
}

/// Whether the letter at `at` is the `e` of `1e3`.
fn exponent(text: &str, at: usize) -> bool {
    let bytes = text.as_bytes();
    matches!(bytes.get(at), Some(b'e' | b'E'))
        && matches!(bytes.get(at + 1), Some(b'0'..=b'9' | b'+' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: ValueKind = ValueKind::Time { min: 0.0 };

    fn time(text: &str) -> Option<f64> {
        Amount::read(TIMES, text).ok()?.value(Some(2e9))
    }

    #[test]
    fn a_number_and_its_unit_with_or_without_a_blank() {
        assert_eq!(time("350 ns"), Some(350.0));
        assert_eq!(time("350ns"), Some(350.0));
        assert_eq!(time(" 0.35\tus "), Some(350.0));
        assert_eq!(time("1e3us"), Some(1e6));
        assert_eq!(time("2 s"), Some(2e9));
        let read = |takes, text| Amount::read(takes, text).map(|amount| amount.value(None));
        assert_eq!(read(ValueKind::Rate, "100 Gbit/s"), Ok(Some(1e11)));
        assert_eq!(read(ValueKind::Rate, "100Gbit/s"), Ok(Some(1e11)));
        assert_eq!(read(ValueKind::Frequency, "3.272 GHz"), Ok(Some(3.272e9)));
        assert_eq!(read(ValueKind::Size, "8 MiB"), Ok(Some(8_388_608.0)));
        assert_eq!(read(ValueKind::Count { min: 0, max: 9 }, "8"), Ok(Some(8.0)));
    }

    #[test]
    fn cycles_are_worth_what_the_clock_says() {
        assert_eq!(time("1000 cycles"), Some(500.0));
        let amount = Amount::read(TIMES, "1000 cycles").expect("a time");
        assert_eq!(amount.value(Some(4e9)), Some(250.0));
        assert_eq!(amount.value(None), None);
    }

    #[test]
    fn what_is_no_quantity_is_told_apart() {
        let problem = |text| Amount::read(TIMES, text).expect_err(text);
        assert_eq!(problem("350"), Problem::NoUnit { given: "350".to_string(), takes: TIMES });
        assert_eq!(problem("3 B"), Problem::WrongUnit { unit: "B".to_string(), takes: TIMES });
        for text in ["", "ns", "a ns", "1 2 ns", "--1 ns", "\u{b5}s"] {
            assert!(!matches!(problem(text), Problem::NoUnit { .. }), "{text}");
        }
        assert!(matches!(problem("ns"), Problem::NotANumber { .. }));
        // Limits are not checked here: these have a number and a unit.
        assert_eq!(time("inf ns"), Some(f64::INFINITY));
        assert_eq!(time("-5 ns"), Some(-5.0));
    }

    #[test]
    fn a_value_keeps_its_unit_if_it_reads_back_exactly() {
        let us = super::super::unit::TIME[1];
        let written = |value| Amount::like(TIMES, value, us, None).to_string();
        assert_eq!(written(350.0), "0.35 us");
        // A thousandth of this, times a thousand, is another `f64`.
        assert_eq!(written(255.269_178_307_453_7), "255.2691783074537 ns");
        for value in [12.3, 412.333_333, 1.0 / 3.0, 1e-9, 0.1 + 0.2] {
            assert_eq!(time(&written(value)), Some(value), "{}", written(value));
        }
    }
}
