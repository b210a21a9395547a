//! A waiting thread of the application: its sleep, the CPU that it wants, and the account of its time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use napkin_core::{CpuId, Ns, Pass};

use crate::activity::{Meter, Role};
use crate::drive::{self, Ended, Hooks};
use crate::parker::Parker;
use crate::port::Port;
use crate::shared::Shared;
use crate::thread::current_tid;
use crate::wait_error::WaitError;
use napkin_os::clock;

/// The threads of the application that wait in one engine, to be woken when it stops.
#[derive(Debug)]
pub(crate) struct Waiters {
    pub(crate) shared: Arc<Shared>,
    all: Mutex<Vec<Weak<Waiter>>>,
}

impl Waiters {
    pub(crate) fn new(shared: Arc<Shared>) -> Arc<Waiters> {
        Arc::new(Waiters { shared, all: Mutex::default() })
    }

    fn all(&self) -> MutexGuard<'_, Vec<Weak<Waiter>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a thread, which wants its CPU until it sleeps for the first time.
    ///
    /// # Panics
    /// If the engine has no such CPU.
    pub(crate) fn add(self: &Arc<Self>, cpu: CpuId) -> Arc<Waiter> {
        assert!(usize::from(cpu.0) < self.shared.cpus.len(), "no CPU {}", cpu.0);
        self.shared.cpu(cpu).want(1);
        let waiter = Arc::new(Waiter {
            waiters: Arc::clone(self),
            parker: Parker::default(),
            cpu,
            asleep: AtomicBool::new(false),
            waker_fired: AtomicBool::new(false),
            meter: Mutex::default(),
        });
        let mut all = self.all();
        all.retain(|waiter| waiter.strong_count() > 0);
        all.push(Arc::downgrade(&waiter));
        waiter
    }

    /// Wakes all sleeping threads.
    pub(crate) fn wake(&self) {
        self.all().iter().filter_map(Weak::upgrade).for_each(|waiter| waiter.wake());
    }
}

/// One waiting thread of the application, and its sleep.
#[derive(Debug)]
pub(crate) struct Waiter {
    waiters: Arc<Waiters>,
    parker: Parker,
    /// The CPU on which the application says it runs.
    cpu: CpuId,
    asleep: AtomicBool,
    /// Whether a [`Waker`] has ended the current wait, or ends the next.
    waker_fired: AtomicBool,
    meter: Mutex<Option<(i32, Meter)>>,
}

impl Waiter {
    /// The waiters of its engine.
    pub(crate) fn waiters(&self) -> &Arc<Waiters> {
        &self.waiters
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.waiters.shared
    }

    /// Schedules the queue of a receiver that has drained, in case it is parked.
    pub(crate) fn drained(&self, napi_id: u32) {
        if let Some(id) = self.shared().instance_of(napi_id) {
            drive::schedule(self.shared(), id);
        }
    }

    /// Takes the steps of a wait to its end, and returns the pass.
    ///
    /// # Errors
    /// If another thread is in such a call, or the engine was stopped.
    pub(crate) fn drive<P: Pass<Port>>(
        &self,
        mut pass: P,
        hooks: &mut impl Hooks,
    ) -> Result<P, WaitError> {
        let shared = self.shared();
        let stopped = || shared.stopping.load(Ordering::Acquire);
        let waited = self.metered(move |meter| {
            let mut ended = drive::drive(shared, &mut pass, meter, hooks);
            while let Ended::Sleep(deadline) = ended {
                self.sleep(deadline, meter);
                if stopped() {
                    break;
                }
                ended = drive::resume(shared, &mut pass, meter, hooks);
            }
            pass
        });
        match waited {
            None => Err(WaitError::Busy),
            Some(_) if stopped() => Err(WaitError::Stopped),
            Some(pass) => Ok(pass),
        }
    }

    /// Sleeps until woken, until `deadline`, or until the engine stops.
    pub(crate) fn sleep(&self, deadline: Ns, meter: &mut Meter) {
        if self.shared().stopping.load(Ordering::Acquire) {
            return;
        }
        meter.leave(clock::now());
        self.parker.park(deadline, || {
            self.asleep.store(true, Ordering::Release);
            self.shared().cpu(self.cpu).want(-1);
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

    /// Ends the current wait, or the next.
    fn fire_waker(&self) {
        self.waker_fired.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether a [`Waker`] ends this wait; clears the mark. Called by the looks of the wait.
    pub(crate) fn take_waker(&self) -> bool {
        self.waker_fired.load(Ordering::Relaxed) && self.waker_fired.swap(false, Ordering::Acquire)
    }

    fn awake(&self) {
        if self.asleep.load(Ordering::Acquire) && self.asleep.swap(false, Ordering::AcqRel) {
            self.shared().cpu(self.cpu).want(1);
        }
    }

    /// Runs `call` with the calling thread's meter: the time since the last call was the
    /// application's work. `None` if another thread is in such a call.
    pub(crate) fn metered<T>(&self, call: impl FnOnce(&mut Meter) -> T) -> Option<T> {
        let mut slot = match self.meter.try_lock() {
            Ok(slot) => slot,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let tid = current_tid();
        let (_, meter) = match &mut *slot {
            Some(entry) if entry.0 == tid => entry,
            slot => {
                // Another thread waited here before: its account lives only as long as a reader holds it. Dropped
                // first, so that registering the new thread removes it.
                if let Some((_, before)) = slot.take() {
                    before.activity.set_tid(0);
                }
                let name = std::thread::current().name().unwrap_or("application").to_owned();
                let activity = self.shared().register(Role::Application, name);
                activity.set_tid(tid);
                slot.insert((tid, Meter::new(activity, clock::now())))
            }
        };
        meter.returned(clock::now());
        self.parker.forget();
        let _found = self.shared().on_unwind();
        let result = call(meter);
        meter.left(clock::now());
        Some(result)
    }
}

/// Ends the wait of one thread of the application from any other thread, as an event descriptor in its epoll would:
/// the current wait, or the next one if it is not waiting. Several calls may end one wait.
#[derive(Debug, Clone)]
pub struct Waker(Weak<Waiter>);

impl Waker {
    pub(crate) fn of(waiter: &Arc<Waiter>) -> Waker {
        Waker(Arc::downgrade(waiter))
    }

    /// Ends the wait. Does nothing once the waiting handle is gone.
    pub fn wake(&self) {
        if let Some(waiter) = self.0.upgrade() {
            waiter.fire_waker();
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if !self.asleep.load(Ordering::Acquire) {
            self.shared().cpu(self.cpu).want(-1);
        }
        let slot = self.meter.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, meter)) = slot {
            meter.activity.set_tid(0);
        }
    }
}
