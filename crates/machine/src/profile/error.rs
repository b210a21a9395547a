//! What can be wrong with a profile: where, with which value, and what to write instead.
//!
//! A profile has many constants, so all that is wrong with one is said at once. The texts come from
//! files and command lines: an error quotes little of them, and nothing that a terminal would act
//! upon.

use std::fmt;

use super::takes::Takes;

/// Faults that an error prints; a file with more of them is no profile. The rest is counted.
const PRINTED: usize = 100;

/// Why there is no profile, or why a constant could not be changed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// Neither a built-in profile nor a file.
    #[error("no profile is called '{name}'{}", hint(*nearest, known))]
    UnknownName {
        /// What was asked for.
        name: String,
        /// The nearest name that exists.
        nearest: Option<&'static str>,
        /// All names that exist.
        known: Vec<&'static str>,
    },
    /// A file that cannot be read.
    #[error("{path}: the profile cannot be read: {reason}")]
    Unreadable {
        /// Where it was looked for.
        path: String,
        /// What the operating system said, or the rule that the file breaks.
        reason: String,
    },
    /// A file or a setting with faults, in the order of their lines.
    #[error("{}", list(origin, faults))]
    Invalid {
        /// The file's name, or what else the text came from.
        origin: String,
        /// What is wrong; never empty.
        faults: Vec<Fault>,
    },
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq)]
pub struct Fault {
    /// The line, from 1; none for a setting that comes from no file.
    pub line: Option<usize>,
    /// What it is about: `cost.poll`, `cost.poll.range`, `cost`; empty for the text as a whole.
    pub key: String,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with one key, section or field.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Problem {
    /// The text is not TOML, which says this.
    Syntax(String),
    /// Neither a section nor `name` or `about`.
    UnknownSection {
        /// The nearest that exists.
        nearest: Option<&'static str>,
        /// The sections that there are.
        known: Vec<&'static str>,
    },
    /// A key that its section does not have.
    UnknownKey {
        /// The full name of the nearest that exists.
        nearest: Option<String>,
    },
    /// A constant has no such field.
    UnknownField {
        /// The nearest that exists.
        nearest: Option<&'static str>,
    },
    /// A required section is not there.
    MissingSection,
    /// A section for a workload is not there, and somebody needs it.
    NoWorkload,
    /// `based-on` names no built-in profile.
    UnknownBase {
        /// The text as it stands in the profile or the setting.
        given: String,
        /// The nearest that exists.
        nearest: Option<&'static str>,
        /// The names that exist in its place.
        known: Vec<&'static str>,
    },
    /// A key without a default is not there.
    MissingKey {
        /// The form in which it has to be written.
        takes: Takes,
    },
    /// `name` or `about` is not there.
    MissingText,
    /// A constant without a value.
    NoValue {
        /// What the key takes.
        takes: Takes,
    },
    /// Not a table where a section has to be one.
    NotASection,
    /// Not a table where a constant has to be one.
    NotAConstant,
    /// Not a text, or an empty one.
    NotText,
    /// None of `source`, `fitted` and `assumed`.
    NoBasis,
    /// More than one of `source`, `fitted` and `assumed`.
    TwoBases,
    /// `fitted` is something else than `true`.
    NotTrue,
    /// A fitted number has no `range` in which it was looked for.
    NoRange,
    /// `range` is not a list of two values.
    NotARange,
    /// The range's ends are the wrong way round.
    Reversed,
    /// No number where one has to be.
    NotANumber {
        /// The text as it stands in the profile or the setting.
        given: String,
        /// What the key takes.
        takes: Takes,
    },
    /// A number without the unit it needs.
    NoUnit {
        /// The text as it stands in the profile or the setting.
        given: String,
        /// What the key takes.
        takes: Takes,
    },
    /// A unit of another kind.
    WrongUnit {
        /// The text as it stands in the profile or the setting.
        unit: String,
        /// What the key takes.
        takes: Takes,
    },
    /// A word that is not among the choices.
    NotAChoice {
        /// The text as it stands in the profile or the setting.
        given: String,
        /// The words that it takes.
        words: &'static [&'static str],
        /// The word that is spelled most like it, if one comes near.
        nearest: Option<&'static str>,
    },
    /// Infinite, or not a number.
    NotFinite {
        /// The text as it stands in the profile or the setting.
        given: String,
    },
    /// A value below zero, which nothing in a profile can be.
    Negative {
        /// The text as it stands in the profile or the setting.
        given: String,
    },
    /// Below the least, which may be why 0 is refused.
    TooSmall {
        /// The text as it stands in the profile or the setting.
        given: String,
        /// The smallest that the key takes, with its unit.
        least: String,
    },
    /// It is larger than its key allows.
    TooLarge {
        /// The text as it stands in the profile or the setting.
        given: String,
        /// The largest that the key takes, with its unit.
        most: String,
    },
    /// A fraction where a whole number has to be.
    NotWhole {
        /// The text as it stands in the profile or the setting.
        given: String,
    },
    /// A value outside of its range.
    OutOfRange {
        /// The text as it stands in the profile or the setting.
        given: String,
        /// The range's lower end.
        low: String,
        /// The upper end of the range.
        high: String,
    },
    /// More queues than CPUs to poll them.
    QueuesBeyondCpus {
        /// What `nic.queues` says.
        queues: f64,
        /// What `processor.cpus` says.
        cpus: f64,
    },
    /// Two threads a core, and a CPU without a sibling.
    OddCpus {
        /// What `processor.cpus` says.
        cpus: f64,
    },
    /// A setting without `=`.
    NoEquals,
}

