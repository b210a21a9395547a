//! The options of a comparison and their validation.

use std::time::Duration;

use napkin_policy::Policy;

use crate::command::Measure;
use crate::error::CompareError;
use crate::guard::{Condition, Guard};

/// Longest measurement of the reference before the rounds.
const FIRST: Duration = Duration::from_secs(2);

/// What to compare, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// Policies by name; the first is the reference.
    pub policies: Vec<(String, Policy)>,
    /// How long each policy is in force at a time, including the time to settle. With a measure of the user's own,
    /// the slice lasts until that ends.
    pub slice: Duration,
    /// The time to settle at the start of a slice, which is not measured.
    pub settle: Duration,
    /// Number of slices per policy.
    pub rounds: usize,
    /// Seed of the order of the policies.
    pub seed: u64,
    /// The guard that ends a slice at once.
    pub guard: Option<Guard>,
    /// The command that replaces the server's own latency.
    pub measure: Option<Measure>,
}

impl Options {
    /// Total number of slices, without the first measurement of the reference.
    pub fn slices(&self) -> usize {
        self.policies.len().saturating_mul(self.rounds)
    }

    /// Estimated duration, without a measure of the user's own.
    pub fn time(&self) -> Duration {
        let slices = u32::try_from(self.slices()).unwrap_or(u32::MAX);
        self.slice.saturating_mul(slices).saturating_add(self.first())
    }

    /// Length of the first measurement of the reference, including the time to settle.
    pub(crate) fn first(&self) -> Duration {
        (self.slice - self.settle.min(self.slice)).min(FIRST) + self.settle
    }

    /// Whether a longer slice would lengthen that measurement.
    pub(crate) fn looks_short(&self) -> bool {
        self.slice.saturating_sub(self.settle) < FIRST
    }

    /// Whether requests must be timed.
    pub(crate) fn needs_timing(&self) -> bool {
        self.measure.is_none() || matches!(self.guard, Some(Guard::Condition(_)))
    }

    /// Validates the options. [`compare`](crate::compare()) does so first; a caller that announces a plan should do
    /// so before it.
    ///
    /// # Errors
    /// Names the invalid option and the reason.
    pub fn check(&self) -> Result<(), CompareError> {
        let wrong = |why: String| Err(CompareError::Usage(why));
        if self.policies.len() < 2 {
            return wrong("one policy has nothing to be compared with: name two or more".into());
        }
        for (place, (name, _)) in self.policies.iter().enumerate() {
            if self.policies[..place].iter().any(|(other, _)| other == name) {
                return wrong(format!("{name} is named twice: each policy once"));
            }
        }
        if !(1..=1_000).contains(&self.rounds) {
            return wrong(format!("{} rounds: from 1 to 1000", self.rounds));
        }
        let least = Duration::from_millis(200);
        let most = Duration::from_secs(3_600);
        if !(least..=most).contains(&self.slice) {
            return wrong("a slice takes from 200ms to 1h".into());
        }
        if self.measure.is_none() && self.slice.saturating_sub(self.settle) < least {
            return wrong("of each slice 200ms or more must be left after --settle".into());
        }
        if self.measure.as_ref().is_some_and(|measure| measure.command.trim().is_empty()) {
            return wrong("--measure is empty: give a command that prints a number".into());
        }
        if matches!(&self.guard, Some(Guard::Command(command)) if command.trim().is_empty()) {
            return wrong("the guard is empty: give a condition as 'p99<2x', or a command".into());
        }
        if self.measure.is_some()
            && let Some(guard @ Guard::Condition(Condition::Rate(_))) = &self.guard
        {
            return wrong(format!(
                "{guard}: nothing is asked before --measure and between its runs if it brings the load, so that a rate \
                 has nothing to compare with: give a time, as in 'p99<500us', or a command"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(guard: Guard, measure: Option<Measure>) -> Options {
        let second = Duration::from_secs(1);
        Options {
            policies: ["a", "b"].map(|name| (name.to_owned(), Policy::BASE)).into(),
            slice: second,
            settle: Duration::ZERO,
            rounds: 6,
            seed: 1,
            guard: Some(guard),
            measure,
        }
    }

    #[test]
    fn a_command_that_is_empty_is_refused() {
        let second = Duration::from_secs(1);
        let refusal = |measure: &str, guard: &str| {
            let measure = Measure { command: measure.into(), higher: false, limit: second };
            let options = of(Guard::Command(guard.into()), Some(measure));
            options.check().err().map(|error| error.to_string())
        };
        assert_eq!(refusal("./load", "./healthy"), None);
        for (measure, guard, beginning) in
            [("", "true", "--measure is empty"), ("./load", " \n", "the guard is empty")]
        {
            let why = refusal(measure, guard).expect("refused");
            assert!(why.starts_with(beginning), "{why}");
        }
    }

    #[test]
    fn a_rate_is_no_guard_beside_a_measure_and_all_others_are() {
        let second = Duration::from_secs(1);
        let refusal = |guard: &str, measured: bool| {
            let measure = Measure { command: "./load".into(), higher: false, limit: second };
            let options = of(guard.parse().expect(guard), measured.then_some(measure));
            options.check().err().map(|error| error.to_string())
        };
        for rate in ["rate>5000", "rate>0.9x"] {
            let why = refusal(rate, true).expect("refused");
            assert!(why.starts_with(rate) && why.contains("give a time"), "{why}");
            assert_eq!(refusal(rate, false), None);
        }
        for guard in ["p99<500us", "p99<2x", "./healthy"] {
            assert_eq!(refusal(guard, true), None);
        }
    }
}
