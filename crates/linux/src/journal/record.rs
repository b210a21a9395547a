//! What the journal knows of one place of a device, and whose its value is now.

use serde::Serialize;

use crate::place::{Spot, ThreadId, Value};

/// All that is known of one place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Record {
    /// Where, when it was last changed.
    #[serde(flatten)]
    pub spot: Spot,
    /// What it was before napkin changed it first.
    pub before: Value,
    /// What napkin last set.
    pub set: Value,
    /// What napkin had set before that, if it changed it more than once.
    pub earlier: Vec<Value>,
    /// The thread that was changed, if it is a thread's: an instance may keep one that it no longer
    /// uses.
    pub thread: Option<ThreadId>,
    /// Whether there was a line that changes nothing: one that only writes down what was there.
    #[serde(skip)]
    pub written_down: bool,
    /// What was set, and found so since by a policy that wants it so: it is that policy's then, and is again when
    /// a later change is undone.
    #[serde(skip)]
    pub confirmed: Option<Value>,
}

/// Whose a value is that a place has now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It is as it was before napkin changed it, or napkin has not.
    Before,
    /// Napkin set it.
    Ours,
    /// Somebody else set it.
    Foreign,
    /// The place is not there (any more).
    Gone,
}

impl Record {
    /// Whether napkin has changed nothing there, and only remembers what it was.
    pub fn is_remembered(&self) -> bool {
        self.before == self.set && self.earlier.is_empty()
    }

    /// Whether what was last set is what a policy wants.
    pub fn is_confirmed(&self) -> bool {
        self.confirmed.as_ref() == Some(&self.set)
    }

    /// Whose the value is, where these CPUs are on.
    pub fn judge(&self, now: Option<&Value>, on: &[usize]) -> Standing {
        match now {
            None => Standing::Gone,
            Some(now) if *now == self.before => Standing::Before,
            // Whoever changed that changed nothing of ours.
            Some(_) if self.is_remembered() => Standing::Before,
            // An earlier one is there if we died between the line and the change.
            Some(now) if *now == self.set || self.earlier.contains(now) => Standing::Ours,
            // A restore that was interrupted gave a thread what is on of its CPUs.
            Some(now) if self.spot.place.is_left_of(&self.before, now, on) => Standing::Before,
            Some(now) if self.spot.place.is_driven_off(&self.set, now, on) => Standing::Ours,
            Some(_) => Standing::Foreign,
        }
    }
}
