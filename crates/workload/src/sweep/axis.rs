//! Parses one parameter of a sweep and its values.
//!
//! `policy=base,suspend20` is a list of names. A policy with keys of its own contains commas, so a value with a
//! second `=` is a single policy. Any other parameter takes a list; `seed=1..5` is the five seeds from 1 to 5, and
//! `draw=1..20` is twenty draws of the uncertain constants of the profile.

use std::fmt;

use napkin_policy::text::quoted;
use napkin_policy::{KEYS as POLICY_KEYS, nearest};
use thiserror::Error;

/// What a parameter varies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parameter {
    /// The policy as a whole.
    Policy,
    /// One key of the policy, which overrides the policy's own value.
    PolicyKey(&'static str),
    /// The load, in the workload's form.
    Load,
    /// The seed of the run.
    Seed,
    /// A draw of all fitted and assumed constants of the profile; 0 is the profile as it is.
    Draw,
    /// A constant of the profile: section and name.
    Constant(&'static str, &'static str),
}

/// The names of the parameters other than policy keys and profile constants.
const NAMES: [(&str, Parameter); 4] = [
    ("policy", Parameter::Policy),
    ("load", Parameter::Load),
    ("seed", Parameter::Seed),
    ("draw", Parameter::Draw),
];

impl Parameter {
    /// Finds a parameter by its name.
    ///
    /// # Errors
    /// [`AxisError::Unknown`], with the nearest known name.
    pub fn find(name: &str) -> Result<Parameter, AxisError> {
        if let Some((_, parameter)) = NAMES.iter().find(|(known, _)| *known == name) {
            return Ok(*parameter);
        }
        if let Some(key) = POLICY_KEYS.iter().find(|key| key.name == name) {
            return Ok(Parameter::PolicyKey(key.name));
        }
        if let Some(key) = crate::schema().keys().iter().find(|key| key.path() == name) {
            return Ok(Parameter::Constant(key.section, key.name));
        }
        let constants: Vec<String> = crate::schema().keys().iter().map(|key| key.path()).collect();
        let names = NAMES.iter().map(|(name, _)| *name);
        let policy_keys = POLICY_KEYS.iter().map(|key| key.name);
        let all = names.chain(policy_keys).chain(constants.iter().map(String::as_str));
        let nearest = nearest(name, all).map(str::to_owned);
        Err(AxisError::Unknown { name: quoted(name), nearest })
    }
}

impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Parameter::Policy => f.write_str("policy"),
            Parameter::PolicyKey(key) => f.write_str(key),
            Parameter::Load => f.write_str("load"),
            Parameter::Seed => f.write_str("seed"),
            Parameter::Draw => f.write_str("draw"),
            Parameter::Constant(section, name) => write!(f, "{section}.{name}"),
        }
    }
}

/// Why a `--vary` was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AxisError {
    /// There is no `=` between name and values.
    #[error("--vary '{0}' has no '=': give NAME=VALUE,VALUE, as in load=200000,400000")]
    NoEquals(String),
    /// A value is missing or empty.
    #[error("--vary {0} has an empty value: give NAME=VALUE,VALUE, as in load=200000,400000")]
    Empty(String),
    /// No parameter has this name.
    #[error(
        "--vary {name}: nothing is called so{}; it is policy, load, seed, draw, a key of a policy \
         (napkin policies) or a constant of the profile (napkin profile show)",
        nearest.as_ref().map_or(String::new(), |nearest| format!("; did you mean '{nearest}'?"))
    )]
    Unknown {
        /// The given name.
        name: String,
        /// The nearest known name.
        nearest: Option<String>,
    },
    /// A seed or a draw is not a number or a range.
    #[error(
        "--vary {0}: '{1}' is not a number or a range: give numbers and ranges, as in 1..5 (both ends \
         included)"
    )]
    Number(Parameter, String),
    /// A value is given twice.
    #[error("--vary {name}: '{value}' stands twice")]
    Twice {
        /// The parameter.
        name: String,
        /// The repeated value.
        value: String,
    },
}

