//! Errors in a policy's text: the kind, the offending value, and what to write instead.
//!
//! The text comes from a command line or a file, so an error quotes at most a line of it, and no character that
//! controls a terminal.

use alloc::string::String;
use core::fmt;

use super::FAMILY_MICROSECONDS;
use super::value_kind::{MAX_TIMEOUT, ValueKind};
use crate::{Time, TimeError};

/// The reason why a text is not a policy, or a value is not valid.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyError {
    /// The text is empty or blank.
    Empty,
    /// Nothing stands between two commas, or after the last.
    EmptyItem,
    /// The name is neither a preset, nor a member of a family, nor `key=value`.
    UnknownName {
        /// The text that was given.
        name: String,
        /// The nearest name that exists.
        nearest: Option<&'static str>,
    },
    /// A family's name is not followed by a valid number.
    FamilyNumber {
        /// The family's name.
        family: &'static str,
        /// The text after the family's name.
        number: String,
    },
    /// A preset that is not the first item; it would override the items before it.
    NotFirst {
        /// The preset.
        name: String,
    },
    /// `key=value` with a key that does not exist.
    UnknownKey {
        /// The text that was given.
        key: String,
        /// The nearest key that exists.
        nearest: Option<&'static str>,
    },
    /// A key without a value.
    MissingValue {
        /// The key's name, as `napkin policies` lists it.
        key: &'static str,
        /// The kind of value that the key takes.
        takes: ValueKind,
    },
    /// A key that was given twice.
    DuplicateKey {
        /// The key's name, as `napkin policies` lists it.
        key: &'static str,
    },
    /// A value that is not of the kind that its key takes.
    BadValue {
        /// The key's name, as `napkin policies` lists it.
        key: &'static str,
        /// The value that was given.
        value: String,
        /// The kind of value that the key takes.
        takes: ValueKind,
        /// The nearest word that exists, for a key that takes words.
        nearest: Option<&'static str>,
    },
    /// A time without its unit.
    NoUnit {
        /// The key's name, as `napkin policies` lists it.
        key: &'static str,
        /// The missing unit.
        error: TimeError,
    },
    /// A value above its limit.
    TooLarge {
        /// The key's name, as `napkin policies` lists it.
        key: &'static str,
        /// The value that was given.
        value: String,
        /// The kind of value that the key takes.
        takes: ValueKind,
    },
}

fn did_you_mean(f: &mut fmt::Formatter<'_>, nearest: Option<&str>) -> fmt::Result {
    match nearest {
        Some(nearest) => write!(f, "; did you mean '{nearest}'?"),
        None => Ok(()),
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PolicyError::Empty => {
                f.write_str("the policy is empty; write a name such as 'base', or key=value")
            }
            PolicyError::EmptyItem => f.write_str(
                "nothing stands before or after a comma; take the comma away or write key=value",
            ),
            PolicyError::UnknownName { name, nearest } => {
                write!(f, "no policy is called '{name}'")?;
                match nearest {
                    Some(nearest) => write!(f, "; did you mean '{nearest}'?"),
                    None => f.write_str("; 'napkin policies' lists those that exist"),
                }
            }
            PolicyError::FamilyNumber { family, number } => {
                let (least, most) = FAMILY_MICROSECONDS.into_inner();
                write!(f, "'{family}{number}': after '{family}' comes a number of microseconds, ")?;
                write!(f, "{least} to {most}, without unit or leading zeros, as in '{family}50'")
            }
            PolicyError::NotFirst { name } => write!(
                f,
                "'{name}' can only stand first, as it sets everything; begin with it and let the \
                 keys follow"
            ),
            PolicyError::UnknownKey { key, nearest } => {
                write!(f, "no key is called '{key}'")?;
                did_you_mean(f, *nearest)?;
                // Added after a suggestion, too: the nearest name need not be the intended one.
                let mark = if nearest.is_some() { "" } else { ";" };
                write!(f, "{mark} 'napkin policies' lists the keys")
            }
            PolicyError::MissingValue { key, takes: takes @ ValueKind::Count { .. } } => {
                write!(f, "'{key}' has no value; write {key}=N, with N from {takes}")
            }
            PolicyError::MissingValue { key, takes } => {
                write!(f, "'{key}' has no value; write {key}={takes}")
            }
            PolicyError::DuplicateKey { key } => {
                write!(f, "'{key}' is given twice; keep the one that counts")
            }
            PolicyError::BadValue { key, value, takes, nearest } => {
                write!(f, "{key}={value}: ")?;
                match takes {
                    ValueKind::Choice(_) => write!(f, "the value is one of {takes}")?,
                    ValueKind::Count { .. } => {
                        f.write_str("the value is a plain number, without sign or unit")?;
                    }
                    ValueKind::Time => write!(f, "{}", TimeError::NotATime)?,
                }
                did_you_mean(f, *nearest)
            }
            PolicyError::NoUnit { key, error } => write!(f, "{key}={error}"),
            PolicyError::TooLarge { key, value, takes } => match takes {
                ValueKind::Count { max } => write!(f, "{key}={value}: at most {max} is allowed"),
                _ => write!(f, "{key}={value}: at most {} is allowed", Time(MAX_TIMEOUT)),
            },
        }
    }
}

