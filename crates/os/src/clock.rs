//! The monotonic clock, in nanoseconds: the engine's, that of its timers, and a client's.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Nanoseconds of `CLOCK_MONOTONIC`.
#[inline]
pub fn now() -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Monotonic);
    // The monotonic clock is never negative.
    tv_sec as u64 * 1_000_000_000 + tv_nsec as u64
}

/// A point of the clock, or a length of time, as the operating system takes it.
pub fn timespec(ns: u64) -> Timespec {
    Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as _ }
}
