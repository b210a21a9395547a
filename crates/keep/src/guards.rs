//! Guards against starvation over the devices that are held, while programs of units run.
//!
//! A guard that ends an instance's suspension does so against the wish: the keeper leaves that to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use napkin_kernel::settings::Setting;
use napkin_linux::apply::Snapshot;
use napkin_linux::guard::{Event, EventKind, Guard, Options};
use napkin_linux::journal::Store;
use napkin_linux::place::{Place, Value};

/// The most lines that wait to be told.
const MOST: usize = 256;

/// What guards have done.
#[derive(Debug, Default)]
struct Done {
    /// Instances whose suspension is ended.
    ended: BTreeSet<u32>,
    lines: Vec<String>,
}

/// A guard for each device.
#[derive(Debug, Default)]
pub(crate) struct Guards {
    by_device: BTreeMap<u32, Option<Guard>>,
    done: Arc<Mutex<Done>>,
}

impl Guards {
    /// Watches these devices, whose locks this process holds, and no others. Gives what there is to tell.
    pub(crate) fn watch(&mut self, devices: BTreeSet<u32>, store: &Store) -> Vec<String> {
        self.by_device.retain(|device, _| devices.contains(device));
        for device in devices {
            if self.by_device.contains_key(&device) {
                continue;
            }
            let options = Options { only: Some(device), held: Some(device), ..Options::default() };
            let done = Arc::clone(&self.done);
            let tell = move |event: &Event| {
                let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                match event.kind {
                    EventKind::Ended { .. } => done.ended.insert(event.napi_id),
                    EventKind::Again { .. } => done.ended.remove(&event.napi_id),
                    _ => false,
                };
                if done.lines.len() < MOST {
                    done.lines.push(event.to_string());
                }
            };
            let guard = Guard::start(options, store, Box::new(tell));
            if let Err(error) = &guard {
                let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
                done.lines.push(format!("nobody watches for starved queues: {error}"));
            }
            // One that cannot be is not tried at each look.
            self.by_device.insert(device, guard.ok());
        }
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        if self.by_device.is_empty() {
            // With a guard's end its suspensions are given back.
            done.ended.clear();
        }
        std::mem::take(&mut done.lines)
    }

    /// Wants no suspension of an instance whose suspension a guard has ended.
    pub(crate) fn excuse(&self, at: &Snapshot, wanted: &mut BTreeMap<Place, Value>) {
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        for (place, value) in wanted {
            if let Place::Napi(instance, Setting::IrqSuspendTimeout) = place
                && at.napi(instance).is_some_and(|napi| done.ended.contains(&napi.id))
            {
                *value = Value::Number(0);
            }
        }
    }
}
