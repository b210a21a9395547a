//! A value that another program set after napkin, and that is therefore left alone.

use std::fmt;

use serde::Serialize;

use crate::journal::Record;
use crate::place::{Place, Value, as_json};

/// A place that another program changed after napkin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Foreign {
    /// The device's name.
    pub ifname: String,
    /// The place on the device.
    #[serde(flatten, serialize_with = "as_json")]
    pub place: Place,
    /// The current value.
    pub now: Value,
    /// The value that napkin had set.
    pub set: Value,
    /// The value before napkin first changed it.
    pub before: Value,
}

impl Foreign {
    pub(super) fn of(record: &Record, place: &Place, now: &Value, ifname: &str) -> Foreign {
        Foreign {
            ifname: ifname.to_owned(),
            place: place.clone(),
            now: now.clone(),
            set: record.set.clone(),
            before: record.before.clone(),
        }
    }

    /// Whether an interrupt is routed to several CPUs and to none of those that were set. The kernel does so
    /// when the CPU goes offline for a time, as all but one do while a host is suspended.
    fn may_be_the_kernels(&self) -> bool {
        match (&self.place, &self.now, &self.set) {
            (Place::IrqCpus(_), Value::Cpus(now), Value::Cpus(set)) => {
                now.len() > 1 && !set.iter().any(|cpu| now.contains(cpu))
            }
            _ => false,
        }
    }
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Foreign { ifname, place, now, set, before } = self;
        let [now, set, before] = [now, set, before].map(|value| place.show(value));
        let (what, subject) = (place.what(), place.subject());
        write!(
            f,
            "{what} of {ifname} {subject} is {now}; napkin had set {set}, before it was {before}"
        )?;
        if self.may_be_the_kernels() {
            write!(f, " (the kernel's doing, if CPU {set} was off meanwhile)")?;
        }
        Ok(())
    }
}
