//! Stand-ins for the operating system's part (`src/os.rs`). Its locks are loom's here: a thread that is woken by a
//! call sees everything before that call, and any other thread sees nothing.

use loom::sync::{Condvar, Mutex, MutexGuard};
use napkin_core::{NEVER, Ns};

use crate::sync::{AtomicU32, Ordering};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no model panics with the lock")
}

/// Sleeps while the word is `expected`. A deadline counts as passed.
pub(crate) fn sleep(word: &AtomicU32, expected: u32, deadline: Ns) {
    let bucket = &word.bucket;
    let guard = lock(&bucket.lock);
    if word.load(Ordering::Relaxed) == expected && deadline == NEVER {
        drop(bucket.sleepers.wait(guard));
    }
}

/// Wakes the thread that sleeps on the word.
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

/// A timerfd that is watched edge-triggered: one point in time, also one that has passed and was not noticed yet.
#[derive(Debug)]
pub(crate) struct Alarm(Mutex<Ns>);

impl Alarm {
    pub(crate) fn new() -> Alarm {
        Alarm(Mutex::new(NEVER))
    }

    pub(crate) fn set(&self, at: Ns) {
        *lock(&self.0) = at;
    }

    /// When it is set to fire.
    pub(crate) fn at(&self) -> Ns {
        *lock(&self.0)
    }

    /// Fires if it is set: the interrupt thread takes the expiry, and learns the time.
    pub(crate) fn fire(&self) -> Option<Ns> {
        let mut at = lock(&self.0);
        let now = std::mem::replace(&mut *at, NEVER);
        (now != NEVER).then_some(now)
    }
}
