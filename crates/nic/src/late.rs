//! A queue whose interrupts come late or not at all, for tests.
//!
//! Drivers guard against a lost interrupt with a timer of their own (e1000e's watchdog raises one every
//! two seconds); so does [`LateQueue`], which is why nothing waits for ever here either. Frames and
//! counters are those of the queue inside.

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

/// How often an interrupt that has been allowed is late or lost: parts per 10,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lateness {
    /// Those that come [`delay`](Self::delay) after they were allowed, whether or not a frame has come
    /// by then, and not before.
    pub delayed: u16,
    /// Those that come after [`watchdog`](Self::watchdog) only.
    pub lost: u16,
    /// Lateness of a delayed interrupt, ns.
    pub delay: Ns,
    /// Lateness of a lost one, ns: the driver's own timer.
    pub watchdog: Ns,
}

/// A queue that keeps its interrupts back, as a seed says.
pub struct LateQueue {
    inner: Box<dyn PacketQueue>,
    lateness: Lateness,
    rng: SplitMix,
    /// Watches the descriptor inside, or the timer in its place.
    interrupt: OwnedFd,
    timer: OwnedFd,
    late: Arc<AtomicU64>,
}

impl LateQueue {
    /// Puts `lateness` between `inner` and whoever waits for it.
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

    /// How many interrupts were delayed or lost, for any thread.
    pub fn late(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.late)
    }

    /// Lets the descriptor inside through, or keeps it back until `late` has passed.
    fn allow(&self, late: Option<Ns>) {
        let watched = if late.is_some() { EventFlags::empty() } else { EventFlags::IN };
        let [it_interval, it_value] = [0, late.unwrap_or(0)].map(clock::timespec);
        let once = Itimerspec { it_interval, it_value };
        // Both descriptors are held, valid and watched: neither call has an error to return.
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
        // A timer of 0 would never expire.
        self.allow(late.map(|late| late.max(1)));
        self.late.fetch_add(late.is_some().into(), Relaxed);
        false
    }

    fn interrupt(&self) -> BorrowedFd<'_> {
        self.interrupt.as_fd()
    }

    fn acknowledge(&mut self) {
        // Setting a timer clears what has expired.
        self.allow(None);
        self.inner.acknowledge();
    }
}
