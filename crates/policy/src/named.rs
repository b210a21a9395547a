//! The policies of a comparison, each with the name of its rows.
//!
//! The name is the policy's own text, or a name that was given to it: `mine=suspend20,hold=50us`. The policy
//! itself is parsed by `Policy::from_str`.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use crate::text::quoted;
use crate::{Key, PolicyError};
use crate::{Policy, Time};

/// The maximum length of a name, in characters.
const LONGEST: usize = 24;

/// A policy and its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedPolicy {
    /// The name of its rows: the name that was given, or the policy's text.
    pub name: String,
    /// The policy that the text names.
    pub policy: Policy,
}

impl From<Policy> for NamedPolicy {
    fn from(policy: Policy) -> NamedPolicy {
        NamedPolicy { name: policy.to_string(), policy }
    }
}

impl fmt::Display for NamedPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name)
    }
}

impl NamedPolicy {
    /// Returns a caveat on this policy's latencies, if there is one.
    pub fn note(&self) -> Option<String> {
        let waits = Time(self.policy.timer_wait_after_empty_busy_poll()?);
        let (why, ends) = match self.policy.application.spin {
            true => (
                "a busy poll that finds nothing drops the epoll's NAPI id",
                "; epoll-keep-napi-id=on, in no Linux, ends it",
            ),
            false => (
                "after a busy poll that finds nothing the program sleeps, and the interrupt stays masked",
                "",
            ),
        };
        Some(format!(
            "{}: at low load a packet waits up to {waits} for the timer, as in Linux: {why} \
             (gro-flush-timeout=200us bounds it{ends})",
            self.name
        ))
    }

    /// Names several policies by their text.
    pub fn all(policies: impl IntoIterator<Item = Policy>) -> Vec<NamedPolicy> {
        policies.into_iter().map(NamedPolicy::from).collect()
    }

    /// Parses one value of `--policy`: a list of policy names (`base,threaded`); or, if there is a `=`, one
    /// policy in the spelled-out form (`suspend20,hold=50us`), optionally preceded by a name for it
    /// (`mine=suspend20,hold=50us`). The part before the first `=` is either a key or such a name, never both.
    ///
    /// # Errors
    /// A message that says what is wrong, and what to write instead.
    pub fn read(text: &str) -> Result<Vec<NamedPolicy>, String> {
        let Some((head, rest)) = text.split_once('=') else {
            let named = text.split(',').map(|name| name.parse::<Policy>().map(NamedPolicy::from));
            return named.collect::<Result<_, _>>().map_err(|error| error.to_string());
        };
        let head = head.trim();
        if head.contains(',') || Key::find(head).is_some() {
            let policy = text.parse::<Policy>().map_err(|error| spelled_out(text, &error))?;
            return Ok(vec![NamedPolicy::from(policy)]);
        }
        let policy = rest.parse::<Policy>();
        if policy.is_err()
            && let Err(slip @ PolicyError::UnknownKey { nearest: Some(_), .. }) =
                text.parse::<Policy>()
        {
            return Err(slip.to_string());
        }
        check(head)?;
        let policy = policy.map_err(|error| {
            format!(
                "{error} ('{head}' is no key of a policy, so it is taken for the name of one: give \
                 NAME=POLICY, each with a --policy of its own)"
            )
        })?;
        Ok(vec![NamedPolicy { name: head.to_owned(), policy }])
    }

    /// Refuses policies that have the same name, because their rows could not be distinguished.
    ///
    /// # Errors
    /// A message with the first duplicate name.
    pub fn distinct(policies: &[NamedPolicy]) -> Result<(), String> {
        let twice = policies.iter().enumerate().find(|(place, policy)| {
            policies.iter().take(*place).any(|earlier| earlier.name == policy.name)
        });
        match twice {
            None => Ok(()),
            Some((_, NamedPolicy { name, .. })) => Err(format!(
                "two policies are called '{name}': give one of them another name, as in --policy \
                 second={name}"
            )),
        }
    }
}

/// The error for a policy in the spelled-out form. If an item after a comma has no `=`, a list was probably
/// meant.
fn spelled_out(text: &str, error: &PolicyError) -> String {
    if text.split(',').skip(1).all(|item| item.contains('=')) {
        return error.to_string();
    }
    format!(
        "{error} (--policy '{}' is one policy, since it contains '='; give a policy that is spelled out \
         a --policy of its own)",
        quoted(text)
    )
}

