//! What one round measures: raw medians, by name, in nanoseconds.
//!
//! A name is the step as it was timed ("call.recv"); what of it belongs to which key of a profile is
//! decided in [`derive`](super::derive), by differences within one round, so that a slow moment of this
//! machine is in both.

use std::collections::BTreeMap;

use napkin_measure::interleave::median;

/// Fewer samples than this say nothing.
const LEAST: usize = 5;

/// Raw figures of one round.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Round(pub BTreeMap<String, f64>);

impl Round {
    /// A figure; `None` if this round has not measured it.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }

    /// Adds a figure.
    pub fn put(&mut self, name: impl Into<String>, value: f64) {
        self.0.insert(name.into(), value);
    }
}

/// Samples by name, until a round is over.
#[derive(Debug, Default)]
pub(super) struct Samples(BTreeMap<String, Vec<f64>>);

impl Samples {
    pub(super) fn add(&mut self, name: &str, value: f64) {
        match self.0.get_mut(name) {
            Some(samples) => samples.push(value),
            None => drop(self.0.insert(name.to_owned(), vec![value])),
        }
    }

    /// The medians of what has enough samples.
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
