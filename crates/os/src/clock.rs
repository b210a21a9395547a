//! The monotonic clock in nanoseconds, shared by the engine, its timers and the load generator.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Nanoseconds of `CLOCK_MONOTONIC`.
#[inline]
pub fn now() -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Monotonic);
    // The monotonic clock is never negative.
    tv_sec as u64 * 1_000_000_000 + tv_nsec as u64
}

/// Converts a point in time or a duration, in nanoseconds, to the `timespec` that system calls take.
pub fn timespec(ns: u64) -> Timespec {
    Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as _ }
}
