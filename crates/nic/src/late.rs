//! A wrapper that delays or loses a queue's interrupts, for tests.
//!
//! Drivers guard against a lost interrupt with a timer of their own (e1000e's watchdog raises one every two
//! seconds). [`LateQueue`] has such a timer too, so that nothing waits for ever. Frames and counters are those of
//! the queue inside.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use napkin_os::clock;
use napkin_policy::Ns;
use napkin_traffic::SplitMix;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::PacketQueue;
use crate::forward::forward;

/// How often an interrupt is delayed or lost, drawn at each unmask: parts per 10,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lateness {
    /// Share of interrupts that come [`delay`](Self::delay) after the unmask, whether or not a frame has arrived by
    /// then, and not before.
    pub delayed: u16,
    /// Share of interrupts that come only after [`watchdog`](Self::watchdog).
    pub lost: u16,
    /// Delay of a delayed interrupt, ns.
    pub delay: Ns,
    /// Delay of a lost interrupt, ns: the period of the driver's watchdog.
    pub watchdog: Ns,
}

/// A queue with interrupts that a seeded generator delays.
pub struct LateQueue {
    inner: Box<dyn PacketQueue>,
    lateness: Lateness,
    rng: SplitMix,
    /// An epoll descriptor that watches the interrupt of the queue inside, or the timer in its place.
    interrupt: OwnedFd,
    timer: OwnedFd,
    late: Arc<AtomicU64>,
}

impl LateQueue {
    /// Delays the interrupts of `inner` as `lateness` says.
    ///
    /// # Errors
    ///
    /// The process is out of descriptors (`EMFILE`); two are needed.
    pub fn new(
        inner: Box<dyn PacketQueue>,
        lateness: Lateness,
        seed: u64,
    ) -> Result<LateQueue, Errno> {
        let interrupt = epoll::create(CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        epoll::add(&interrupt, inner.interrupt(), EventData::new_u64(0), EventFlags::IN)?;
        epoll::add(&interrupt, &timer, EventData::new_u64(1), EventFlags::IN)?;
        let rng = SplitMix::new(seed);
        Ok(LateQueue { inner, lateness, rng, interrupt, timer, late: Arc::default() })
    }

    /// The number of interrupts that were delayed or lost so far, for any thread.
    pub fn late(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.late)
    }

    /// Passes the inner descriptor's readiness through, or replaces it by a timer that expires after `late`.
    fn allow(&self, late: Option<Ns>) {
        let watched = if late.is_some() { EventFlags::empty() } else { EventFlags::IN };
        let [it_interval, it_value] = [0, late.unwrap_or(0)].map(clock::timespec);
        let once = Itimerspec { it_interval, it_value };
        // Both descriptors are open, and the inner one is watched: neither call can fail.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
        let inner = self.inner.interrupt();
        let _ = epoll::modify(&self.interrupt, inner, EventData::new_u64(0), watched);
    }
}

impl fmt::Debug for LateQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LateQueue")
            .field("lateness", &self.lateness)
            .field("late", &self.late)
            .finish_non_exhaustive()
    }
}

impl PacketQueue for LateQueue {
    forward!(mask, poll, gone, transmitter, counters);

    fn unmask(&mut self, now: Ns) -> bool {
        if self.inner.unmask(now) {
            return true;
        }
        let Lateness { delayed, lost, delay, watchdog } = self.lateness;
        let drawn = self.rng.below(10_000);
        let late = if drawn < u64::from(lost) {
            Some(watchdog)
        } else if drawn < u64::from(lost) + u64::from(delayed) {
            Some(delay)
        } else {
            None
        };
        // A timer value of 0 would disarm it.
        self.allow(late.map(|late| late.max(1)));
        self.late.fetch_add(late.is_some().into(), Relaxed);
        false
    }

    fn interrupt(&self) -> BorrowedFd<'_> {
        self.interrupt.as_fd()
    }

    fn acknowledge(&mut self) {
        // Setting the timer clears an expiry.
        self.allow(None);
        self.inner.acknowledge();
    }
}
