//! Starvation guards for the held devices, while programs of units run.
//!
//! A guard that ends an instance's suspension acts against the wish, and the keeper lets it. The guard
//! restores the suspension after 10 s to try again, and doubles that delay each further time: a unit may run
//! for months, and a single starvation is no reason to go without suspension for all that time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use napkin_kernel::settings::Setting;
use napkin_linux::apply::{ApplyError, Backend, HeldDevice, Kept, Snapshot};
use napkin_linux::guard::{Again, Event, Guard, Options};
use napkin_linux::journal::Store;
use napkin_linux::place::{Place, Value};

/// The maximum number of pending lines.
const MOST: usize = 256;

/// The suspend timeout that switches suspension off.
const OFF: Value = Value::Number(0);

/// The guard of each device.
#[derive(Debug, Default)]
pub(crate) struct Guards {
    by_device: BTreeMap<u32, Option<Guard>>,
    /// Reports of their actions.
    lines: Arc<Mutex<Vec<String>>>,
}

impl Guards {
    /// Guards exactly these devices, whose locks this process holds. Returns the pending reports.
    pub(crate) fn watch(&mut self, devices: BTreeSet<u32>, store: &Store) -> Vec<String> {
        self.by_device.retain(|device, _| devices.contains(device));
        for device in devices {
            if self.by_device.contains_key(&device) {
                continue;
            }
            let held = Some(device);
            let options = Options { only: held, held, again: Again::BACKOFF };
            let lines = Arc::clone(&self.lines);
            let on_event = move |event: &Event| {
                let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
                if lines.len() < MOST {
                    lines.push(event.to_string());
                }
            };
            let guard = Guard::start(options, store, Box::new(on_event));
            if let Err(error) = &guard {
                let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
                lines.push(format!("starved queues are not watched for: {error}"));
            }
            // A guard that could not be started is not tried again at each look.
            self.by_device.insert(device, guard.ok());
        }
        std::mem::take(&mut *self.lines.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Brings a device to the wished values, except where its guard has ended a suspension.
    pub(crate) fn keep<W: Backend>(
        &self,
        held: &HeldDevice,
        backend: &mut W,
        at: &Snapshot,
        wanted: &BTreeMap<Place, Value>,
    ) -> Result<Kept, ApplyError> {
        // Confirm before the lock is released in between, so that the guard does not restore a suspension
        // that is wished off.
        self.confirm_off(held, at, wanted)?;
        let first = self.with_ended_off(at, wanted);
        let mut kept = held.keep(backend, &first)?;
        // Meanwhile the guard may have ended a suspension, which was then set again, or restored one, which
        // was then ended.
        let now = self.with_ended_off(at, wanted);
        if now != first {
            let kept_now = held.keep(backend, &now)?;
            kept.changes.extend(kept_now.changes);
            kept.foreign.extend(kept_now.foreign);
        }
        self.confirm_off(held, at, wanted)?;
        Ok(kept)
    }

    /// Records suspensions that the guard has ended, and that are wished off, as off.
    fn confirm_off(
        &self,
        held: &HeldDevice,
        at: &Snapshot,
        wanted: &BTreeMap<Place, Value>,
    ) -> Result<(), ApplyError> {
        let mut unwanted = self.ended(at, wanted).filter(|(_, value)| **value == OFF).peekable();
        match unwanted.peek() {
            Some(_) => held.confirm_off(at, unwanted.map(|(place, _)| place)),
            None => Ok(()),
        }
    }

    /// The suspensions that this device's guard has ended, with the wished values.
    fn ended<'a>(
        &self,
        at: &Snapshot,
        wanted: &'a BTreeMap<Place, Value>,
    ) -> impl Iterator<Item = (&'a Place, &'a Value)> {
        let guard = self.by_device.get(&at.device.ifindex).and_then(Option::as_ref);
        wanted.iter().filter(move |(place, _)| {
            let Place::Napi(instance, Setting::IrqSuspendTimeout) = place else { return false };
            let napi = at.napi(instance);
            guard.zip(napi).is_some_and(|(guard, napi)| guard.has_ended(napi.id))
        })
    }

    /// The wished values, with suspension off where the guard has ended it. When the guard tries again, or
    /// ends, the suspension is restored, and wished again.
    fn with_ended_off(
        &self,
        at: &Snapshot,
        wanted: &BTreeMap<Place, Value>,
    ) -> BTreeMap<Place, Value> {
        let ended = self.ended(at, wanted).map(|(place, _)| (place.clone(), OFF));
        let mut values = wanted.clone();
        values.extend(ended);
        values
    }
}
