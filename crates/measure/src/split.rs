//! CPU time in four parts: work, poll, waiting, asleep.
//!
//! A single percentage says nothing about a busy poller, which is at 100 % with or without traffic. So the capacity
//! of the serving CPUs, wall time x CPUs, is divided completely. The parts are taken in this order, each limited to
//! what the previous ones left:
//!
//! | part | is | from |
//! |---|---|---|
//! | poll | running, in rounds that found no frame and no event | engine's count, scaled to CPU time; the machine's |
//! | work | running otherwise (polls, protocol, application) | CPU time less poll; in Linux, which cannot tell, all |
//! | waiting | runnable and not running | run-queue delay of our threads + time stolen by the hypervisor |
//! | asleep | the rest | |
//!
//! Limits: *asleep* includes the time of other processes on these CPUs while none of our threads was runnable. Two
//! threads that wait for one CPU count twice as waiting, and waiting for another of our threads counts although the
//! CPU works for us. A thread that is runnable at both ends of the window and never runs counts as waiting all the
//! time. All parts are limited by the capacity: under overload *asleep* may be too small, but the sum never exceeds
//! the whole. Run-queue delay continues while the hypervisor has the CPU, which also counts as steal. Stolen time
//! that the hypervisor does not report looks like work.

use serde::{Deserialize, Serialize};

/// Fractions of the serving CPUs' time, each from 0 to 1, which add up to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CpuSplit {
    /// Running, with something to do.
    pub work: f64,
    /// Running in empty polls; 0 in Linux, which does not distinguish them.
    pub poll: f64,
    /// Runnable but not running, or stolen by the hypervisor.
    pub waiting: f64,
    /// The rest of the time.
    pub asleep: f64,
}

/// Inputs of a split; all times in nanoseconds over the same window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SplitInputs {
    /// Length of the window.
    pub wall_ns: u64,
    /// Number of CPUs that serve the traffic.
    pub cpus: u32,
    /// CPU time of our threads on them.
    pub cpu_ns: u64,
    /// Time in empty polls, as counted by the engine.
    pub poll_ns: u64,
    /// Time for which our threads were runnable and did not run.
    pub run_delay_ns: u64,
    /// Time that the hypervisor stole from these CPUs.
    pub steal_ns: u64,
}

impl CpuSplit {
    /// Divides the capacity; `None` if it is zero (no window or no CPU).
    pub fn of(inputs: SplitInputs) -> Option<CpuSplit> {
        let capacity = u128::from(inputs.wall_ns) * u128::from(inputs.cpus);
        if capacity == 0 {
            return None;
        }
        let used = u128::from(inputs.cpu_ns).min(capacity);
        let poll = u128::from(inputs.poll_ns).min(used);
        let wanted = u128::from(inputs.run_delay_ns) + u128::from(inputs.steal_ns);
        let waiting = wanted.min(capacity - used);
        let asleep = capacity - used - waiting;
        let fraction = |part: u128| part as f64 / capacity as f64;
        Some(CpuSplit {
            work: fraction(used - poll),
            poll: fraction(poll),
            waiting: fraction(waiting),
            asleep: fraction(asleep),
        })
    }

    /// The share that ran, including empty polls.
    pub fn busy(&self) -> f64 {
        self.work + self.poll
    }

    /// The sum of the parts: 1, except for rounding.
    pub fn sum(&self) -> f64 {
        self.work + self.poll + self.waiting + self.asleep
    }

    /// The mean of two splits, which adds up to 1 if both do.
    pub fn between(a: CpuSplit, b: CpuSplit) -> CpuSplit {
        let mean = |x: f64, y: f64| f64::midpoint(x, y);
        CpuSplit {
            work: mean(a.work, b.work),
            poll: mean(a.poll, b.poll),
            waiting: mean(a.waiting, b.waiting),
            asleep: mean(a.asleep, b.asleep),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn parts(inputs: SplitInputs) -> [f64; 4] {
        let split = CpuSplit::of(inputs).unwrap();
        assert!((split.sum() - 1.0).abs() < 1e-9, "{split:?}");
        [split.work, split.poll, split.waiting, split.asleep]
    }

    #[test]
    fn two_cpus_for_one_second() {
        let inputs = SplitInputs {
            wall_ns: SECOND,
            cpus: 2,
            cpu_ns: SECOND,
            poll_ns: SECOND / 2,
            run_delay_ns: SECOND / 4,
            steal_ns: SECOND / 4,
        };
        assert_eq!(parts(inputs), [0.25, 0.25, 0.25, 0.25]);
    }

    #[test]
    fn a_spinning_thread_that_finds_nothing_is_all_poll() {
        let inputs = SplitInputs {
            wall_ns: SECOND,
            cpus: 1,
            cpu_ns: SECOND,
            poll_ns: SECOND,
            ..SplitInputs::default()
        };
        assert_eq!(parts(inputs), [0.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn an_idle_cpu_is_asleep() {
        assert_eq!(
            parts(SplitInputs { wall_ns: SECOND, cpus: 4, ..SplitInputs::default() }),
            [0.0, 0.0, 0.0, 1.0]
        );
    }

    #[test]
    fn readings_that_exceed_their_limits_are_cut_to_them() {
        // The engine's clock includes time in which a thread was preempted; the scheduler's does not.
        let inputs = SplitInputs {
            wall_ns: SECOND,
            cpus: 1,
            cpu_ns: SECOND / 2,
            poll_ns: SECOND,
            ..SplitInputs::default()
        };
        assert_eq!(parts(inputs), [0.0, 0.5, 0.0, 0.5]);
        // Many threads may wait for one CPU: in sum, longer than the window.
        let crowd = SplitInputs { run_delay_ns: 9 * SECOND, ..inputs };
        assert_eq!(parts(crowd), [0.0, 0.5, 0.5, 0.0]);
        let absurd = SplitInputs {
            wall_ns: SECOND,
            cpus: 1,
            cpu_ns: u64::MAX,
            poll_ns: 0,
            run_delay_ns: u64::MAX,
            steal_ns: u64::MAX,
        };
        assert_eq!(parts(absurd), [1.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn no_window_or_no_cpu_has_no_split() {
        assert_eq!(CpuSplit::of(SplitInputs { cpus: 1, ..SplitInputs::default() }), None);
        assert_eq!(CpuSplit::of(SplitInputs { wall_ns: 1, ..SplitInputs::default() }), None);
    }
}
