//! Settings of a single workload as plain data, from which a front end makes command-line options.

use std::collections::BTreeMap;

use napkin_policy::Time;

use crate::error::BenchError;
use crate::world::World;

/// One setting.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Its name on the command line, without dashes.
    pub name: &'static str,
    /// The placeholder of its value in the help; `None` for a switch.
    pub value: Option<&'static str>,
    /// The help text, one or two sentences.
    pub help: &'static str,
    /// The value if it is not given.
    pub default: Option<&'static str>,
    /// The valid values, each with its meaning; empty if any value is possible.
    pub choices: &'static [(&'static str, &'static str)],
    /// Whether it takes several values, separated by commas.
    pub list: bool,
    /// The worlds that have it.
    pub worlds: &'static [World],
    /// A setting that cannot be given together with this one.
    pub conflicts: Option<&'static str>,
    /// A setting that has to be given together with this one.
    pub requires: Option<&'static str>,
    /// Returns an error message for an invalid value.
    pub check: fn(&str) -> Result<(), String>,
}

impl Setting {
    /// Defines an engine setting with a free value and no other properties.
    pub const fn engine(name: &'static str, value: &'static str, help: &'static str) -> Setting {
        Setting {
            name,
            value: Some(value),
            help,
            default: None,
            choices: &[],
            list: false,
            worlds: &[World::Engine],
            conflicts: None,
            requires: None,
            check: |_| Ok(()),
        }
    }
}

/// The given values by setting name; settings with a default are always present.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Given(pub BTreeMap<&'static str, Vec<String>>);

impl Given {
    /// Returns the value of a setting that takes one.
    pub fn one(&self, name: &str) -> Option<&str> {
        self.all(name).first().map(String::as_str)
    }

    /// Returns the values of a setting that takes several.
    pub fn all(&self, name: &str) -> &[String] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    /// Whether a switch was given.
    pub fn switched_on(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Parses the value as another type; `None` if it was not given.
    ///
    /// # Errors
    /// [`BenchError::Usage`] for an invalid value, which [`Setting::check`] normally has refused before.
    pub fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, BenchError> {
        let refused = |text| BenchError::Usage(format!("--{name} {text} is no number"));
        self.one(name).map(|text| text.parse().map_err(|_| refused(text))).transpose()
    }

    /// Returns a time in nanoseconds; `None` if it was not given.
    ///
    /// # Errors
    /// As [`Given::number`].
    pub fn time(&self, name: &str) -> Result<Option<u64>, BenchError> {
        let Some(text) = self.one(name) else { return Ok(None) };
        match text.parse() {
            Ok(Time(ns)) => Ok(Some(ns)),
            Err(error) => Err(BenchError::Usage(format!("--{name} {text}: {error}"))),
        }
    }
}

/// Refuses `--load` for an engine workload that has settings instead.
///
/// # Errors
/// [`BenchError::Usage`] for any load.
pub(crate) fn no_loads(loads: &[String]) -> Result<(), BenchError> {
    match loads {
        [] => Ok(()),
        _ => Err(BenchError::Usage("--load is for a modelled host: add --world machine".into())),
    }
}

/// Checks a cost per packet. Above one second, no window would measure anything.
///
/// # Errors
/// A message that says what is wrong.
pub fn cost(text: &str) -> Result<(), String> {
    match text.parse() {
        Ok(Time(..=1_000_000_000)) => Ok(()),
        Ok(_) => Err("a packet may cost at most 1s".into()),
        Err(error) => Err(error.to_string()),
    }
}

/// Checks that a text is a whole number from 1 to `most`.
///
/// # Errors
/// A message that names the range.
pub fn up_to(text: &str, most: u32) -> Result<(), String> {
    match text.parse() {
        Ok(1..) if text.parse().is_ok_and(|it: u32| it <= most) => Ok(()),
        Ok(0_u32..) | Err(_) => Err(format!("give a whole number from 1 to {most}")),
    }
}