/// One value, or a range of numbers with both ends.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Item {
    Text(String),
    Numbers { first: u64, last: u64 },
}

impl Item {
    fn len(&self) -> u128 {
        match self {
            Item::Text(_) => 1,
            Item::Numbers { first, last } => u128::from(last - first) + 1,
        }
    }
}

/// A parameter and its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Axis {
    /// The parameter that is varied.
    pub parameter: Parameter,
    items: Vec<Item>,
}

impl Axis {
    /// Parses `NAME=VALUES`.
    ///
    /// # Errors
    /// If no parameter has this name, or a value is invalid.
    pub fn parse(text: &str) -> Result<Axis, AxisError> {
        let Some((name, values)) = text.split_once('=') else {
            return Err(AxisError::NoEquals(quoted(text)));
        };
        let parameter = Parameter::find(name.trim())?;
        let values: Vec<&str> = match parameter {
            Parameter::Policy if values.contains('=') => vec![values],
            _ => values.split(',').collect(),
        };
        let mut items = Vec::new();
        for value in values {
            let value = value.trim();
            if value.is_empty() {
                return Err(AxisError::Empty(parameter.to_string()));
            }
            items.push(match parameter {
                Parameter::Seed | Parameter::Draw => numbers(parameter, value)?,
                _ => Item::Text(value.to_owned()),
            });
        }
        Ok(Axis { parameter, items })
    }

    /// Parses several arguments. Several lists of one parameter are joined.
    ///
    /// # Errors
    /// Any error of [`Axis::parse`], and a value that is given twice.
    pub fn parse_all<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Vec<Axis>, AxisError> {
        let mut axes: Vec<Axis> = Vec::new();
        for text in texts {
            let axis = Axis::parse(text)?;
            match axes.iter_mut().find(|it| it.parameter == axis.parameter) {
                Some(known) => known.items.extend(axis.items),
                None => axes.push(axis),
            }
        }
        for axis in &axes {
            for (place, item) in axis.items.iter().enumerate() {
                let before = &axis.items[..place];
                let repeated = match item {
                    Item::Text(value) => before.contains(item).then(|| value.clone()),
                    Item::Numbers { first, last } => before.iter().find_map(|it| match it {
                        // The ranges overlap.
                        Item::Numbers { first: f, last: l } if f <= last && first <= l => {
                            Some(first.max(f).to_string())
                        }
                        _ => None,
                    }),
                };
                if let Some(value) = repeated {
                    let (name, value) = (axis.parameter.to_string(), quoted(&value));
                    return Err(AxisError::Twice { name, value });
                }
            }
        }
        Ok(axes)
    }

    /// Returns the number of values.
    pub fn len(&self) -> u128 {
        self.items.iter().map(Item::len).sum()
    }

    /// Whether there are no values; never true after parsing.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the value at a place below [`Axis::len`].
    pub fn value(&self, mut place: u128) -> Option<String> {
        for item in &self.items {
            if place < item.len() {
                return Some(match item {
                    Item::Text(text) => text.clone(),
                    Item::Numbers { first, .. } => (u128::from(*first) + place).to_string(),
                });
            }
            place -= item.len();
        }
        None
    }

    /// Returns the place of a value, the inverse of [`Axis::value`].
    pub fn place(&self, value: &str) -> Option<u128> {
        let mut before = 0;
        for item in &self.items {
            let within = match item {
                Item::Text(text) => (text == value).then_some(0),
                Item::Numbers { first, last } => {
                    let seed = value.parse::<u64>().ok().filter(|it| (first..=last).contains(&it));
                    seed.map(|seed| u128::from(seed - first))
                }
            };
            if let Some(within) = within {
                return Some(before + within);
            }
            before += item.len();
        }
        None
    }

    /// Returns the values that are not number ranges, so that each can be checked before anything runs.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.items.iter().filter_map(|item| match item {
            Item::Text(text) => Some(text.as_str()),
            Item::Numbers { .. } => None,
        })
    }
}

