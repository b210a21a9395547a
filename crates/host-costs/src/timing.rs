//! The clock with which calls are timed, and the cost of reading it.

use std::time::{Duration, Instant};

pub(super) use napkin_os::clock::now;

use napkin_measure::interleave::median;
use napkin_workload::error::BenchError;
use napkin_workload::interrupt::Interrupt;

/// Median time from one reading of the clock to the next, in nanoseconds.
pub(super) fn clock_cost() -> f64 {
    let samples = (0..1_001).map(|_| {
        let before = now();
        now().wrapping_sub(before) as f64
    });
    median(samples).unwrap_or(0.0)
}

/// Times one call, in nanoseconds, less the clock's own cost.
pub(super) fn timed<T>(clock: f64, call: impl FnOnce() -> T) -> (T, f64) {
    let before = now();
    let answer = call();
    (answer, now().wrapping_sub(before) as f64 - clock)
}

/// The time limit of a phase, with the request to end the run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget<'a> {
    until: Instant,
    interrupt: &'a Interrupt,
}

impl<'a> Budget<'a> {
    pub(super) fn new(time: Duration, interrupt: &'a Interrupt) -> Self {
        Budget { until: Instant::now() + time, interrupt }
    }

    /// Whether there is time left.
    ///
    /// # Errors
    /// If the run was asked to end.
    pub(super) fn left(&self) -> Result<bool, BenchError> {
        self.interrupt.check()?;
        Ok(Instant::now() < self.until)
    }

    /// A budget of at most `time` within this one.
    pub(super) fn within(&self, time: Duration) -> Self {
        Budget { until: self.until.min(Instant::now() + time), interrupt: self.interrupt }
    }

    /// Sleeps, unless the run was asked to end.
    ///
    /// # Errors
    /// If the run was asked to end.
    pub(super) fn sleep(&self, time: Duration) -> Result<(), BenchError> {
        self.interrupt.check()?;
        std::thread::sleep(time);
        Ok(())
    }
}
