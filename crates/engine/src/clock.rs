//! The engine's clock: nanoseconds of `CLOCK_MONOTONIC`, the clock of its timers.

use napkin_core::Ns;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Now.
#[inline]
pub fn now() -> Ns {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as Ns * 1_000_000_000 + time.tv_nsec as Ns
}

/// A point of the clock, or a length of time, as the operating system takes it.
pub(crate) fn timespec(ns: Ns) -> Timespec {
    Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}
