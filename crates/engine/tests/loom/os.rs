//! Stand-ins for the operating system's part (`src/os.rs`). Its own locks are loom's here: whoever
//! is woken by a call has seen everything before that call, and whoever is not has seen nothing.

use loom::sync::{Condvar, Mutex, MutexGuard};
use napkin_core::{NEVER, Ns};

use crate::sync::{AtomicU32, Ordering};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no model panics with the lock")
}

/// Sleeps while the word is `expected`. With a deadline, it has passed.
pub(crate) fn sleep(word: &AtomicU32, expected: u32, deadline: Ns) {
    let bucket = &word.bucket;
    let guard = lock(&bucket.lock);
    if word.load(Ordering::Relaxed) == expected && deadline == NEVER {
        drop(bucket.sleepers.wait(guard));
    }
}

/// Wakes who sleeps on the word.
pub(crate) fn wake(word: &AtomicU32) {
    let _guard = lock(&word.bucket.lock);
    word.bucket.sleepers.notify_one();
}

/// An eventfd that is watched edge-triggered.
#[derive(Debug, Default)]
pub(crate) struct Event {
    signalled: Mutex<bool>,
    waiter: Condvar,
}

impl Event {
    pub(crate) fn signal(&self) {
        *lock(&self.signalled) = true;
        self.waiter.notify_one();
    }

    /// The interrupt thread waits, and takes the event.
    pub(crate) fn wait(&self) {
        let mut signalled = lock(&self.signalled);
        while !*signalled {
            signalled = self.waiter.wait(signalled).expect("no model panics with the lock");
        }
        *signalled = false;
    }
}

/// A timerfd that is watched edge-triggered: one point in time, also one that has passed and that
/// nobody has noticed yet.
#[derive(Debug)]
pub(crate) struct Alarm(Mutex<Ns>);

impl Alarm {
    pub(crate) fn new() -> Alarm {
        Alarm(Mutex::new(NEVER))
    }

    pub(crate) fn set(&self, at: Ns) {
        *lock(&self.0) = at;
    }

    /// For when it is set.
    pub(crate) fn at(&self) -> Ns {
        *lock(&self.0)
    }

    /// It fires, if it is set: the interrupt thread takes the expiry, and is told how late it is.
    pub(crate) fn fire(&self) -> Option<Ns> {
        let mut at = lock(&self.0);
        let now = std::mem::replace(&mut *at, NEVER);
        (now != NEVER).then_some(now)
    }
}
