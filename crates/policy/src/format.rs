//! Prints a policy, always in a form that can be parsed.
//!
//! A policy that has a name prints as that name, however it was written; any other prints as the keys that
//! differ from `base`, in the table's order. So two policies are equal exactly if their text is, and a table, a
//! journal and a command line can use the same text.

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;

use super::{FAMILIES, KEYS, PRESETS, Policy};

impl Policy {
    /// Returns the name of the preset or family member that has this value, e.g. `suspend20` or `defer37`.
    pub fn name(&self) -> Option<String> {
        if let Some(preset) = PRESETS.iter().find(|preset| preset.policy == *self) {
            return Some(preset.name.to_string());
        }
        FAMILIES.iter().find_map(|family| {
            family.member(self).map(|microseconds| format!("{}{microseconds}", family.prefix))
        })
    }

    /// Returns the spelled-out form: each key that differs from `base`, even if the policy has a name. Only
    /// `base` itself, which has no such key, prints as its name.
    pub fn spelled_out(&self) -> SpelledOut<'_> {
        SpelledOut(self)
    }
}

/// Prints a policy key by key; see [`Policy::spelled_out`].
#[derive(Debug, Clone, Copy)]
pub struct SpelledOut<'a>(&'a Policy);

impl fmt::Display for SpelledOut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for key in KEYS {
            if key.get(self.0) == key.get(&Policy::BASE) {
                continue;
            }
            if !first {
                f.write_str(",")?;
            }
            write!(f, "{}={}", key.name, key.value(self.0))?;
            first = false;
        }
        if first { f.write_str("base") } else { Ok(()) }
    }
}

impl fmt::Display for Policy {
    /// The name, or the spelled-out form if it has none; width and alignment are honoured.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name().unwrap_or_else(|| self.spelled_out().to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MICROSECOND;

    fn printed(text: &str) -> String {
        text.parse::<Policy>().expect(text).to_string()
    }

    #[test]
    fn a_value_with_a_name_prints_as_that_name_however_it_was_written() {
        assert_eq!(printed("defer-hard-irqs=100,gro-flush-timeout=20us"), "defer20");
        assert_eq!(printed("gro-flush-timeout=37us, defer-hard-irqs=100"), "defer37");
        assert_eq!(printed("hold100"), "hold");
        assert_eq!(printed("hold=0"), "base");
        assert_eq!(
            printed(
                "suspend20,irq-suspend-timeout=0,epoll-prefer-busy-poll=off,\
                 epoll-busy-poll-budget=0"
            ),
            "defer20"
        );
    }

    #[test]
    fn anything_else_prints_the_keys_that_differ_from_base() {
        assert_eq!(
            printed("threaded,gro-flush-timeout=1500ns,application=spin"),
            "threaded=enabled,gro-flush-timeout=1500ns,application=spin"
        );
        assert_eq!(printed("base-6.4,hold=1ms"), "hold=1ms,inline-while-ksoftirqd=off");
    }

    #[test]
    fn the_spelled_out_form_of_a_preset_reads_back_as_the_preset() {
        for preset in PRESETS {
            let text = preset.policy.spelled_out().to_string();
            assert_eq!(text.parse(), Ok(preset.policy), "{}: {text}", preset.name);
        }
    }

    #[test]
    fn a_time_that_is_no_whole_number_of_microseconds_has_no_family_name() {
        assert_eq!(Policy::hold(1_500).to_string(), "hold=1500ns");
        assert_eq!(Policy::hold(1_500 * MICROSECOND).to_string(), "hold1500");
    }

    #[test]
    fn columns_line_up() {
        assert_eq!(format!("{:>8}|{:<8}|", Policy::BASE, Policy::BASE), "    base|base    |");
    }
}