impl ProfileError {
    /// An error about a setting that comes from no line of a file.
    pub(super) fn setting(origin: &str, key: String, problem: Problem) -> ProfileError {
        let faults = vec![Fault { line: None, key, problem }];
        ProfileError::Invalid { origin: origin.to_string(), faults }
    }

    /// What is wrong in detail; empty for a profile that was not found or not read.
    pub fn faults(&self) -> &[Fault] {
        match self {
            ProfileError::Invalid { faults, .. } => faults,
            _ => &[],
        }
    }
}

/// After an unknown profile: what there is.
fn hint(nearest: Option<&str>, known: &[&str]) -> String {
    let meant = nearest.map_or(String::new(), |nearest| format!("; did you mean '{nearest}'?"));
    let listed = match known {
        [] => "write the path of a TOML file".to_string(),
        _ => format!("there are {}, or write the path of a TOML file", known.join(", ")),
    };
    let mark = if meant.is_empty() { "; " } else { " " };
    format!("{meant}{mark}{listed}")
}

/// All faults, one a line, each with its place.
fn list(origin: &str, faults: &[Fault]) -> String {
    let mut lines: Vec<String> = faults
        .iter()
        .take(PRINTED)
        .map(|fault| match fault.line {
            Some(line) => format!("{origin}:{line}: {fault}"),
            None => format!("{origin}: {fault}"),
        })
        .collect();
    if faults.len() > PRINTED {
        lines.push(format!("{origin}: and {} more", faults.len() - PRINTED));
    }
    lines.join("\n")
}

impl fmt::Display for Fault {
    /// In words, without the place in the file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        self.problem.fmt(f)
    }
}

/// `ns, us, ms, s or cycles`.
fn units(takes: Takes) -> String {
    let names: Vec<&str> = takes.units().iter().map(|unit| unit.name).collect();
    match names.as_slice() {
        [all @ .., last] if !all.is_empty() => format!("{} or {last}", all.join(", ")),
        _ => names.concat(),
    }
}

/// What to write for a kind of value.
fn wanted(takes: Takes) -> String {
    match takes {
        Takes::Count { .. } | Takes::Ratio { .. } => format!("a plain number ({takes})"),
        Takes::Choice(_) => format!("one of {takes}"),
        _ => format!("a number with {}", units(takes)),
    }
}

