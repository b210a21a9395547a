//! The record of one place of a device, and the origin of its current value.

use serde::Serialize;

use crate::place::{Spot, ThreadId, Value};

/// The recorded history of one place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Record {
    /// The place, as of its last change.
    #[serde(flatten)]
    pub spot: Spot,
    /// The value before napkin first changed it.
    pub before: Value,
    /// The value that napkin last set.
    pub set: Value,
    /// The values that napkin had set before, if it changed the place more than once.
    pub earlier: Vec<Value>,
    /// The thread that was changed, for a place of a thread: an instance may keep a thread that it no longer
    /// uses.
    pub thread: Option<ThreadId>,
    /// Whether there was a line that changes nothing, and only records the value at that time.
    #[serde(skip)]
    pub written_down: bool,
    /// A value that napkin set, and that a later policy found in place and wants. It belongs to that policy
    /// then, and does so again when a later change is undone.
    #[serde(skip)]
    pub confirmed: Option<Value>,
}

/// The origin of a place's current value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The original value, or one that napkin did not change.
    Before,
    /// Napkin set it.
    Ours,
    /// Another program set it.
    Foreign,
    /// The place does not exist (any more).
    Gone,
}

impl Record {
    /// Whether napkin has changed nothing, and only remembers the value.
    pub fn is_remembered(&self) -> bool {
        self.before == self.set && self.earlier.is_empty()
    }

    /// Whether the value set last is wanted by a policy.
    pub fn is_confirmed(&self) -> bool {
        self.confirmed.as_ref() == Some(&self.set)
    }

    /// Returns the origin of the value `now`, with these CPUs online.
    pub fn judge(&self, now: Option<&Value>, on: &[usize]) -> Standing {
        match now {
            None => Standing::Gone,
            Some(now) if *now == self.before => Standing::Before,
            // Another program's change, where napkin has changed nothing.
            Some(_) if self.is_remembered() => Standing::Before,
            // An earlier value is in place if napkin died between writing the line and making the change.
            Some(now) if *now == self.set || self.earlier.contains(now) => Standing::Ours,
            // An interrupted restore gave a thread those of its CPUs that are online.
            Some(now) if self.spot.place.is_online_part_of(&self.before, now, on) => {
                Standing::Before
            }
            Some(now) if self.spot.place.is_offline_fallback(&self.set, now, on) => Standing::Ours,
            Some(_) => Standing::Foreign,
        }
    }
}
