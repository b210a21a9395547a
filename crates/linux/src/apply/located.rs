//! Maps recorded places to their current locations.
//!
//! A driver that keeps the settings of its instances keeps them by NAPI id: after a change of channels the
//! instance with that id may poll other queues, or be absent, and its settings return with it. A place is
//! therefore found by the id first. A driver that keeps nothing creates each instance anew, with an id above
//! all earlier ones: where the id is gone, the queues identify the instance only if its id is higher. An
//! instance with a lower id existed all the time, and is a different one.

use std::collections::BTreeSet;

use super::backend::Snapshot;
use crate::place::{Instance, Place, Spot};

/// Returns the current location of each spot; `None` if its instance does not exist (any more).
pub(super) fn located<'a>(
    at: &Snapshot,
    spots: impl Iterator<Item = &'a Spot> + Clone,
) -> Vec<Option<Spot>> {
    let by_id = |spot: &Spot| {
        let instance = spot.napi_id.and_then(|id| at.by_id(id))?;
        Some(Spot { place: spot.place.of(instance), napi_id: spot.napi_id })
    };
    let taken: BTreeSet<Spot> = spots.clone().filter_map(by_id).collect();
    let by_queues = |spot: &Spot| {
        let Some(instance) = spot.place.instance() else { return Some(spot.clone()) };
        let found = Spot { place: spot.place.clone(), napi_id: Some(at.napi(instance)?.id) };
        let younger = spot.napi_id.is_none_or(|id| found.napi_id > Some(id));
        (younger && !taken.contains(&found)).then_some(found)
    };
    spots.map(|spot| by_id(spot).or_else(|| by_queues(spot))).collect()
}

impl Place {
    /// The same place of another instance.
    fn of(&self, instance: &Instance) -> Place {
        let instance = instance.clone();
        match self {
            Place::Napi(_, setting) => Place::Napi(instance, *setting),
            Place::ThreadCpus(_) => Place::ThreadCpus(instance),
            Place::ThreadClass(_) => Place::ThreadClass(instance),
            Place::IrqCpus(_) => Place::IrqCpus(instance),
            Place::Device(setting) => Place::Device(*setting),
        }
    }
}