fn meant(f: &mut fmt::Formatter<'_>, nearest: Option<&str>) -> fmt::Result {
    nearest.map_or(Ok(()), |nearest| write!(f, "; did you mean '{nearest}'?"))
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Syntax(message) => write!(f, "this is not TOML: {message}"),
            Problem::UnknownSection { nearest, known } => {
                f.write_str("a profile has no such section")?;
                meant(f, *nearest)?;
                if nearest.is_none() {
                    write!(f, "; it has name, about, {}", known.join(", "))?;
                }
                Ok(())
            }
            Problem::UnknownKey { nearest } => {
                f.write_str("no key is called so")?;
                meant(f, nearest.as_deref())?;
                let mark = if nearest.is_some() { "" } else { ";" };
                write!(f, "{mark} docs/profiles.md lists the keys")
            }
            Problem::UnknownField { nearest } => {
                f.write_str("a constant has no such field")?;
                meant(f, *nearest)?;
                let mark = if nearest.is_some() { "" } else { ";" };
                write!(f, "{mark} it has value, source, fitted, assumed, range and note")
            }
            Problem::MissingSection => f.write_str("the section is missing; every profile has it"),
            Problem::NoWorkload => f.write_str(
                "this profile does not describe that workload; add the section or take another \
                 profile",
            ),
            Problem::UnknownBase { given, nearest, known } => {
                let meant = nearest.map_or(String::new(), |it| format!("; did you mean '{it}'?"));
                let known = known.join(", ");
                write!(f, "no built-in profile is called '{given}'{meant}; there are {known}")
            }
            Problem::MissingKey { takes } => {
                write!(f, "the key is missing; give it {}, with its source", wanted(*takes))
            }
            Problem::MissingText => {
                f.write_str("it is missing; write it as a text above the sections")
            }
            Problem::NoValue { takes } => {
                write!(f, "the value is missing; give it {}", wanted(*takes))
            }
            Problem::NotASection => f.write_str("this has to be a section with keys"),
            Problem::NotAConstant => f.write_str(
                "a constant is written as { value = ..., source = \"...\" }, { value = ..., fitted = true, \
                 range = [..., ...] } or { value = ..., assumed = \"...\" }",
            ),
            Problem::NotText => f.write_str("this has to be a text that says something"),
            Problem::NoBasis => f.write_str(
                "neither source nor fitted nor assumed; say where the value comes from, that it was \
                 fitted, or why it is assumed",
            ),
            Problem::TwoBases => {
                f.write_str("a constant has only one of source, fitted and assumed")
            }
            Problem::NotTrue => f.write_str("write fitted = true, or leave it out"),
            Problem::NoRange => {
                f.write_str("a fitted constant needs range = [..., ...], the bounds of the fit")
            }
            Problem::NotARange => {
                f.write_str("a range is a list of two values, the smaller one first")
            }
            Problem::Reversed => f.write_str("the larger end stands first; swap them"),
            Problem::NotANumber { given, takes } => {
                write!(f, "'{given}' is not a value; write {}", wanted(*takes))
            }
            Problem::NoUnit { given, takes } => {
                write!(f, "'{given}' has no unit; write it as a text with {}", units(*takes))
            }
            Problem::WrongUnit { unit, takes } => {
                write!(f, "the unit '{unit}' does not fit; write {}", wanted(*takes))
            }
            Problem::NotAChoice { given, words, nearest } => {
                write!(f, "'{given}' is not one of {}", words.join(", "))?;
                meant(f, *nearest)
            }
            Problem::NotFinite { given } => {
                write!(f, "{given} is not a finite number; write one")
            }
            Problem::Negative { given } => {
                write!(f, "{given} is negative; write 0 or more")
            }
            Problem::TooSmall { given, least } => {
                write!(f, "{given} is too small; at least {least} is needed")
            }
            Problem::TooLarge { given, most } => {
                write!(f, "{given} is too large; at most {most} is allowed")
            }
            Problem::NotWhole { given } => write!(f, "{given} is not a whole number; round it"),
            Problem::OutOfRange { given, low, high } => write!(
                f,
                "{given} is outside of its range, {low} to {high}; change the value or the range"
            ),
            Problem::QueuesBeyondCpus { queues, cpus } => write!(
                f,
                "{queues} queues are more than the {cpus} CPUs of processor.cpus; at most one \
                 queue a CPU"
            ),
            Problem::OddCpus { cpus } => write!(
                f,
                "{cpus} CPUs cannot be cores of two threads each (processor.smt=2): give an even number, or \
                 processor.smt=1"
            ),
            Problem::NoEquals => {
                f.write_str("a setting is written as section.key=value, as in cost.poll=400ns")
            }
        }
    }
}
