//! Frames that the kernel has not taken: whether there are any, and when it is called for them again.
//!
//! Whoever sends may find that the card has no room, and goes; the owner of the queue, who calls for what is left, may
//! sleep then. So there is a timer, which interrupts it: set by the one, and by the other in place of calling again and
//! again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU8};

use napkin_os::clock;
use napkin_policy::{MILLISECOND, Ns};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

/// So many times in a row the owner calls at once though none was taken: mostly the card is about to.
pub(super) const AT_ONCE: u8 = 8;

/// The time between two calls from then on: the card's link is paused. Also until the first, of another's frames.
const REST: Ns = MILLISECOND / 10;

/// What is known of them.
#[derive(Debug)]
pub(super) struct Untaken {
    pub(super) timer: OwnedFd,
    /// The timer was set and not stopped since; changed by who has the lock.
    is_set: AtomicBool,
    lock: Mutex<()>,
    /// The card had no room: the frames in the ring wait for the next call.
    stuck: AtomicBool,
    /// The kernel had not taken all, and did not ask for a call: perhaps it is about to, and has looked before.
    unasked: AtomicBool,
    /// It has taken some since the owner last asked.
    moved: AtomicBool,
    /// Times in a row that the owner was to call at once.
    calls: AtomicU8,
}

impl Untaken {
    pub(super) fn new() -> io::Result<Untaken> {
        Ok(Untaken {
            timer: timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?,
            is_set: AtomicBool::new(false),
            lock: Mutex::new(()),
            stuck: AtomicBool::new(false),
            unasked: AtomicBool::new(false),
            moved: AtomicBool::new(false),
            calls: AtomicU8::new(0),
        })
    }

    pub(super) fn timer(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    /// What was left when the kernel was told last: whether the card had no room, whether the kernel did not ask for a
    /// call, and whether it has taken some. For whoever sends; it waits for nobody.
    pub(super) fn left(&self, stuck: bool, unasked: bool, moved: bool) {
        self.unasked.store(unasked, Relaxed);
        if moved {
            self.moved.store(true, Relaxed);
        }
        self.stuck.store(stuck, SeqCst);
        // The owner, where it stops the timer just now, looks once more.
        if stuck
            && !self.is_set.load(SeqCst)
            && let Ok(_lock) = self.lock.try_lock()
        {
            self.set(REST);
        }
    }

    pub(super) fn stuck(&self) -> bool {
        self.stuck.load(Relaxed)
    }

    pub(super) fn unasked(&self) -> bool {
        self.unasked.load(Relaxed)
    }

    /// Whether the owner is to call the kernel at once, where frames wait for that. If it has, and none was taken, the
    /// timer interrupts later. `gone`: nobody will ever take them.
    pub(super) fn calls_at_once(&self, gone: bool) -> bool {
        let moved = self.moved.swap(false, Relaxed);
        let calls = if moved { 0 } else { self.calls.load(Relaxed) };
        let waits = || self.stuck.load(SeqCst) && !gone;
        if waits() && calls < AT_ONCE {
            self.calls.store(calls + 1, Relaxed);
            return true;
        }
        if waits() {
            // Whoever has the lock sets it as well.
            return self.lock.try_lock().is_ok_and(|_lock| !self.set(REST));
        }
        self.calls.store(0, Relaxed);
        if !self.is_set.load(SeqCst) {
            return waits();
        }
        match self.lock.try_lock() {
            Ok(_lock) => _ = self.set(0),
            // Somebody's frames are left just now.
            Err(_) => return true,
        }
        waits()
    }

    /// Sets the timer, or stops it, which forgets that it has expired; for who has the lock. Whether it could be.
    fn set(&self, time: Ns) -> bool {
        let [it_interval, it_value] = [0, time].map(clock::timespec);
        let once = Itimerspec { it_interval, it_value };
        let done = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once).is_ok();
        self.is_set.store(time > 0 && done, SeqCst);
        done
    }
}
