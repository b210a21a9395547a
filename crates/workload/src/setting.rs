//! What can be set for a single workload, as plain data: a front end makes options of it.

use std::collections::BTreeMap;

use napkin_policy::Time;

use crate::error::BenchError;
use crate::world::World;

/// Something that can be set.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Its name on the command line, without dashes.
    pub name: &'static str,
    /// What its value is called; `None` for a switch.
    pub value: Option<&'static str>,
    /// A sentence or two.
    pub help: &'static str,
    /// The value that holds without it.
    pub default: Option<&'static str>,
    /// The values that there are, each with what it means; empty if they are not listed.
    pub choices: &'static [(&'static str, &'static str)],
    /// Whether several values may be given, between commas.
    pub list: bool,
    /// The worlds that have it.
    pub worlds: &'static [World],
    /// Another that cannot be given beside it.
    pub conflicts: Option<&'static str>,
    /// Another that has to be given with it.
    pub requires: Option<&'static str>,
    /// What is wrong with a value, if anything.
    pub check: fn(&str) -> Result<(), String>,
}

impl Setting {
    /// One of the engine's, with a value that is not listed and nothing else.
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

/// What was given, by the names of the settings; those with a default are always there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Given(pub BTreeMap<&'static str, Vec<String>>);

impl Given {
    /// The value of a setting that takes one.
    pub fn one(&self, name: &str) -> Option<&str> {
        self.all(name).first().map(String::as_str)
    }

    /// The values of a setting that takes several.
    pub fn all(&self, name: &str) -> &[String] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    /// Whether a switch was given.
    pub fn switched_on(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// A value of another type; `None` if it was not given.
    ///
    /// # Errors
    /// [`BenchError::Usage`] for a value that [`Setting::check`] would have refused.
    pub fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, BenchError> {
        let refused = |text| BenchError::Usage(format!("--{name} {text} is no number"));
        self.one(name).map(|text| text.parse().map_err(|_| refused(text))).transpose()
    }

    /// A time in nanoseconds; `None` if it was not given.
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

/// Refuses `--load` where an engine's workload has settings in its place.
///
/// # Errors
/// [`BenchError::Usage`] with any load.
pub(crate) fn no_loads(loads: &[String]) -> Result<(), BenchError> {
    match loads {
        [] => Ok(()),
        _ => Err(BenchError::Usage("--load is for a modelled host: add --world machine".into())),
    }
}

/// A cost for each packet; beyond a second nothing would be measured in any window.
///
/// # Errors
/// What is wrong with it.
pub fn cost(text: &str) -> Result<(), String> {
    match text.parse() {
        Ok(Time(..=1_000_000_000)) => Ok(()),
        Ok(_) => Err("a packet may cost at most 1s".into()),
        Err(error) => Err(error.to_string()),
    }
}

/// A whole number from 1 to a limit.
///
/// # Errors
/// What it has to be.
pub fn up_to(text: &str, most: u32) -> Result<(), String> {
    match text.parse() {
        Ok(1..) if text.parse().is_ok_and(|it: u32| it <= most) => Ok(()),
        Ok(0_u32..) | Err(_) => Err(format!("give a whole number from 1 to {most}")),
    }
}
