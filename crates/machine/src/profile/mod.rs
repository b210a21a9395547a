//! Host profiles: the constants of one testbed, each with its unit and its source.
//!
//! A profile is a TOML file (see `docs/profiles.md`). It supplies costs and sizes, never policies: `napkin-core`
//! decides what the host does with a packet. One table holds the names and kinds of all constants (`key.rs`); the
//! other files read texts (`parse`, `unit`), check values (`check`), write fitted values back (`write`), a whole
//! profile (`show`) or one that states what was measured (`draft`), and report errors (`error`). The machine looks
//! its constants up once, when it is set up.

mod amount;
mod built_in;
mod check;
mod draft;
mod error;
mod key;
mod parse;
mod range;
mod schema;
mod show;
mod takes;
mod unit;
mod write;

use std::io::Read;
use std::ops::RangeInclusive;
use std::path::Path;

use napkin_core::Ns;
use napkin_policy::nearest;
use napkin_policy::text::quoted;

pub use draft::{Draft, DraftConstant, DraftError};
pub use error::{Fault, Problem, ProfileError};
pub use key::{Constants, Key, Section};
pub use range::Range;
pub use schema::Schema;
pub use takes::{MAX_TIME, ValueKind};
pub use unit::{Scale, Unit};

use amount::Amount;

/// A testbed's constants, validated.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    schema: &'static Schema,
    name: String,
    about: String,
    origin: String,
    /// The built-in profile that it inherits from.
    based_on: Option<String>,
    /// In the order of the schema's keys; `None` only in sections that the profile does not have.
    constants: Vec<Option<Constant>>,
}

/// One constant of a profile.
#[derive(Debug, Clone, PartialEq)]
struct Constant {
    amount: Amount,
    basis: Basis,
    note: Option<String>,
    /// Whether it was changed after the profile was read.
    set: bool,
    /// Whether it comes from the profile that this one is based on.
    inherited: bool,
}

/// The origin of a value.
#[derive(Debug, Clone, PartialEq)]
enum Basis {
    Source { what: String, range: Option<(Amount, Amount)> },
    Fitted { low: Amount, high: Amount },
    Assumed { why: String, range: Option<(Amount, Amount)> },
    Default,
}

/// A constant, as [`Profile::constants`] returns it.
#[derive(Debug, Clone, PartialEq)]
pub struct StatedConstant<'a> {
    /// The key.
    pub key: &'static Key,
    /// The value in the base unit of the key.
    pub value: f64,
    /// The origin of the value.
    pub origin: Origin<'a>,
    /// The author's note.
    pub note: Option<&'a str>,
    /// Whether the value was changed after the profile was read, so that `origin` no longer describes it.
    pub set: bool,
    /// Whether the value comes from the profile that this one is based on, so that it was not stated for this host.
    pub inherited: bool,
}

/// The origin of a constant.
#[derive(Debug, Clone, PartialEq)]
pub enum Origin<'a> {
    /// A document or a measurement.
    Source {
        /// The source, in the profile's words.
        what: &'a str,
        /// The spread of a measurement, in the base unit, if the profile states it.
        range: Option<RangeInclusive<f64>>,
    },
    /// A fit within these bounds, in the base unit.
    Fitted(RangeInclusive<f64>),
    /// An assumption, since the value was not measured.
    Assumed {
        /// The reason for the value, in a few words.
        why: &'a str,
        /// The bounds within which it may as well lie, in the base unit, if the profile states them.
        range: Option<RangeInclusive<f64>>,
    },
    /// The key's default: the profile does not state it.
    Default,
}

impl Profile {
    /// Reads the built-in profile of this name, with the sections and keys of `schema`.
    ///
    /// # Errors
    ///
    /// [`ProfileError::UnknownName`], which lists the names that exist.
    pub fn named(schema: &'static Schema, name: &str) -> Result<Profile, ProfileError> {
        match Profile::built_in_text(name) {
            Some(text) => Profile::parse(schema, text, &format!("{name}.toml")),
            None => Err(ProfileError::UnknownName {
                name: quoted(name),
                nearest: nearest(name, Profile::names()),
                known: Profile::names().collect(),
            }),
        }
    }

