//! Taking back the changes of one apply: those before it, and other people's, stay.

use super::error::ApplyError;
use super::execute::set;
use super::place::{Change, Place, Value};
use super::plan::sort;
use super::restored::{DeviceRestored, Failed, Foreign};
use super::world::{Snapshot, World};
use crate::journal::DeviceJournal;

impl DeviceRestored {
    /// What could not be put back, in words.
    pub(super) fn left(&self) -> Vec<String> {
        let foreign = self.foreign.iter().map(Foreign::to_string);
        foreign.chain(self.failed.iter().map(|failed| failed.why.clone())).collect()
    }
}

/// Puts every place of `done` back to what it was, if it is still what was set.
///
/// Each step is written down like any other change. When a place is again what it was before napkin
/// first changed it, the journal forgets it.
pub(super) fn undo<W: World>(
    world: &mut W,
    journal: &mut DeviceJournal,
    at: &Snapshot,
    done: &[Change],
) -> DeviceRestored {
    let mut restored = DeviceRestored::of(at);
    let mut back: Vec<(&Place, &Value, &Value)> = done
        .iter()
        .filter_map(|change| Some((&change.place, change.old.as_ref()?, &change.new)))
        .collect();
    sort(&mut back, |(place, old, _)| (place, old));
    for (place, old, new) in back {
        match one(world, journal, at, place, old, new) {
            Ok(Outcome::Set) => restored.changes.push(Change {
                place: place.clone(),
                old: Some(new.clone()),
                new: old.clone(),
            }),
            Ok(Outcome::WasSo) => {}
            Ok(Outcome::Missing) => restored.missing.push(place.clone()),
            Ok(Outcome::Other(now)) => restored.foreign.push(Foreign {
                ifname: at.device.ifname.clone(),
                place: place.clone(),
                now,
                set: new.clone(),
                before: old.clone(),
            }),
            Err(error) => {
                restored.failed.push(Failed { place: place.clone(), why: error.to_string() });
            }
        }
    }
    let missing = restored.missing.clone();
    let kept =
        journal.keep(|record| record.set != record.before || missing.contains(&record.place));
    if let Err(error) = kept {
        restored.journal = Some(error.to_string());
    }
    restored.kept = journal.records().len();
    restored
}

enum Outcome {
    Set,
    WasSo,
    Missing,
    Other(Value),
}

fn one<W: World>(
    world: &mut W,
    journal: &mut DeviceJournal,
    at: &Snapshot,
    place: &Place,
    old: &Value,
    new: &Value,
) -> Result<Outcome, ApplyError> {
    match world.read(at, place)? {
        // With its thread, as it should.
        None if place.of_thread() => {
            journal.before(place, new, old)?;
            Ok(Outcome::WasSo)
        }
        None => Ok(Outcome::Missing),
        Some(now) if now == *old => {
            journal.before(place, new, old)?;
            Ok(Outcome::WasSo)
        }
        Some(now) if now == *new => {
            set(world, journal, at, place, new, old)?;
            Ok(Outcome::Set)
        }
        Some(now) => Ok(Outcome::Other(now)),
    }
}