impl core::error::Error for PolicyError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Policy;
    use std::string::ToString;

    /// The error message of a text.
    fn message(text: &str) -> String {
        text.parse::<Policy>().expect_err(text).to_string()
    }

    #[test]
    fn a_slip_gets_a_suggestion() {
        assert_eq!(
            message("suspnd20"),
            "no policy is called 'suspnd20'; did you mean 'suspend20'?"
        );
        assert_eq!(
            message("gro-flush-timeuot=1us"),
            "no key is called 'gro-flush-timeuot'; did you mean 'gro-flush-timeout'? 'napkin \
             policies' lists the keys"
        );
        assert_eq!(
            message("threaded=enable"),
            "threaded=enable: the value is one of disabled|enabled|busy-poll|workqueue; did you \
             mean 'enabled'?"
        );
    }

    #[test]
    fn nonsense_is_pointed_to_the_list() {
        assert_eq!(
            message("xyzzy"),
            "no policy is called 'xyzzy'; 'napkin policies' lists those that exist"
        );
        assert_eq!(
            message("xyzzy=1"),
            "no key is called 'xyzzy'; 'napkin policies' lists the keys"
        );
    }

    #[test]
    fn a_limit_names_the_value_and_itself() {
        assert_eq!(
            message("defer-hard-irqs=2147483648"),
            "defer-hard-irqs=2147483648: at most 2147483647 is allowed"
        );
        assert_eq!(message("hold=11s"), "hold=11s: at most 10s is allowed");
    }

    #[test]
    fn a_family_says_which_numbers_it_takes() {
        assert_eq!(
            message("defer20us"),
            "'defer20us': after 'defer' comes a number of microseconds, 1 to 10000000, without \
             unit or leading zeros, as in 'defer50'"
        );
    }

    #[test]
    fn a_missing_value_shows_what_belongs_there() {
        assert_eq!(
            message("suspend20,threaded"),
            "'threaded' has no value; write threaded=disabled|enabled|busy-poll|workqueue"
        );
        assert_eq!(
            message("suspend20,epoll-busy-poll-budget"),
            "'epoll-busy-poll-budget' has no value; write epoll-busy-poll-budget=N, with N from 0 to \
             65535"
        );
        assert_eq!(message("hold="), "'hold' has no value; write hold=TIME");
    }

    #[test]
    fn a_terminal_is_safe_from_the_input() {
        let long = message(&format!("\u{1b}[2J{}", "a".repeat(10_000)));
        assert!(long.len() < 200, "{long}");
        assert!(!long.contains('\u{1b}'), "{long}");
    }
}