    /// Reads the built-in profile of this name, or else the file at this path. A word that is no file and has neither
    /// `/` nor `.toml` is treated as a misspelt name.
    ///
    /// # Errors
    ///
    /// Those of [`Profile::named`] and [`Profile::parse`], and [`ProfileError::Unreadable`] for a file that cannot be
    /// read, is not a regular file, is longer than 1 MiB or is not UTF-8.
    pub fn load(schema: &'static Schema, name_or_path: &str) -> Result<Profile, ProfileError> {
        let path = Path::new(name_or_path);
        let named = Profile::built_in_text(name_or_path).is_some();
        let like_a_path = name_or_path.contains('/') || name_or_path.ends_with(".toml");
        if named || !(like_a_path || path.is_file()) {
            return Profile::named(schema, name_or_path);
        }
        let unreadable =
            |reason: String| ProfileError::Unreadable { path: path.display().to_string(), reason };
        // Opening a pipe or a device could block, and reading it never end.
        let about = std::fs::metadata(path).map_err(|error| unreadable(error.to_string()))?;
        if !about.is_file() {
            return Err(unreadable("it is not a file".to_string()));
        }
        let mut text = String::new();
        let file = std::fs::File::open(path).map_err(|error| unreadable(error.to_string()))?;
        file.take(parse::MAX_BYTES as u64 + 1)
            .read_to_string(&mut text)
            .map_err(|error| unreadable(error.to_string()))?;
        Profile::parse(schema, &text, name_or_path)
    }

