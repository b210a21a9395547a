//! A policy that is in force for a limited time.

use std::time::{Duration, Instant};

use super::backend::Backend;
use super::error::ApplyError;
use super::execute::{Applied, Request, apply_and_hold};
use super::find_device::{DeviceLookup, find_device};
use super::linux::Linux;
use super::located::located;
use super::restored::DeviceRestored;
use super::suspension::confirm_off;
use super::undo::undo;
use crate::journal::{DeviceJournal, Lock, Store, sole_writer};
use napkin_os::signals::Signals;

/// The longest single wait; a longer one is split.
const MAX_WAIT: Duration = Duration::from_secs(3_600);

/// The message printed once when a stop (SIGTSTP) is ignored, while a policy is in force that no other process
/// watches and puts back.
pub const NOT_STOPPED: &str = "a stop (Ctrl-Z) is ignored, as the policy in force would not be watched; \
                               Ctrl-C puts it back";

/// The reason why waiting ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The time limit.
    Time,
    /// This signal.
    Signal(i32),
}

/// A policy that is applied to a device until this is dropped or [`Temporary::restore`]d; the device stays
/// locked meanwhile.
///
/// The previous values are put back, even those of another policy that was applied for good. If the process is
/// killed, `napkin restore` puts back from the journal the values from before all policies.
#[derive(Debug)]
pub struct Temporary<W: Backend = Linux> {
    backend: W,
    applied: Applied,
    store: Store,
    journal: DeviceJournal,
    restored: bool,
    // Released last: fields are dropped in order.
    _lock: Lock,
}

impl<W: Backend> Temporary<W> {
    /// Applies a policy, and keeps the device's lock.
    ///
    /// # Errors
    /// As [`apply`](super::apply); nothing is changed then.
    pub fn apply(
        mut backend: W,
        store: &Store,
        request: &Request<'_>,
    ) -> Result<Temporary<W>, ApplyError> {
        let (applied, journal, lock) = apply_and_hold(&mut backend, store, request)?;
        let store = store.clone();
        Ok(Temporary { backend, applied, store, journal, restored: false, _lock: lock })
    }

    #[cfg(test)]
    pub(super) fn backend(&mut self) -> &mut W {
        &mut self.backend
    }

    /// The outcome of applying the policy.
    pub fn applied(&self) -> &Applied {
        &self.applied
    }

    /// Waits until the time is up or one of the signals comes; block them before applying.
    pub fn wait(&self, signals: &Signals, limit: Duration) -> Ended {
        let start = Instant::now();
        loop {
            let left = limit.saturating_sub(start.elapsed());
            match signals.wait(left.min(MAX_WAIT)) {
                Some(received) => return Ended::Signal(received.signal),
                None if left.is_zero() => return Ended::Time,
                None => {}
            }
        }
    }

    /// Leaves the policy in force, as if it had been [`apply`](super::apply())ed, and releases the lock.
    pub fn leave(mut self) {
        self.restored = true;
        let _sole = sole_writer();
        let Applied { before, plan, .. } = &self.applied;
        // If this cannot be written, a guard may restore a suspension, as it may during any hold.
        if let Ok(mut journal) = self.store.reopen(&self.journal) {
            let spots = journal.records().iter().map(|record| &record.spot);
            journal.locate(located(before, spots));
            let _ = plan.off.iter().try_for_each(|it| confirm_off(&mut journal, before, it));
        }
    }

    /// Puts back the previous values.
    ///
    /// # Errors
    /// If the kernel or the journal does not answer; the journal keeps its records then.
    pub fn restore(mut self) -> Result<DeviceRestored, ApplyError> {
        self.put_back()
    }

    pub(super) fn put_back(&mut self) -> Result<DeviceRestored, ApplyError> {
        self.restored = true;
        let _sole = sole_writer();
        // A guard may have written to the journal meanwhile. If it cannot be read, the older copy serves.
        if let Ok(journal) = self.store.reopen(&self.journal) {
            self.journal = journal;
        }
        let Applied { before, done, .. } = &self.applied;
        let ifname = before.device.ifname.clone();
        // The driver may have created the instances anew meanwhile, and the index may belong to another device.
        match find_device(&mut self.backend, before.device.ifindex, before.identity)? {
            DeviceLookup::Here(at) => {
                Ok(undo(&mut self.backend, &mut self.journal, before, &at, done))
            }
            DeviceLookup::Deleted => {
                self.journal.drop_all()?;
                Ok(DeviceRestored { ifname, gone: true, ..DeviceRestored::default() })
            }
            DeviceLookup::Unreachable(why) => {
                let kept = self.journal.records().len();
                Ok(DeviceRestored { ifname, kept, away: Some(why), ..DeviceRestored::default() })
            }
        }
    }
}

impl<W: Backend> Drop for Temporary<W> {
    fn drop(&mut self) {
        if !self.restored {
            // Drop cannot report an error; what could not be put back remains in the journal.
            let _ = self.put_back();
        }
    }
}

impl Temporary<Linux> {
    /// Applies a policy to the running kernel, with the journal's directory from the environment.
    ///
    /// # Errors
    /// As [`Temporary::apply`].
    pub fn here(request: &Request<'_>) -> Result<Temporary, ApplyError> {
        let store = Store::open()?;
        Temporary::apply(Linux::open()?, &store, request)
    }
}
