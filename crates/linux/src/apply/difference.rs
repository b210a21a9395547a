//! What is different on a device from what it was before napkin changed it.

use serde::Serialize;

use super::backend::{Backend, Target};
use super::error::ApplyError;
use super::located::located;
use crate::journal::{Standing, Store};
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
    let now = located(&at, journal.records().iter().map(|record| &record.spot));
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
    Ok(different.collect())
}
