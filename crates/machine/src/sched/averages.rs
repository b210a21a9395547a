//! The scheduler's running averages of a CPU.

use napkin_core::Ns;

/// Time constant of the average in `InterruptLoad`: PELT's 32 ms.
const LOAD_TIME_CONSTANT: f64 = 32e6;

/// The share of a CPU that interrupts may take before a thread that is alone on it is moved: a scheduling domain's
/// `imbalance_pct` is 117.
const LOAD_LIMIT: f64 = 1.0 - 100.0 / 117.0;

/// The share of a CPU's time that interrupts and softirqs take, as a running average.
#[derive(Debug, Default)]
pub(crate) struct InterruptLoad {
    /// The total time taken, and the time of the last update.
    taken: Ns,
    at: Ns,
    share: f64,
}

impl InterruptLoad {
    /// Updates the average with the total that interrupts have taken. Returns whether a thread alone on the CPU loses
    /// too much.
    pub(super) fn update_is_excessive(&mut self, now: Ns, taken: Ns) -> bool {
        let elapsed = (now - self.at).max(1) as f64;
        let share = (taken - self.taken) as f64 / elapsed;
        (self.taken, self.at) = (taken, now);
        self.share += (share - self.share) * (elapsed / LOAD_TIME_CONSTANT).min(1.0);
        self.share > LOAD_LIMIT
    }
}

/// Running mean of the lengths of a CPU's periods without a thread; each new one has weight 1/8 (`avg_idle`).
#[derive(Debug, Default)]
pub(crate) struct IdlePeriods {
    /// Start of the present period: when the last thread left the CPU.
    since: Ns,
    mean: Ns,
}

impl IdlePeriods {
    pub(super) fn mean(&self) -> Ns {
        self.mean
    }

    /// Records whether the CPU had a thread before and has one now. The mean is limited to `most`.
    pub(super) fn update(&mut self, now: Ns, (was_idle, is_idle): (bool, bool), most: Ns) {
        match (was_idle, is_idle) {
            (false, true) => self.since = now,
            (true, false) => {
                let period = now - self.since;
                self.mean = (self.mean - self.mean / 8 + period / 8).min(most);
            }
            _ => {}
        }
    }
}
