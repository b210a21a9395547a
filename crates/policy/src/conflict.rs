//! Conflicts of two policies on one CPU.
//!
//! Instances, epoll contexts and applications each have settings of their own, so policies that differ in those
//! can coexist. A CPU has one softirq context: policies with different CPU parts cannot both apply to it, and
//! napkin refuses the second rather than let it win silently.

use core::fmt;

use super::key::{KEYS, Key};
use super::{CpuPolicy, Policy};

/// The differing CPU parts of two policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conflict {
    /// The CPU part of the first.
    pub one: CpuPolicy,
    /// The CPU part of the second.
    pub other: CpuPolicy,
}

impl Policy {
    /// Returns the conflict, if this policy and `other` cannot share a CPU.
    pub fn conflict_on_cpu(&self, other: &Policy) -> Option<Conflict> {
        (self.cpu != other.cpu).then_some(Conflict { one: self.cpu, other: other.cpu })
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = Policy { cpu: self.one, ..Policy::BASE };
        let other = Policy { cpu: self.other, ..Policy::BASE };
        let differs = |key: &&Key| key.get(&one) != key.get(&other);
        f.write_str("two policies disagree about one CPU: ")?;
        for (place, key) in KEYS.iter().filter(differs).enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            let (one_value, other_value) = (key.value(&one), key.value(&other));
            write!(f, "{comma}{}={one_value} against {other_value}", key.name)?;
        }
        f.write_str("; give them different CPUs, or the same value")
    }
}

impl core::error::Error for Conflict {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::{String, ToString};

    fn conflict(one: &str, other: &str) -> Option<String> {
        let [one, other] = [one, other].map(|text| text.parse::<Policy>().expect(text));
        one.conflict_on_cpu(&other).map(|conflict| conflict.to_string())
    }

    #[test]
    fn policies_that_differ_elsewhere_share_a_cpu() {
        assert_eq!(conflict("suspend20", "threaded"), None);
        assert_eq!(conflict("base-6.4", "base-6.4,hold=1ms"), None);
    }

    #[test]
    fn a_cpu_runs_its_softirqs_in_one_way() {
        assert_eq!(
            conflict("ksoftirqd", "suspend20").as_deref(),
            Some(
                "two policies disagree about one CPU: net-softirq=ksoftirqd against inline; give \
                 them different CPUs, or the same value"
            )
        );
    }

    #[test]
    fn every_difference_is_named() {
        let text = conflict("base", "ksoftirqd-as-posted").expect("they differ");
        assert!(text.contains("net-softirq=inline against ksoftirqd-as-posted, "), "{text}");
        assert!(text.contains("inline-while-ksoftirqd=on against off;"), "{text}");
    }
}
