//! The raw figures of one round: medians by name, in nanoseconds.
//!
//! A name denotes the step that was timed ("call.recv"). [`derive`](super::derive) assigns raw figures to the keys
//! of a profile, by differences within one round, so that a slow phase of this machine affects both terms.

use std::collections::BTreeMap;

use napkin_measure::interleave::median;

/// Fewer samples than this are discarded.
const LEAST: usize = 5;

/// The raw figures of one round.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Round(pub BTreeMap<String, f64>);

impl Round {
    /// The figure of this name; `None` if this round has not measured it.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }

    /// Sets a figure.
    pub fn put(&mut self, name: impl Into<String>, value: f64) {
        self.0.insert(name.into(), value);
    }
}

/// Samples by name, collected during a round.
#[derive(Debug, Default)]
pub(super) struct Samples(BTreeMap<String, Vec<f64>>);

impl Samples {
    pub(super) fn add(&mut self, name: &str, value: f64) {
        match self.0.get_mut(name) {
            Some(samples) => samples.push(value),
            None => drop(self.0.insert(name.to_owned(), vec![value])),
        }
    }

    /// Adds the medians to `round`, except of names with too few samples.
    pub(super) fn into_round(self, round: &mut Round) {
        for (name, samples) in self.0 {
            if samples.len() >= LEAST
                && let Some(median) = median(samples)
            {
                round.put(name, median);
            }
        }
    }
}
