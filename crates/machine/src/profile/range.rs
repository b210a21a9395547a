//! The range of a constant: what a fit searches, and what a random draw takes its values from.

use super::key::Key;
use super::takes::ValueKind;
use super::{Origin, Profile, ProfileError};
use napkin_traffic::Rng;

/// Ratio of the ends from which on a range is divided logarithmically.
const LOGARITHMIC_FROM: f64 = 10.0;

/// Relative uncertainty of an assumed constant without a range.
const ASSUMED_SPREAD: f64 = 0.2;

/// Most attempts at a draw whose values form a valid profile.
const ATTEMPTS: u32 = 100;

/// The range of one constant. Its values correspond to positions from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    /// The constant's key.
    pub key: &'static Key,
    /// The lower end, inclusive, in the key's base unit.
    pub low: f64,
    /// The upper end, inclusive, in the key's base unit.
    pub high: f64,
}

impl Range {
    fn logarithmic(&self) -> bool {
        self.low > 0.0 && self.high / self.low >= LOGARITHMIC_FROM
    }

    /// Returns the value at a position. It has four significant digits, or is whole for counts and choices: more
    /// precision than a fit has would only be harder to read.
    pub fn value(&self, place: f64) -> f64 {
        let place = place.clamp(0.0, 1.0);
        let value = if self.logarithmic() {
            self.low * libm::pow(self.high / self.low, place)
        } else {
            self.low + (self.high - self.low) * place
        };
        let value = match self.key.takes {
            ValueKind::Count { .. } | ValueKind::Choice(_) => libm::round(value),
            _ => significant(value),
        };
        value.clamp(self.low, self.high)
    }

    /// Returns the position of a value.
    pub fn place(&self, value: f64) -> f64 {
        let place = if self.logarithmic() {
            libm::log(value / self.low) / libm::log(self.high / self.low)
        } else if self.high > self.low {
            (value - self.low) / (self.high - self.low)
        } else {
            0.0
        };
        place.clamp(0.0, 1.0)
    }
}

fn significant(value: f64) -> f64 {
    if value == 0.0 {
        return 0.0;
    }
    let scale = libm::pow(10.0, 3.0 - libm::floor(libm::log10(libm::fabs(value))));
    libm::round(value * scale) / scale
}

impl Profile {
    /// Returns the constants that are not known for certain: fitted ones with the ranges of the fit, measured ones
    /// with their spread, and assumed ones with their ranges, or 20 % to both sides if the profile states none. An
    /// assumed choice without a range is taken as certain.
    pub fn uncertain(&self) -> impl Iterator<Item = Range> {
        self.constants().filter_map(|stated| {
            let key = stated.key;
            let (low, high) = match stated.origin {
                Origin::Fitted(range)
                | Origin::Source { range: Some(range), .. }
                | Origin::Assumed { range: Some(range), .. } => (*range.start(), *range.end()),
                Origin::Assumed { range: None, .. } => {
                    let (least, most) = key.takes.limits();
                    let end = |factor: f64| {
                        let end = stated.value * factor;
                        let end = if key.takes.whole() { libm::round(end) } else { end };
                        end.clamp(least, most)
                    };
                    (end(1.0 - ASSUMED_SPREAD), end(1.0 + ASSUMED_SPREAD))
                }
                Origin::Source { range: None, .. } | Origin::Default => return None,
            };
            let word = matches!(key.takes, ValueKind::Choice(_));
            (low < high && !(word && high - low < 1.0)).then_some(Range { key, low, high })
        })
    }

    /// Returns the fitted constants whose value lies at an end of its range, where the fit was limited by it.
    pub fn at_bounds(&self) -> impl Iterator<Item = &'static Key> {
        self.constants().filter_map(|stated| match &stated.origin {
            Origin::Fitted(range) => {
                let at = stated.value == *range.start() || stated.value == *range.end();
                at.then_some(stated.key)
            }
            _ => None,
        })
    }

    /// Returns this profile with all [uncertain](Profile::uncertain) constants drawn from their ranges, independently
    /// and uniformly (logarithmically if a range spans a factor of ten; the ends of a count's range have half the
    /// weight of the others). The same seed gives the same draw.
    ///
    /// # Errors
    ///
    /// Those of [`Profile::set`], if each of a hundred draws violated a rule of the profile.
    pub fn drawn(&self, seed: u64) -> Result<Profile, ProfileError> {
        let mut rng = Rng::new(seed);
        let ranges: Vec<Range> = self.uncertain().collect();
        let mut result = Ok(());
        for _ in 0..ATTEMPTS {
            let mut drawn = self.clone();
            // Values are set in base units: ranges in cycles use the frequency of this profile, not a drawn one.
            let changes: Vec<_> = ranges
                .iter()
                .filter_map(|range| {
                    let place = self.schema.place(&range.key.path())?;
                    Some((place, super::Amount::base(range.key.takes, range.value(rng.unit()))))
                })
                .collect();
            result = drawn.change(&changes);
            if result.is_ok() {
                return Ok(drawn);
            }
        }
        result.map(|()| self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Schema;
    use super::*;

    #[test]
    fn values_have_few_digits() {
        assert_eq!((significant(1_234.567), significant(0.012_345_6)), (1_235.0, 0.012_35));
        assert_eq!(significant(0.0), 0.0);
    }

    #[test]
    fn a_wide_range_is_walked_in_ratios() {
        let key = Schema::host().key("cost.ipi").unwrap();
        let range = Range { key, low: 10.0, high: 1_000.0 };
        assert_eq!([0.0, 0.5, 1.0].map(|place| range.value(place)), [10.0, 100.0, 1_000.0]);
        assert!((range.place(100.0) - 0.5).abs() < 1e-12);
    }
}
