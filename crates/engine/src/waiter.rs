//! A thread of the application that waits: where it sleeps, which CPU it wants, how it spends its
//! time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use napkin_core::{CpuId, Ns};

use crate::activity::{Meter, Role};
use crate::parker::Parker;
use crate::shared::Shared;
use crate::thread::current_tid;
use napkin_os::clock;

/// Where one waiting thread of the application sleeps.
#[derive(Debug)]
pub(crate) struct Waiter {
    parker: Parker,
    shared: Arc<Shared>,
    /// The CPU on which the application says it runs.
    cpu: CpuId,
    asleep: AtomicBool,
    meter: Mutex<Option<(i32, Meter)>>,
}

impl Waiter {
    /// A waiter that wants its CPU until it sleeps for the first time.
    pub(crate) fn new(shared: Arc<Shared>, cpu: CpuId) -> Arc<Waiter> {
        shared.cpu(cpu).want(1);
        let waiter = Arc::new(Waiter {
            parker: Parker::default(),
            cpu,
            asleep: AtomicBool::new(false),
            meter: Mutex::default(),
            shared,
        });
        waiter.shared.waiting(&waiter);
        waiter
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Sleeps until woken, until `deadline`, or until the engine stops.
    pub(crate) fn sleep(&self, deadline: Ns, meter: &mut Meter) {
        if self.shared.stopping.load(Ordering::Acquire) {
            return;
        }
        meter.leave(clock::now());
        self.parker.park(deadline, || {
            self.asleep.store(true, Ordering::Release);
            self.shared.cpu(self.cpu).want(-1);
        });
        self.awake();
        meter.woken(clock::now());
    }

    /// Wakes the thread. From this moment on it wants its CPU, whether or not it runs yet.
    #[inline]
    pub(crate) fn wake(&self) {
        if self.parker.unpark() {
            self.awake();
        }
    }

    fn awake(&self) {
        if self.asleep.load(Ordering::Acquire) && self.asleep.swap(false, Ordering::AcqRel) {
            self.shared.cpu(self.cpu).want(1);
        }
    }

    /// Runs `call` with the calling thread's meter: the time since the last call was the
    /// application's work. `None` if another thread is in such a call.
    pub(crate) fn metered<T>(&self, call: impl FnOnce(&mut Meter) -> T) -> Option<T> {
        let mut slot = match self.meter.try_lock() {
            Ok(slot) => slot,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => return None,
        };
        let tid = current_tid();
        let (_, meter) = match &mut *slot {
            Some(entry) if entry.0 == tid => entry,
            slot => {
                // Another thread waited here before: its time is in the books no longer than
                // somebody looks at it. Let go of first, so that entering the new one forgets it.
                if let Some((_, before)) = slot.take() {
                    before.activity.set_tid(0);
                }
                let name = std::thread::current().name().unwrap_or("application").to_owned();
                let activity = self.shared.register(Role::Application, name);
                activity.set_tid(tid);
                slot.insert((tid, Meter::new(activity, clock::now())))
            }
        };
        meter.returned(clock::now());
        self.parker.forget();
        let _found = self.shared.on_unwind();
        let result = call(meter);
        meter.left(clock::now());
        Some(result)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if !self.asleep.load(Ordering::Acquire) {
            self.shared.cpu(self.cpu).want(-1);
        }
        let slot = self.meter.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, meter)) = slot {
            meter.activity.set_tid(0);
        }
    }
}
