//! Parses a policy: a preset or a member of a family, then `key=value` pairs, separated by commas.
//!
//! `suspend20`, `defer-hard-irqs=100,gro-flush-timeout=20us` and `suspend20,gro-flush-timeout=50us` are all
//! policies; blanks around the parts are ignored. The text may be untrusted: no input panics, and the work is
//! linear in its length. Numbers are bounded here, so a parsed policy need not be checked again.

use core::str::FromStr;

use super::key::Key;
use super::nearest::nearest;
use super::value_kind::ValueKind;
use super::{FAMILIES, Family, KEYS, PRESETS, Policy, PolicyError, Preset};
use crate::text::quoted;
use crate::{Time, TimeError};

impl FromStr for Policy {
    type Err = PolicyError;

    /// # Errors
    /// See [`PolicyError`]: the error names the offending part, and what to write instead.
    fn from_str(text: &str) -> Result<Policy, PolicyError> {
        if text.trim().is_empty() {
            return Err(PolicyError::Empty);
        }
        let mut policy = Policy::BASE;
        let mut given = [false; KEYS.len()];
        for (place, item) in text.split(',').map(str::trim).enumerate() {
            if item.is_empty() {
                return Err(PolicyError::EmptyItem);
            }
            if let Some((key, value)) = item.split_once('=') {
                set(&mut policy, &mut given, key.trim_end(), value.trim_start())?;
            } else if place == 0 {
                policy = named(item)?;
            } else {
                return Err(out_of_place(item));
            }
        }
        Ok(policy)
    }
}

impl Policy {
    /// Checks the limits of a policy that was constructed, not parsed.
    ///
    /// # Errors
    /// [`PolicyError::TooLarge`] for the first value that the parser would have refused.
    pub fn validate(&self) -> Result<(), PolicyError> {
        for key in KEYS {
            key.check(key.get(self))?;
        }
        Ok(())
    }
}

fn set(
    policy: &mut Policy,
    given: &mut [bool; KEYS.len()],
    name: &str,
    text: &str,
) -> Result<(), PolicyError> {
    let Some((key, given)) = KEYS.iter().zip(given).find(|(key, _)| key.name == name) else {
        let nearest = nearest(name, KEYS.iter().map(|key| key.name));
        return Err(PolicyError::UnknownKey { key: quoted(name), nearest });
    };
    if core::mem::replace(given, true) {
        return Err(PolicyError::DuplicateKey { key: key.name });
    }
    key.set(policy, key.read(text)?);
    Ok(())
}

impl Key {
    /// Parses a value of this key, and checks its limit.
    ///
    /// # Errors
    /// If the value is missing, malformed, without a unit, or too large.
    pub fn read(&self, text: &str) -> Result<u64, PolicyError> {
        read(self, text)
    }
}

fn read(key: &Key, text: &str) -> Result<u64, PolicyError> {
    let takes = key.takes;
    if text.is_empty() {
        return Err(PolicyError::MissingValue { key: key.name, takes });
    }
    let bad =
        |nearest| PolicyError::BadValue { key: key.name, value: quoted(text), takes, nearest };
    let too_large = || PolicyError::TooLarge { key: key.name, value: quoted(text), takes };
    let read = match takes {
        ValueKind::Choice(words) => {
            let place = words.iter().position(|word| *word == text);
            place.ok_or_else(|| bad(nearest(text, words.iter().copied())))? as u64
        }
        ValueKind::Count { .. } => {
            // `u64::from_str` would accept a plus sign.
            if !text.bytes().all(|digit| digit.is_ascii_digit()) {
                return Err(bad(None));
            }
            text.parse().map_err(|_| too_large())?
        }
        ValueKind::Time => match text.parse() {
            Ok(Time(read)) => read,
            Err(TimeError::TooLong) => return Err(too_large()),
            Err(TimeError::NotATime) => return Err(bad(None)),
            Err(error) => return Err(PolicyError::NoUnit { key: key.name, error }),
        },
    };
    // The error quotes the original text rather than its value in another unit.
    key.check(read).map_err(|_| too_large())
}

/// Returns the policy for a first item without `=`.
fn named(name: &str) -> Result<Policy, PolicyError> {
    if let Some(preset) = Preset::find(name) {
        return Ok(preset.policy);
    }
    if let Some(key) = Key::find(name) {
        return Err(PolicyError::MissingValue { key: key.name, takes: key.takes });
    }
    if let Some((family, number)) = family(name) {
        let wrong = || PolicyError::FamilyNumber { family: family.prefix, number: quoted(number) };
        // A leading zero would be lost when the policy is printed.
        if number.starts_with('0') || !number.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err(wrong());
        }
        return number.parse().ok().and_then(|n| family.policy(n)).ok_or_else(wrong);
    }
    let names = PRESETS.iter().map(|preset| preset.name);
    let nearest = nearest(name, names.chain(KEYS.iter().map(|key| key.name)));
    Err(PolicyError::UnknownName { name: quoted(name), nearest })
}

