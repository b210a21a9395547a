//! `/proc/stat`: CPU time by kind, for each CPU.

use std::collections::BTreeMap;
use std::io;
use std::iter::Sum;

use super::read_text;

/// Limit of the file's size. The lines of CPUs come first and fit, even for eight thousand CPUs.
const LIMIT: usize = 4 << 20;

const SECOND_NS: u64 = 1_000_000_000;

/// One CPU's times since boot in nanoseconds, at the resolution of the file (10 ms). Where the kernel samples at the
/// tick, interrupts and softirqs shorter than a tick may not show up at all. `idle_ns` and `iowait_ns` may decrease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuTimes {
    /// Time in user space, guests included.
    pub user_ns: u64,
    /// Time in user space of threads with a positive nice value.
    pub nice_ns: u64,
    /// Time in the kernel on behalf of threads, kernel threads included.
    pub system_ns: u64,
    /// Idle time.
    pub idle_ns: u64,
    /// Idle time while a thread of this CPU waits for a disk.
    pub iowait_ns: u64,
    /// Time in hard interrupts.
    pub irq_ns: u64,
    /// Time in softirqs, those in ksoftirqd included.
    pub softirq_ns: u64,
    /// Time stolen by the hypervisor.
    pub steal_ns: u64,
}

impl CpuTimes {
    /// Reads the times of all online CPUs, by number.
    ///
    /// # Errors
    /// Without procfs.
    pub fn read() -> io::Result<BTreeMap<usize, CpuTimes>> {
        Ok(CpuTimes::parse(&read_text("/proc/stat", LIMIT)?, ticks_per_second()))
    }

    /// Parses the file's text, in which times are in ticks. Malformed lines are skipped.
    pub fn parse(text: &str, ticks_per_second: u64) -> BTreeMap<usize, CpuTimes> {
        let tick_ns = SECOND_NS / ticks_per_second.max(1);
        text.lines().filter_map(|text| line(text, tick_ns)).collect()
    }

    /// Reads the sum of the given CPUs' times; CPUs that are offline add nothing.
    ///
    /// # Errors
    /// Without procfs.
    pub fn of(cpus: &[usize]) -> io::Result<CpuTimes> {
        let all = CpuTimes::read()?;
        Ok(cpus.iter().filter_map(|cpu| all.get(cpu)).copied().sum())
    }

    /// Time in threads, kernel threads included: user, nice and system.
    pub fn threads_ns(&self) -> u64 {
        self.user_ns.saturating_add(self.nice_ns).saturating_add(self.system_ns)
    }

    /// Time without a runnable thread, waiting for a disk included.
    pub fn all_idle_ns(&self) -> u64 {
        self.idle_ns.saturating_add(self.iowait_ns)
    }

    /// Returns the part of a period of `of_ns` that was neither idle nor stolen. The kernel measures idle time, but
    /// only samples the other times.
    pub fn busy_ns(&self, of_ns: u64) -> u64 {
        of_ns.saturating_sub(self.all_idle_ns()).saturating_sub(self.steal_ns)
    }

    /// Total time, idle and stolen time included.
    pub fn total_ns(&self) -> u64 {
        let busy = self.irq_ns.saturating_add(self.softirq_ns).saturating_add(self.steal_ns);
        self.threads_ns().saturating_add(self.all_idle_ns()).saturating_add(busy)
    }

    /// Returns the increase since an earlier reading; 0 for a time that has decreased.
    pub fn since(self, earlier: CpuTimes) -> CpuTimes {
        self.with(earlier, u64::saturating_sub)
    }

    fn with(self, other: CpuTimes, apply: fn(u64, u64) -> u64) -> CpuTimes {
        CpuTimes {
            user_ns: apply(self.user_ns, other.user_ns),
            nice_ns: apply(self.nice_ns, other.nice_ns),
            system_ns: apply(self.system_ns, other.system_ns),
            idle_ns: apply(self.idle_ns, other.idle_ns),
            iowait_ns: apply(self.iowait_ns, other.iowait_ns),
            irq_ns: apply(self.irq_ns, other.irq_ns),
            softirq_ns: apply(self.softirq_ns, other.softirq_ns),
            steal_ns: apply(self.steal_ns, other.steal_ns),
        }
    }
}

impl Sum for CpuTimes {
    fn sum<I: Iterator<Item = CpuTimes>>(all: I) -> CpuTimes {
        all.fold(CpuTimes::default(), |sum, one| sum.with(one, u64::saturating_add))
    }
}

fn line(text: &str, tick_ns: u64) -> Option<(usize, CpuTimes)> {
    let mut words = text.split_ascii_whitespace();
    // The line `cpu` is the sum over all CPUs and has no number.
    let cpu = words.next()?.strip_prefix("cpu")?.parse().ok()?;
    let mut next = || words.next()?.parse::<u64>().ok()?.checked_mul(tick_ns);
    let times = CpuTimes {
        user_ns: next()?,
        nice_ns: next()?,
        system_ns: next()?,
        idle_ns: next()?,
        iowait_ns: next()?,
        irq_ns: next()?,
        softirq_ns: next()?,
        steal_ns: next().unwrap_or(0),
    };
    Some((cpu, times))
}

/// The unit of the times in `/proc` (`USER_HZ`), in ticks a second; not the rate of the kernel's timer tick.
pub(super) fn ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LINUX_6_18: &str = "cpu  3091511 1395607 578200 4212817 15936 0 4258 72898 0 0
cpu0 764999 339059 151252 1066156 2746 0 1061 18934 0 0
cpu3 7 6 5 4 3 2 1 0 0 0
intr 12345 0 0
";

    #[test]
    fn ticks_become_nanoseconds() {
        let all = CpuTimes::parse(LINUX_6_18, 100);
        assert_eq!(all.keys().copied().collect::<Vec<_>>(), [0, 3]);
        assert_eq!(all[&0].user_ns, 7_649_990_000_000);
        assert_eq!(all[&0].softirq_ns, 10_610_000_000);
        assert_eq!((all[&3].irq_ns, all[&3].steal_ns), (20_000_000, 0));
    }

    #[test]
    fn times_are_added_up_by_kind_and_over_cpus() {
        let all = CpuTimes::parse("cpu0 1 2 3 4 5 6 7 8\ncpu1 0 0 0 1 0 0 0 1\n", 1_000_000_000);
        let sum: CpuTimes = all.values().copied().sum();
        assert_eq!((sum.threads_ns(), sum.all_idle_ns(), sum.total_ns()), (6, 10, 38));
        let later = sum.since(all[&1]);
        assert_eq!((later.total_ns(), later.steal_ns), (36, 8));
        assert_eq!(all[&1].since(sum), CpuTimes::default(), "idle time may go back");
    }

    #[test]
    fn this_kernel_s_are_read() {
        let all = CpuTimes::read().expect("procfs");
        assert!(all.values().any(|it| it.user_ns > 0), "{all:?}");
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "(cpu[0-9]{0,22}|[0-9]{0,25}| |\n|\\PC){0,60}", ticks: u64) {
            let _ = CpuTimes::parse(&text, ticks);
        }
    }
}
