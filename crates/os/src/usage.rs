//! What threads used: one thread's figures, differences of them, and their sum.
//!
//! Readings come from [`ThreadMeter`](crate::meter::ThreadMeter); this file has their arithmetic.

use serde::{Deserialize, Serialize};

/// What one thread used: since its start in a reading, over the window in a difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadUsage {
    /// Thread id, as `ps -L` shows it.
    pub tid: u32,
    /// Thread name (at most 15 bytes).
    pub name: String,
    /// The CPU that it is pinned to; `None` if it may run on several.
    #[serde(default)]
    pub cpu: Option<u32>,
    /// Time on a CPU.
    pub cpu_ns: u64,
    /// Time runnable without a CPU; `None` if the kernel does not say.
    pub run_delay_ns: Option<u64>,
    /// Times it went to sleep of its own will: each is one wake-up.
    pub voluntary_switches: u64,
    /// Times it was preempted.
    pub involuntary_switches: u64,
    /// It ran or wanted to (state R): at the moment of a reading; in a difference, at both ends.
    #[serde(default)]
    pub runnable: bool,
    /// It has ended, and the figures are those of its last reading.
    pub ended: bool,
}

impl ThreadUsage {
    /// Becomes a copy of another reading, without copying the name if it is the same thread's.
    pub(super) fn take_over(&mut self, other: &ThreadUsage) {
        if self.tid != other.tid || self.name != other.name {
            self.clone_from(other);
            return;
        }
        self.cpu = other.cpu;
        self.cpu_ns = other.cpu_ns;
        self.run_delay_ns = other.run_delay_ns;
        self.voluntary_switches = other.voluntary_switches;
        self.involuntary_switches = other.involuntary_switches;
        self.runnable = other.runnable;
        self.ended = other.ended;
    }

    /// Of a difference over a window of this length: the time that the thread wanted to run and did
    /// not. The kernel charges a wait when the thread next runs, so one that wanted to run at both
    /// ends and never did has waited all the time although nothing is charged yet, and what is
    /// charged may be of before the window. `None` if the kernel does not say.
    pub fn waited(&self, wall_ns: u64) -> Option<u64> {
        let charged = self.run_delay_ns?;
        let starved = self.runnable && !self.ended && self.cpu_ns == 0;
        let waited = if starved { wall_ns } else { charged };
        Some(waited.min(wall_ns.saturating_sub(self.cpu_ns)))
    }

    /// What was used since an earlier reading of the same thread.
    pub fn since(&self, earlier: &ThreadUsage) -> ThreadUsage {
        ThreadUsage {
            tid: self.tid,
            name: self.name.clone(),
            cpu: self.cpu,
            cpu_ns: self.cpu_ns.saturating_sub(earlier.cpu_ns),
            run_delay_ns: match (self.run_delay_ns, earlier.run_delay_ns) {
                (Some(now), Some(then)) => Some(now.saturating_sub(then)),
                _ => None,
            },
            voluntary_switches: self.voluntary_switches.saturating_sub(earlier.voluntary_switches),
            involuntary_switches: self
                .involuntary_switches
                .saturating_sub(earlier.involuntary_switches),
            runnable: self.runnable && earlier.runnable,
            ended: self.ended,
        }
    }
}

/// Sums over threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UsageTotals {
    /// Time on a CPU.
    pub cpu_ns: u64,
    /// Time runnable without a CPU; `None` if unknown for any thread.
    pub run_delay_ns: Option<u64>,
    /// Voluntary context switches: wake-ups.
    pub wakeups: u64,
    /// Voluntary and involuntary context switches.
    pub context_switches: u64,
}

impl UsageTotals {
    /// Adds up threads; of none, all is 0.
    pub fn of<'a>(threads: impl IntoIterator<Item = &'a ThreadUsage>) -> UsageTotals {
        let zero = UsageTotals { run_delay_ns: Some(0), ..UsageTotals::default() };
        threads.into_iter().fold(zero, |sum, thread| UsageTotals {
            cpu_ns: sum.cpu_ns.saturating_add(thread.cpu_ns),
            run_delay_ns: sum
                .run_delay_ns
                .zip(thread.run_delay_ns)
                .map(|(sum, delay)| sum.saturating_add(delay)),
            wakeups: sum.wakeups.saturating_add(thread.voluntary_switches),
            context_switches: sum
                .context_switches
                .saturating_add(thread.voluntary_switches)
                .saturating_add(thread.involuntary_switches),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_and_sums() {
        let at = |cpu_ns, run_delay_ns, voluntary_switches| ThreadUsage {
            tid: 7,
            name: "irq/0".into(),
            cpu: None,
            cpu_ns,
            run_delay_ns,
            voluntary_switches,
            involuntary_switches: 1,
            runnable: true,
            ended: false,
        };
        let used = at(50, Some(9), 12).since(&at(20, Some(4), 2));
        assert_eq!((used.cpu_ns, used.run_delay_ns, used.voluntary_switches), (30, Some(5), 10));
        assert_eq!(used.involuntary_switches, 0);

        let total = UsageTotals::of([&used, &used]);
        assert_eq!((total.cpu_ns, total.run_delay_ns), (60, Some(10)));
        assert_eq!((total.wakeups, total.context_switches), (20, 20));
        assert_eq!(UsageTotals::of([&used, &at(1, None, 1)]).run_delay_ns, None, "unknown, not 0");
    }

    #[test]
    fn a_thread_that_was_starved_has_waited_and_none_longer_than_the_window() {
        let thread = |runnable, cpu_ns, run_delay_ns| ThreadUsage {
            tid: 7,
            name: "udp-sink".into(),
            cpu: None,
            cpu_ns,
            run_delay_ns,
            voluntary_switches: 0,
            involuntary_switches: 0,
            runnable,
            ended: false,
        };
        assert_eq!(thread(true, 0, Some(0)).waited(100), Some(100), "it never got to run");
        assert_eq!(thread(false, 0, Some(0)).waited(100), Some(0), "it slept");
        assert_eq!(thread(true, 60, Some(10)).waited(100), Some(10));
        assert_eq!(thread(true, 60, Some(900)).waited(100), Some(40), "most of it was earlier");
        assert_eq!(thread(true, 0, None).waited(100), None, "the kernel does not say");
    }
}
