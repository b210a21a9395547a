//! A policy for as long as something runs.

use std::time::{Duration, Instant};

use super::again::{Again, again};
use super::backend::Backend;
use super::error::ApplyError;
use super::execute::{Applied, Request, held};
use super::linux::Linux;
use super::located::located;
use super::restored::DeviceRestored;
use super::suspension::confirm_off;
use super::undo::undo;
use crate::journal::{DeviceJournal, Lock, Store, sole_writer};
use napkin_os::signals::Signals;

/// The longest single wait; longer ones are several.
const STEP: Duration = Duration::from_secs(3_600);

/// What is told, once, of a stop that comes while a policy is in force that nobody else watches and puts back.
pub const NOT_STOPPED: &str = "a stop (Ctrl-Z) is ignored, as the policy in force would not be watched; \
                               Ctrl-C puts it back";

/// How a hold came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Its time was up.
    Time,
    /// This signal came.
    Signal(i32),
}

/// A policy that is applied to a device until this is dropped or [`Temporary::restore`]d; no other napkin
/// can change the device meanwhile.
///
/// What was there before comes back, be it another policy that was applied for good. If the process
/// is killed, the journal knows, and `napkin restore` puts back what was before all of them.
#[derive(Debug)]
pub struct Temporary<W: Backend = Linux> {
    backend: W,
    applied: Applied,
    store: Store,
    journal: DeviceJournal,
    restored: bool,
    // Given up last.
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
        let (applied, journal, lock) = held(&mut backend, store, request)?;
        let store = store.clone();
        Ok(Temporary { backend, applied, store, journal, restored: false, _lock: lock })
    }

    #[cfg(test)]
    pub(super) fn backend(&mut self) -> &mut W {
        &mut self.backend
    }

    /// What was applied.
    pub fn applied(&self) -> &Applied {
        &self.applied
    }

    /// Waits until the time is up or one of the signals comes; block them before applying.
    pub fn wait(&self, signals: &Signals, limit: Duration) -> Ended {
        let start = Instant::now();
        loop {
            let left = limit.saturating_sub(start.elapsed());
            match signals.wait(left.min(STEP)) {
                Some(came) => return Ended::Signal(came.signal),
                None if left.is_zero() => return Ended::Time,
                None => {}
            }
        }
    }

    /// Leaves it in force, as if it had been [`apply`](super::apply())ed, and gives up the lock.
    pub fn leave(mut self) {
        self.restored = true;
        let _sole = sole_writer();
        let Applied { before, plan, .. } = &self.applied;
        // If that cannot be written a guard may give one back, as under any hold.
        if let Ok(mut journal) = self.store.reopen(&self.journal) {
            let spots = journal.records().iter().map(|record| &record.spot);
            journal.locate(located(before, spots));
            let _ = plan.off.iter().try_for_each(|it| confirm_off(&mut journal, before, it));
        }
    }

    /// Puts back what was before.
    ///
    /// # Errors
    /// If the kernel or the journal does not answer; then the journal still knows.
    pub fn restore(mut self) -> Result<DeviceRestored, ApplyError> {
        self.put_back()
    }

    pub(super) fn put_back(&mut self) -> Result<DeviceRestored, ApplyError> {
        self.restored = true;
        let _sole = sole_writer();
        // A guard may have written into it meanwhile. What cannot be read is known from before.
        if let Ok(journal) = self.store.reopen(&self.journal) {
            self.journal = journal;
        }
        let Applied { before, done, .. } = &self.applied;
        let ifname = before.device.ifname.clone();
        // Its instances may have been made anew meanwhile, and it may be another device.
        match again(&mut self.backend, before.device.ifindex, before.identity)? {
            Again::There(at) => Ok(undo(&mut self.backend, &mut self.journal, before, &at, done)),
            Again::Gone => {
                self.journal.drop_all()?;
                Ok(DeviceRestored { ifname, gone: true, ..DeviceRestored::default() })
            }
            Again::Away(why) => {
                let kept = self.journal.records().len();
                Ok(DeviceRestored { ifname, kept, away: Some(why), ..DeviceRestored::default() })
            }
        }
    }
}

impl<W: Backend> Drop for Temporary<W> {
    fn drop(&mut self) {
        if !self.restored {
            // There is nobody to tell; what could not be put back is in the journal.
            let _ = self.put_back();
        }
    }
}

impl Temporary<Linux> {
    /// Applies a policy to the running kernel, with the journal where the environment says.
    ///
    /// # Errors
    /// As [`Temporary::apply`].
    pub fn here(request: &Request<'_>) -> Result<Temporary, ApplyError> {
        let store = Store::open()?;
        Temporary::apply(Linux::open()?, &store, request)
    }
}
