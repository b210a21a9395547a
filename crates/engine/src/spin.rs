//! Work of a given processor time: a counted loop, which reads no clock.
//!
//! A loop that waits for a clock would end during a preemption and so cost nothing; this one executes the same
//! instructions however often it is preempted. It is calibrated once per process.

use std::hint::black_box;
use std::sync::OnceLock;

use napkin_core::Ns;

use napkin_os::clock;

/// Iterations of the loop for each microsecond, on this machine.
fn iterations_per_microsecond() -> f64 {
    static RATE: OnceLock<f64> = OnceLock::new();
    *RATE.get_or_init(|| {
        // The fastest of many short runs: one that was not interrupted.
        const ITERATIONS: u64 = 20_000;
        let fastest = (0..200).map(|_| time(ITERATIONS)).min().unwrap_or(1).max(1);
        ITERATIONS as f64 * 1_000.0 / fastest as f64
    })
}

fn time(iterations: u64) -> Ns {
    let start = clock::now();
    turn(iterations);
    clock::now() - start
}

#[inline(never)]
fn turn(iterations: u64) {
    let mut x = black_box(1_u64);
    for _ in 0..iterations {
        x = black_box(x.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(7));
    }
}

/// A fixed amount of work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spin {
    iterations: u64,
}

impl Spin {
    /// Work that takes `ns` nanoseconds of an undisturbed processor. The first call measures the
    /// machine for about 10 ms.
    pub fn new(ns: Ns) -> Spin {
        if ns == 0 {
            return Spin::default();
        }
        Spin { iterations: (ns as f64 * iterations_per_microsecond() / 1_000.0) as u64 }
    }

    /// Whether there is no work at all.
    pub fn is_none(self) -> bool {
        self.iterations == 0
    }

    /// Does the work.
    pub fn run(self) {
        turn(self.iterations);
    }
}
