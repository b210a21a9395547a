//! Resource usage of threads: the values of one thread, their differences over a window, and sums.
//!
//! [`ThreadMeter`](crate::meter::ThreadMeter) takes the readings; this file does the arithmetic.

use serde::{Deserialize, Serialize};

/// Resource usage of one thread: since its start in a reading, over the window in a difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadUsage {
    /// Thread id, as `ps -L` shows it.
    pub tid: u32,
    /// Thread name (at most 15 bytes).
    pub name: String,
    /// The CPU to which it is pinned; `None` if it may run on several.
    #[serde(default)]
    pub cpu: Option<u32>,
    /// Time on a CPU, ns.
    pub cpu_ns: u64,
    /// Time runnable without a CPU, ns; `None` if the kernel does not report it.
    pub run_delay_ns: Option<u64>,
    /// Voluntary context switches: each is a sleep, and so a wake-up.
    pub voluntary_switches: u64,
    /// Involuntary context switches: preemptions.
    pub involuntary_switches: u64,
    /// Whether it was runnable (state R): at the time of a reading; in a difference, at both ends.
    #[serde(default)]
    pub runnable: bool,
    /// Whether it has ended; the values are those of its last reading.
    pub ended: bool,
}

impl ThreadUsage {
    /// Copies another reading; keeps the name's memory if it is the same thread.
    pub(super) fn copy_from(&mut self, other: &ThreadUsage) {
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

    /// Returns how long the thread was runnable but did not run, for a difference over a window of `wall_ns`. The
    /// kernel accounts a wait when the thread next runs. So a thread that was runnable at both ends and never ran
    /// has waited for the whole window, although nothing is accounted yet; and an accounted wait may have begun
    /// before the window, so it is capped. `None` if the kernel does not report it.
    pub fn waited(&self, wall_ns: u64) -> Option<u64> {
        let charged = self.run_delay_ns?;
        let starved = self.runnable && !self.ended && self.cpu_ns == 0;
        let waited = if starved { wall_ns } else { charged };
        Some(waited.min(wall_ns.saturating_sub(self.cpu_ns)))
    }

    /// Returns the usage since an earlier reading of the same thread.
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
    /// Time on a CPU, ns.
    pub cpu_ns: u64,
    /// Time runnable without a CPU, ns; `None` if unknown for any thread.
    pub run_delay_ns: Option<u64>,
    /// Voluntary context switches: wake-ups.
    pub wakeups: u64,
    /// Voluntary and involuntary context switches.
    pub context_switches: u64,
}

impl UsageTotals {
    /// Sums up threads; without any, all values are 0.
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
