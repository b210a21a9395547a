//! The account of a context's time: with work found, or polling in vain.
//!
//! Each thread that serves traffic has an [`Activity`], which it alone writes. The time between two steps is
//! accounted by what the poll in it found, so that a context that never sleeps can still report how much of its
//! time was in vain. The times are wall-clock times; a report scales them to the processor time that the operating
//! system has counted for the thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use napkin_core::Ns;

/// The role of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// `irq/<cpu>`: interrupts, timers and inline softirqs of a CPU.
    Irq,
    /// The thread `ksoftirqd/<cpu>`.
    Ksoftirqd,
    /// `napi/<dev>-<id>`: an instance's own thread.
    Napi,
    /// `kworker/u:<n>`: a worker of the shared pool.
    Worker,
    /// A thread of the application, from its first wait on.
    Application,
}

impl Role {
    /// Every role, in the order of the tables.
    pub const ALL: [Role; 5] =
        [Role::Irq, Role::Ksoftirqd, Role::Napi, Role::Worker, Role::Application];
}

/// The account of one thread.
#[derive(Debug)]
pub struct Activity {
    /// The thread's role.
    pub role: Role,
    /// Its name, as the operating system shows it.
    pub name: String,
    tid: AtomicI32,
    work: AtomicU64,
    poll: AtomicU64,
    /// When the thread last returned to the application; 0 while it is in the engine.
    away: AtomicU64,
    restarts: AtomicU64,
}

impl Activity {
    pub(crate) fn new(role: Role, name: String) -> Arc<Activity> {
        Arc::new(Activity {
            role,
            name,
            tid: AtomicI32::new(0),
            work: AtomicU64::new(0),
            poll: AtomicU64::new(0),
            away: AtomicU64::new(0),
            restarts: AtomicU64::new(0),
        })
    }

    /// The operating system's thread id; 0 before it runs and after it has ended.
    pub fn tid(&self) -> i32 {
        self.tid.load(Ordering::Relaxed)
    }

    pub(crate) fn set_tid(&self, tid: i32) {
        self.tid.store(tid, Ordering::Relaxed);
    }

    /// Nanoseconds around polls that found something, and in the application until its last wait
    /// began.
    pub fn work(&self) -> Ns {
        self.work.load(Ordering::Relaxed)
    }

    /// The same, plus the time in the application since its last wait, until `now` ([`now`](crate::now)).
    pub fn work_until(&self, now: Ns) -> Ns {
        let away = match self.away.load(Ordering::Relaxed) {
            0 => 0,
            since => now.saturating_sub(since),
        };
        self.work() + away
    }

    /// Nanoseconds around polls that found nothing.
    pub fn poll(&self) -> Ns {
        self.poll.load(Ordering::Relaxed)
    }

    /// The number of times the context was restarted after a panic.
    pub fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    pub(crate) fn restarted(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }
}

/// The writer's side: attributes time as it passes.
#[derive(Debug)]
pub(crate) struct Meter {
    pub(crate) activity: Arc<Activity>,
    last: Ns,
    /// Time that is not accounted to a poll yet.
    open: Ns,
    /// Whether the last poll found something.
    found: bool,
}

impl Meter {
    pub(crate) fn new(activity: Arc<Activity>, now: Ns) -> Meter {
        Meter { activity, last: now, open: 0, found: true }
    }

    /// Collects the time since the last step.
    #[inline]
    pub(crate) fn step(&mut self, now: Ns) {
        self.open += now.saturating_sub(self.last);
        self.last = now;
    }

    /// Accounts the time up to the end of a poll.
    #[inline]
    pub(crate) fn polled(&mut self, now: Ns, found: bool) {
        self.step(now);
        self.found = found;
        self.settle();
    }

    /// Accounts the time up to now, before the thread sleeps.
    pub(crate) fn leave(&mut self, now: Ns) {
        self.step(now);
        self.settle();
    }

    /// Called after a sleep, whose time is not accounted.
    pub(crate) fn woken(&mut self, now: Ns) {
        self.last = now;
    }

    /// Called when the thread returns to the application.
    pub(crate) fn left(&mut self, now: Ns) {
        self.leave(now);
        self.activity.away.store(now, Ordering::Relaxed);
    }

    /// Called when the thread comes back from the application, whose time was work.
    pub(crate) fn returned(&mut self, now: Ns) {
        self.activity.away.store(0, Ordering::Relaxed);
        self.found = true;
        self.leave(now);
    }

    #[inline]
    fn settle(&mut self) {
        let counter = if self.found { &self.activity.work } else { &self.activity.poll };
        // One writer: a load and a store are enough.
        counter.store(counter.load(Ordering::Relaxed) + self.open, Ordering::Relaxed);
        self.open = 0;
    }
}
