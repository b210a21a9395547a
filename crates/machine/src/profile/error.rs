//! Errors in a profile: the place, the value, and what to write instead.
//!
//! A profile has many constants, so all its faults are reported at once. The texts come from files and command lines:
//! an error quotes little of them, and no control characters that a terminal would interpret.

use std::fmt;

use super::takes::ValueKind;

/// Most faults that an error prints; further ones are only counted.
const PRINTED: usize = 100;

/// The reason why a profile could not be read, or a constant not be changed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The name is neither that of a built-in profile nor a file.
    #[error("no profile is called '{name}'{}", hint(*nearest, known))]
    UnknownName {
        /// The name that was asked for.
        name: String,
        /// The most similar built-in name.
        nearest: Option<&'static str>,
        /// All built-in names.
        known: Vec<&'static str>,
    },
    /// The file cannot be read.
    #[error("{path}: the profile cannot be read: {reason}")]
    Unreadable {
        /// The path of the file.
        path: String,
        /// The operating system's error, or the requirement that the file violates.
        reason: String,
    },
    /// The file or setting has faults, in order of their lines.
    #[error("{}", list(origin, faults))]
    Invalid {
        /// The file's name, or another origin of the text.
        origin: String,
        /// The faults; never empty.
        faults: Vec<Fault>,
    },
}

/// One fault of a profile.
#[derive(Debug, Clone, PartialEq)]
pub struct Fault {
    /// The line, from 1; `None` for a setting that comes from no file.
    pub line: Option<usize>,
    /// The subject: `cost.poll`, `cost.poll.range`, `cost`; empty for the text as a whole.
    pub key: String,
    /// The problem with it.
    pub problem: Problem,
}

/// A problem with one key, section or field.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Problem {
    /// The text is not TOML; the parser's message.
    Syntax(String),
    /// The name is neither a section nor `name`, `about` or `based-on`.
    UnknownSection {
        /// The most similar one.
        nearest: Option<&'static str>,
        /// The existing sections.
        known: Vec<&'static str>,
    },
    /// A key that its section does not have.
    UnknownKey {
        /// The full name of the most similar key.
        nearest: Option<String>,
    },
    /// A constant has a field that does not exist.
    UnknownField {
        /// The most similar field.
        nearest: Option<&'static str>,
    },
    /// A required section is missing.
    MissingSection,
    /// The section of a workload is missing, and the caller needs it.
    NoWorkload,
    /// `based-on` names no built-in profile.
    UnknownBase {
        /// The text in the profile or the setting.
        given: String,
        /// The most similar built-in name.
        nearest: Option<&'static str>,
        /// All built-in names.
        known: Vec<&'static str>,
    },
    /// A key without a default is missing.
    MissingKey {
        /// The kind of value that it takes.
        takes: ValueKind,
    },
    /// `name` or `about` is missing.
    MissingText,
    /// A constant has no value.
    NoValue {
        /// The kind of value that the key takes.
        takes: ValueKind,
    },
    /// The item is not a table, but has to be a section.
    NotASection,
    /// The item is not a table, but has to be a constant.
    NotAConstant,
    /// The item is not a text, or an empty one.
    NotText,
    /// The constant has none of `source`, `fitted` and `assumed`.
    NoBasis,
    /// The constant has more than one of `source`, `fitted` and `assumed`.
    TwoBases,
    /// `fitted` is other than `true`.
    NotTrue,
    /// A fitted constant has no `range`.
    NoRange,
    /// `range` is not a list of two values.
    NotARange,
    /// The ends of a range are in the wrong order.
    Reversed,
    /// The value is not a number.
    NotANumber {
        /// The text in the profile or the setting.
        given: String,
        /// The kind of value that the key takes.
        takes: ValueKind,
    },
    /// The number lacks its unit.
    NoUnit {
        /// The text in the profile or the setting.
        given: String,
        /// The kind of value that the key takes.
        takes: ValueKind,
    },
    /// The unit is of another kind, or does not exist.
    WrongUnit {
        /// The text in the profile or the setting.
        unit: String,
        /// The kind of value that the key takes.
        takes: ValueKind,
    },
    /// The word is not among the choices.
    NotAChoice {
        /// The text in the profile or the setting.
        given: String,
        /// The words that the key takes.
        words: &'static [&'static str],
        /// The most similar word, if one is similar.
        nearest: Option<&'static str>,
    },
    /// The value is infinite or not a number.
    NotFinite {
        /// The text in the profile or the setting.
        given: String,
    },
    /// The value is negative, which no constant may be.
    Negative {
        /// The text in the profile or the setting.
        given: String,
    },
    /// The value is below its minimum, which may be why 0 is refused.
    TooSmall {
        /// The text in the profile or the setting.
        given: String,
        /// The minimum, with its unit.
        least: String,
    },
    /// The value is above its maximum.
    TooLarge {
        /// The text in the profile or the setting.
        given: String,
        /// The maximum, with its unit.
        most: String,
    },
    /// The value has to be a whole number.
    NotWhole {
        /// The text in the profile or the setting.
        given: String,
    },
    /// The value is outside of its range.
    OutOfRange {
        /// The text in the profile or the setting.
        given: String,
        /// The lower end of the range.
        low: String,
        /// The upper end of the range.
        high: String,
    },
    /// There are more queues than CPUs.
    QueuesBeyondCpus {
        /// The value of `nic.queues`.
        queues: f64,
        /// The value of `processor.cpus`.
        cpus: f64,
    },
    /// The number of CPUs is odd, with two threads per core.
    OddCpus {
        /// The value of `processor.cpus`.
        cpus: f64,
    },
    /// A setting has no `=`.
    NoEquals,
}

impl ProfileError {
    /// Creates the error for a setting that comes from no file.
    pub(super) fn setting(origin: &str, key: String, problem: Problem) -> ProfileError {
        let faults = vec![Fault { line: None, key, problem }];
        ProfileError::Invalid { origin: origin.to_string(), faults }
    }

    /// Returns the faults; empty for a profile that was not found or not read.
    pub fn faults(&self) -> &[Fault] {
        match self {
            ProfileError::Invalid { faults, .. } => faults,
            _ => &[],
        }
    }
}

/// Returns the suggestions after an unknown name.
fn hint(nearest: Option<&str>, known: &[&str]) -> String {
    let meant = nearest.map_or(String::new(), |nearest| format!("; did you mean '{nearest}'?"));
    let listed = match known {
        [] => "write the path of a TOML file".to_string(),
        _ => format!("there are {}, or write the path of a TOML file", known.join(", ")),
    };
    let mark = if meant.is_empty() { "; " } else { " " };
    format!("{meant}{mark}{listed}")
}

/// Lists the faults, one per line, each with its place.
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
    /// Writes the fault without its place in the file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        self.problem.fmt(f)
    }
}

/// Lists the units of a kind: `ns, us, ms, s or cycles`.
fn units(takes: ValueKind) -> String {
    let names: Vec<&str> = takes.units().iter().map(|unit| unit.name).collect();
    match names.as_slice() {
        [all @ .., last] if !all.is_empty() => format!("{} or {last}", all.join(", ")),
        _ => names.concat(),
    }
}

/// Describes what to write for a kind of value.
fn wanted(takes: ValueKind) -> String {
    match takes {
        ValueKind::Count { .. } | ValueKind::Ratio { .. } => format!("a plain number ({takes})"),
        ValueKind::Choice(_) => format!("one of {takes}"),
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
