//! What is different on a device from what it was before napkin changed it.

use serde::Serialize;

use super::backend::{Backend, Snapshot, Target};
use super::error::{ApplyError, BackendError};
use super::located::located;
use crate::journal::{DeviceJournal, Standing, Store};
use crate::place::{Place, Value, as_json};

/// One place that is not as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Difference {
    /// The place on the device, or the setting of the process.
    #[serde(flatten, serialize_with = "as_json")]
    pub place: Place,
    /// What it was before napkin changed it.
    pub before: Value,
    /// What napkin last set.
    pub set: Value,
    /// What it is now; `None`: it is not there.
    pub now: Option<Value>,
    /// Whether somebody else set that.
    pub foreign: bool,
}

/// What is different since napkin first changed a device, from its journal.
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

/// The same of a journal that was found, with what its device is called now; `None` if that is not here.
///
/// # Errors
/// If the kernel does not answer.
pub fn difference_of<W: Backend>(
    backend: &mut W,
    journal: &DeviceJournal,
) -> Result<Option<(String, Vec<Difference>)>, ApplyError> {
    let mut at = numbered(backend, journal.ifindex())?;
    if let Some(identity) = journal.identity() {
        // Another may have its number now.
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