/// Returns the family of a name, and the text in place of the number, if only the number can be wrong.
fn family(name: &str) -> Option<(&'static Family, &str)> {
    FAMILIES.iter().find_map(|family| {
        let number = name.strip_prefix(family.prefix)?;
        let meant = number.is_empty() || number.starts_with(|c: char| c.is_ascii_digit());
        meant.then_some((family, number))
    })
}

/// The error for an item without `=` after a comma.
fn out_of_place(item: &str) -> PolicyError {
    if let Some(key) = Key::find(item) {
        return PolicyError::MissingValue { key: key.name, takes: key.takes };
    }
    if Preset::find(item).is_some() || family(item).is_some() {
        return PolicyError::NotFirst { name: quoted(item) };
    }
    let nearest = nearest(item, KEYS.iter().map(|key| key.name));
    PolicyError::UnknownKey { key: quoted(item), nearest }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MAX_COUNT, MAX_TIMEOUT, NetSoftirq, SocketPoller, Threaded};
    use crate::{MICROSECOND, MILLISECOND};
    use proptest::prelude::*;
    use std::string::{String, ToString};

    fn read(text: &str) -> Result<Policy, PolicyError> {
        text.parse()
    }

    #[test]
    fn a_preset_may_be_changed_key_by_key() {
        let policy = read("suspend20, gro-flush-timeout = 50us").expect("valid");
        assert_eq!(policy, Policy::suspend(50 * MICROSECOND));
        assert_eq!(read("defer20,gro-flush-timeout=200us"), read("defer200"));
    }

    #[test]
    fn every_key_is_read() {
        let text = "threaded=workqueue,defer-hard-irqs=1,gro-flush-timeout=2ns,\
                    irq-suspend-timeout=3us,hold=4ms,hold-tick=9us,feedback=on,net-softirq=ksoftirqd,\
                    inline-while-ksoftirqd=off,epoll-busy-poll-usecs=5,epoll-busy-poll-budget=6,\
                    epoll-prefer-busy-poll=on,application=spin,socket-busy-poll-usecs=7,\
                    socket-busy-poll-budget=8,socket-prefer-busy-poll=on,socket-poller=separate";
        let Policy { instance, cpu, epoll, application } = read(text).expect("valid");
        assert_eq!(instance.threaded, Threaded::Workqueue);
        assert_eq!((instance.defer_hard_irqs, instance.gro_flush_timeout), (1, 2));
        assert_eq!(instance.irq_suspend_timeout, 3 * MICROSECOND);
        assert_eq!(instance.hold, 4 * MILLISECOND);
        assert_eq!(instance.hold_tick, 9 * MICROSECOND);
        assert!(instance.feedback);
        assert_eq!(cpu.net_softirq, NetSoftirq::Ksoftirqd);
        assert!(!cpu.inline_while_ksoftirqd);
        assert_eq!((epoll.busy_poll_usecs, epoll.busy_poll_budget), (5, 6));
        assert!(epoll.prefer_busy_poll);
        assert!(application.spin);
        assert_eq!(application.socket_busy_poll_usecs, 7);
        assert_eq!(application.socket_busy_poll_budget, 8);
        assert!(application.socket_prefer_busy_poll);
        assert_eq!(application.socket_poller, SocketPoller::Separate);
    }

    #[test]
    fn a_time_takes_any_unit_and_only_0_none() {
        for text in ["hold=20000ns", "hold=20us"] {
            assert_eq!(read(text), Ok(Policy::hold(20_000)), "{text}");
        }
        assert_eq!(read("hold=5ms"), Ok(Policy::hold(5 * MILLISECOND)));
        assert_eq!(read("hold=10s"), Ok(Policy::hold(MAX_TIMEOUT)));
        assert_eq!(read("hold=0"), Ok(Policy::BASE));
        let error = read("suspend20,gro-flush-timeout=50").expect_err("50 of what?");
        assert_eq!(error.to_string(), "gro-flush-timeout=50 has no unit: 50us? 50ms? 50s?");
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for text in ["hold=1.5us", "hold=us", "hold=-1", "hold=+1", "hold=1 us", "hold=1d"] {
            let error = read(text).expect_err(text);
            assert!(matches!(error, PolicyError::BadValue { key: "hold", .. }), "{text}");
        }
        for text in ["defer-hard-irqs=1us", "defer-hard-irqs=+1", "defer-hard-irqs=\u{663}"] {
            let error = read(text).expect_err(text);
            assert!(matches!(error, PolicyError::BadValue { .. }), "{text}");
        }
    }

    #[test]
    fn the_limits_are_the_kernels() {
        let largest = [
            ("defer-hard-irqs", "2147483647", "2147483648"),
            ("epoll-busy-poll-usecs", "2147483647", "2147483648"),
            ("epoll-busy-poll-budget", "65535", "65536"),
            ("socket-busy-poll-usecs", "2147483647", "2147483648"),
            ("socket-busy-poll-budget", "65535", "65536"),
            ("gro-flush-timeout", "10s", "10000000001ns"),
            ("irq-suspend-timeout", "10000ms", "99999999999999999999s"),
            ("hold", "10000000us", "18446744073709551615s"),
            ("hold-tick", "10s", "1m"),
        ];
        for (key, last, beyond) in largest {
            assert!(read(&alloc::format!("{key}={last}")).is_ok(), "{key}={last}");
            let error = read(&alloc::format!("{key}={beyond}")).expect_err(key);
            assert!(matches!(error, PolicyError::TooLarge { .. }), "{key}={beyond}: {error}");
        }
    }

    #[test]
    fn a_family_takes_microseconds_within_its_bounds_that_print_back_the_same() {
        assert_eq!(read("defer1"), Ok(Policy::defer(MICROSECOND)));
        assert_eq!(read("hold10000000"), Ok(Policy::hold(MAX_TIMEOUT)));
        for text in [
            "defer",
            "suspend",
            "defer0",
            "defer020",
            "hold10000001",
            "defer20us",
            "defer99999999999",
        ] {
            let error = read(text).expect_err(text);
            assert!(matches!(error, PolicyError::FamilyNumber { .. }), "{text}: {error}");
        }
    }

    #[test]
    fn what_says_nothing_is_refused() {
        assert_eq!(read(""), Err(PolicyError::Empty));
        assert_eq!(read(" \t"), Err(PolicyError::Empty));
        for text in [",", "base,", ",base", "base,,hold=1us"] {
            assert_eq!(read(text), Err(PolicyError::EmptyItem), "{text}");
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        assert_eq!(read("hold=1us,hold=1us"), Err(PolicyError::DuplicateKey { key: "hold" }));
        let error = read("hold=1us,suspend20").expect_err("late");
        assert_eq!(error, PolicyError::NotFirst { name: "suspend20".to_string() });
        assert!(matches!(read("base,defer37"), Err(PolicyError::NotFirst { .. })));
    }

    #[test]
    fn a_policy_that_was_put_together_is_held_to_the_same_limits() {
        let mut policy = Policy::defer(MAX_TIMEOUT);
        policy.instance.defer_hard_irqs = MAX_COUNT;
        assert_eq!(policy.validate(), Ok(()));
        policy.instance.hold = MAX_TIMEOUT + 1;
        let error = policy.validate().expect_err("too long");
        assert_eq!(error.to_string(), "hold=10000000001ns: at most 10s is allowed");
    }

    /// Any valid policy: half of the keys as in `base`, the others anywhere within their limits, with the
    /// limits themselves and whole microseconds as likely as all values between them.
    fn any_policy() -> impl Strategy<Value = Policy> {
        let one = (0..8_u8, any::<u64>());
        proptest::collection::vec(one, KEYS.len()).prop_map(|values| {
            let mut policy = Policy::BASE;
            for (key, (how, raw)) in KEYS.iter().zip(values) {
                let max = key.takes.max();
                match how {
                    0 => key.set(&mut policy, max),
                    1 => key.set(&mut policy, raw % (max / MICROSECOND + 1) * MICROSECOND),
                    2 | 3 => key.set(&mut policy, raw % (max + 1)),
                    _ => {}
                }
            }
            policy
        })
    }

    proptest! {
        #[test]
        fn any_policy_reads_back_as_it_printed(policy in any_policy()) {
            prop_assert_eq!(policy.validate(), Ok(()));
            prop_assert_eq!(read(&policy.to_string()), Ok(policy));
            prop_assert_eq!(read(&policy.spelled_out().to_string()), Ok(policy));
        }

        #[test]
        fn any_member_of_a_family_has_a_name_that_reads_back(
            place in 0..FAMILIES.len(), n in 1..=10_000_000_u32,
        ) {
            let policy = FAMILIES[place].policy(n).expect("within the bounds");
            let name = policy.name().expect("a member has a name");
            prop_assert_eq!(read(&name), Ok(policy));
        }

        #[test]
        fn no_text_panics(text in any::<String>()) {
            if let Err(error) = read(&text) {
                prop_assert!(!error.to_string().is_empty());
            }
        }

        #[test]
        fn no_text_of_our_own_words_panics_and_what_is_read_is_valid(
            text in "((base|defer|suspend|hold|threaded|feedback|net-softirq|gro-flush-timeout|\
                     defer-hard-irqs|application)?[=, ]?(on|spin|inline|enabled|[0-9]{0,22})\
                     (us|ms|s)?,?){0,4}",
        ) {
            if let Ok(policy) = read(&text) {
                prop_assert_eq!(policy.validate(), Ok(()));
                prop_assert_eq!(read(&policy.to_string()), Ok(policy));
            }
        }
    }
}