    /// Returns the schema by which it was read.
    pub fn schema(&self) -> &'static Schema {
        self.schema
    }

    /// Returns its name, as the text states it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the description of its testbed.
    pub fn about(&self) -> &str {
        &self.about
    }

    /// Returns the built-in profile from which it inherits every constant that it does not state.
    pub fn based_on(&self) -> Option<&str> {
        self.based_on.as_deref()
    }

    /// Whether the profile has this section.
    pub fn has(&self, section: &str) -> bool {
        let mut keys = self.schema.keys().iter().zip(&self.constants);
        keys.any(|(key, constant)| key.section == section && constant.is_some())
    }

    /// Checks that the profile has a workload's section, before its keys are looked up.
    ///
    /// # Errors
    ///
    /// [`ProfileError::Invalid`] naming the section if the profile does not have it.
    pub fn require(&self, section: &str) -> Result<(), ProfileError> {
        if self.has(section) {
            return Ok(());
        }
        Err(ProfileError::setting(&self.origin, section.to_string(), Problem::NoWorkload))
    }

    /// Returns a value in the base unit of its key: nanoseconds, hertz, bits per second, bytes, a plain number, or
    /// the index of a word.
    ///
    /// # Panics
    ///
    /// If the schema has no such key, or the profile lacks its section (see [`Profile::require`]): errors of the
    /// program, not of the profile.
    pub fn get(&self, path: &str) -> f64 {
        let place = self.schema.place(path).unwrap_or_else(|| panic!("no key is called '{path}'"));
        self.value(place).unwrap_or_else(|| panic!("'{}' has no '{path}'", self.name))
    }

    /// Returns a time, rounded to whole nanoseconds.
    ///
    /// # Panics
    ///
    /// As [`Profile::get`], and if the key is not a time.
    pub fn time(&self, path: &str) -> Ns {
        self.expect(path, "time", |takes| matches!(takes, ValueKind::Time { .. }));
        libm::round(self.get(path)) as Ns
    }

    /// Returns a count.
    ///
    /// # Panics
    ///
    /// As [`Profile::get`], and if the key is not a count.
    pub fn count(&self, path: &str) -> u64 {
        self.expect(path, "count", |takes| matches!(takes, ValueKind::Count { .. }));
        self.get(path) as u64
    }

    /// Returns a ratio.
    ///
    /// # Panics
    ///
    /// As [`Profile::get`], and if the key is not a ratio.
    pub fn ratio(&self, path: &str) -> f64 {
        self.expect(path, "ratio", |takes| matches!(takes, ValueKind::Ratio { .. }));
        self.get(path)
    }

    /// Returns whether a switch is on.
    ///
    /// # Panics
    ///
    /// As [`Profile::get`], and if the key is not a switch of `off` and `on`.
    pub fn on(&self, path: &str) -> bool {
        self.expect(path, "switch", |takes| takes == ValueKind::Choice(&["off", "on"]));
        self.get(path) != 0.0
    }

    /// Returns the chosen word.
    ///
    /// # Panics
    ///
    /// As [`Profile::get`], and if the key is not a choice.
    pub fn choice(&self, path: &str) -> &'static str {
        match self.schema.key(path).map(|key| key.takes) {
            Some(ValueKind::Choice(words)) => words[self.get(path) as usize],
            _ => panic!("no choice is called '{path}'"),
        }
    }

    fn expect(&self, path: &str, kind: &str, fits: fn(ValueKind) -> bool) {
        let fitting = self.schema.key(path).is_some_and(|key| fits(key.takes));
        assert!(fitting, "no {kind} is called '{path}'");
    }

    /// Changes one value, given in the base unit, and validates it as in a file: the limits of its key, its range,
    /// and combinations of keys. On an error nothing has changed.
    ///
    /// # Errors
    ///
    /// [`ProfileError::Invalid`] for a key that does not exist or that the profile lacks, and for every rule that the
    /// new value violates.
    pub fn set(&mut self, path: &str, value: f64) -> Result<(), ProfileError> {
        let (place, key) = self.known(path)?;
        self.change(&[(place, Amount::base(key.takes, value))])
    }

    /// Changes one value from a text such as `cost.poll=400ns`.
    ///
    /// # Errors
    ///
    /// As [`Profile::set`], and for a text that is not a value of that key.
    pub fn set_text(&mut self, setting: &str) -> Result<(), ProfileError> {
        self.set_texts([setting])
    }

    /// Changes several values at once and validates only the result, so that fewer CPUs with fewer queues are
    /// accepted in any order. A key that occurs twice gets its last value. On an error nothing has changed.
    ///
    /// # Errors
    ///
    /// As [`Profile::set_text`].
    pub fn set_texts<'a>(
        &mut self,
        settings: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), ProfileError> {
        let mut changes = Vec::new();
        for setting in settings {
            let Some((path, value)) = setting.split_once('=') else {
                let problem = Problem::NoEquals;
                return Err(ProfileError::setting(&self.origin, quoted(setting), problem));
            };
            let (place, key) = self.known(path.trim())?;
            let amount = Amount::read(key.takes, value)
                .map_err(|problem| ProfileError::setting(&self.origin, key.path(), problem))?;
            changes.push((place, amount));
        }
        self.change(&changes)
    }

    /// Returns the fitted constants with their bounds in the base unit.
    pub fn fitted(&self) -> impl Iterator<Item = (&'static Key, RangeInclusive<f64>)> {
        self.constants().filter_map(|constant| match constant.origin {
            Origin::Fitted(range) => Some((constant.key, range)),
            Origin::Source { .. } | Origin::Assumed { .. } | Origin::Default => None,
        })
    }

    /// Returns the fitted constants that the profile states itself. A fit changes only these, since inherited ones
    /// were fitted to another host.
    pub fn fitted_here(&self) -> impl Iterator<Item = (&'static Key, RangeInclusive<f64>)> {
        self.fitted().filter(|(key, _)| self.constants().any(|it| it.key == *key && !it.inherited))
    }

    /// Returns every constant of the profile, in the order of the schema's keys.
    pub fn constants(&self) -> impl Iterator<Item = StatedConstant<'_>> {
        let frequency = self.frequency();
        self.schema.keys().iter().zip(&self.constants).filter_map(move |(key, constant)| {
            let Constant { amount, basis, note, set, inherited } = constant.as_ref()?;
            let origin = match basis {
                Basis::Source { what, range } => Origin::Source {
                    what,
                    range: match range {
                        Some((low, high)) => Some(low.value(frequency)?..=high.value(frequency)?),
                        None => None,
                    },
                },
                Basis::Default => Origin::Default,
                Basis::Fitted { low, high } => {
                    Origin::Fitted(low.value(frequency)?..=high.value(frequency)?)
                }
                Basis::Assumed { why, range } => Origin::Assumed {
                    why,
                    range: match range {
                        Some((low, high)) => Some(low.value(frequency)?..=high.value(frequency)?),
                        None => None,
                    },
                },
            };
            let value = amount.value(frequency)?;
            let (set, inherited) = (*set, *inherited);
            Some(StatedConstant { key, value, origin, note: note.as_deref(), set, inherited })
        })
    }

    /// Returns the processor's frequency in hertz, which converts cycles.
    fn frequency(&self) -> Option<f64> {
        check::frequency(self.schema, &self.constants)
    }

    fn value(&self, place: usize) -> Option<f64> {
        self.constants.get(place)?.as_ref()?.amount.value(self.frequency())
    }

    /// Looks up a key that a caller named, if the profile has it.
    fn known(&self, path: &str) -> Result<(usize, &'static Key), ProfileError> {
        let place = self.schema.place(path);
        let Some((place, key)) =
            place.and_then(|place| Some((place, self.schema.keys().get(place)?)))
        else {
            let problem = Problem::UnknownKey { nearest: parse::similar(self.schema, path) };
            return Err(ProfileError::setting(&self.origin, quoted(path), problem));
        };
        self.require(key.section)?;
        Ok((place, key))
    }

    /// Makes all of these changes if the result is valid, and otherwise none.
    fn change(&mut self, changes: &[(usize, Amount)]) -> Result<(), ProfileError> {
        let mut constants = self.constants.clone();
        for (place, amount) in changes {
            if let Some(Some(constant)) = constants.get_mut(*place) {
                constant.amount = *amount;
                constant.set = true;
            }
        }
        let faults: Vec<Fault> = check::problems(self.schema, &constants)
            .into_iter()
            .filter_map(|(place, _, problem)| {
                Some(Fault { line: None, key: self.schema.keys().get(place)?.path(), problem })
            })
            .collect();
        if !faults.is_empty() {
            return Err(ProfileError::Invalid { origin: self.origin.clone(), faults });
        }
        self.constants = constants;
        Ok(())
    }
}
