//! How many of the settings that napkin has changed are as it set them, and how many somebody else
//! has set since.
//!
//! Told from the journals of this network namespace, which only who made the changes can read.

use napkin_linux::apply::{Linux, difference};
use napkin_linux::journal::{Found, Store};

use crate::families::{Family, Kind, Series};

/// The journals, looked at again at each sample.
#[derive(Debug)]
pub struct Drift {
    store: Store,
}

impl Drift {
    /// `None` if there is no place for journals here.
    pub fn open() -> Option<Drift> {
        Store::open().ok().map(|store| Drift { store })
    }

    /// Its family; `None` where the journals, or the kernel, cannot be read.
    pub(crate) fn family(&mut self) -> Option<Family> {
        let found = self.store.survey().ok()?;
        let devices = found.into_iter().filter_map(|found| match found {
            Found::Device(journal) if !journal.stale() => Some(journal.ifname().to_owned()),
            _ => None,
        });
        let devices: Vec<String> = devices.collect();
        let mut series = Vec::new();
        // Without a journal the kernel is not asked for anything.
        let mut backend = if devices.is_empty() { None } else { Linux::open().ok() };
        for device in devices {
            // One that has gone drifts no more.
            let Some(changed) =
                backend.as_mut().and_then(|backend| difference(backend, &self.store, &device).ok())
            else {
                continue;
            };
            let foreign = changed.iter().filter(|it| it.foreign).count();
            for (by, count) in [("napkin", changed.len() - foreign), ("other", foreign)] {
                let labels = vec![("device", device.clone()), ("by", by.to_owned())];
                series.push(Series { labels, value: count as f64 });
            }
        }
        (!series.is_empty()).then_some(Family {
            name: "napkin_changed_settings",
            kind: Kind::Gauge,
            help: "Settings of a device that napkin has changed: as it set them (napkin), or set by somebody else since (other).",
            series,
        })
    }
}
