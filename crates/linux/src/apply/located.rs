//! Where a place is now that was written down some time ago.
//!
//! A driver that keeps its instances' settings keeps them by NAPI id: after a change of channels the
//! instance of that id may poll other queues, or be away, and what was set comes back with it. So
//! the id is what a place is found by first. A driver that keeps nothing makes each instance anew,
//! with an id that is higher than any before: where the id is gone, the queues lead to the instance
//! only if that is younger. An older one has been there all the time, and is another.

use std::collections::BTreeSet;

use super::backend::Snapshot;
use crate::place::{Instance, Place, Spot};

/// Where each of these is now; `None` if its instance is not there (any more).
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
    /// The same of another instance.
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