/// Refuses a text that cannot be the name of a policy.
fn check(name: &str) -> Result<(), String> {
    let shown = quoted(name);
    let taken = match name.parse::<Policy>() {
        Ok(_) | Err(PolicyError::FamilyNumber { .. }) => true,
        Err(_) => false,
    };
    if taken {
        return Err(format!(
            "'{shown}' is what a policy of napkin's is called: give yours another name"
        ));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || ".+_-".contains(c);
    let first = name.starts_with(|c: char| c.is_ascii_alphabetic());
    if first && name.len() <= LONGEST && name.chars().all(allowed) {
        return Ok(());
    }
    Err(format!(
        "'{shown}' is neither a key of a policy nor a name for one: a name begins with a letter, has \
         letters, digits, '.', '+', '_', '-', and at most {LONGEST} characters"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Result<Vec<String>, String> {
        Ok(NamedPolicy::read(text)?.into_iter().map(|it| it.name).collect())
    }

    #[test]
    fn a_policy_is_a_list_of_names_or_one_that_is_spelled_out() {
        assert_eq!(names("base,ksoftirqd").unwrap(), ["base", "ksoftirqd"]);
        assert_eq!(names("base,hold=100us").unwrap(), ["hold"], "one, by its shortest spelling");
        assert_eq!(names("suspend20,hold=50us").unwrap().len(), 1);
        for list in ["base,threaded,hold=50us", "hold=50us,base", "base,ksoftirqd,hold=50us"] {
            let error = names(list).unwrap_err();
            assert!(error.contains("is one policy, since it contains '='"), "{error}");
        }
        assert!(!names("base,hlod=50us").unwrap_err().contains("one policy"), "meant as one");
        let error = names("base,ksoftirq").unwrap_err();
        assert!(error.contains("ksoftirqd"), "the nearest is suggested: {error}");
    }

    #[test]
    fn what_stands_before_a_policy_is_its_name_unless_it_is_a_key() {
        let [mine] = &NamedPolicy::read("mine=suspend20,hold=50us").unwrap()[..] else {
            panic!("one")
        };
        assert_eq!(mine.name, "mine");
        assert_eq!(Ok(mine.policy), "suspend20,hold=50us".parse());
        assert_eq!(names("control=base").unwrap(), ["control"]);
        assert_eq!(names("mine = hold=50us").unwrap(), ["mine"], "keys alone spell one out, too");
        assert_eq!(names("hold=50us").unwrap(), ["hold50"], "a key, and no name");
        assert_eq!(names("hlod=base").unwrap(), ["hlod"], "nothing else can be meant");
    }

    #[test]
    fn a_name_that_is_none_is_refused_with_the_reason() {
        for (text, message) in [
            ("base=suspend20", "'base' is what a policy of napkin's is called"),
            ("suspend30=suspend20", "'suspend30' is what a policy"),
            ("suspend=suspend20", "'suspend' is what a policy"),
            ("hlod=50us", "'hlod' is no key"),
            ("feedbck=on", "did you mean 'feedback'?"),
            ("my policy=base", "'my policy' is neither a key of a policy nor a name"),
            ("=base", "'' is neither"),
            ("1st=base", "begins with a letter"),
            ("a-name-of-more-than-24-characters=base", "at most 24 characters"),
            ("mine=", "taken for the name"),
            ("mine=base,threaded", "a --policy of its own"),
            ("a=base,b=threaded", "a --policy of its own"),
            ("mine=yours=base", "'mine' is no key"),
            ("x\x1b[2J=base", "neither"),
        ] {
            let error = names(text).expect_err(text);
            assert!(error.contains(message), "{text}: {error}");
            assert!(!error.contains('\x1b'), "{error:?}");
        }
    }

    #[test]
    fn two_policies_of_one_name_are_refused() {
        let all = |texts: &[&str]| {
            let all = texts.iter().flat_map(|text| NamedPolicy::read(text).unwrap());
            NamedPolicy::distinct(&all.collect::<Vec<_>>())
        };
        assert_eq!(all(&["base,threaded", "again=base"]), Ok(()));
        assert!(all(&["base", "hold=0"]).unwrap_err().contains("two policies are called 'base'"));
        assert!(all(&["a=base", "a=hold"]).unwrap_err().contains("'a'"));
    }
}
