//! The differences between a device's current state and its state before napkin changed it.

use serde::Serialize;

use super::backend::{Backend, Snapshot, Target};
use super::error::{ApplyError, BackendError};
use super::located::located;
use crate::journal::{DeviceJournal, Standing, Store};
use crate::place::{Place, Value, as_json};

/// A place whose value differs from the original.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Difference {
    /// The place on the device.
    #[serde(flatten, serialize_with = "as_json")]
    pub place: Place,
    /// The value before napkin first changed it.
    pub before: Value,
    /// The value that napkin last set.
    pub set: Value,
    /// The current value; `None` if the place is gone.
    pub now: Option<Value>,
    /// Whether another program set the current value.
    pub foreign: bool,
}

/// Returns the differences since napkin first changed a device, from its journal.
///
/// # Errors
/// If there is no such device, or its journal cannot be read.
pub fn difference<W: Backend>(
    backend: &mut W,
    store: &Store,
    ifname: &str,
) -> Result<Vec<Difference>, ApplyError> {
    let at = backend.look(Target::Name(ifname))?;
    let journal = store.device(at.device.ifindex, ifname, at.identity)?;
    Ok(since(&journal, &at))
}

/// Returns the same for a given journal, with the device's current name; `None` if the device is not in this
/// namespace.
///
/// # Errors
/// If the kernel does not answer.
pub fn difference_of<W: Backend>(
    backend: &mut W,
    journal: &DeviceJournal,
) -> Result<Option<(String, Vec<Difference>)>, ApplyError> {
    let mut at = numbered(backend, journal.ifindex())?;
    if let Some(identity) = journal.identity() {
        // Another device may have its interface index now.
        at = at.filter(|at| at.identity.is_none_or(|its| its == identity));
        if at.is_none()
            && let Some(ifindex) = backend.here(identity)?
        {
            at = numbered(backend, ifindex)?;
        }
    }
    Ok(at.map(|at| {
        let different = since(journal, &at);
        (at.device.ifname, different)
    }))
}

fn numbered<W: Backend>(backend: &mut W, ifindex: u32) -> Result<Option<Snapshot>, BackendError> {
    match backend.look(Target::Index(ifindex)) {
        Ok(at) => Ok(Some(at)),
        Err(error) if error.is_absent() => Ok(None),
        Err(error) => Err(error),
    }
}

fn since(journal: &DeviceJournal, at: &Snapshot) -> Vec<Difference> {
    let now = located(at, journal.records().iter().map(|record| &record.spot));
    let different = journal.records().iter().zip(now).filter_map(|(record, spot)| {
        let now = spot.as_ref().and_then(|spot| at.values.get(&spot.place));
        let place = spot.map_or_else(|| record.spot.place.clone(), |spot| spot.place);
        let standing = record.judge(now, &at.cpus);
        let vanished = standing == Standing::Gone && place.of_thread();
        (standing != Standing::Before && !vanished).then(|| Difference {
            place,
            before: record.before.clone(),
            set: record.set.clone(),
            now: now.cloned(),
            foreign: standing == Standing::Foreign,
        })
    });
    different.collect()
}
