//! What the scheduler remembers of a CPU on average.

use napkin_core::Ns;

/// Time over which the scheduler forgets what interrupts took: PELT's 32 ms.
const STOLEN_MEMORY: f64 = 32e6;

/// What a thread that is alone on its CPU may lose to interrupts before it is moved: a domain's
/// `imbalance_pct` is 117.
const STOLEN_MUCH: f64 = 1.0 - 100.0 / 117.0;

/// What interrupts and softirqs take of a CPU, as the scheduler remembers it.
#[derive(Debug, Default)]
pub(crate) struct Stolen {
    /// All they had taken at the last look, and when that was.
    taken: Ns,
    at: Ns,
    share: f64,
}

impl Stolen {
    /// By now they have taken so much: whether a thread that is alone there loses too much.
    pub(super) fn is_much(&mut self, now: Ns, taken: Ns) -> bool {
        let elapsed = (now - self.at).max(1) as f64;
        let share = (taken - self.taken) as f64 / elapsed;
        (self.taken, self.at) = (taken, now);
        self.share += (share - self.share) * (elapsed / STOLEN_MEMORY).min(1.0);
        self.share > STOLEN_MUCH
    }
}

/// Mean length of a CPU's periods without a thread, an eighth of each new one (`avg_idle`).
#[derive(Debug, Default)]
pub(crate) struct IdlePeriods {
    /// When the last thread left it.
    since: Ns,
    mean: Ns,
}

impl IdlePeriods {
    pub(super) fn mean(&self) -> Ns {
        self.mean
    }

    /// The CPU had no thread and has one now, or the other way round; the mean grows to `most`.
    pub(super) fn learn(&mut self, now: Ns, (was_idle, is_idle): (bool, bool), most: Ns) {
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
