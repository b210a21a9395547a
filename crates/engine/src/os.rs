//! The operating system's primitives for waking and timing: a futex, an eventfd, a timerfd.
//!
//! Thin on purpose: `tests/loom` puts stand-ins in their place (see [`sync`](crate::sync)).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use napkin_core::{NEVER, Ns};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io;
use rustix::thread::futex;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::sync::AtomicU32;
use napkin_os::clock;

/// Sleeps while `word` is `expected`, until woken or until `deadline`; may return spuriously.
pub(crate) fn sleep(word: &AtomicU32, expected: u32, deadline: Ns) {
    let timeout =
        (deadline != NEVER).then(|| clock::timespec(deadline.saturating_sub(clock::now())));
    // Woken, timed out, interrupted by a signal: in each case the caller looks again.
    let _ = futex::wait(word, futex::Flags::PRIVATE, expected, timeout.as_ref());
}

/// Wakes the thread that sleeps on `word`.
pub(crate) fn wake(word: &AtomicU32) {
    // An error would mean that no thread sleeps there.
    let _ = futex::wake(word, futex::Flags::PRIVATE, 1);
}

/// A descriptor that is readable from the first signal on; watched edge-triggered, each signal is an
/// event.
#[derive(Debug)]
pub(crate) struct Event(OwnedFd);

impl Event {
    pub(crate) fn new() -> io::Result<Event> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Event)
    }

    pub(crate) fn signal(&self) {
        // The counter of an eventfd that is written once a wake-up cannot overflow.
        let _ = io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A descriptor that becomes readable at a point in time; watched edge-triggered, each expiry is an event. Setting
/// it again discards an expiry that was not noticed yet.
#[derive(Debug)]
pub(crate) struct Alarm(OwnedFd);

impl Alarm {
    pub(crate) fn new() -> io::Result<Alarm> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        timerfd_create(TimerfdClockId::Monotonic, flags).map(Alarm)
    }

    /// Sets the time of expiry, by a system call.
    pub(crate) fn set(&self, at: Ns) {
        let value = Itimerspec {
            it_interval: clock::timespec(0),
            // A point in the past fires at once; 0 would disarm.
            it_value: clock::timespec(at.max(1)),
        };
        let result = timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &value);
        debug_assert!(result.is_ok(), "timerfd_settime: {result:?}");
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
