//! Counts how many settings changed by napkin are still as it set them, and how many another program has
//! changed since.
//!
//! The counts come from the journals of this network namespace, which only the user that made the changes can read.

use std::collections::BTreeMap;

use napkin_keep::{Directory, State, Survey};
use napkin_linux::apply::{Difference, Linux, difference_of};
use napkin_linux::journal::{DeviceJournal, Found, Store};
use napkin_linux::place::Place;

use crate::families::{Family, Kind, Series};

/// The journals and the wishes, read again at each sample.
#[derive(Debug)]
pub struct Drift {
    /// `None` if there is no journal directory.
    store: Option<Store>,
    wishes: Directory,
}

impl Drift {
    /// Opens the journals and the wishes of this network namespace.
    pub fn open() -> Drift {
        Drift { store: Store::open().ok(), wishes: Directory::here() }
    }

    /// Its families, without those for which the journals, the wishes or the kernel cannot be read.
    pub(crate) fn families(&mut self) -> impl Iterator<Item = Family> {
        [self.changed(), self.wishes()].into_iter().flatten()
    }

    /// The state of the wishes, which any user may read.
    fn wishes(&self) -> Option<Family> {
        let survey = Survey::take(self.wishes.read().ok()?).ok()?;
        if survey.standings.is_empty() && survey.bad.is_empty() {
            return None;
        }
        let count = |state| survey.standings.iter().filter(|it| it.state() == state).count();
        let states = [
            ("held", count(State::Held)),
            ("not_held", count(State::NotHeld)),
            ("refused", count(State::Refused)),
            ("bad", survey.bad.len()),
        ];
        let labels = |state: &str| vec![("state", state.to_owned())];
        let series = states.map(|(state, count)| Series::new(labels(state), count as f64));
        Some(Family {
            name: "napkin_wishes",
            kind: Kind::Gauge,
            help: "Wishes of /etc/napkin: in force (held), not in force (not_held), not to be had here (refused), and files that are wrong (bad).",
            series: series.into(),
        })
    }

    fn changed(&mut self) -> Option<Family> {
        let store = self.store.as_ref()?;
        let found = store.survey().ok()?;
        let journals: Vec<DeviceJournal> = found
            .into_iter()
            .filter_map(|found| match found {
                Found::Device(journal) if !journal.stale() => Some(journal),
                _ => None,
            })
            .collect();
        // Without a journal the kernel need not be queried.
        let mut backend = if journals.is_empty() { None } else { Linux::open().ok() };
        let mut devices: BTreeMap<String, BTreeMap<Place, bool>> = BTreeMap::new();
        for journal in &journals {
            let difference =
                backend.as_mut().and_then(|it| difference_of(it, journal).ok()).flatten();
            // A device that has gone no longer drifts.
            let Some((device, changed)) = difference else { continue };
            let places = devices.entry(device).or_default();
            for Difference { place, foreign, .. } in changed {
                // Of two journals of a device, the first belongs to the process that changed it last; by the
                // other one, that change is foreign.
                places.entry(place).or_insert(foreign);
            }
        }
        let mut series = Vec::new();
        for (device, places) in devices {
            let foreign = places.values().filter(|foreign| **foreign).count();
            for (by, count) in [("napkin", places.len() - foreign), ("other", foreign)] {
                let labels = vec![("device", device.clone()), ("by", by.to_owned())];
                series.push(Series::new(labels, count as f64));
            }
        }
        (!series.is_empty()).then_some(Family {
            name: "napkin_changed_settings",
            kind: Kind::Gauge,
            help: "Settings of a device that napkin has changed: as it set them (napkin), or set by another program since (other).",
            series,
        })
    }
}
