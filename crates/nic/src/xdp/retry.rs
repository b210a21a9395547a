//! State of the frames in the transmit ring that the kernel has not taken, and the timer for calling it again.
//!
//! A sender may find that the NIC has no room, and return; the queue's owner, which retries, may be asleep by then.
//! A timer therefore interrupts the owner. The sender sets it for that, and the owner sets it instead of retrying
//! in a tight loop.

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

/// How many times in a row the owner retries at once without progress: the NIC is mostly about to make room.
pub(super) const IMMEDIATE_RETRIES: u8 = 8;

/// The interval of retries after that, ns, for example while the link is paused. Also the delay of the first retry
/// of frames that another thread sent.
const RETRY_INTERVAL: Ns = MILLISECOND / 10;

/// What is known of the frames that are not taken.
#[derive(Debug)]
pub(super) struct TxRetry {
    pub(super) timer: OwnedFd,
    /// Whether the timer was set and not stopped since; written under the lock.
    is_set: AtomicBool,
    lock: Mutex<()>,
    /// Whether the NIC had no room at the last call: frames wait in the ring for the next one.
    stuck: AtomicBool,
    /// Whether the kernel had left frames without asking for a call: it may be about to take them, or it read the
    /// ring before they were there.
    left_without_wakeup: AtomicBool,
    /// Whether it has taken frames since the owner last checked.
    moved: AtomicBool,
    /// How many times in a row the owner has retried at once.
    retries: AtomicU8,
}

impl TxRetry {
    pub(super) fn new() -> io::Result<TxRetry> {
        Ok(TxRetry {
            timer: timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?,
            is_set: AtomicBool::new(false),
            lock: Mutex::new(()),
            stuck: AtomicBool::new(false),
            left_without_wakeup: AtomicBool::new(false),
            moved: AtomicBool::new(false),
            retries: AtomicU8::new(0),
        })
    }

    pub(super) fn timer(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    /// Records the outcome of the last call to the kernel: whether the NIC had no room, whether frames are left for
    /// which the kernel did not ask for a call, and whether it has taken some. For senders; never blocks.
    pub(super) fn record_left(&self, stuck: bool, left_without_wakeup: bool, moved: bool) {
        self.left_without_wakeup.store(left_without_wakeup, Relaxed);
        if moved {
            self.moved.store(true, Relaxed);
        }
        self.stuck.store(stuck, SeqCst);
        // If the owner is stopping the timer at this moment, it checks `stuck` once more afterwards.
        if stuck
            && !self.is_set.load(SeqCst)
            && let Ok(_lock) = self.lock.try_lock()
        {
            self.set(RETRY_INTERVAL);
        }
    }

    pub(super) fn stuck(&self) -> bool {
        self.stuck.load(Relaxed)
    }

    pub(super) fn left_without_wakeup(&self) -> bool {
        self.left_without_wakeup.load(Relaxed)
    }

    /// Whether the owner must retry at once because frames wait. After [`IMMEDIATE_RETRIES`] retries without progress the
    /// timer interrupts it later instead. With `gone`, the frames will never be taken.
    pub(super) fn retry_now(&self, gone: bool) -> bool {
        let moved = self.moved.swap(false, Relaxed);
        let retries = if moved { 0 } else { self.retries.load(Relaxed) };
        let waits = || self.stuck.load(SeqCst) && !gone;
        if waits() && retries < IMMEDIATE_RETRIES {
            self.retries.store(retries + 1, Relaxed);
            return true;
        }
        if waits() {
            // If another thread has the lock, it sets the timer as well.
            return self.lock.try_lock().is_ok_and(|_lock| !self.set(RETRY_INTERVAL));
        }
        self.retries.store(0, Relaxed);
        if !self.is_set.load(SeqCst) {
            return waits();
        }
        match self.lock.try_lock() {
            Ok(_lock) => _ = self.set(0),
            // A sender is recording left frames at this moment.
            Err(_) => return true,
        }
        waits()
    }

    /// Sets the timer to expire after `time` ns, or stops it with 0, which also clears an expiry. Only under the
    /// lock. Returns whether it succeeded.
    fn set(&self, time: Ns) -> bool {
        let [it_interval, it_value] = [0, time].map(clock::timespec);
        let once = Itimerspec { it_interval, it_value };
        let done = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once).is_ok();
        self.is_set.store(time > 0 && done, SeqCst);
        done
    }
}