impl fmt::Display for Axis {
    /// Writes the form that [`Axis::parse`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=", self.parameter)?;
        for (place, item) in self.items.iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            match item {
                Item::Text(text) => write!(f, "{comma}{text}")?,
                Item::Numbers { first, last } if first == last => write!(f, "{comma}{first}")?,
                Item::Numbers { first, last } => write!(f, "{comma}{first}..{last}")?,
            }
        }
        Ok(())
    }
}

fn numbers(parameter: Parameter, text: &str) -> Result<Item, AxisError> {
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    let number = |text: &str| text.trim().parse::<u64>().ok();
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => Ok(Item::Numbers { first, last }),
        _ => Err(AxisError::Number(parameter, quoted(text))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str) -> Vec<String> {
        let axis = Axis::parse(text).unwrap();
        (0..axis.len()).map(|place| axis.value(place).unwrap()).collect()
    }

    #[test]
    fn a_parameter_has_a_list_of_values() {
        assert_eq!(values("load=200000,400000"), ["200000", "400000"]);
        assert_eq!(values("cost.poll=400ns, 1us"), ["400ns", "1us"]);
        assert_eq!(values("gro-flush-timeout=20us"), ["20us"]);
        assert_eq!(values("policy=base,suspend20"), ["base", "suspend20"]);
        assert_eq!(values("policy=suspend20,hold=50us"), ["suspend20,hold=50us"], "one policy");
    }

    #[test]
    fn seeds_are_numbers_and_ranges_with_both_ends() {
        assert_eq!(values("seed=1..3,7"), ["1", "2", "3", "7"]);
        assert_eq!(Axis::parse("seed=0..18446744073709551615").unwrap().len(), 1 << 64);
        let axis = Axis::parse("seed=1..3,7").unwrap();
        assert_eq!(
            ["1", "3", "7", "4", "x"].map(|it| axis.place(it)),
            [Some(0), Some(2), Some(3), None, None]
        );
        assert_eq!(values("draw=0..2"), ["0", "1", "2"]);
        for wrong in ["draw=few", "seed=a", "seed=3..1", "seed=1..", "seed=-1"] {
            assert!(matches!(Axis::parse(wrong), Err(AxisError::Number(..))), "{wrong}");
        }
    }

    #[test]
    fn what_is_no_parameter_is_named_with_the_nearest() {
        let message = |text: &str| Axis::parse(text).unwrap_err().to_string();
        assert!(
            message("cost.pol=1us").contains("did you mean 'cost.poll'?"),
            "{}",
            message("cost.pol=1us")
        );
        assert!(message("gro-flush-timeot=1us").contains("did you mean 'gro-flush-timeout'?"));
        assert!(message("load").contains("has no '='"));
        for empty in ["load=", "load=1,,2", "policy="] {
            assert!(message(empty).contains("empty value"), "{empty}");
        }
    }

    #[test]
    fn values_of_one_parameter_come_together_and_none_stands_twice() {
        let axes = Axis::parse_all(["policy=base", "load=1", "policy=suspend20,hold=1us"]).unwrap();
        assert_eq!(axes.iter().map(Axis::len).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(axes[1].to_string(), "load=1");
        let twice = Axis::parse_all(["load=1,2", "load=1"]).unwrap_err();
        assert_eq!(twice.to_string(), "--vary load: '1' stands twice");
        // A range includes each of its numbers.
        assert!(Axis::parse_all(["seed=1..5,7", "seed=6,8..9"]).is_ok());
        for (given, message) in [
            ("seed=1..5 seed=3", "--vary seed: '3' stands twice"),
            ("seed=1,1,1", "--vary seed: '1' stands twice"),
            ("seed=4..9,1..4", "--vary seed: '4' stands twice"),
            ("draw=1..5 draw=1..20", "--vary draw: '1' stands twice"),
        ] {
            let twice = Axis::parse_all(given.split(' ')).unwrap_err();
            assert_eq!(twice.to_string(), message, "{given}");
        }
    }
}
